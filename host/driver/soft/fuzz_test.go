package soft

import (
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/drivertest"
)

var writeSeeds = flag.Bool("write-seeds", false, "write the seeds of FuzzOperations into testdata")

// FuzzOperations gives a session records as a guest could send them, one behind the other.
func FuzzOperations(f *testing.F) {
	f.Fuzz(func(t *testing.T, records []byte) {
		host := &sharingHost{Host: drivertest.NewHost()}
		host.OnCallBack = func(uint64, cuda.Result) {}
		defer host.close()
		s, err := New().Open(host, driver.Options{MemoryLimit: 16 << 20, Cores: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}()
		var d wire.Dispatcher
		le := binary.LittleEndian
		for n := 0; len(records) >= wire.RecordSize && n < 64; n++ {
			size := max(wire.RecordSize, min(int(le.Uint32(records)), len(records)))
			c := wire.Call{Op: wire.Op(le.Uint16(records[4:])), Ctx: le.Uint32(records[16:]), Thread: le.Uint32(records[20:]), Seq: 1, Replier: silent{}}
			if _, _, err := d.Dispatch(s, &c, records[:size], nil); err != nil {
				return // the worker ends the session
			}
			records = records[size:]
		}
	})
}

// silent takes answers.
type silent struct{}

func (silent) Reply(_, _ uint32, _ cuda.Result, _ []byte) {}
func (silent) GPUDone(uint32) (uintptr, bool)             { return 0, false }
func (silent) WakeSlot(_, _ uint32)                       {}

// sharingHost is a host whose session shares with itself: its nth offer, from 1, has the token n,
// 0, 0, ...
type sharingHost struct {
	*drivertest.Host
	blobs [][]byte
	files []int
	open  int // redeemed, and not let go of
}

func (h *sharingHost) Offer(o driver.Shared) (t driver.ShareToken, err error) {
	blob, file := o.Blob, o.File
	if file >= 0 {
		if file, err = unix.Dup(file); err != nil {
			return t, err
		}
	}
	h.blobs, h.files = append(h.blobs, blob), append(h.files, file)
	t[0] = byte(len(h.blobs))
	return t, nil
}

func (h *sharingHost) OfferAgain(driver.ShareToken, driver.Shared) error { return nil }

func (h *sharingHost) LetGo(driver.ShareToken) { h.open-- }

func (h *sharingHost) Redeem(t driver.ShareToken) ([]byte, int, error) {
	n := int(t[0]) - 1
	if n < 0 || n >= len(h.blobs) {
		return nil, -1, driver.ErrNotShared
	}
	h.open++
	if h.files[n] < 0 {
		return h.blobs[n], -1, nil
	}
	file, err := unix.Dup(h.files[n])
	return h.blobs[n], file, err
}

func (h *sharingHost) Withdraw(driver.ShareToken) {}

func (h *sharingHost) close() {
	for _, f := range h.files {
		if f >= 0 {
			_ = unix.Close(f)
		}
	}
}

// seeds are small guests.
func seeds(t *testing.T) map[string][]byte {
	const ctx, mod, fn, st, ev, lib, kern, pool, first = 16, 17, 18, 19, 20, 21, 22, 23, arenaBase
	list := map[string][]wire.Args{
		"memory": {
			&wire.MemAllocArgs{Size: 4096}, &wire.MemcpyHtoDArgs{Dst: first, Stream: 1, Src: []byte("bytes")},
			&wire.MemsetArgs{Dst: first, Pitch: 64, Value: 7, Element: 2, Width: 8, Height: 4, Stream: 1},
			&wire.Memcpy3DArgs{Src: first, SrcPitch: 64, SrcHeight: 4, Dst: first + 2048, DstPitch: 32, DstHeight: 4, Width: 16, Height: 4, Depth: 2, Stream: 1},
			&wire.MemcpyDtoHArgs{Src: first, Size: 64, Stream: 1}, &wire.MemAllocPitchArgs{Width: 100, Height: 10, Element: 4},
			&wire.PointerGetAttributeArgs{Attr: 11, Ptr: first + 5}, &wire.MemGetInfoArgs{}, &wire.MemFreeArgs{Ptr: first},
		},
		"streams": {
			&wire.StreamCreateArgs{Stream: st}, &wire.EventCreateArgs{Event: ev}, &wire.MemAllocArgs{Size: 64},
			&wire.StreamWaitValueArgs{Stream: st, Addr: first, Value: 1, Width: 4, Flags: 1}, &wire.EventRecordArgs{Event: ev, Stream: st},
			&wire.StreamWaitEventArgs{Stream: 2, Event: ev}, &wire.MemsetArgs{Dst: first, Element: 1, Width: 64, Height: 1, Stream: 2},
			&wire.StreamSynchronizeArgs{Stream: 2}, &wire.StreamWriteValueArgs{Stream: 1, Addr: first, Value: 1, Width: 4},
			&wire.EventSynchronizeArgs{Event: ev}, &wire.EventElapsedTimeArgs{Start: ev, End: ev}, &wire.CtxSynchronizeArgs{}, &wire.StreamDestroyArgs{Stream: st},
		},
		"launches": {
			&wire.ModuleLoadArgs{Module: mod, ErrCap: 100, Options: make([]byte, 16), Image: []byte(testPTX)},
			&wire.ModuleGetFunctionArgs{Func: fn, Module: mod, Name: []byte("bump")}, &wire.FuncSetAttributeArgs{Func: fn, Attr: 8, Value: 100},
			&wire.LaunchArgs{Func: fn, Stream: 1, Gx: 2, Gy: 1, Gz: 1, Bx: 32, By: 1, Bz: 1, Shared: 50, Params: make([]byte, 8), Attrs: attribute(2, 1)},
			&wire.OccupancyMaxActiveBlocksArgs{Func: fn, Block: 64}, &wire.OccupancyMaxActiveClustersArgs{Func: fn, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1},
			&wire.OccupancyAvailableDynamicSMemArgs{Func: fn, Blocks: 1, Block: 32},
			&wire.ModuleGetGlobalArgs{Module: mod, Name: []byte("counter")}, &wire.CtxSynchronizeArgs{}, &wire.ModuleUnloadArgs{Module: mod},
		},
		"libraries": {
			&wire.LibraryLoadArgs{Library: lib, Image: container(stored(1, 75, ptxFor("75")))}, &wire.LibraryListKernelsArgs{Library: lib},
			&wire.LibraryGetKernelArgs{Library: lib, Kernel: kern, Name: []byte("of75")}, &wire.KernelGetFunctionArgs{Func: fn, Kernel: kern},
			&wire.LibraryGetModuleArgs{Module: mod, Library: lib}, &wire.LaunchArgs{Func: kern, Stream: 2, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1},
			&wire.FuncGetModuleArgs{Module: mod + 100, Func: fn}, &wire.LibraryUnloadArgs{Library: lib},
		},
		"contexts": {
			&wire.CtxCreateArgs{Ctx: ctx + 50}, &wire.CtxSetLimitArgs{Value: 4096}, &wire.CtxGetLimitArgs{}, &wire.PrimaryCtxResetArgs{Ctx: ctx},
			&wire.CtxDestroyArgs{Ctx: ctx + 50}, &wire.PoolGetDefaultArgs{Pool: pool}, &wire.PoolSetAttributeArgs{Pool: pool, Attr: 4, Value: 9},
			&wire.MemAllocAsyncArgs{Size: 100, Stream: 1}, &wire.MemFreeAsyncArgs{Ptr: first, Stream: 1}, &wire.PoolGetAttributeArgs{Pool: pool, Attr: 8},
			&wire.PrimaryCtxReleaseArgs{Ctx: ctx},
		},
	}
	maps.Copy(list, graphSeeds())
	maps.Copy(list, memorySeeds())
	out := map[string][]byte{}
	for name, args := range list {
		start := []wire.Args{
			&wire.SessionInitArgs{Version: wire.ProtocolVersion, Env: []byte("CUDA_VISIBLE_DEVICES=0\x00")}, &wire.PrimaryCtxRetainArgs{Ctx: ctx},
		}
		var b []byte
		for _, a := range append(start, args...) {
			rec, err := wire.AppendRecord(nil, wire.Header{Ctx: ctx, Thread: 1}, a)
			if err != nil {
				t.Fatal(err)
			}
			b = append(b, rec...)
		}
		out[name] = b
	}
	return out
}

// TestSeeds holds the committed seeds against what they are made from.
func TestSeeds(t *testing.T) {
	dir := filepath.Join("testdata", "fuzz", "FuzzOperations")
	for name, b := range seeds(t) {
		path, want := filepath.Join(dir, name), fmt.Sprintf("go test fuzz v1\n[]byte(%q)\n", b)
		if *writeSeeds {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile(path); err != nil || string(have) != want {
			t.Errorf("seed %s is not current (%v): run go test -run TestSeeds -write-seeds", name, err)
		}
	}
}

package cuda

import (
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// FuzzOperations gives a session on a driver that knows what it may touch records as a guest could
// send them, one behind the other: every range of memory that reaches the driver is the guest's or
// the call's own, every object lives, and nothing that the records say may make the worker read or
// write where it must not. Its seeds are those of the software GPU, and copies of every form.
func FuzzOperations(f *testing.F) {
	dir := filepath.Join("..", "soft", "testdata", "fuzz", "FuzzOperations")
	list, err := os.ReadDir(dir)
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range list {
		f.Add(seed(f, filepath.Join(dir, e.Name())))
	}
	drv, regions := bind.New(cudatest.Living), guestRegions(f)
	f.Add(recordsOf(f, copies()...))
	f.Add(recordsOf(f, wrongCopies()...))
	f.Fuzz(func(t *testing.T, records []byte) {
		cudatest.RestartLiving()
		host := drivertest.NewHost()
		host.Regions = maps.Clone(regions)
		s := agreeing(t, drv, host)
		var d wire.Dispatcher
		le := binary.LittleEndian
		for n := 0; len(records) >= wire.RecordSize && n < 64; n++ {
			size := max(wire.RecordSize, min(int(le.Uint32(records)), len(records)))
			c := wire.Call{Op: wire.Op(le.Uint16(records[4:])), Ctx: le.Uint32(records[16:]), Thread: le.Uint32(records[20:]), Seq: 1, Replier: silent{}}
			s.Before(c.Op, false)
			if _, _, err := d.Dispatch(s, &c, records[:size], nil); err != nil {
				return // the worker ends the session
			}
			if found := cudatest.Finding(); found != "" {
				t.Fatalf("%v: %s", c.Op, found)
			}
			if stale := cudatest.Stale(); stale != "" {
				t.Fatalf("%v: %s", c.Op, stale)
			}
			records = records[size:]
			if n := s.budget.Used(); n != s.used+s.pooling.spare {
				t.Fatalf("%d bytes booked after operation %d, for %d in use and %d that pools hold", n, c.Op, s.used, s.pooling.spare)
			}
		}
	})
}

// agreeing is a session on a driver that agrees to everything, until the test ends.
func agreeing(t *testing.T, d *bind.Driver, host *drivertest.Host) *session {
	runtime.LockOSThread() // the worker goroutine
	host.OnCallBack = func(uint64, cuda.Result) {}
	s := newSession(d, host, driver.Options{MemoryLimit: 1 << 30})
	s.warm = &warmth{version: 13000, devices: make([]deviceInfo, 2)}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		s.letGo(func(uint32) bool { return true }) // otherwise the end of the process does
		runtime.UnlockOSThread()
	})
	return s
}

// TestImagesStay: the image of a library stays held when managed variables put another in its
// place, and goes with it. Pins that are lost end the process at a garbage collection.
func TestImagesStay(t *testing.T) {
	// Whatever is unloaded is counted.
	drv := agreeingDriver(map[string]uint64{"cuLibraryUnload": cudatest.Busy("cuMemFree_v2")})
	host := drivertest.NewHost()
	host.Regions[1] = driver.Region{ID: 1, Kind: wire.RegionPinned, VA: 0x6a0000000000, Size: 4096, Mem: make([]byte, 4096)}
	s := agreeing(t, drv, host)
	container := make([]byte, 32) // without entries, and with more behind it
	copy(container, "\x50\xed\x55\xba\x01\x00\x10\x00")
	c, id := &wire.Call{}, uint32(5)
	if res := s.LibraryLoad(c, &wire.LibraryLoadArgs{Library: id, Image: container}, &wire.LibraryLoadReply{}); res != cuda.Success {
		t.Fatal(res)
	}
	if im, _ := s.images.get(id); !im.Pinned() {
		t.Fatal("the container is not pinned")
	}
	text := []byte(".version 6.4\n.target sm_75\n.address_size 64\n.global .attribute(.managed) .align 4 .u32 x = 5;\n")
	s.keepSource(owner{lib: true, id: id}, codeTraits(text, fatbin.PTX).managed, nil)
	var r wire.LibraryManageReply
	if res := s.LibraryManage(c, &wire.LibraryManageArgs{Library: id, Region: 1}, &r); res != cuda.Success || r.Size == 0 {
		t.Fatal(res, r.Size)
	}
	for range 3 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond) // finalizers run
	}
	if len(s.retired) != 1 {
		t.Errorf("%d images are held for the driver", len(s.retired))
	}
	cudatest.SetBusy(0)
	if res := s.LibraryUnload(c, &wire.LibraryUnloadArgs{Library: id}); res != cuda.Success {
		t.Fatal(res)
	}
	if _, unloaded, _ := cudatest.BusyCounts(); unloaded != 2 || len(s.retired) != 0 || len(s.images.m) != 0 {
		t.Errorf("of a library that another took the place of %d are unloaded; %d images are held", unloaded, len(s.retired)+len(s.images.m))
	}
}

// silent takes answers.
type silent struct{}

func (silent) Reply(_, _ uint32, _ cuda.Result, _ []byte) {}
func (silent) GPUDone(uint32) (uintptr, bool)             { return 0, false }
func (silent) WakeSlot(_, _ uint32)                       {}

// seed reads a seed file that holds one argument.
func seed(f *testing.F, path string) []byte {
	f.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "[]byte(")
	s, err := strconv.Unquote(strings.TrimSuffix(strings.TrimSpace(text), ")"))
	if err != nil {
		f.Fatalf("%s: %v", path, err)
	}
	return []byte(s)
}

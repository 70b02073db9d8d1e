package soft

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

type saved struct {
	addr  uint64
	bytes []byte
}

// TestRebuild makes a session's objects again in another one, at the same addresses, from what a
// worker records.
func TestRebuild(t *testing.T) {
	old := newRig(t, driver.Options{})
	lib, kern := old.id(), old.id()
	loadCall := old.call(wire.OpLibraryLoad)
	load := wire.LibraryLoadArgs{Library: lib, Image: []byte(testPTX)}
	old.ok(old.s.LibraryLoad(loadCall, &load, new(wire.LibraryLoadReply)))
	get := wire.LibraryGetKernelArgs{Library: lib, Kernel: kern, Name: []byte("bump")}
	old.ok(old.s.LibraryGetKernel(old.call(wire.OpLibraryGetKernel), &get, new(wire.LibraryGetKernelReply)))
	gap := old.alloc(12345)
	allocCall := old.call(wire.OpMemAlloc)
	var mem wire.MemAllocReply
	old.ok(old.s.MemAlloc(allocCall, &wire.MemAllocArgs{Size: 5 << 20}, &mem))
	old.ok(old.freeMem(gap))
	old.ok(old.set(mem.Ptr, 42, 5<<18, 1))
	old.ok(old.launch(kern, 1, 3, 1))
	var counter wire.LibraryGetGlobalReply
	old.ok(old.s.LibraryGetGlobal(old.call(wire.OpLibraryGetGlobal), &wire.LibraryGetGlobalArgs{Library: lib, Name: []byte("counter")}, &counter))
	if err := old.s.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	var memory []saved
	if err := old.s.ExportMemory(func(addr, size uint64, r io.Reader) error {
		b, err := io.ReadAll(r)
		if uint64(len(b)) != size {
			t.Errorf("%d bytes at %#x, said to be %d", len(b), addr, size)
		}
		memory = append(memory, saved{addr, b})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	old.close()
	if len(memory) != 4 { // three variables, one allocation
		t.Fatalf("%d allocations exported", len(memory))
	}

	r := newRig(t, driver.Options{})
	replay := func(op wire.Op, from *wire.Call) *wire.Call {
		c := r.call(op)
		c.Replay = true
		if from != nil {
			c.Placed = from.Placed
		}
		return c
	}
	r.ok(r.s.LibraryLoad(replay(wire.OpLibraryLoad, loadCall), &load, new(wire.LibraryLoadReply)))
	r.ok(r.s.LibraryGetKernel(replay(wire.OpLibraryGetKernel, nil), &get, new(wire.LibraryGetKernelReply)))
	var again wire.MemAllocReply
	r.ok(r.s.MemAlloc(replay(wire.OpMemAlloc, allocCall), &wire.MemAllocArgs{Size: 5 << 20}, &again))
	if again.Ptr != mem.Ptr {
		t.Fatalf("allocated at %#x, was at %#x", again.Ptr, mem.Ptr)
	}
	for _, m := range memory {
		if err := r.s.ImportMemory(m.addr, uint64(len(m.bytes)), bytes.NewReader(m.bytes)); err != nil {
			t.Fatal(err)
		}
	}
	if v := r.word32(mem.Ptr + 5<<20 - 4); v != 42 {
		t.Errorf("memory holds %d", v)
	}
	r.ok(r.launch(kern, 1, 1, 1))
	if v := r.word32(counter.Ptr); v != 7+4*5 {
		t.Errorf("counter is %d", v)
	}
	for _, bad := range []saved{{mem.Ptr + 8, make([]byte, 8)}, {mem.Ptr, make([]byte, 8)}, {16, nil}} {
		if r.s.ImportMemory(bad.addr, uint64(len(bad.bytes)), bytes.NewReader(bad.bytes)) == nil {
			t.Errorf("import of %d bytes at %#x succeeds", len(bad.bytes), bad.addr)
		}
	}
	taken := r.call(wire.OpMemAlloc)
	taken.Replay, taken.Placed = true, []uint64{mem.Ptr + 512}
	r.want(r.s.MemAlloc(taken, &wire.MemAllocArgs{Size: 4}, &again), cuda.ErrorOutOfMemory, "replay at an address in use")
}

func TestQuiesceGivesUp(t *testing.T) {
	r := newRig(t, driver.Options{})
	r.ok(r.launch(r.kernels()("forever"), 1, 1, 1))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := r.s.Quiesce(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("quiesce under a running kernel: %v", err)
	}
}

// TestExportRunning: allocations that come and go while they are read are whole, or said to be
// gone.
func TestExportRunning(t *testing.T) {
	r := newRig(t, driver.Options{})
	stay := r.alloc(3 << 20)
	r.ok(r.set(stay, 7, 3<<18, 1))
	if err := r.s.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		gone := 0
		defer func() { done <- gone }()
		for {
			found := false
			err := r.s.ExportRunning(func(addr, size uint64, from io.Reader) error {
				b, err := io.ReadAll(from)
				if errors.Is(err, driver.ErrGone) {
					gone++
					return nil
				}
				if err != nil || uint64(len(b)) != size {
					t.Errorf("%d bytes of %d at %#x: %v", len(b), size, addr, err)
				}
				if addr == stay {
					found = bytes.Count(b, []byte{7, 0, 0, 0}) == len(b)/4
				}
				return nil
			})
			if err != nil || !found {
				t.Errorf("what stays was not exported: %v", err)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	for range 300 {
		r.ok(r.freeMem(r.alloc(4 << 20)))
	}
	close(stop)
	t.Logf("%d were gone", <-done)
}

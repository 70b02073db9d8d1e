package worker

import (
	"bytes"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/schedule/memory"
	"causeway/remote/sys"
)

// onHost is a request for memory on the host.
func onHost(id wire.ID, size uint64) wire.Args {
	return &wire.MemCreateArgs{Memhandle: id, Size: size, Place: wire.MemOnHost}
}

// TestMemoryOnHostBudget: what lies on the host for lack of room at the GPU is of the budget of the
// host's memory. What is refused takes nothing of it, and what ends is free again.
func TestMemoryOnHostBudget(t *testing.T) {
	const most, each = 64 << 20, 20 << 20
	s := newSoft(t)
	s.w.host.limit = most
	before := s.w.host.used
	for i := range wire.ID(3) {
		s.want(cuda.Success, onHost(softFirst+i, each), nil)
	}
	s.want(cuda.ErrorOutOfMemory, onHost(softFirst+9, each), nil)
	s.want(cuda.ErrorOutOfMemory, onHost(softFirst+9, 1<<62), nil)
	s.want(cuda.ErrorInvalidValue, &wire.MemCreateArgs{Memhandle: softFirst + 9, Size: 2 << 20, Handles: 1, Place: wire.MemOnHost}, nil)
	s.want(cuda.ErrorInvalidHandle, onHost(softFirst, 2<<20), nil)
	s.must(softCtx, &wire.MemReleaseArgs{Memhandle: softFirst + 1})
	s.want(cuda.Success, onHost(softFirst+1, each), nil)
	s.want(cuda.ErrorOutOfMemory, onHost(softFirst+9, each), nil)
	for i := range wire.ID(3) {
		s.must(softCtx, &wire.MemReleaseArgs{Memhandle: softFirst + i})
	}
	s.want(cuda.Success, onHost(softFirst+9, 3*each), nil)
	s.must(softCtx, &wire.MemReleaseArgs{Memhandle: softFirst + 9})
	if after := s.w.host.used; after != before {
		t.Errorf("%d bytes are booked at the end, %d at first", after, before)
	}
}

// TestMemoryOnHostOfVirtualGPU: sessions of a VM's virtual GPU have no more of it between them than
// the VM has memory, whatever else of the host's memory they may have; what is refused for one
// budget is in no other, and what ends is free for all.
func TestMemoryOnHostOfVirtualGPU(t *testing.T) {
	const most, own, each = 200 << 20, 64 << 20, 20 << 20
	page, err := memory.New(most)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	page.SetPart(own)
	mem, err := sys.MapPage(page.File(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.UnmapPage(mem)
	member := func() *memory.Budget {
		slot, err := page.Take()
		if err != nil {
			t.Fatal(err)
		}
		b, err := memory.Open(mem, slot, 0)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	s, other := newSoft(t), member()
	s.w.host.all = member()
	s.want(cuda.Success, onHost(softFirst, each), nil)
	for _, room := range []bool{true, true, false} {
		if other.ReservePart(each) != room {
			t.Error("another session does not have the rest")
		}
	}
	s.want(cuda.ErrorOutOfMemory, onHost(softFirst+1, each), nil)
	s.want(cuda.Success, onHost(softFirst+1, 4<<20), nil)
	other.ReleasePart(each)
	s.want(cuda.ErrorInvalidHandle, onHost(softFirst, each), nil) // by the driver
	s.w.host.limit = s.w.host.used + each/2
	s.want(cuda.ErrorOutOfMemory, onHost(softFirst+2, each), nil) // for its own budget
	s.w.host.limit = 0
	s.want(cuda.Success, onHost(softFirst+2, each), nil)
	if other.ReservePart(1) {
		t.Error("another session has more than there is")
	}
	s.must(softCtx, &wire.MemReleaseArgs{Memhandle: softFirst + 2})
	if !other.ReservePart(each) || other.ReservePart(1) {
		t.Error("another session does not have what was released, or more")
	}
	page.SetPart(0) // no VM's
	s.want(cuda.Success, onHost(softFirst+3, each), nil)
}

// TestMemoryOnHostMoves: it moves with its bytes, and is in the new process's books until it is
// released there.
func TestMemoryOnHostMoves(t *testing.T) {
	const size, resv, mem, mapping = 8 << 20, softFirst, softFirst + 1, softFirst + 2
	s := newSoft(t)
	var at wire.MemAddressReserveReply
	s.want(cuda.Success, &wire.MemAddressReserveArgs{Resv: resv, Size: size}, &at)
	s.must(softCtx, onHost(mem, size), &wire.MemMapArgs{Mapping: mapping, Resv: resv, Memhandle: mem, Ptr: at.Ptr, Size: size},
		&wire.MemSetAccessArgs{Mapping: mapping, Flags: 3})
	text := []byte("on another host soon")
	s.must(softCtx, &wire.MemcpyHtoDArgs{Dst: at.Ptr + size/2 + 77, Stream: softStream, Src: text})
	n := s.moved()
	n.want(cuda.Success, &wire.MemcpyArgs{Dst: at.Ptr, Src: at.Ptr + size/2, Size: 4096, Stream: softStream}, nil)
	n.sync()
	var got wire.MemcpyDtoHReply
	n.want(cuda.Success, &wire.MemcpyDtoHArgs{Src: at.Ptr + 77, Size: uint32(len(text)), Stream: softStream}, &got)
	if !bytes.Equal(got.Dst, text) {
		t.Errorf("after the move: %q", got.Dst)
	}
	held := n.w.host.used
	n.must(softCtx, &wire.MemUnmapArgs{Mapping: mapping}, &wire.MemReleaseArgs{Memhandle: mem})
	if freed := held - n.w.host.used; freed < size || freed > size+4096 {
		t.Errorf("releasing %d bytes gives %d of %d back", size, freed, held)
	}
}

// TestMemoryIfRoom: memory of the device that is asked for if there is room is the device's, moves
// as such, and is refused as other memory is; but that counts as no failure of the program's, which
// has other memory then. What is refused of that does, and so does the next request in the slot.
func TestMemoryIfRoom(t *testing.T) {
	const room, each = 32 << 20, 20 << 20
	s := openSoft(t, driver.Options{MemoryLimit: room})
	count, page := countingTo(t)
	s.w.count = *count
	s.start()
	ifRoom := func(id wire.ID) wire.Args {
		return &wire.MemCreateArgs{Memhandle: id, Size: each, Place: wire.MemIfRoom}
	}
	counted := func(failed, memory uint64) {
		t.Helper()
		if c := page.Counters(); c.FailedCalls != failed || c.OutOfMemory != memory {
			t.Errorf("%d failures are counted, %d of them for lack of memory; want %d, %d", c.FailedCalls, c.OutOfMemory, failed, memory)
		}
	}
	s.want(cuda.Success, ifRoom(softFirst), nil)
	s.want(cuda.ErrorOutOfMemory, ifRoom(softFirst+1), nil)
	counted(0, 0)
	s.want(cuda.ErrorOutOfMemory, &wire.MemCreateArgs{Memhandle: softFirst + 1, Size: each}, nil)
	counted(1, 1)
	s.want(cuda.ErrorInvalidHandle, ifRoom(softFirst), nil) // an id that is in use
	counted(2, 1)
	s.w.host.limit = s.w.host.used + each/2
	s.want(cuda.ErrorOutOfMemory, onHost(softFirst+1, each), nil)
	counted(3, 2)
	n := s.moved()
	n.must(softCtx, &wire.MemReleaseArgs{Memhandle: softFirst})
	n.want(cuda.Success, ifRoom(softFirst+1), nil)
}

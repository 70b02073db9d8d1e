package worker

import (
	"bytes"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// onHost is a request for memory on the host.
func onHost(id wire.ID, size uint64) wire.Args {
	return &wire.MemCreateArgs{Memhandle: id, Size: size, Place: wire.MemOnHost}
}

// TestMemoryOnHostBudget: what lies on the host for lack of room at the GPU is of the budget of the host's memory. What is refused takes nothing of it, and
// what ends is free again.
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

// TestMemoryOnHostMoves: it moves with its bytes, and is in the new process's books until it is released there.
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

// TestMemoryIfRoom: memory of the device that is asked for if there is room is the device's, moves as such, and is refused as other memory is; but that counts as
// no failure of the program's, which has other memory then. What is refused of that does, and so does the next request in the slot.
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

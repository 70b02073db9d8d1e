package cuda

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// movingSession is a session with a context on a driver whose copies are made at once, and pinned memory in region 5.
func movingSession(t *testing.T) (s *session, pinned, device buffer) {
	l := &lib{}
	fill(reflect.ValueOf(&l.fn).Elem())
	f := &l.fn
	f.cuMemAlloc_v2 = entry(cudatest.Moving("cuMemAlloc_v2"))
	f.cuMemcpyAsync = entry(cudatest.Moving("cuMemcpyAsync"))
	f.cuMemcpyHtoDAsync_v2, f.cuMemcpyDtoHAsync_v2 = f.cuMemcpyAsync, f.cuMemcpyAsync
	f.cuMemcpyBatchAsync_v2 = entry(cudatest.Moving("cuMemcpyBatchAsync_v2"))
	f.cuStreamWriteValue32_v2 = entry(cudatest.Moving("cuStreamWriteValue32_v2"))
	f.cuPointerGetAttribute = entry(cudatest.Moving("cuPointerGetAttribute"))
	host := drivertest.NewHost()
	s = agreeing(t, l, host)
	pinned, device = newBuffer(1<<20), newBuffer(1<<20) // for the length of the process: copies may still be looked at
	host.Regions[0] = driver.Region{ID: 0, Kind: wire.RegionStaging, Mem: newBuffer(4096).bytes()}
	if res := s.CtxCreate(&wire.Call{Replier: silent{}}, &wire.CtxCreateArgs{Ctx: 16}); res != cuda.Success {
		t.Fatal(res)
	}
	host.Regions[5] = driver.Region{ID: 5, Kind: wire.RegionPinned, VA: pinned.addr(), Size: uint64(pinned.size), Mem: pinned.bytes()}
	if _, res := s.register(host.Regions[5]); res != cuda.Success {
		t.Fatal(res)
	}
	return s, pinned, device
}

// TestAnswersBehindCopies: copies that are waited for bring their bytes and then the answer with its number, whatever numbers came before
// on the slot, and however many.
func TestAnswersBehindCopies(t *testing.T) {
	s, pinned, device := movingSession(t)
	words := newBuffer(4 * wire.SlotCount)
	tables := 0
	for n, seq := range []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 4095, 4096, 4097, 8191, 8192, 70000, 70001, 1 << 31, 1<<32 - 1, 1, 2} {
		for slot := range uint32(3) {
			c := &wire.Call{Ctx: 16, Slot: slot, Seq: seq + slot, Replier: replier(words.addr() + 4*uint64(slot))}
			if seq+slot == 0 {
				continue // no call has this number
			}
			size := uint64(1 + n*517)
			for i := range size {
				device.bytes()[i] = byte(i*7 + uint64(n))
			}
			a := wire.MemcpyWaitArgs{Dst: pinned.addr(), Src: device.addr(), Size: size, Stream: wire.StreamLegacy}
			if res := s.MemcpyWait(c, &a); res != cuda.Success || !c.Taken() {
				t.Fatal(res, c.Taken())
			}
			if got := *words.i32(int(slot)); uint32(got) != seq+slot {
				t.Fatalf("slot %d is answered with %#x, want %#x", slot, got, seq+slot)
			}
			if !bytes.Equal(pinned.bytes()[:size], device.bytes()[:size]) {
				t.Fatalf("bytes of copy %d", n)
			}
		}
		tables = 0
		ctx, _ := s.ctxs.get(16)
		for i := range ctx.answers {
			if ctx.answers[i].table != 0 {
				tables++
			}
		}
		if want := map[bool]int{true: 3}[n+1 >= answersFrom]; tables != want {
			t.Fatalf("%d tables after %d copies", tables, n+1)
		}
	}
}

// answered is a slot that says when the worker answers it.
type answered struct {
	replier
	ended chan struct{}
}

func (a answered) Reply(slot, seq uint32, res cuda.Result, payload []byte) { a.ended <- struct{}{} }

// TestPromptBytes: the bytes of a small copy out of pinned memory are taken at once only if nothing can be under way that writes them.
func TestPromptBytes(t *testing.T) {
	s, pinned, device := movingSession(t)
	word := newBuffer(4)
	other := &stream{handle: 77, ctx: 16}
	s.streams.put(40, other)
	for i, size := range []uint64{4, promptBytes, promptBytes + 1, 4, 4, 4, 4} {
		binary.LittleEndian.PutUint32(pinned.bytes(), uint32(i+1))
		if s.inline.p != nil {
			clear(s.inline.bytes()[:4])
		}
		switch i {
		case 4: // work that is not known to be done
			st, _ := s.stream(&wire.Call{Ctx: 16}, wire.StreamLegacy)
			st.submitted++
		case 5: // nor that of a stream which this one waits for; the last copy says of it too that it is
			other.submitted++
		}
		ended := make(chan struct{}, 1)
		c := &wire.Call{Ctx: 16, Seq: uint32(i + 1), Replier: answered{replier(word.addr()), ended}}
		if res := s.MemcpyWait(c, &wire.MemcpyWaitArgs{Dst: device.addr(), Src: pinned.addr(), Size: size, Stream: wire.StreamLegacy}); res != cuda.Success {
			t.Fatal(res)
		}
		if i == 5 { // on a thread of its own; then the program waits for everything
			<-ended
			if other.busy() {
				t.Error("a stream is busy whose work was waited for")
			}
		}
		if got := binary.LittleEndian.Uint32(device.bytes()); got != uint32(i+1) {
			t.Errorf("copy %d brought %d", i, got)
		}
		prompt := s.inline.p != nil && *s.inline.i32(0) == int32(i+1)
		if want := size <= promptBytes && i != 4 && i != 5; prompt != want {
			t.Errorf("copy %d of %d bytes: taken at once: %v", i, size, prompt)
		}
	}
}

// TestBatch: pieces arrive, of one memory and of several; one that leaves pinned memory, or is no piece, stops the batch.
func TestBatch(t *testing.T) {
	s, pinned, device := movingSession(t)
	le := binary.LittleEndian
	const n, size = 100, 48
	var pieces []byte
	for i := range n {
		copy(pinned.bytes()[i*size:], bytes.Repeat([]byte{byte(i + 1)}, size))
		pieces = le.AppendUint64(pieces, device.addr()+uint64(i*7%n)*size)
		pieces = le.AppendUint64(pieces, pinned.addr()+uint64(i)*size)
		pieces = le.AppendUint64(pieces, size)
	}
	c := &wire.Call{Ctx: 16, Replier: silent{}}
	do := func(p []byte) cuda.Result {
		return s.MemcpyBatch(c, &wire.MemcpyBatchArgs{Stream: wire.StreamLegacy, Order: 1, Pieces: p})
	}
	if res := do(pieces); res != cuda.Success {
		t.Fatal(res)
	}
	for i := range n {
		if !bytes.Equal(device.bytes()[i*7%n*size:][:size], bytes.Repeat([]byte{byte(i + 1)}, size)) {
			t.Fatalf("piece %d", i)
		}
	}
	if res := do(pieces[:len(pieces)-1]); res != cuda.ErrorInvalidValue {
		t.Errorf("a part of a piece: %v", res)
	}
	le.PutUint64(pieces[8:], pinned.addr()+uint64(pinned.size)-size+1)
	if res := do(pieces); res != cuda.ErrorInvalidValue {
		t.Errorf("beyond pinned memory: %v", res)
	}
	if s.unregister(5); s.pinnedAt(pinned.addr()) != nil {
		t.Error("a region that was let go of counts as pinned")
	}
}

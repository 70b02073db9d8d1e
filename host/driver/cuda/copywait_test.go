package cuda

import (
	"bytes"
	"encoding/binary"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// movingSession is a session with a context on a driver whose copies are made at once, and pinned
// memory in region 5.
func movingSession(t *testing.T) (s *session, pinned, device bind.Buffer) {
	others := map[string]uint64{}
	for _, name := range []string{"cuMemAlloc_v2", "cuMemcpyAsync", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyBatchAsync_v2",
		"cuStreamWriteValue32_v2", "cuPointerGetAttribute"} {
		others[name] = cudatest.Moving(name)
	}
	host := drivertest.NewHost()
	s = agreeing(t, agreeingDriver(others), host)
	// For the length of the process: copies may still be looked at.
	pinned, device = bind.NewBuffer(1<<20), bind.NewBuffer(1<<20)
	host.Regions[0] = driver.Region{ID: 0, Kind: wire.RegionStaging, Mem: bind.NewBuffer(4096).Bytes()}
	if res := s.CtxCreate(&wire.Call{Replier: silent{}}, &wire.CtxCreateArgs{Ctx: 16}); res != cuda.Success {
		t.Fatal(res)
	}
	s.regions[0] = everywhere() // the slots of tests lie anywhere
	host.Regions[5] = driver.Region{ID: 5, Kind: wire.RegionPinned, VA: at(pinned), Size: uint64(len(pinned.Bytes())), Mem: pinned.Bytes()}
	if _, res := s.register(host.Regions[5]); res != cuda.Success {
		t.Fatal(res)
	}
	return s, pinned, device
}

// TestAnswersBehindCopies: copies that are waited for bring their bytes and then the answer with
// its number, whatever numbers came before on the slot, and however many.
func TestAnswersBehindCopies(t *testing.T) {
	s, pinned, device := movingSession(t)
	words := bind.NewBuffer(4 * wire.SlotCount)
	tables := 0
	for n, seq := range []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 4095, 4096, 4097, 8191, 8192, 70000, 70001, 1 << 31, 1<<32 - 1, 1, 2} {
		for slot := range uint32(3) {
			c := &wire.Call{Ctx: 16, Slot: slot, Seq: seq + slot, Replier: replier(at(words) + 4*uint64(slot))}
			if seq+slot == 0 {
				continue // no call has this number
			}
			size := uint64(1 + n*517)
			for i := range size {
				device.Bytes()[i] = byte(i*7 + uint64(n))
			}
			a := wire.MemcpyWaitArgs{Dst: at(pinned), Src: at(device), Size: size, Stream: wire.StreamLegacy}
			if res := s.MemcpyWait(c, &a); res != cuda.Success || !c.Taken() {
				t.Fatal(res, c.Taken())
			}
			if got := binary.LittleEndian.Uint32(words.Bytes()[4*slot:]); got != seq+slot {
				t.Fatalf("slot %d is answered with %#x, want %#x", slot, got, seq+slot)
			}
			if !bytes.Equal(pinned.Bytes()[:size], device.Bytes()[:size]) {
				t.Fatalf("bytes of copy %d", n)
			}
		}
		tables = 0
		ctx, _ := s.ctxs.get(16)
		for i := range ctx.answers {
			if !ctx.answers[i].table.IsZero() {
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

// TestPromptBytes: the bytes of a small copy out of pinned memory are taken at once only if nothing
// can be under way that writes them.
func TestPromptBytes(t *testing.T) {
	s, pinned, device := movingSession(t)
	word := bind.NewBuffer(4)
	other := &stream{handle: made[bind.Stream](77), ctx: 16}
	s.streams.put(40, other)
	for i, size := range []uint64{4, promptBytes, promptBytes + 1, 4, 4, 4, 4} {
		binary.LittleEndian.PutUint32(pinned.Bytes(), uint32(i+1))
		if !s.inline.IsZero() {
			clear(s.inline.Bytes()[:4])
		}
		switch i {
		case 4: // work that is not known to be done
			st, _ := s.stream(&wire.Call{Ctx: 16}, wire.StreamLegacy)
			st.submitted++
		case 5:
			// Nor that of a stream which this one waits for; the last copy says of it too that it
			// is.
			other.submitted++
		}
		ended := make(chan struct{}, 1)
		c := &wire.Call{Ctx: 16, Seq: uint32(i + 1), Replier: answered{replier(at(word)), ended}}
		if res := s.MemcpyWait(c, &wire.MemcpyWaitArgs{Dst: at(device), Src: at(pinned), Size: size, Stream: wire.StreamLegacy}); res != cuda.Success {
			t.Fatal(res)
		}
		if i == 5 { // on a thread of its own; then the program waits for everything
			<-ended
			if other.busy() {
				t.Error("a stream is busy whose work was waited for")
			}
		}
		if got := binary.LittleEndian.Uint32(device.Bytes()); got != uint32(i+1) {
			t.Errorf("copy %d brought %d", i, got)
		}
		prompt := !s.inline.IsZero() && binary.LittleEndian.Uint32(s.inline.Bytes()) == uint32(i+1)
		if want := size <= promptBytes && i != 4 && i != 5; prompt != want {
			t.Errorf("copy %d of %d bytes: taken at once: %v", i, size, prompt)
		}
	}
}

// TestBatch: pieces arrive, of one memory and of several; one that leaves pinned memory, or is no
// piece, stops the batch.
func TestBatch(t *testing.T) {
	s, pinned, device := movingSession(t)
	le := binary.LittleEndian
	const n, size = 100, 48
	var pieces []byte
	for i := range n {
		copy(pinned.Bytes()[i*size:], bytes.Repeat([]byte{byte(i + 1)}, size))
		pieces = le.AppendUint64(pieces, at(device)+uint64(i*7%n)*size)
		pieces = le.AppendUint64(pieces, at(pinned)+uint64(i)*size)
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
		if !bytes.Equal(device.Bytes()[i*7%n*size:][:size], bytes.Repeat([]byte{byte(i + 1)}, size)) {
			t.Fatalf("piece %d", i)
		}
	}
	if res := do(pieces[:len(pieces)-1]); res != cuda.ErrorInvalidValue {
		t.Errorf("a part of a piece: %v", res)
	}
	le.PutUint64(pieces[8:], at(pinned)+uint64(len(pinned.Bytes()))-size+1)
	if res := do(pieces); res != cuda.ErrorInvalidValue {
		t.Errorf("beyond pinned memory: %v", res)
	}
	if s.unregister(5); s.space.IsPinned(at(pinned)) {
		t.Error("a region that was let go of counts as pinned")
	}
}

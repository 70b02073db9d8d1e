package soft

import (
	"bytes"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// again is an operation that is replayed where it placed memory before.
func (r *rig) again(op wire.Op, placed ...uint64) *wire.Call {
	c := r.call(op)
	c.Replay, c.Placed = true, placed
	return c
}

// TestExpect: memory that came before the operation that allocates it is what that finds; what
// another takes the place of, or nothing, is given back.
func TestExpect(t *testing.T) {
	old := newRig(t, driver.Options{})
	lib := old.id()
	loadCall := old.call(wire.OpLibraryLoad)
	load := wire.LibraryLoadArgs{Library: lib, Image: []byte(testPTX)}
	old.ok(old.s.LibraryLoad(loadCall, &load, new(wire.LibraryLoadReply)))
	var counter wire.LibraryGetGlobalReply
	global := wire.LibraryGetGlobalArgs{Library: lib, Name: []byte("counter")}
	old.ok(old.s.LibraryGetGlobal(old.call(wire.OpLibraryGetGlobal), &global, &counter))
	const size = 5 << 20
	stays, changes, goes, early := old.alloc(size), old.alloc(size), old.alloc(size), old.alloc(size)
	old.close()

	r := newRig(t, driver.Options{MemoryLimit: 5 * size})
	expect := func(addr, n uint64, fill byte) {
		t.Helper()
		if err := r.s.Expect(addr, n); err != nil {
			t.Fatal(err)
		}
		if err := r.s.Fill(addr+n/2, n/4, bytes.NewReader(bytes.Repeat([]byte{fill}, int(n/4)))); err != nil {
			t.Fatal(err)
		}
	}
	expect(counter.Ptr, counter.Size, 3)
	expect(stays, size, 1)
	expect(changes, size, 2)
	expect(goes, size, 3)
	expect(early, size, 4)
	for name, err := range map[string]error{
		"twice":             r.s.Expect(stays, size),
		"over two":          r.s.Expect(stays+size-512, 1024),
		"outside":           r.s.Expect(0x1000, size),
		"past the arenas":   r.s.Expect(arenaBase+arenaSize-512, 1024),
		"nothing":           r.s.Expect(goes+2*size, 0),
		"wraps":             r.s.Expect(^uint64(0)-100, 99),
		"over the limit":    r.s.Expect(early+4*size, 2*size),
		"fill, not there":   r.s.Fill(early+4*size, 1, bytes.NewReader([]byte{1})),
		"fill, past an end": r.s.Fill(stays+size-1, 2, bytes.NewReader([]byte{1, 2})),
		"fill, cut":         r.s.Fill(stays, 2, bytes.NewReader([]byte{1})),
		"zero, not there":   r.s.Zero(early+4*size, 1),
		"forget, a part":    r.s.Forget(early, size-1),
		"landed too early":  r.s.Landed(early, size),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := r.s.Forget(early, size); err != nil {
		t.Error(err)
	}
	expect(early, size, 0)

	r.ok(r.s.LibraryLoad(r.again(wire.OpLibraryLoad, loadCall.Placed...), &load, new(wire.LibraryLoadReply)))
	place := func(at, n uint64) cuda.Result {
		var m wire.MemAllocReply
		res := r.s.MemAlloc(r.again(wire.OpMemAlloc, at), &wire.MemAllocArgs{Size: n}, &m)
		if res == cuda.Success && m.Ptr != at {
			t.Errorf("allocated at %#x, was at %#x", m.Ptr, at)
		}
		return res
	}
	r.ok(place(stays, size))
	r.want(place(stays, size), cuda.ErrorOutOfMemory, "the same once more")
	r.ok(place(changes, size/2))
	for name, err := range map[string]error{"stays": r.s.Landed(stays, size), "variable": r.s.Landed(counter.Ptr, counter.Size)} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r.s.Landed(changes, size) == nil || r.s.Landed(goes, size) == nil {
		t.Error("memory has landed that nothing allocated")
	}
	if err := r.s.Zero(stays, size/2+4); err != nil {
		t.Error(err)
	}
	if err := r.s.Settle(); err != nil {
		t.Error(err)
	}
	if used, _ := r.s.space.usage(); used >= 2*size {
		t.Errorf("%d bytes are in use", used)
	}
	if r.s.Fill(stays, 1, bytes.NewReader([]byte{1})) == nil {
		t.Error("filled after the end")
	}
	var again wire.LibraryGetGlobalReply
	r.ok(r.s.LibraryGetGlobal(r.call(wire.OpLibraryGetGlobal), &global, &again))
	if again.Ptr != counter.Ptr || r.word32(again.Ptr)&0xff0000 != 0x030000 {
		t.Errorf("the variable at %#x holds %#x", again.Ptr, r.word32(again.Ptr))
	}
	for at, want := range map[uint64]uint32{stays + size/2: 0, stays + size/2 + 4: 0x01010101, stays + size*3/4: 0, changes: 0} {
		if v := r.word32(at); v != want {
			t.Errorf("%#x at %#x, not %#x", v, at, want)
		}
	}
	r.ok(place(goes, size))
	if v := r.word32(goes + size/2); v != 0 {
		t.Errorf("what was given back holds %#x", v)
	}
}

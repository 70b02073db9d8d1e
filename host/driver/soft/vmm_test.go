package soft

import (
	"bytes"
	"io"
	"testing"

	"causeway/cuda/wire"
	"causeway/host/driver"
)

// TestRebuildVirtualMemory: reservations, memory and mappings come back at their addresses with
// their contents, memory that is mapped nowhere at the moment, or several times, too.
func TestRebuildVirtualMemory(t *testing.T) {
	const resv, mem, mapping, twice, spare, later = 101, 102, 103, 104, 105, 106
	var base uint64
	build := func(r *rig, placed []uint64) []uint64 {
		call := func(op wire.Op) *wire.Call {
			c := r.call(op)
			c.Replay = placed != nil
			return c
		}
		c := call(wire.OpMemAddressReserve)
		c.Placed = placed
		var reply wire.MemAddressReserveReply
		r.ok(r.s.MemAddressReserve(c, &wire.MemAddressReserveArgs{Resv: resv, Size: 4 * vmmUnit}, &reply))
		base = reply.Ptr
		r.ok(r.s.MemCreate(call(wire.OpMemCreate), &wire.MemCreateArgs{Memhandle: mem, Size: vmmUnit}))
		r.ok(r.s.MemMap(call(wire.OpMemMap), &wire.MemMapArgs{Mapping: mapping, Resv: resv, Memhandle: mem, Ptr: base + vmmUnit, Size: vmmUnit}))
		r.ok(r.s.MemMap(call(wire.OpMemMap), &wire.MemMapArgs{Mapping: twice, Resv: resv, Memhandle: mem, Ptr: base + 2*vmmUnit, Size: vmmUnit}))
		r.ok(r.s.MemSetAccess(call(wire.OpMemSetAccess), &wire.MemSetAccessArgs{Mapping: mapping, Flags: accessReadWrite}))
		r.ok(r.s.MemSetAccess(call(wire.OpMemSetAccess), &wire.MemSetAccessArgs{Mapping: twice, Flags: accessReadWrite}))
		r.ok(r.s.MemCreate(call(wire.OpMemCreate), &wire.MemCreateArgs{Memhandle: spare, Size: 2 * vmmUnit}))
		return c.Placed
	}
	mapSpare := func(r *rig) uint64 {
		r.ok(r.s.MemUnmap(r.call(wire.OpMemUnmap), &wire.MemUnmapArgs{Mapping: twice}))
		r.ok(r.s.MemMap(r.call(wire.OpMemMap), &wire.MemMapArgs{Mapping: later, Resv: resv, Memhandle: spare, Ptr: base + 2*vmmUnit, Size: 2 * vmmUnit}))
		r.ok(r.s.MemSetAccess(r.call(wire.OpMemSetAccess), &wire.MemSetAccessArgs{Mapping: later, Flags: accessReadWrite}))
		return base + 2*vmmUnit
	}
	old := newRig(t, driver.Options{})
	placed := build(old, nil)
	was := base
	old.ok(old.put(base+vmmUnit+100, []byte("mapped"), 1))
	old.ok(old.put(mapSpare(old)+vmmUnit+7, []byte("alone"), 1))
	old.ok(old.s.MemUnmap(old.call(wire.OpMemUnmap), &wire.MemUnmapArgs{Mapping: later}))
	var memory []saved
	if err := old.s.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := old.s.ExportMemory(func(addr, size uint64, r io.Reader) error {
		b, err := io.ReadAll(r)
		memory = append(memory, saved{addr, b})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(memory) != 2 {
		t.Errorf("%d pieces of memory exported, there are 2", len(memory))
	}
	old.close()

	r := newRig(t, driver.Options{})
	build(r, placed)
	if base != was {
		t.Fatalf("reserved %#x, was %#x", base, was)
	}
	for _, m := range memory {
		if err := r.s.ImportMemory(m.addr, uint64(len(m.bytes)), bytes.NewReader(m.bytes)); err != nil {
			t.Fatal(err)
		}
	}
	if m, ok := r.s.space.bytes(base+vmmUnit+100, 6); !ok || string(m) != "mapped" {
		t.Errorf("memory holds %q", m)
	}
	if m, ok := r.s.space.bytes(base+2*vmmUnit+100, 6); !ok || string(m) != "mapped" {
		t.Errorf("memory that is mapped twice holds %q there", m)
	}
	if _, ok := r.s.space.bytes(base, 1); ok {
		t.Error("reserved addresses can be read")
	}
	if m, ok := r.s.space.bytes(mapSpare(r)+vmmUnit+7, 5); !ok || string(m) != "alone" {
		t.Errorf("memory that was mapped nowhere holds %q", m)
	}
	for _, bad := range []saved{{ofPhysical | 999<<physicalBits, make([]byte, vmmUnit)}, {ofPhysical | spare<<physicalBits, make([]byte, vmmUnit)}} {
		if r.s.ImportMemory(bad.addr, uint64(len(bad.bytes)), bytes.NewReader(bad.bytes)) == nil {
			t.Errorf("import of %d bytes as %#x succeeds", len(bad.bytes), bad.addr)
		}
	}
	if r.s.ImportMemory(ofPhysical|spare<<physicalBits, 2*vmmUnit, bytes.NewReader(make([]byte, vmmUnit))) == nil {
		t.Error("half of the memory is all of it")
	}
}

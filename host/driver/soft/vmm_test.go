package soft

import (
	"bytes"
	"io"
	"testing"

	"causeway/cuda/wire"
	"causeway/host/driver"
)

// TestRebuildVirtualMemory: reservations, memory and mappings come back at their addresses with their contents, or the session
// says why it cannot move.
func TestRebuildVirtualMemory(t *testing.T) {
	const resv, mem, mapping, spare = 101, 102, 103, 104
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
		r.ok(r.s.MemSetAccess(call(wire.OpMemSetAccess), &wire.MemSetAccessArgs{Mapping: mapping, Flags: accessReadWrite}))
		return c.Placed
	}
	old := newRig(t, driver.Options{})
	placed := build(old, nil)
	was := base
	old.ok(old.put(base+vmmUnit+100, []byte("mapped"), 1))
	old.ok(old.s.MemCreate(old.call(wire.OpMemCreate), &wire.MemCreateArgs{Memhandle: spare, Size: vmmUnit}))
	var memory []saved
	export := func() error {
		return old.s.ExportMemory(func(addr, size uint64, r io.Reader) error {
			b, err := io.ReadAll(r)
			memory = append(memory, saved{addr, b})
			return err
		})
	}
	if err := old.s.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if export() == nil {
		t.Error("memory that no address names was left behind")
	}
	old.ok(old.s.MemRelease(old.call(wire.OpMemRelease), &wire.MemReleaseArgs{Memhandle: spare}))
	if err := export(); err != nil {
		t.Fatal(err)
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
	if _, ok := r.s.space.bytes(base, 1); ok {
		t.Error("reserved addresses can be read")
	}
}

package soft

import (
	"testing"

	"causeway/cuda/wire"
	"causeway/host/driver"
)

// TestLibraryOfAnotherDevice: a library that was loaded in a context of the second GPU has its
// variables there when it is loaded again, also without that context.
func TestLibraryOfAnotherDevice(t *testing.T) {
	load := func(r *rig, c *wire.Call) {
		t.Helper()
		r.ok(r.s.LibraryLoad(c, &wire.LibraryLoadArgs{Library: 90, Image: []byte(testPTX)}, new(wire.LibraryLoadReply)))
	}
	r := openRig(t, NewMany(2), driver.Options{})
	second := r.id()
	r.ok(r.s.CtxCreate(r.call(wire.OpCtxCreate), &wire.CtxCreateArgs{Ctx: second, Dev: 1}))
	first := r.call(wire.OpLibraryLoad)
	first.Ctx = second
	load(r, first)
	if len(first.Placed) == 0 || deviceAt(first.Placed[0]) != 1 {
		t.Fatalf("placed at %#x", first.Placed)
	}
	r.close()

	n := openRig(t, NewMany(2), driver.Options{})
	again := n.again(wire.OpLibraryLoad, first.Placed...)
	again.Ctx = 0
	load(n, again)
	n.ok(n.s.CtxCreate(n.call(wire.OpCtxCreate), &wire.CtxCreateArgs{Ctx: second, Dev: 1}))
	var at wire.LibraryGetGlobalReply
	c := n.call(wire.OpLibraryGetGlobal)
	c.Ctx = second
	n.ok(n.s.LibraryGetGlobal(c, &wire.LibraryGetGlobalArgs{Library: 90, Name: []byte("counter")}, &at))
	if deviceAt(at.Ptr) != 1 {
		t.Errorf("the variable is at %#x", at.Ptr)
	}
}

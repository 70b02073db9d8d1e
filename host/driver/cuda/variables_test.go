package cuda

import (
	"slices"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cubinvars/cubintest"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// TestVariablesElsewhere: a variable that comes out elsewhere in another process refuses, with its
// name; a compiler's text does not, and is nothing that moves.
func TestVariablesElsewhere(t *testing.T) {
	const ctx, mod, here, there = 16, 20, 1 << 40, 2 << 40
	load := func(at uint64, c *wire.Call, names ...string) (*session, cuda.Result) {
		t.Helper()
		cudatest.SetGlobals(at)
		s := agreeing(t, agreeingDriver(map[string]uint64{"cuModuleGetGlobal_v2": cudatest.Globals()}), drivertest.NewHost())
		if res := s.PrimaryCtxRetain(&wire.Call{}, &wire.PrimaryCtxRetainArgs{Ctx: ctx}, &wire.PrimaryCtxRetainReply{}); res != cuda.Success {
			t.Fatal(res)
		}
		s.arenas.on = true
		of := owner{id: mod}
		s.modules.put(mod, module{handle: made[bind.Module](7)})
		s.arenas.names = map[owner][]string{of: names}
		c.Ctx = ctx
		return s, s.settleVariables(c, of)
	}
	for _, x := range []struct {
		names  []string
		moves  int
		passes bool
	}{
		{[]string{"__unnamed_1", "$str"}, 0, true},
		{[]string{"tally"}, 1, false},
		{[]string{"$str", "tally"}, 1, false},
		{nil, 0, true},
	} {
		var c wire.Call
		s, res := load(here, &c, x.names...)
		if n := len(s.arenas.variables[instance{owner{id: mod}, ctx}]); res != cuda.Success || n != x.moves || len(c.Placed) != len(x.names) {
			t.Errorf("%v: %v, %d move, %d are placed", x.names, res, n, len(c.Placed))
		}
		same := wire.Call{Replay: true, Placed: c.Placed}
		if _, res := load(here, &same, x.names...); res != cuda.Success {
			t.Errorf("%v where they were: %v, %v", x.names, res, same.Reason())
		}
		other := wire.Call{Replay: true, Placed: c.Placed}
		if _, res := load(there, &other, x.names...); (res == cuda.Success) != x.passes || (other.Reason() == nil) != x.passes {
			t.Errorf("%v elsewhere: %v, %v", x.names, res, other.Reason())
		}
	}
}

// Objects of the tests: a library in two contexts, of a device each.
const (
	firstCtx, secondCtx = 16, 17
	apartLib            = 20
	apartKernel         = 30
)

// apart is a session that may move, with a library that has variables in the first context, and a
// kernel of it.
func apart(t *testing.T) *session {
	t.Helper()
	s := agreeing(t, agreeingDriver(cudatest.Instances(0x3000_0000_0000)), drivertest.NewHost())
	s.arenas.on = true
	for i, ctx := range []uint32{firstCtx, secondCtx} {
		if res := s.PrimaryCtxRetain(&wire.Call{}, &wire.PrimaryCtxRetainArgs{Ctx: ctx, Dev: uint32(i)}, &wire.PrimaryCtxRetainReply{}); res != cuda.Success {
			t.Fatal(res)
		}
	}
	load := wire.Call{Op: wire.OpLibraryLoad, Ctx: firstCtx}
	if res := s.LibraryLoad(&load, &wire.LibraryLoadArgs{Library: apartLib, Image: cubintest.Variables()}, &wire.LibraryLoadReply{}); res != cuda.Success || len(load.Placed) != 3 {
		t.Fatal(res, load.Placed)
	}
	if res := s.LibraryGetKernel(&wire.Call{Ctx: firstCtx}, &wire.LibraryGetKernelArgs{Library: apartLib, Kernel: apartKernel, Name: []byte("k")}, &wire.LibraryGetKernelReply{}); res != cuda.Success {
		t.Fatal(res)
	}
	return s
}

// TestInstancesAreSaid: whatever has a library's variables come into being in a context says so,
// once, with where they lie, and they move.
func TestInstancesAreSaid(t *testing.T) {
	ways := map[string]func(s *session, c *wire.Call) cuda.Result{
		"launch": func(s *session, c *wire.Call) cuda.Result {
			return s.Launch(c, &wire.LaunchArgs{Func: apartKernel, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Stream: wire.StreamLegacy})
		},
		"function": func(s *session, c *wire.Call) cuda.Result {
			return s.KernelGetFunction(c, &wire.KernelGetFunctionArgs{Kernel: apartKernel, Func: c.Thread}, &wire.KernelGetFunctionReply{})
		},
		"node": func(s *session, c *wire.Call) cuda.Result {
			v := wire.KernelNode{Func: apartKernel, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1}
			p, res := s.nodeParams(c, wire.NodeKernel, v.Append(nil))
			if res == cuda.Success {
				p.Free()
			}
			return res
		},
		"variable": func(s *session, c *wire.Call) cuda.Result {
			return s.LibraryGetGlobal(c, &wire.LibraryGetGlobalArgs{Library: apartLib, Name: []byte("x")}, &wire.LibraryGetGlobalReply{})
		},
	}
	var placed []uint64 // the same for each
	for name, way := range ways {
		s := apart(t)
		key := instance{owner{true, apartLib}, secondCtx}
		for i := range 2 {
			c := wire.Call{Ctx: secondCtx, Thread: uint32(40 + i)}
			if res := way(s, &c); res != cuda.Success {
				t.Fatal(name, res)
			}
			if (i == 0) != (len(c.Instances) == 1) || len(c.Placed) > 0 {
				t.Fatalf("%s: %+v, %v the time %d", name, c.Instances, c.Placed, i)
			}
			if i == 0 && placed == nil {
				placed = c.Instances[0].Placed
			}
			if i == 0 && (c.Instances[0].Library != apartLib || c.Instances[0].Ctx != secondCtx || len(placed) != 3 || !slices.Equal(c.Instances[0].Placed, placed)) {
				t.Errorf("%s: %+v, want %v", name, c.Instances, placed)
			}
			if n := len(s.arenas.variables[key]); n != len(placed) {
				t.Errorf("%s: %d variables would move", name, n)
			}
		}
		s.submitters.drain(nil)
	}
}

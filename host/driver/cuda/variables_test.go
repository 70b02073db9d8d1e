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

// TestVariablesElsewhere: a variable that comes out elsewhere in another process refuses, with its name; a compiler's text does not, and is nothing that moves.
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

// TestInstancesAreSaid: whatever has a library's variables come into being in a context says so, once, with where they lie, and they move.
func TestInstancesAreSaid(t *testing.T) {
	ways := map[string]func(s *ownCase, c *wire.Call) cuda.Result{
		"launch": func(s *ownCase, c *wire.Call) cuda.Result {
			return s.Launch(c, &wire.LaunchArgs{Func: ownKernel, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Stream: wire.StreamLegacy})
		},
		"node": func(s *ownCase, c *wire.Call) cuda.Result {
			v := wire.KernelNode{Func: ownKernel, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1}
			p, res := s.nodeParams(c, wire.NodeKernel, v.Append(nil))
			if res == cuda.Success {
				p.Free()
			}
			return res
		},
		"variable": func(s *ownCase, c *wire.Call) cuda.Result {
			return s.LibraryGetGlobal(c, &wire.LibraryGetGlobalArgs{Library: ownLib, Name: []byte("x")}, &wire.LibraryGetGlobalReply{})
		},
	}
	for name, way := range ways {
		s, res := newOwn(t, here, 0, cubintest.Variables(0), nil)
		if res != cuda.Success {
			t.Fatal(res)
		}
		key := instance{owner{true, ownLib}, secondCtx}
		s.forgetVariables(func(i instance) bool { return i == key }) // as if nobody had asked for the function
		for range 2 {
			c := wire.Call{Ctx: secondCtx}
			first := s.arenas.variables[key] == nil
			if res := way(s, &c); res != cuda.Success {
				t.Fatal(name, res)
			}
			if first != (len(c.Instances) == 1) || len(c.Placed) > 0 || first && !slices.Equal(c.Instances[0].Placed, s.found.Placed) {
				t.Errorf("%s: %+v, want %v at first", name, c.Instances, s.found)
			}
			if n := len(s.arenas.variables[key]); n != len(s.found.Placed) {
				t.Errorf("%s: %d variables would move", name, n)
			}
		}
		s.submitters.drain(nil)
	}
}

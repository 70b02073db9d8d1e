package cuda

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
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

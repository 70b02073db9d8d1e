package cuda

import (
	"fmt"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// TestVariablesThatLieTooLow: code comes out where it was in a process whose driver has room below that was in use then, whatever is in use of it now; nothing that filled it is left. Code that
// lay in that room itself is loaded once.
func TestVariablesThatLieTooLow(t *testing.T) {
	const all, ctx, id = chunk, 16, 20
	text := func(size int) []byte {
		return fmt.Appendf(nil, ".version 6.0\n.target sm_60\n.address_size 64\n.visible .global .align 256 .b8 tally[%d];\n", size)
	}
	others := map[string]uint64{}
	for _, name := range []string{"cuModuleLoadDataEx", "cuLibraryLoadData", "cuModuleUnload", "cuLibraryUnload", "cuModuleGetGlobal_v2", "cuLibraryGetGlobal"} {
		others[name] = cudatest.Chunks(name)
	}
	load := func(t *testing.T, lib bool, size int, used uint64, c *wire.Call) cuda.Result {
		t.Helper()
		cudatest.RestartChunks(used)
		s := agreeing(t, agreeingDriver(others), drivertest.NewHost())
		if res := s.PrimaryCtxRetain(&wire.Call{}, &wire.PrimaryCtxRetainArgs{Ctx: ctx}, &wire.PrimaryCtxRetainReply{}); res != cuda.Success {
			t.Fatal(res)
		}
		s.arenas.on = true
		c.Ctx = ctx
		if lib {
			return s.LibraryLoad(c, &wire.LibraryLoadArgs{Library: id, Image: text(size)}, &wire.LibraryLoadReply{})
		}
		return s.ModuleLoad(c, &wire.ModuleLoadArgs{Module: id, Image: text(size)}, &wire.ModuleLoadReply{})
	}
	for _, lib := range []bool{false, true} {
		for _, size := range []int{256, 5000, 3 << 20, 17 << 20} {
			for _, used := range []uint64{0, 256, all / 2, all - 512, all - 1<<20, all} {
				for _, before := range []uint64{all, 0} {
					t.Run(fmt.Sprintf("library %v of %d bytes, %d in use, before %d", lib, size, used, before), func(t *testing.T) {
						var c wire.Call
						if res := load(t, lib, size, before, &c); res != cuda.Success || len(c.Placed) != 1 {
							t.Fatal(res, c.Placed)
						}
						again := wire.Call{Replay: true, Placed: c.Placed}
						if res := load(t, lib, size, used, &again); (res == cuda.Success) != (before == all || used == 0) {
							t.Errorf("%v: %v", res, again.Reason())
						}
						if n, wrong := cudatest.ChunksCounts(); n != 1 || wrong != 0 {
							t.Errorf("%d modules are loaded, %d calls made no sense", n, wrong)
						}
					})
				}
			}
		}
	}
}

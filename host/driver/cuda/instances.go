package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

// A library has code and variables of each context's own, from when something first needs them
// there: a launch of a kernel, a node of a graph, a function, a module, the address of a variable.
// All of those come by here.

// instantiate has the variables of a library in a context known, and says so to whoever records the
// call that needs them.
func (s *session) instantiate(c *wire.Call, lib, ctx uint32) cuda.Result {
	a, key := &s.arenas, instance{owner{lib: true, id: lib}, ctx}
	if _, known := a.variables[key]; known || !a.on || ctx == 0 || len(a.names[key.of]) == 0 {
		return cuda.Success
	}
	if !c.MayKeep(len(a.names[key.of])) {
		return cuda.ErrorOutOfMemory
	}
	in := wire.Call{Op: wire.OpLibraryInstance, Ctx: ctx, Thread: c.Thread}
	res := s.settleVariables(&in, key.of)
	if res == cuda.Success {
		c.Instances = append(c.Instances, wire.Instance{Library: lib, Ctx: ctx, Placed: in.Placed})
	}
	if ctx != c.Ctx && c.Ctx != 0 && res == cuda.Success {
		res = s.use(c)
	}
	return res
}

// instanceAt is instantiate for what takes a kernel, or a function, which has come by already.
// Launches do.
func (s *session) instanceAt(c *wire.Call, f *function, ctx uint32) cuda.Result {
	mark := s.mark(ctx)
	if f.isAt(mark) {
		return cuda.Success
	}
	res := s.instantiate(c, f.lib, ctx)
	if res == cuda.Success {
		f.there = mark
	}
	return res
}

// isAt reports whether there is nothing for instanceAt to do.
func (f *function) isAt(mark uint64) bool { return f.there == mark || !f.isKernel() }

// LibraryInstance makes an instance again.
func (s *session) LibraryInstance(c *wire.Call, a *wire.LibraryInstanceArgs) cuda.Result {
	if _, ok := s.libs.get(a.Library); !ok || !c.Replay {
		return cuda.ErrorInvalidHandle
	}
	defer s.steer(c)()
	return s.settleVariables(c, owner{lib: true, id: a.Library})
}

package cuda

import (
	"fmt"
	"maps"
	"slices"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

/*
A context has local memory for every thread that its GPU can run at once, each as much as
CU_LIMIT_STACK_SIZE says, or as a kernel needed that was launched there and needed more: then the
driver takes it anew, at once. Where it lies no variables of code do that is loaded afterwards, in
whichever context. So a session that may move says when a context's local memory grows, which is
recorded in front of what made it grow, and where the session is made again a kernel of ours that
needs as much takes its place: in a graph that is made, and not launched.

How much a context has is known from below: since the limit was set, as a lower one may have the
driver give back what it took for a kernel. What is said once too often is no loss: it changes as
little there as it did here.
*/

// maxLocal is the most that a thread can have, in bytes.
const maxLocal = 512 << 10

// ofLaunch is what a launch of a function in a context needs, the context's local memory included.
func (s *session) ofLaunch(f *function, ctx uint32) needs {
	list := ofFunction(f)
	if s.arenas.on && f.local > 0 && ctx != 0 {
		list = append(list, need{ctx: ctx, local: f.local})
	}
	return list
}

// outgrows is growing for a launch of a function in a context. It is to be cheap: all launches ask.
func (s *session) outgrows(c *wire.Call, f *function, ctx uint32) ([]wire.Local, cuda.Result) {
	if f.local == 0 || !s.arenas.on || f.roomy == s.mark(ctx) {
		return nil, cuda.Success
	}
	grow, res := s.growing(c, s.ofLaunch(f, ctx))
	if res == cuda.Success && len(grow) == 0 {
		f.roomy = s.mark(ctx)
	}
	return grow, res
}

// execOutgrows is growing for a launch of a graph, whose kernels found enough when it was made
// executable.
func (s *session) execOutgrows(c *wire.Call, x *graphExec) ([]wire.Local, cuda.Result) {
	const all = 1 // its contexts are its own
	if !s.arenas.on || x.roomy == s.mark(all) {
		return nil, cuda.Success
	}
	grow, res := s.growing(c, x.all())
	if res == cuda.Success && len(grow) == 0 {
		x.roomy = s.mark(all)
	}
	return grow, res
}

// mark is another for every context, and after anything that what is remembered of functions is not
// to outlive.
func (s *session) mark(ctx uint32) uint64 { return uint64(s.arenas.forgotten)<<32 | uint64(ctx) }

// growing lists by how much contexts' local memory grows when the driver is given work that needs
// this. It is asked before, as what cannot be recorded is not to be done.
func (s *session) growing(c *wire.Call, list needs) (grow []wire.Local, res cuda.Result) {
	most := map[uint32]uint32{}
	for _, n := range list {
		ctx, ok := s.ctxs.get(n.ctx)
		if n.local == 0 || !ok || ctx.handle.IsZero() { // the driver says what is wrong
			continue
		}
		has, res := s.localOf(c, n.ctx, ctx)
		if res != cuda.Success {
			return nil, res
		}
		if n.local > has {
			most[n.ctx] = max(most[n.ctx], n.local)
		}
	}
	for _, ctx := range slices.Sorted(maps.Keys(most)) {
		if !c.MayKeep(0) {
			return nil, cuda.ErrorOutOfMemory
		}
		grow = append(grow, wire.Local{Ctx: ctx, Bytes: most[ctx]})
	}
	return grow, cuda.Success
}

// grown notes what has come of it.
func (s *session) grown(c *wire.Call, grow []wire.Local, res cuda.Result) cuda.Result {
	if res != cuda.Success {
		return res
	}
	for _, l := range grow {
		s.ctxs.m[l.Ctx].local = l.Bytes
		c.Grew(l)
	}
	return res
}

// localOf is how much local memory a thread of a context is known to have.
func (s *session) localOf(c *wire.Call, id uint32, ctx *context_) (uint32, cuda.Result) {
	if ctx.local != 0 {
		return ctx.local, cuda.Success
	}
	if res := s.useContext(id); res != cuda.Success {
		return 0, res
	}
	v, res := s.drv.CtxGetLimit(cuda.LimitStackSize)
	if res == cuda.Success {
		ctx.local = limitOf(v)
	}
	if back := s.useAny(c); res == cuda.Success {
		res = back
	}
	return ctx.local, res
}

// limitOf is a stack size as local memory: never none, which stands for not known.
func limitOf(v uint64) uint32 { return uint32(min(max(v, 1), maxLocal)) }

// stackSet follows CU_LIMIT_STACK_SIZE. Whether that gives back what a kernel has needed, the
// driver says nowhere.
func (s *session) stackSet(id uint32, v uint64) {
	if ctx, ok := s.ctxs.get(id); ok && s.arenas.on {
		ctx.local = limitOf(v)
		s.arenas.forgotten++
	}
}

// LocalMemory has the driver take a context's local memory again.
func (s *session) LocalMemory(c *wire.Call, a *wire.LocalMemoryArgs) cuda.Result {
	ctx, ok := s.ctxs.get(c.Ctx)
	if !ok || !c.Replay || a.Bytes == 0 || a.Bytes > maxLocal {
		return cuda.ErrorInvalidValue
	}
	if res := s.takeLocal(a.Bytes); res != cuda.Success {
		c.Because("context %d cannot have local memory of %d bytes for each thread here: %v", c.Ctx, a.Bytes, res)
		return res
	}
	ctx.local = a.Bytes
	return cuda.Success
}

// takeLocal has the current context take local memory of so many bytes for each thread. It leaves
// nothing else behind.
func (s *session) takeLocal(bytes uint32) cuda.Result {
	code, err := fatbin.Check([]byte(localKernel(bytes)), func(int) bool { return false })
	if err != nil {
		return cuda.ErrorInvalidPTX
	}
	im := bind.HoldImage(code, false)
	defer im.Release()
	module, res := s.drv.ModuleLoadDataEx(im, nil)
	if res != cuda.Success {
		return res
	}
	defer s.drv.ModuleUnload(module)
	f, res := s.drv.ModuleGetFunction(module, []byte("grow"))
	if res != cuda.Success {
		return res
	}
	switch has, res := s.drv.FuncGetAttribute(cuda.FuncAttrLocalSizeBytes, f); {
	case res != cuda.Success:
		return res
	case has < int32(bytes): // a compiler has found a way without
		return cuda.ErrorNotSupported
	}
	args, ok := s.drv.FunctionLayout(f).Arguments(make([]byte, 8))
	if !ok {
		return cuda.ErrorInvalidValue
	}
	return s.graphNotLaunched(f, args)
}

// graphNotLaunched makes a graph of a kernel executable, and gives it back.
func (s *session) graphNotLaunched(f bind.Function, args bind.Arguments) cuda.Result {
	g, res := s.drv.GraphCreate(0)
	if res != cuda.Success {
		return res
	}
	defer s.drv.GraphDestroy(g)
	n := bind.NewNode(wire.NodeKernel)
	defer n.Free()
	n.SetKernel(f, bind.Kernel{}, bind.Context{}, bind.Dims{1, 1, 1, 32, 1, 1, 0}, args)
	if _, res := s.drv.AddNode(g, nil, nil, n); res != cuda.Success {
		return res
	}
	x, res := s.drv.GraphInstantiateWithFlags(g, 0)
	if res != cuda.Success {
		return res
	}
	return s.drv.GraphExecDestroy(x)
}

// localKernel is the text of a kernel that needs so many bytes of local memory: which of them it
// writes and reads is known to its arguments alone.
func localKernel(bytes uint32) string {
	return fmt.Sprintf(`.version 6.0
.target sm_60
.address_size 64
.visible .entry grow(.param .u64 at)
{
	.reg .b64 %%at, %%to; .reg .b32 %%n, %%v;
	.local .align 4 .b8 room[%d];
	ld.param.u64 %%at, [at];
	ld.global.u32 %%n, [%%at];
	rem.u32 %%n, %%n, %[1]d;
	cvt.u64.u32 %%to, %%n;
	mov.u64 %%at, room;
	add.u64 %%to, %%at, %%to;
	st.local.u8 [%%to], %%n;
	ld.param.u64 %%at, [at];
	ld.global.u32 %%n, [%%at+4];
	rem.u32 %%n, %%n, %[1]d;
	cvt.u64.u32 %%to, %%n;
	mov.u64 %%at, room;
	add.u64 %%to, %%at, %%to;
	ld.local.u8 %%v, [%%to];
	ld.param.u64 %%at, [at];
	st.global.u32 [%%at+8], %%v;
	ret;
}
`, bytes)
}

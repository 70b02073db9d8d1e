package soft

import (
	"slices"
	"sync/atomic"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// gpuContext is a CUDA context. The worker owns all of it but poison.
type gpuContext struct {
	id      wire.ID
	device  int
	primary bool
	retains int
	flags   uint32
	limits  map[uint32]uint64
	local   uint64 // bytes of local memory for each thread
	heap    *heap  // of malloc in kernels; nil until a kernel may need it

	legacy  *stream
	threads map[uint32]*stream // per-thread default streams by guest thread
	busy    []*stream          // those that may have unfinished work
	poison  atomic.Int32       // the fault that ended it

	ofThreads driver.ThreadStreams[uint32, *stream]
}

// sticky is the fault that ended the context, or Success.
func (g *gpuContext) sticky() cuda.Result { return cuda.Result(g.poison.Load()) }

func newContext(id wire.ID, device int, flags uint32) *gpuContext {
	g := &gpuContext{id: id, device: device, flags: flags, limits: map[uint32]uint64{}, local: defaultLimits[cuda.LimitStackSize], threads: map[uint32]*stream{}}
	g.legacy = &stream{ctx: g, blocking: true}
	return g
}

// context finds the call's current context, if it still works.
func (s *session) context(c *wire.Call) (*gpuContext, cuda.Result) {
	g, ok := s.ctxs[c.Ctx]
	if !ok {
		return nil, cuda.ErrorInvalidContext
	}
	return g, g.sticky()
}

// failed takes the error of a queued task. Any goroutine.
func (s *session) failed(g *gpuContext, res cuda.Result) {
	if !res.Sticky() || g == nil {
		s.host.Deferred(res)
		return
	}
	if g.sticky() == cuda.Success {
		s.host.SetSticky(res) // before anyone can see the context failed; the host keeps the first
		s.doomed.CompareAndSwap(0, int32(res))
		g.poison.CompareAndSwap(0, int32(res))
	}
}

// PrimaryCtxRetain makes a device's primary context, or counts one more user.
func (s *session) PrimaryCtxRetain(c *wire.Call, a *wire.PrimaryCtxRetainArgs, r *wire.PrimaryCtxRetainReply) cuda.Result {
	if int(a.Dev) >= len(s.gpus) {
		return cuda.ErrorInvalidDevice
	}
	d := &s.primaries[a.Dev]
	if d.ctx == nil {
		g := newContext(a.Ctx, int(a.Dev), d.flags)
		g.primary = true
		if res := s.ctxs.put(a.Ctx, g); res != cuda.Success {
			return res
		}
		d.ctx = g
	} else if s.ctxs[a.Ctx] != d.ctx {
		if res := s.ctxs.put(a.Ctx, d.ctx); res != cuda.Success { // one more number for it
			return res
		}
	}
	d.ctx.retains++
	r.Flags = d.flags
	return cuda.Success
}

// PrimaryCtxRelease drops one user; the context goes with the last.
func (s *session) PrimaryCtxRelease(c *wire.Call, a *wire.PrimaryCtxReleaseArgs) cuda.Result {
	if int(a.Dev) >= len(s.gpus) {
		return cuda.ErrorInvalidDevice
	}
	d := &s.primaries[a.Dev]
	if d.ctx == nil {
		return cuda.ErrorInvalidContext
	}
	if d.ctx.retains--; d.ctx.retains == 0 {
		s.destroyContext(d.ctx)
		d.ctx = nil
	}
	return cuda.Success
}

// PrimaryCtxReset destroys what is in a primary context. Who retained it keeps it.
func (s *session) PrimaryCtxReset(c *wire.Call, a *wire.PrimaryCtxResetArgs) cuda.Result {
	if int(a.Dev) >= len(s.gpus) {
		return cuda.ErrorInvalidDevice
	}
	s.doomed.Store(0)
	d := &s.primaries[a.Dev]
	if d.ctx == nil {
		return cuda.Success
	}
	old := d.ctx
	fresh := newContext(old.id, old.device, d.flags)
	fresh.primary, fresh.retains = true, old.retains
	var ids []wire.ID
	for id, g := range s.ctxs {
		if g == old {
			ids = append(ids, id)
		}
	}
	s.destroyContext(old)
	for _, id := range ids {
		s.ctxs[id] = fresh
	}
	d.ctx = fresh
	return cuda.Success
}

// PrimaryCtxSetFlags sets the flags of a device's primary context, active or not.
func (s *session) PrimaryCtxSetFlags(c *wire.Call, a *wire.PrimaryCtxSetFlagsArgs) cuda.Result {
	if int(a.Dev) >= len(s.gpus) {
		return cuda.ErrorInvalidDevice
	}
	if a.Flags&^cuda.CtxFlagsMask != 0 {
		return cuda.ErrorInvalidValue
	}
	d := &s.primaries[a.Dev]
	d.flags = a.Flags
	if d.ctx != nil {
		d.ctx.flags = a.Flags
	}
	return cuda.Success
}

// CtxCreate makes a context.
func (s *session) CtxCreate(c *wire.Call, a *wire.CtxCreateArgs) cuda.Result {
	if int(a.Dev) >= len(s.gpus) {
		return cuda.ErrorInvalidDevice
	}
	if a.Flags&^cuda.CtxFlagsMask != 0 {
		return cuda.ErrorInvalidValue
	}
	if res := cuda.Result(s.doomed.Load()); res != cuda.Success {
		return res // a process whose context failed gets no other
	}
	return s.ctxs.put(a.Ctx, newContext(a.Ctx, int(a.Dev), a.Flags))
}

// CtxDestroy destroys a context that CtxCreate made, with everything in it.
func (s *session) CtxDestroy(c *wire.Call, a *wire.CtxDestroyArgs) cuda.Result {
	g, ok := s.ctxs[a.Ctx]
	if !ok || g.primary {
		return cuda.ErrorInvalidContext
	}
	s.destroyContext(g)
	return cuda.Success
}

// destroyContext forgets a context and what it holds. Work that is queued still runs; memory goes
// after it.
func (s *session) destroyContext(g *gpuContext) {
	s.ctxs.deleteIf(func(x *gpuContext) bool { return x == g })
	s.orphans = slices.DeleteFunc(s.orphans, func(o *gpuContext) bool { return !o.working() })
	if g.working() { // known before anything is freed, which waits for it
		s.orphans = append(s.orphans, g)
	}
	driver.ReleaseStreams(s.host, len(g.threads))
	s.forgetArrays(g)
	s.forgetPeers(g)
	s.forgetOpened(g)
	s.streams.deleteIf(func(st *stream) bool { return st.ctx == g })
	s.events.deleteIf(func(e *event) bool { return e.ctx == g })
	s.modules.deleteIf(func(m *module) bool { return m.ctx == g && m.library == nil })
	s.funcs.deleteIf(func(f *function) bool { return f.mod.ctx == g })
	for _, l := range s.libraries {
		delete(l.instances, g)
		l.retired = slices.DeleteFunc(l.retired, func(v *allocation) bool { return v.ctx == g })
	}
	s.modules.deleteIf(func(m *module) bool { return m.ctx == g })
	var memory []*allocation
	for _, e := range *s.space.intervals.Load() {
		if e.a.ctx == g && !e.a.freed && e.a.kind != ipcMemory {
			memory = append(memory, e.a)
		}
	}
	s.free(memory)
	s.setLocal(g, defaultLimits[cuda.LimitStackSize])
	if g.sticky() != cuda.Success && !s.poisoned() {
		s.host.SetSticky(cuda.Success)
	}
}

// poisoned reports whether a live context has failed.
func (s *session) poisoned() bool {
	for _, g := range s.ctxs {
		if g.sticky() != cuda.Success {
			return true
		}
	}
	return false
}

// CtxSynchronize waits for all work of a context, and for memory that is freed behind it.
func (s *session) CtxSynchronize(c *wire.Call) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	if !g.working() && s.freeing.finished() {
		return g.sticky()
	}
	return s.answerBehind(c, g, append(s.lastOf(g, nil), s.freeing))
}

// answerBehind answers a wait operation when deps are done.
func (s *session) answerBehind(c *wire.Call, g *gpuContext, deps []*task) cuda.Result {
	p := c.Later()
	s.queue.submit(&task{ctx: g, always: true, run: func() cuda.Result {
		p.Done(s.outcome(g), nil)
		return cuda.Success
	}}, deps)
	return cuda.Success
}

// outcome is what waiting for work of g finds. Tasks call it.
func (s *session) outcome(g *gpuContext) cuda.Result {
	if res := g.sticky(); res != cuda.Success {
		return res
	}
	if s.queue.stopped.Load() {
		return cuda.ErrorLaunchFailed // the worker ends while its guest waits
	}
	return cuda.Success
}

// CtxGetStreamPriorityRange is the range that StreamCreate accepts.
func (s *session) CtxGetStreamPriorityRange(c *wire.Call, r *wire.CtxGetStreamPriorityRangeReply) cuda.Result {
	if _, res := s.context(c); res != cuda.Success {
		return res
	}
	r.Least, r.Greatest = priorityLeast, priorityGreatest
	return cuda.Success
}

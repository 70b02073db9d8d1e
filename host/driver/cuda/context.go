package cuda

import (
	"log/slog"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// PrimaryCtxRetain creates or references a device's primary context.
func (s *session) PrimaryCtxRetain(c *wire.Call, a *wire.PrimaryCtxRetainArgs, r *wire.PrimaryCtxRetainReply) cuda.Result {
	handle, fences := uint64(0), (*fencePool)(nil)
	ctx, ok := s.ctxs.get(a.Ctx)
	resumed := s.resume(ctx)
	res := s.enter(a.Ctx, func() cuda.Result {
		if resumed {
			handle = ctx.handle
			return cuda.Success
		}
		if handle, fences = s.warm.take(a.Dev); handle != 0 {
			return cuda.Success
		}
		res := s.fn.cuDevicePrimaryCtxRetain.call(s.out.addr(), uint64(a.Dev))
		handle = *s.out.u64(0)
		return res
	})
	if res == cuda.ErrorOutOfMemory {
		s.letWarm() // nor is there room for what the worker has ready
	}
	if res != cuda.Success {
		return res
	}
	if fences != nil && s.fences == nil {
		s.fences, fences.ctx = fences, a.Ctx
	}
	if !ok {
		ctx = &context_{dev: a.Dev, primary: true}
		if !s.ctxs.put(a.Ctx, ctx) {
			return cuda.ErrorInvalidContext
		}
	}
	ctx.handle = handle
	ctx.retains++
	if res := s.fn.cuDevicePrimaryCtxGetState.call(uint64(a.Dev), s.out.addr(), s.out.addr()+4); res != cuda.Success {
		return res
	}
	r.Flags = uint32(*s.out.i32(0))
	return s.contextReady(a.Ctx, ctx)
}

// enter makes a context, or retains one, if the budget has room for what contexts take.
func (s *session) enter(id uint32, make func() cuda.Result) cuda.Result {
	if ctx, ok := s.ctxs.get(id); ok && ctx.handle != 0 {
		return make() // it is there
	}
	if !s.budget.Enter() {
		return cuda.ErrorOutOfMemory
	}
	res := make()
	if res != cuda.Success {
		s.budget.Leave()
	}
	return res
}

// contextReady makes region 0 reachable for the GPU, so that waits can be answered by it.
func (s *session) contextReady(id uint32, ctx *context_) cuda.Result {
	if res := s.fn.cuCtxSetCurrent.call(ctx.handle); res != cuda.Success {
		return res
	}
	s.current = id
	reg, ok := s.host.Region(0)
	if ok && reg.Mem != nil {
		if _, res := s.register(reg); res != cuda.Success {
			return res
		}
	}
	if s.fences == nil {
		f, res := newFencePool(s.fn)
		if res != cuda.Success {
			return res
		}
		s.fences, f.ctx = f, id
	}
	return s.attach()
}

// forgetContext drops what hung on a context that is gone.
func (s *session) forgetContext(id uint32, ctx *context_) {
	if s.current == id {
		s.current = 0
		s.fn.cuCtxSetCurrent.call(0)
	}
	if ctx.handle != 0 && !ctx.lingers {
		s.budget.Leave()
	}
	ctx.handle, ctx.lingers, ctx.hidden, ctx.answers = 0, false, nil, [wire.SlotCount]answers{}
	s.lanes.forget()
	s.forgetGauge(id)
	s.forgetArrays(id)
	s.forgetMemory(id)
	delete(s.legacy, id)
	for k := range s.threads {
		if k.ctx == id {
			delete(s.threads, k)
		}
	}
}

// PrimaryCtxRelease drops one reference.
func (s *session) PrimaryCtxRelease(c *wire.Call, a *wire.PrimaryCtxReleaseArgs) cuda.Result {
	ctx, ok := s.ctxs.get(a.Ctx)
	if !ok || !ctx.primary || ctx.retains == 0 {
		return cuda.ErrorInvalidContext
	}
	res, release := cuda.Success, func() cuda.Result { return s.fn.cuDevicePrimaryCtxRelease_v2.call(uint64(ctx.dev)) }
	if ctx.retains == 1 {
		res = s.endContext(a.Ctx, ctx, release)
	} else {
		res = release()
	}
	if res == cuda.Success {
		if ctx.retains--; ctx.retains == 0 {
			s.forgetContext(a.Ctx, ctx)
		}
	}
	return res
}

// dropRegistrations unpins what was registered and made through a context that is about to go. The regions are the guest process's and
// outlive its contexts: another context that lives takes them over at once, else the next one does. False: work that runs for others uses
// them, and the context must linger. Worker goroutine.
func (s *session) dropRegistrations(owner uint32) bool {
	heir, ok := s.heir(owner)
	if !ok {
		s.letGo(func(uint32) bool { return true })
		s.endLingering()
		return true
	}
	if !s.owns(owner) {
		return true
	}
	if !s.capturing() && s.useContext(owner) == cuda.Success {
		s.fn.cuCtxSynchronize.call() // the driver waits for the context's own work when it ends it; the guest has waited before
	}
	if !s.quiet() {
		return false
	}
	s.finishAll()
	s.letGo(func(ctx uint32) bool { return ctx == owner })
	s.inherit(heir)
	return true
}

// inherit registers through a context that lives what one had that is gone.
func (s *session) inherit(heir uint32) {
	if res := s.contextReady(heir, s.ctxs.m[heir]); res != cuda.Success {
		slog.Error("what a destroyed context had registered is lost to those that live", "error", res)
	}
}

// letGo unpins and frees what belongs to the contexts that are gone.
func (s *session) letGo(gone func(ctx uint32) bool) {
	for id, r := range s.regions {
		if !gone(r.ctx) {
			continue
		}
		s.unregister(id)
		if id != 0 { // contextReady's own
			s.detached = append(s.detached, id)
		}
	}
	if gone(s.gauge.ctx) {
		s.dropGauge()
	}
	if s.fences != nil && gone(s.fences.ctx) {
		s.watch.abandon()
		s.fences.free(s.fn)
		s.fences = nil
	}
}

// owns reports whether something that others use was registered or made through a context.
func (s *session) owns(ctx uint32) bool {
	for _, r := range s.regions {
		if r.ctx == ctx {
			return true
		}
	}
	return s.gauge.dev != 0 && s.gauge.ctx == ctx || s.fences != nil && s.fences.ctx == ctx
}

// heir is a context that lives beside one that goes.
func (s *session) heir(owner uint32) (uint32, bool) {
	for id, c := range s.ctxs.m {
		if id != owner && c.handle != 0 {
			return id, true
		}
	}
	return 0, false
}

// finishAll waits for all contexts when the GPU has nothing to do for them (quiet), so that the last words that it writes have come, and
// answers the waits for those; errors come with the next call.
func (s *session) finishAll() {
	for id, c := range s.ctxs.m {
		if c.handle != 0 && s.useContext(id) == cuda.Success {
			s.fn.cuCtxSynchronize.call()
		}
	}
	s.watch.settle()
}

// PrimaryCtxReset destroys a primary context's resources.
func (s *session) PrimaryCtxReset(c *wire.Call, a *wire.PrimaryCtxResetArgs) cuda.Result {
	reset := func() cuda.Result { return s.fn.cuDevicePrimaryCtxReset_v2.call(uint64(a.Dev)) }
	ctx, ok := s.ctxs.get(a.Ctx)
	if !ok || ctx.handle == 0 {
		return reset()
	}
	res := s.endContext(a.Ctx, ctx, reset)
	if res != cuda.Success {
		return res
	}
	lingers := ctx.lingers
	ctx.retains = 0
	s.forgetContext(a.Ctx, ctx)
	if lingers {
		return cuda.Success
	}
	for ptr, m := range s.allocs {
		if m.pooled {
			s.freed(ptr, m)
		}
	}
	s.settlePools()
	s.host.SetSticky(cuda.Success)
	return cuda.Success
}

// letWarm gives up a primary context that was made ready and never asked for.
func (s *session) letWarm() {
	if s.warm != nil && s.warm.primary != 0 {
		s.warm.let(s.fn)
		s.current = 0
	}
}

// PrimaryCtxSetFlags sets the flags that the primary context has or will have.
func (s *session) PrimaryCtxSetFlags(c *wire.Call, a *wire.PrimaryCtxSetFlagsArgs) cuda.Result {
	res := s.fn.cuDevicePrimaryCtxSetFlags_v2.call(uint64(a.Dev), uint64(a.Flags))
	if res == cuda.ErrorPrimaryContextActive && a.Dev == 0 && s.warm != nil && s.warm.primary != 0 {
		s.letWarm() // the guest has not retained it yet: to it there is no context
		res = s.fn.cuDevicePrimaryCtxSetFlags_v2.call(uint64(a.Dev), uint64(a.Flags))
	}
	return res
}

// CtxCreate makes a context of the guest's own.
func (s *session) CtxCreate(c *wire.Call, a *wire.CtxCreateArgs) cuda.Result {
	s.letWarm() // a program with contexts of its own seldom wants the primary one beside them, which costs memory
	if res := s.enter(a.Ctx, func() cuda.Result { return s.fn.cuCtxCreate_v2.call(s.out.addr(), uint64(a.Flags), uint64(a.Dev)) }); res != cuda.Success {
		return res
	}
	ctx := &context_{handle: *s.out.u64(0), dev: a.Dev, retains: 1}
	if !s.ctxs.put(a.Ctx, ctx) {
		s.fn.cuCtxDestroy_v2.call(ctx.handle)
		s.budget.Leave()
		s.current = 0
		return cuda.ErrorInvalidContext
	}
	return s.contextReady(a.Ctx, ctx)
}

// CtxDestroy ends a context of the guest's own.
func (s *session) CtxDestroy(c *wire.Call, a *wire.CtxDestroyArgs) cuda.Result {
	ctx, ok := s.ctxs.get(a.Ctx)
	if !ok || ctx.primary || ctx.handle == 0 {
		return cuda.ErrorInvalidContext
	}
	handle := ctx.handle
	res := s.endContext(a.Ctx, ctx, func() cuda.Result { return s.fn.cuCtxDestroy_v2.call(handle) })
	s.ctxs.remove(a.Ctx)
	s.current = a.Ctx
	s.forgetContext(a.Ctx, ctx)
	return res
}

// CtxGetLimit reads a CUlimit.
func (s *session) CtxGetLimit(c *wire.Call, a *wire.CtxGetLimitArgs, r *wire.CtxGetLimitReply) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	res := s.fn.cuCtxGetLimit.call(s.out.addr(), uint64(a.Limit))
	r.Value = *s.out.u64(0)
	return res
}

// CtxSetLimit sets a CUlimit.
func (s *session) CtxSetLimit(c *wire.Call, a *wire.CtxSetLimitArgs) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	return s.fn.cuCtxSetLimit.call(uint64(a.Limit), a.Value)
}

// CtxGetStreamPriorityRange asks which stream priorities mean something.
func (s *session) CtxGetStreamPriorityRange(c *wire.Call, r *wire.CtxGetStreamPriorityRangeReply) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	res := s.fn.cuCtxGetStreamPriorityRange.call(s.out.addr(), s.out.addr()+4)
	r.Least, r.Greatest = *s.out.i32(0), *s.out.i32(1)
	return res
}

// CtxSetCacheConfig sets the preferred split of L1 and shared memory.
func (s *session) CtxSetCacheConfig(c *wire.Call, a *wire.CtxSetCacheConfigArgs) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	return s.fn.cuCtxSetCacheConfig.call(uint64(a.Config))
}

// CtxResetPersistingL2Cache resets persisting lines to normal.
func (s *session) CtxResetPersistingL2Cache(c *wire.Call) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	return s.fn.cuCtxResetPersistingL2Cache.call()
}

// CtxEnablePeerAccess lets the current context reach the peer's memory.
func (s *session) CtxEnablePeerAccess(c *wire.Call, a *wire.CtxEnablePeerAccessArgs) cuda.Result {
	return s.peer(c, a.Peer, func(h uint64) cuda.Result { return s.fn.cuCtxEnablePeerAccess.call(h, uint64(a.Flags)) })
}

// CtxDisablePeerAccess undoes CtxEnablePeerAccess.
func (s *session) CtxDisablePeerAccess(c *wire.Call, a *wire.CtxDisablePeerAccessArgs) cuda.Result {
	return s.peer(c, a.Peer, func(h uint64) cuda.Result { return s.fn.cuCtxDisablePeerAccess.call(h) })
}

func (s *session) peer(c *wire.Call, id uint32, call func(handle uint64) cuda.Result) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	p, ok := s.ctxs.get(id)
	if !ok || p.handle == 0 {
		return cuda.ErrorInvalidContext
	}
	return call(p.handle)
}

// DeviceCanAccessPeer asks for direct access between two devices.
func (s *session) DeviceCanAccessPeer(c *wire.Call, a *wire.DeviceCanAccessPeerArgs, r *wire.DeviceCanAccessPeerReply) cuda.Result {
	res := s.fn.cuDeviceCanAccessPeer.call(s.out.addr(), uint64(a.Dev), uint64(a.Peer))
	r.Can = *s.out.i32(0)
	return res
}

// DeviceGetP2PAttribute asks how two devices are linked.
func (s *session) DeviceGetP2PAttribute(c *wire.Call, a *wire.DeviceGetP2PAttributeArgs, r *wire.DeviceGetP2PAttributeReply) cuda.Result {
	res := s.fn.cuDeviceGetP2PAttribute.call(s.out.addr(), uint64(a.Attr), uint64(a.Src), uint64(a.Dst))
	r.Value = *s.out.i32(0)
	return res
}

// MemGetInfo reports free and total memory as the guest's limit shows them.
func (s *session) MemGetInfo(c *wire.Call, r *wire.MemGetInfoReply) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	res := s.fn.cuMemGetInfo_v2.call(s.out.addr(), s.out.addr()+8)
	r.Free, r.Total = *s.out.u64(0), *s.out.u64(1)
	if limit := s.budget.Limit(); limit != 0 {
		s.settlePools()
		r.Total = min(r.Total, limit)
		r.Free = min(r.Free, limit-min(limit, s.budget.Used()))
	}
	return res
}

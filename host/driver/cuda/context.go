package cuda

import (
	"log/slog"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// PrimaryCtxRetain creates or references a device's primary context.
func (s *session) PrimaryCtxRetain(c *wire.Call, a *wire.PrimaryCtxRetainArgs, r *wire.PrimaryCtxRetainReply) cuda.Result {
	var handle bind.Context
	var fences *fencePool
	ctx, ok := s.ctxs.get(a.Ctx)
	if ok && (!ctx.primary || ctx.dev != a.Dev) {
		return cuda.ErrorInvalidContext // another's number
	}
	resumed := s.resume(ctx)
	res := s.enter(a.Ctx, func() (res cuda.Result) {
		if resumed {
			handle = ctx.handle
			return cuda.Success
		}
		if handle, fences = s.warm.take(a.Dev); !handle.IsZero() {
			return cuda.Success
		}
		handle, res = s.drv.DevicePrimaryCtxRetain(a.Dev)
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
	if r.Flags, _, res = s.drv.DevicePrimaryCtxGetState(a.Dev); res != cuda.Success {
		return res
	}
	return s.contextReady(a.Ctx, ctx)
}

// enter makes a context, or retains one, if the budget has room for what contexts take.
func (s *session) enter(id uint32, make func() cuda.Result) cuda.Result {
	if ctx, ok := s.ctxs.get(id); ok && !ctx.handle.IsZero() {
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
	if res := s.drv.CtxSetCurrent(ctx.handle); res != cuda.Success {
		return res
	}
	s.current = id
	if s.arenas.on {
		for dev := range s.devices {
			s.makeDefault(uint32(dev))
		}
	}
	reg, ok := s.host.Region(0)
	there := ok && reg.Mem != nil && !reg.Away
	if there {
		if _, res := s.register(reg); res != cuda.Success {
			return res
		}
	}
	if ok && !there && s.arenas.on && !slices.Contains(s.detached, 0) {
		s.detached = append(s.detached, 0) // of a session that came without its guest's pages
	}
	if s.fences == nil {
		f, res := newFencePool(s.drv)
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
		s.drv.CtxSetCurrent(bind.Context{})
	}
	if !ctx.handle.IsZero() && !ctx.lingers {
		s.budget.Leave()
	}
	s.arenas.coming.through.goneWith(ctx.handle)
	lingers, handle := ctx.lingers, ctx.handle
	ctx.handle, ctx.lingers, ctx.hidden, ctx.local, ctx.answers = bind.Context{}, false, nil, 0, [wire.SlotCount]answers{}
	s.submitters.forget()
	if s.gauge.leaveStreams(id); !lingers {
		s.outliveGauge(id, handle)
	}
	s.leaveContext(id, lingers)
	delete(s.origins, id)
	s.forgetVariables(func(i instance) bool { return i.ctx == id })
	s.kept = slices.DeleteFunc(s.kept, func(e *event) bool { return e.ctx == id })
	for _, t := range s.ofContexts() {
		t.contextGone(s, id)
	}
	s.forgetMemory(id)
	s.forgetOpened(id)
	delete(s.legacy, id)
	s.forgetThreads(id)
}

// PrimaryCtxRelease drops one reference.
func (s *session) PrimaryCtxRelease(c *wire.Call, a *wire.PrimaryCtxReleaseArgs) cuda.Result {
	ctx, ok := s.ctxs.get(a.Ctx)
	if !ok || !ctx.primary || ctx.retains == 0 {
		return cuda.ErrorInvalidContext
	}
	res, release := cuda.Success, func() cuda.Result { return s.drv.DevicePrimaryCtxRelease(ctx.dev) }
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

// dropRegistrations unpins what was registered and made through a context that is about to go. The
// regions are the guest process's and outlive its contexts: another context that lives takes them
// over at once, else the next one does. False: work that runs for others uses them, and the context
// must linger. Worker goroutine.
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
		// The driver waits for the context's own work when it ends it; the guest has waited before.
		s.drv.CtxSynchronize()
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
		s.fences.free(s.drv)
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
	return !s.gauge.dev.IsZero() && s.gauge.ctx == ctx || s.fences != nil && s.fences.ctx == ctx
}

// heir is a context that lives beside one that goes.
func (s *session) heir(owner uint32) (uint32, bool) {
	for id, c := range s.ctxs.m {
		if id != owner && !c.handle.IsZero() {
			return id, true
		}
	}
	return 0, false
}

// finishAll waits for all contexts when the GPU has nothing to do for them (quiet), so that the
// last words that it writes have come, and answers the waits for those; errors come with the next
// call.
func (s *session) finishAll() {
	for id, c := range s.ctxs.m {
		if !c.handle.IsZero() && s.useContext(id) == cuda.Success {
			s.drv.CtxSynchronize()
		}
	}
	s.watch.settle()
}

// PrimaryCtxReset destroys a primary context's resources.
func (s *session) PrimaryCtxReset(c *wire.Call, a *wire.PrimaryCtxResetArgs) cuda.Result {
	if a.Dev == 0 {
		s.letWarm()
	}
	for id, g := range s.greens.m {
		if g.dev == a.Dev { // it is of the device's primary context
			s.note(s.endGreen(id, g))
		}
	}
	s.users.reset(a.Dev)
	reset := func() cuda.Result { return s.drv.DevicePrimaryCtxReset(a.Dev) }
	lingers := false
	for id, ctx := range s.ctxs.m { // whatever the guest calls it
		if !ctx.primary || ctx.dev != a.Dev || ctx.handle.IsZero() {
			continue
		}
		res := s.endContext(id, ctx, reset)
		if res != cuda.Success {
			return res
		}
		lingers, reset = lingers || ctx.lingers, func() cuda.Result { return cuda.Success }
		ctx.retains = 0
		s.forgetContext(id, ctx)
	}
	if lingers {
		return cuda.Success
	}
	if res := reset(); res != cuda.Success {
		return res
	}
	s.resetOwn()
	for ptr, m := range s.allocs {
		if m.pooled && m.graph == nil {
			s.freed(ptr, m)
		}
	}
	s.settlePools()
	s.host.SetSticky(cuda.Success)
	return cuda.Success
}

// letWarm gives up a primary context that was made ready and never asked for.
func (s *session) letWarm() {
	if s.warm != nil && !s.warm.primary.IsZero() {
		s.note(s.arenas.coming.through.end(s))
		s.warm.let(s.drv)
		s.current = 0
	}
}

// PrimaryCtxSetFlags sets the flags that the primary context has or will have.
func (s *session) PrimaryCtxSetFlags(c *wire.Call, a *wire.PrimaryCtxSetFlagsArgs) cuda.Result {
	res := s.drv.DevicePrimaryCtxSetFlags(a.Dev, a.Flags)
	if res == cuda.ErrorPrimaryContextActive && a.Dev == 0 && s.warm != nil && !s.warm.primary.IsZero() {
		s.letWarm() // the guest has not retained it yet: to it there is no context
		res = s.drv.DevicePrimaryCtxSetFlags(a.Dev, a.Flags)
	}
	return res
}

// CtxCreate makes a context of the guest's own.
func (s *session) CtxCreate(c *wire.Call, a *wire.CtxCreateArgs) cuda.Result {
	// A program with contexts of its own seldom wants the primary one beside them, which costs
	// memory.
	s.letWarm()
	var handle bind.Context
	if res := s.enter(a.Ctx, func() (res cuda.Result) { handle, res = s.drv.CtxCreate(a.Flags, a.Dev); return res }); res != cuda.Success {
		return res
	}
	ctx := &context_{handle: handle, dev: a.Dev, retains: 1}
	if !s.ctxs.put(a.Ctx, ctx) {
		s.drv.CtxDestroy(ctx.handle)
		s.budget.Leave()
		s.current = 0
		return cuda.ErrorInvalidContext
	}
	return s.contextReady(a.Ctx, ctx)
}

// CtxDestroy ends a context of the guest's own.
func (s *session) CtxDestroy(c *wire.Call, a *wire.CtxDestroyArgs) cuda.Result {
	ctx, ok := s.ctxs.get(a.Ctx)
	if !ok || ctx.primary || ctx.green || ctx.handle.IsZero() {
		return cuda.ErrorInvalidContext
	}
	handle := ctx.handle
	res := s.endContext(a.Ctx, ctx, func() cuda.Result { return s.drv.CtxDestroy(handle) })
	s.ctxs.remove(a.Ctx)
	s.current = a.Ctx
	s.forgetContext(a.Ctx, ctx)
	return res
}

// CtxGetLimit reads a CUlimit.
func (s *session) CtxGetLimit(c *wire.Call, a *wire.CtxGetLimitArgs, r *wire.CtxGetLimitReply) (res cuda.Result) {
	r.Value, res = s.drv.CtxGetLimit(a.Limit)
	return res
}

// CtxSetLimit sets a CUlimit.
func (s *session) CtxSetLimit(c *wire.Call, a *wire.CtxSetLimitArgs) cuda.Result {
	res := s.drv.CtxSetLimit(a.Limit, a.Value)
	if res == cuda.Success && a.Limit == cuda.LimitStackSize {
		s.stackSet(c.Ctx, a.Value)
	}
	return res
}

// CtxGetStreamPriorityRange asks which stream priorities mean something.
func (s *session) CtxGetStreamPriorityRange(c *wire.Call, r *wire.CtxGetStreamPriorityRangeReply) cuda.Result {
	least, greatest, res := s.drv.CtxGetStreamPriorityRange()
	r.Least, r.Greatest = least, greatest
	return res
}

// CtxSetCacheConfig sets the preferred split of L1 and shared memory.
func (s *session) CtxSetCacheConfig(c *wire.Call, a *wire.CtxSetCacheConfigArgs) cuda.Result {
	return s.drv.CtxSetCacheConfig(a.Config)
}

// CtxResetPersistingL2Cache resets persisting lines to normal.
func (s *session) CtxResetPersistingL2Cache(c *wire.Call) cuda.Result {
	return s.drv.CtxResetPersistingL2Cache()
}

// CtxEnablePeerAccess lets the current context reach the peer's memory.
func (s *session) CtxEnablePeerAccess(c *wire.Call, a *wire.CtxEnablePeerAccessArgs) cuda.Result {
	res := s.peer(a.Peer, func(h bind.Context) cuda.Result { return s.drv.CtxEnablePeerAccess(h, a.Flags) })
	if from, to := s.ctxs.m[c.Ctx], s.ctxs.m[a.Peer]; res == cuda.Success && from != nil && to != nil {
		res = s.note(s.allow(from.dev, to.dev))
	}
	return res
}

// CtxDisablePeerAccess undoes CtxEnablePeerAccess.
func (s *session) CtxDisablePeerAccess(c *wire.Call, a *wire.CtxDisablePeerAccessArgs) cuda.Result {
	return s.peer(a.Peer, s.drv.CtxDisablePeerAccess)
}

func (s *session) peer(id uint32, call func(handle bind.Context) cuda.Result) cuda.Result {
	p, ok := s.ctxs.get(id)
	if !ok || p.handle.IsZero() {
		return cuda.ErrorInvalidContext
	}
	return call(p.handle)
}

// DeviceCanAccessPeer asks for direct access between two devices.
func (s *session) DeviceCanAccessPeer(c *wire.Call, a *wire.DeviceCanAccessPeerArgs, r *wire.DeviceCanAccessPeerReply) (res cuda.Result) {
	r.Can, res = s.drv.DeviceCanAccessPeer(a.Dev, a.Peer)
	return res
}

// DeviceGetP2PAttribute asks how two devices are linked.
func (s *session) DeviceGetP2PAttribute(c *wire.Call, a *wire.DeviceGetP2PAttributeArgs, r *wire.DeviceGetP2PAttributeReply) (res cuda.Result) {
	r.Value, res = s.drv.DeviceGetP2PAttribute(a.Attr, a.Src, a.Dst)
	return res
}

// MemGetInfo reports free and total memory as the guest's limit shows them.
func (s *session) MemGetInfo(c *wire.Call, r *wire.MemGetInfoReply) cuda.Result {
	s.takeAwayAll(true, true)
	free, total, res := s.drv.MemGetInfo()
	r.Free, r.Total = free, total
	if limit := s.budget.Limit(); limit != 0 {
		s.settlePools()
		r.Total = min(r.Total, limit)
		r.Free = min(r.Free, limit-min(limit, s.budget.Used()))
	}
	return res
}

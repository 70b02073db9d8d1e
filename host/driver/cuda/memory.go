package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// allocation is live device memory.
type allocation struct {
	at     bind.Address
	size   uint64
	ctx    uint32 // with which it goes
	pooled bool   // it goes back to a pool, whatever becomes of the context
	pool   *ownPool
	graph  *graphMem
}

// charge books size bytes, if the budget allows.
func (s *session) charge(size uint64) cuda.Result { return s.chargeBeside(size, 0) }

// chargeBeside does so when up to reused of the bytes may come from what pools hold, which is
// booked already.
func (s *session) chargeBeside(size, reused uint64) cuda.Result {
	reused = min(reused, s.pooling.spare)
	if s.budget.Reserve(size - reused) {
		s.pooling.spare -= reused
		s.used += size
		return cuda.Success
	}
	s.trim()
	if !s.budget.Reserve(size) {
		return cuda.ErrorOutOfMemory
	}
	s.used += size
	return cuda.Success
}

// refund ends what charge has booked.
func (s *session) refund(size uint64) {
	size = min(size, s.used)
	s.used -= size
	s.budget.Release(size)
}

// limited is what the guest sees of a device's memory.
func (s *session) limited(total uint64) uint64 {
	if l := s.budget.Limit(); l != 0 {
		return min(total, l)
	}
	return total
}

func (s *session) booked(c *wire.Call, a allocation) uint64 {
	ptr := a.at.Value()
	s.refund(s.allocs[ptr].size) // what lay there before has gone with its context
	s.allocs[ptr] = a
	if r := s.arenaOf(ptr); r != nil {
		s.arenas.running.lives(ptr, block{a.size, r.all, r.dev})
	}
	s.unshareMemory(ptr)
	if !c.Replay {
		c.Placed = append(c.Placed, ptr)
	}
	return ptr
}

// forgetMemory drops the allocations that went with a context.
func (s *session) forgetMemory(ctx uint32) {
	var gone []allocation
	for ptr, a := range s.allocs {
		if a.ctx == ctx && !a.pooled {
			s.unshareMemory(ptr)
			s.refund(a.size)
			delete(s.allocs, ptr)
			s.arenas.running.ends(ptr)
			gone = append(gone, a)
		}
	}
	s.endArenas(gone)
}

// MemAlloc allocates device memory.
func (s *session) MemAlloc(c *wire.Call, a *wire.MemAllocArgs, r *wire.MemAllocReply) cuda.Result {
	if res := s.chargeAs(c, a.Size); res != cuda.Success {
		return res
	}
	at, res := s.allocate(c, a.Size)
	if s.note(res) != cuda.Success {
		s.refund(a.Size)
		return res
	}
	r.Ptr = s.booked(c, allocation{at: at, size: a.Size, ctx: c.Ctx})
	return cuda.Success
}

// allocate is memory of the driver's, or of the session's own ranges.
func (s *session) allocate(c *wire.Call, size uint64) (bind.Address, cuda.Result) {
	if s.arenas.on {
		return s.obtain(c, size)
	}
	m, res := s.drv.MemAlloc(size)
	return m.Address(), res
}

// release ends it. The context is current.
func (s *session) release(c *wire.Call, m allocation) cuda.Result {
	r := s.arenaOf(m.at.Value())
	if r == nil {
		s.forgetDirect(m)
		return s.drv.MemFree(m.at)
	}
	if s.capturing() {
		if res := s.CaptureUnsafe(c); res != cuda.Success {
			return res
		}
	}
	return s.giveBack(r, m)
}

// MemAllocPitch allocates rows at the device's preferred distance.
func (s *session) MemAllocPitch(c *wire.Call, a *wire.MemAllocPitchArgs, r *wire.MemAllocPitchReply) cuda.Result {
	if s.arenas.on {
		return s.allocRows(c, a, r)
	}
	_, size, res := pitchOf(a.Width, a.Height, a.Element)
	if res == cuda.Success {
		res = s.charge(size) // before the driver has taken it from others
	}
	if res != cuda.Success {
		return res
	}
	at, pitch, res := s.drv.MemAllocPitch(a.Width, a.Height, a.Element)
	if s.note(res) != cuda.Success {
		s.refund(size)
		return res
	}
	all, ok := bind.Bytes(a.Height, pitch)
	if !ok || all > size && s.charge(all-size) != cuda.Success { // the driver rounds otherwise
		s.drv.MemFree(at)
		s.refund(size)
		return cuda.ErrorOutOfMemory
	}
	s.refund(size - min(all, size))
	r.Ptr, r.Pitch = s.booked(c, allocation{at: at, size: all, ctx: c.Ctx}), pitch
	return cuda.Success
}

// allocRows is MemAllocPitch from the session's own ranges.
func (s *session) allocRows(c *wire.Call, a *wire.MemAllocPitchArgs, r *wire.MemAllocPitchReply) cuda.Result {
	pitch, size, res := pitchOf(a.Width, a.Height, a.Element)
	if res == cuda.Success {
		res = s.chargeAs(c, size)
	}
	if res != cuda.Success {
		return res
	}
	at, res := s.obtain(c, size)
	if s.note(res) != cuda.Success {
		s.refund(size)
		return res
	}
	r.Ptr, r.Pitch = s.booked(c, allocation{at: at, size: size, ctx: c.Ctx}), pitch
	return cuda.Success
}

// MemFree frees device memory.
func (s *session) MemFree(c *wire.Call, a *wire.MemFreeArgs) cuda.Result {
	m, ok := s.allocs[a.Ptr]
	if !ok && s.closePointer(a.Ptr) {
		return s.reclaim()
	}
	if !ok {
		return s.freeOfGraph(a.Ptr, s.drv.MemFree)
	}
	if m.graph != nil {
		return s.freeGraphMem(m.graph)
	}
	res := s.note(s.release(c, m))
	if res == cuda.Success {
		s.freed(a.Ptr, m)
	}
	return res
}

// freeOrdered frees memory of pools and graphs in the order of a stream that captures or does not;
// false: it is neither.
func (s *session) freeOrdered(ptr uint64, m allocation, st *stream) (done bool, res cuda.Result) {
	switch captured := s.inCapture(st); {
	case captured && m.graph != nil:
		return true, s.captureFree(m.graph, st)
	case captured:
		// A capture frees what graphs have allocated: the driver knows this memory for none of
		// theirs.
		return true, max(s.note(s.drv.MemFreeAsync(m.at, st.handle)), cuda.ErrorInvalidValue)
	case m.graph != nil:
		return true, s.freeGraphMem(m.graph)
	case m.pool != nil:
		s.freeOwn(ptr, m, st)
		return true, cuda.Success
	}
	return false, cuda.Success
}

// MemAllocAsync allocates from the current pool in stream order.
func (s *session) MemAllocAsync(c *wire.Call, a *wire.MemAllocAsyncArgs, r *wire.MemAllocAsyncReply) cuda.Result {
	if s.arenas.on {
		ctx, ok := s.ctxs.get(c.Ctx)
		if !ok {
			return cuda.ErrorInvalidContext
		}
		return s.allocOrdered(c, s.ownDefault(ctx.dev), a.Stream, a.Size, &r.Ptr)
	}
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	return s.pooled(c, st, a.Size, &r.Ptr, func(size uint64) (bind.Address, cuda.Result) { return s.drv.MemAllocAsync(size, st.handle) })
}

// MemFreeAsync frees in stream order.
func (s *session) MemFreeAsync(c *wire.Call, a *wire.MemFreeAsyncArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	m, ok := s.allocs[a.Ptr]
	if !ok && s.closePointer(a.Ptr) {
		return cuda.Success
	}
	if !ok {
		return s.freeOfGraph(a.Ptr, func(m bind.Address) cuda.Result { return s.drv.MemFreeAsync(m, st.handle) })
	}
	if s.arenas.on {
		if done, res := s.freeOrdered(a.Ptr, m, st); done {
			return res
		}
	}
	if r := s.arenaOf(a.Ptr); r != nil {
		res = s.giveBack(r, m) // given out again when all work of the session is done
	} else {
		s.forgetDirect(m)
		res = s.drv.MemFreeAsync(m.at, st.handle)
	}
	if s.note(res) == cuda.Success {
		s.freed(a.Ptr, m)
	}
	s.freedAsync = s.freedAsync || m.pooled
	return res
}

// PointerGetAttribute reads what the guest cannot know; up to 8 bytes.
func (s *session) PointerGetAttribute(c *wire.Call, a *wire.PointerGetAttributeArgs, r *wire.PointerGetAttributeReply) (res cuda.Result) {
	r.Value, res = s.space.Attribute(uint32(a.Attr), a.Ptr)
	return res
}

// PoolGetDefault names a device's default memory pool.
func (s *session) PoolGetDefault(c *wire.Call, a *wire.PoolGetDefaultArgs) cuda.Result {
	h, res := s.drv.DeviceGetDefaultMemPool(a.Dev)
	if res != cuda.Success {
		return res
	}
	if !s.pools.put(a.Pool, h) {
		return cuda.ErrorInvalidHandle
	}
	if s.poolDev == nil {
		s.poolDev = map[uint32]uint32{}
	}
	s.poolDev[a.Pool] = a.Dev
	if s.arenas.on {
		s.nameOwn(a.Pool, s.ownDefault(a.Dev))
	}
	return cuda.Success
}

// PoolGetAttribute reads a pool attribute; 4-byte ones come zero-extended.
func (s *session) PoolGetAttribute(c *wire.Call, a *wire.PoolGetAttributeArgs, r *wire.PoolGetAttributeReply) (res cuda.Result) {
	p, ok := s.pools.get(a.Pool)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if own := s.pooling.own[a.Pool]; own != nil {
		var ours bool
		if r.Value, ours = own.ownAttribute(a.Attr); ours || own.foreign {
			return knownAttribute(ours)
		}
	}
	r.Value, res = s.drv.MemPoolGetAttribute(p, uint32(a.Attr))
	return res
}

// PoolSetAttribute sets a pool attribute.
func (s *session) PoolSetAttribute(c *wire.Call, a *wire.PoolSetAttributeArgs) cuda.Result {
	p, ok := s.pools.get(a.Pool)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	own, res := s.pooling.own[a.Pool], cuda.Success
	if a.Attr == cuda.PoolAttrReleaseThreshold && a.Value != 0 && own == nil {
		s.poolsKeep = true
	}
	if own == nil || !own.foreign {
		res = s.drv.MemPoolSetAttribute(p, uint32(a.Attr), a.Value)
	}
	if own != nil && res == cuda.Success {
		own.setOwn(a.Attr, a.Value)
	}
	return res
}

// PoolTrimTo releases a pool's unused memory.
func (s *session) PoolTrimTo(c *wire.Call, a *wire.PoolTrimToArgs) cuda.Result {
	p, ok := s.pools.get(a.Pool)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if own := s.pooling.own[a.Pool]; own != nil {
		s.takeAway(own, a.Keep, true)
		if r := s.arenas.ranges[own.dev]; r != nil && own.held <= a.Keep {
			r.Trim()
		}
		return cuda.Success
	}
	s.syncPools()
	res := s.drv.MemPoolTrimTo(p, a.Keep)
	s.settlePools()
	return res
}

package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

const memoryTypeDevice = 2 // CU_MEMORYTYPE_DEVICE

// allocation is live device memory.
type allocation struct {
	size   uint64
	ctx    uint32 // with which it goes
	pooled bool   // it goes back to a pool, whatever becomes of the context
}

// charge books size bytes, if the budget allows.
func (s *session) charge(size uint64) cuda.Result { return s.chargeBeside(size, 0) }

// chargeBeside does so when up to reused of the bytes may come from what pools hold, which is booked already.
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

func (s *session) booked(c *wire.Call, ptr uint64, a allocation) {
	s.refund(s.allocs[ptr].size) // what lay there before has gone with its context
	s.allocs[ptr] = a
	s.unshare(shareMemory, ptr)
	s.unshare(sharePointer, ptr)
	c.Placed = append(c.Placed, ptr)
}

// forgetMemory drops the allocations that went with a context.
func (s *session) forgetMemory(ctx uint32) {
	for ptr, a := range s.allocs {
		if a.ctx == ctx && !a.pooled {
			s.refund(a.size)
			delete(s.allocs, ptr)
		}
	}
}

// MemAlloc allocates device memory.
func (s *session) MemAlloc(c *wire.Call, a *wire.MemAllocArgs, r *wire.MemAllocReply) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	if res := s.charge(a.Size); res != cuda.Success {
		return res
	}
	if res := s.note(s.fn.cuMemAlloc_v2.call(s.out.addr(), a.Size)); res != cuda.Success {
		s.refund(a.Size)
		return res
	}
	r.Ptr = *s.out.u64(0)
	s.booked(c, r.Ptr, allocation{size: a.Size, ctx: c.Ctx})
	return cuda.Success
}

// MemAllocPitch allocates rows at the device's preferred distance.
func (s *session) MemAllocPitch(c *wire.Call, a *wire.MemAllocPitchArgs, r *wire.MemAllocPitchReply) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	if res := s.note(s.fn.cuMemAllocPitch_v2.call(s.out.addr(), s.out.addr()+8, a.Width, a.Height, uint64(a.Element))); res != cuda.Success {
		return res
	}
	r.Ptr, r.Pitch = *s.out.u64(0), *s.out.u64(1)
	size := r.Pitch * a.Height
	if res := s.charge(size); res != cuda.Success {
		s.fn.cuMemFree_v2.call(r.Ptr)
		return res
	}
	s.booked(c, r.Ptr, allocation{size: size, ctx: c.Ctx})
	return cuda.Success
}

// MemFree frees device memory.
func (s *session) MemFree(c *wire.Call, a *wire.MemFreeArgs) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	m, ok := s.allocs[a.Ptr]
	if !ok {
		return s.freeOfGraph(a.Ptr, func() cuda.Result { return s.fn.cuMemFree_v2.call(a.Ptr) })
	}
	res := s.note(s.fn.cuMemFree_v2.call(a.Ptr))
	if res == cuda.Success {
		s.freed(a.Ptr, m)
		s.unshare(shareMemory, a.Ptr)
		s.unshare(sharePointer, a.Ptr)
	}
	return res
}

// MemAllocAsync allocates from the current pool in stream order.
func (s *session) MemAllocAsync(c *wire.Call, a *wire.MemAllocAsyncArgs, r *wire.MemAllocAsyncReply) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if res := s.chargeBeside(a.Size, a.Size); res != cuda.Success {
		return res
	}
	if res := s.note(s.fn.cuMemAllocAsync.call(s.out.addr(), a.Size, st.handle)); res != cuda.Success {
		s.refund(a.Size)
		return res
	}
	r.Ptr = *s.out.u64(0)
	s.bookedPooled(c, r.Ptr, a.Size)
	s.claimCaptured(st, r.Ptr)
	return cuda.Success
}

// MemFreeAsync frees in stream order.
func (s *session) MemFreeAsync(c *wire.Call, a *wire.MemFreeAsyncArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	m, ok := s.allocs[a.Ptr]
	if !ok {
		return s.freeOfGraph(a.Ptr, func() cuda.Result { return s.fn.cuMemFreeAsync.call(a.Ptr, st.handle) })
	}
	res = s.note(s.fn.cuMemFreeAsync.call(a.Ptr, st.handle))
	if res == cuda.Success {
		s.freed(a.Ptr, m)
		s.unshare(shareMemory, a.Ptr)
		s.unshare(sharePointer, a.Ptr)
	}
	s.freedAsync = true
	return res
}

// reachable checks that a guest-given address may be handed to the driver: device memory (whose extent the driver
// checks), or wholly inside a region that the guest shared. Anything else would be this process's own memory.
func (s *session) reachable(addr, size uint64) cuda.Result {
	if p := s.pinnedAt(addr); p != nil {
		if !p.holds(addr, size) {
			return cuda.ErrorInvalidValue
		}
		return cuda.Success
	}
	const pointerMemoryType = 2
	if res := s.fn.cuPointerGetAttribute.call(s.out.addr(), pointerMemoryType, addr); res != cuda.Success {
		if s.graphMemory(addr, size) {
			return cuda.Success
		}
		return cuda.ErrorInvalidValue
	}
	if *s.out.i32(0) != memoryTypeDevice {
		return cuda.ErrorInvalidValue
	}
	return cuda.Success
}

// PointerGetAttribute reads what the guest cannot know; up to 8 bytes.
func (s *session) PointerGetAttribute(c *wire.Call, a *wire.PointerGetAttributeArgs, r *wire.PointerGetAttributeReply) cuda.Result {
	*s.out.u64(0), *s.out.u64(1) = 0, 0
	res := s.fn.cuPointerGetAttribute.call(s.out.addr(), uint64(a.Attr), a.Ptr)
	r.Value = *s.out.u64(0)
	return res
}

// PoolGetDefault names a device's default memory pool.
func (s *session) PoolGetDefault(c *wire.Call, a *wire.PoolGetDefaultArgs) cuda.Result {
	if res := s.fn.cuDeviceGetDefaultMemPool.call(s.out.addr(), uint64(a.Dev)); res != cuda.Success {
		return res
	}
	if !s.pools.put(a.Pool, *s.out.u64(0)) {
		return cuda.ErrorInvalidHandle
	}
	if s.poolDev == nil {
		s.poolDev = map[uint32]uint32{}
	}
	s.poolDev[a.Pool] = a.Dev
	return cuda.Success
}

// PoolGetAttribute reads a pool attribute; 4-byte ones come zero-extended.
func (s *session) PoolGetAttribute(c *wire.Call, a *wire.PoolGetAttributeArgs, r *wire.PoolGetAttributeReply) cuda.Result {
	p, ok := s.pools.get(a.Pool)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	*s.out.u64(0) = 0
	res := s.fn.cuMemPoolGetAttribute.call(p, uint64(a.Attr), s.out.addr())
	r.Value = *s.out.u64(0)
	return res
}

// PoolSetAttribute sets a pool attribute.
func (s *session) PoolSetAttribute(c *wire.Call, a *wire.PoolSetAttributeArgs) cuda.Result {
	p, ok := s.pools.get(a.Pool)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if a.Attr == poolThreshold && a.Value != 0 {
		s.poolsKeep = true
	}
	*s.out.u64(0) = a.Value
	return s.fn.cuMemPoolSetAttribute.call(p, uint64(a.Attr), s.out.addr())
}

// PoolTrimTo releases a pool's unused memory.
func (s *session) PoolTrimTo(c *wire.Call, a *wire.PoolTrimToArgs) cuda.Result {
	p, ok := s.pools.get(a.Pool)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	s.tellPools()
	res := s.fn.cuMemPoolTrimTo.call(p, a.Keep)
	s.settlePools()
	return res
}

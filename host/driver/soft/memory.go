package soft

import (
	"math/bits"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// obtain allocates memory for a call and notes its address, or uses the address of the recorded
// call.
func (s *session) obtain(c *wire.Call, r request) (*allocation, cuda.Result) {
	if at, ok := c.Place(); ok {
		r.at = at
	} else if c.Replay {
		// An operation without a record made this first: stay clear of recorded addresses.
		r.far = true
	}
	a, res := s.space.alloc(r)
	if res == cuda.Success && !c.Replay {
		c.Placed = append(c.Placed, a.lo)
	}
	return a, res
}

// free ends allocations: for the guest now, in truth when the work that is queued has run.
func (s *session) free(gone []*allocation) {
	if len(gone) == 0 {
		return
	}
	for _, a := range gone {
		s.retire(a)
	}
	deps := s.everything()
	if len(deps) == 0 {
		s.released(gone...)
		return
	}
	last := &task{always: true, run: func() cuda.Result {
		s.released(gone...)
		return cuda.Success
	}}
	s.queue.submit(last, append(deps, s.freeing))
	s.freeing = last
}

// retire takes memory from the guest; release must follow.
func (s *session) retire(a *allocation) {
	s.forgetTexturesOf(a)
	if a.pool != nil {
		a.pool.used(-int64(a.size))
	}
	s.unshare(shareMemory, a.lo)
	s.unshare(sharePointer, a.lo)
	s.space.retire(a)
}

// everything is the last task of every stream.
func (s *session) everything() []*task {
	var deps []*task
	for _, g := range s.ctxs {
		deps = s.lastOf(g, deps)
	}
	for _, g := range s.orphans {
		deps = s.lastOf(g, deps)
	}
	return deps
}

// MemAlloc allocates device memory.
func (s *session) MemAlloc(c *wire.Call, a *wire.MemAllocArgs, r *wire.MemAllocReply) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	m, res := s.obtain(c, request{device: g.device, size: a.Size, align: allocUnit, ctx: g})
	if res == cuda.Success {
		r.Ptr = m.lo
	}
	return res
}

// MemAllocPitch allocates rows at a distance that suits vector accesses.
func (s *session) MemAllocPitch(c *wire.Call, a *wire.MemAllocPitchArgs, r *wire.MemAllocPitchReply) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	if a.Width == 0 || a.Height == 0 || a.Width > maxPitch || a.Element != 4 && a.Element != 8 && a.Element != 16 {
		return cuda.ErrorInvalidValue
	}
	pitch := (a.Width + pitchAlignment - 1) &^ (pitchAlignment - 1)
	over, size := bits.Mul64(pitch, a.Height)
	if over != 0 {
		return cuda.ErrorOutOfMemory
	}
	m, res := s.obtain(c, request{device: g.device, size: size, align: allocUnit, ctx: g})
	if res == cuda.Success {
		r.Ptr, r.Pitch = m.lo, pitch
	}
	return res
}

// owned finds memory that the guest allocated at exactly this address.
func (s *session) owned(ptr uint64) (*allocation, cuda.Result) {
	a := s.space.lookup(ptr)
	if a == nil || a.lo != ptr || a.freed || a.kind != plainMemory && a.kind != pooledMemory {
		return nil, cuda.ErrorInvalidValue
	}
	return a, cuda.Success
}

// MemFree frees device memory.
func (s *session) MemFree(c *wire.Call, a *wire.MemFreeArgs) cuda.Result {
	if _, res := s.context(c); res != cuda.Success {
		return res
	}
	if a.Ptr == 0 {
		return cuda.Success
	}
	if m := s.graphMem[a.Ptr]; m != nil { // it comes again with the graph's next launch
		return m.release()
	}
	if o := s.opened[a.Ptr]; o != nil && o.of != nil {
		delete(s.opened, a.Ptr)
		return s.shut(o)
	}
	m, res := s.owned(a.Ptr)
	if res == cuda.Success {
		s.free([]*allocation{m})
	}
	return res
}

// MemAllocAsync allocates from the device's pool. The memory is there at once, which is within
// stream order.
func (s *session) MemAllocAsync(c *wire.Call, a *wire.MemAllocAsyncArgs, r *wire.MemAllocAsyncReply) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	r.Ptr, res = s.allocPooled(c, s.devPools[st.ctx.device], a.Size, st.ctx)
	return res
}

// MemFreeAsync frees in stream order.
func (s *session) MemFreeAsync(c *wire.Call, a *wire.MemFreeAsyncArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if m := s.graphMem[a.Ptr]; m != nil {
		return s.do(st, 0, m.release)
	}
	if o := s.opened[a.Ptr]; o != nil && o.of != nil {
		delete(s.opened, a.Ptr)
		return s.shut(o)
	}
	m, res := s.owned(a.Ptr)
	if res != cuda.Success {
		return res
	}
	s.retire(m)
	deps := s.before(st)
	if len(deps) == 0 {
		s.released(m)
		return cuda.Success
	}
	s.enqueue(st, &task{always: true, run: func() cuda.Result {
		s.released(m)
		return cuda.Success
	}}, deps)
	return cuda.Success
}

// MemGetInfo is what is free on the current device, and what it has.
func (s *session) MemGetInfo(c *wire.Call, r *wire.MemGetInfoReply) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	used, limit := s.space.usage()
	r.Total = min(s.gpus[g.device].size, limit)
	r.Free = min(r.Total-min(r.Total, s.space.usageOf(g.device)), limit-min(used, limit))
	return cuda.Success
}

// PointerGetAttribute answers from the live allocations.
func (s *session) PointerGetAttribute(c *wire.Call, a *wire.PointerGetAttributeArgs, r *wire.PointerGetAttributeReply) cuda.Result {
	m := s.space.lookup(a.Ptr)
	if m == nil || m.freed {
		return cuda.ErrorInvalidValue
	}
	v, res := pointerAttribute(m, a.Attr, a.Ptr)
	r.Value = v
	return res
}

func pointerAttribute(m *allocation, attr int32, ptr uint64) (uint64, cuda.Result) {
	host := m.kind == pinnedRegion
	switch attr {
	case cuda.PointerAttrContext:
		if m.ctx == nil {
			return 0, cuda.ErrorInvalidValue
		}
		return uint64(m.ctx.id), cuda.Success
	case cuda.PointerAttrMemoryType:
		if host {
			return cuda.MemoryTypeHost, cuda.Success
		}
		return cuda.MemoryTypeDevice, cuda.Success
	case cuda.PointerAttrDevicePointer:
		return ptr, cuda.Success
	case cuda.PointerAttrHostPointer:
		if !host {
			return 0, cuda.ErrorInvalidValue
		}
		return ptr, cuda.Success
	case cuda.PointerAttrBufferID, cuda.PointerAttrMemoryBlockID:
		return m.serial, cuda.Success
	case cuda.PointerAttrDeviceOrdinal:
		return uint64(max(m.device, 0)), cuda.Success
	case cuda.PointerAttrRangeStartAddr, cuda.PointerAttrMappingBaseAddr:
		return m.lo, cuda.Success
	case cuda.PointerAttrRangeSize, cuda.PointerAttrMappingSize:
		return m.size, cuda.Success
	case cuda.PointerAttrMapped:
		return 1, cuda.Success
	case cuda.PointerAttrAccessFlags:
		return 3, cuda.Success // read and write
	case cuda.PointerAttrSyncMemops, cuda.PointerAttrIsManaged, cuda.PointerAttrIsLegacyCudaIPCCapable,
		cuda.PointerAttrAllowedHandleTypes, cuda.PointerAttrIsGPUDirectRDMACapable, cuda.PointerAttrMempoolHandle,
		cuda.PointerAttrIsHwDecompressCapable:
		return 0, cuda.Success
	}
	return 0, cuda.ErrorInvalidValue
}

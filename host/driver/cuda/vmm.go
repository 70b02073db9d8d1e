package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

const (
	memPinned         = 1 // CU_MEM_ALLOCATION_TYPE_PINNED
	memLocationDevice = 1 // CU_MEM_LOCATION_TYPE_DEVICE
	memPropSize       = 32
	memAccessSize     = 12
)

// allocationProp writes a CUmemAllocationProp: type, handle types, location, metadata pointer, flags (CUDA Driver API).
func allocationProp(dev, handles, flags uint32) buffer {
	b := newBuffer(memPropSize)
	le := binary.LittleEndian
	le.PutUint32(b.bytes(), memPinned)
	le.PutUint32(b.bytes()[4:], handles)
	le.PutUint32(b.bytes()[8:], memLocationDevice)
	le.PutUint32(b.bytes()[12:], dev)
	le.PutUint32(b.bytes()[24:], flags)
	return b
}

// accessDesc writes a CUmemAccessDesc.
func accessDesc(dev, flags uint32) buffer {
	b := newBuffer(memAccessSize)
	le := binary.LittleEndian
	le.PutUint32(b.bytes(), memLocationDevice)
	le.PutUint32(b.bytes()[4:], dev)
	le.PutUint32(b.bytes()[8:], flags)
	return b
}

// MemGetAllocationGranularity asks for the unit of MemCreate and MemMap.
func (s *session) MemGetAllocationGranularity(c *wire.Call, a *wire.MemGetAllocationGranularityArgs, r *wire.MemGetAllocationGranularityReply) cuda.Result {
	p := allocationProp(a.Dev, a.Handles, 0)
	defer p.free()
	res := s.fn.cuMemGetAllocationGranularity.call(s.out.addr(), p.addr(), uint64(a.Option))
	r.Granularity = *s.out.u64(0)
	return res
}

// MemAddressReserve takes device addresses.
func (s *session) MemAddressReserve(c *wire.Call, a *wire.MemAddressReserveArgs, r *wire.MemAddressReserveReply) cuda.Result {
	addr, recorded := c.Place()
	if !recorded {
		addr = a.Addr
	}
	if res := s.fn.cuMemAddressReserve.call(s.out.addr(), a.Size, a.Align, addr, uint64(a.Flags)); res != cuda.Success {
		return res
	}
	r.Ptr = *s.out.u64(0)
	if recorded && r.Ptr != addr || !s.resvs.put(a.Resv, reservation{r.Ptr, a.Size}) {
		s.fn.cuMemAddressFree.call(r.Ptr, a.Size)
		return cuda.ErrorOutOfMemory
	}
	if !recorded {
		c.Placed = append(c.Placed, r.Ptr)
	}
	return cuda.Success
}

// MemAddressFree gives device addresses back.
func (s *session) MemAddressFree(c *wire.Call, a *wire.MemAddressFreeArgs) cuda.Result {
	v, ok := s.resvs.get(a.Resv)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	res := s.note(s.fn.cuMemAddressFree.call(v.base, v.size))
	if res == cuda.Success {
		s.resvs.remove(a.Resv)
	}
	return res
}

// MemCreate allocates memory without an address.
func (s *session) MemCreate(c *wire.Call, a *wire.MemCreateArgs) cuda.Result {
	if res := s.charge(a.Size); res != cuda.Success {
		return res
	}
	p := allocationProp(a.Dev, a.Handles, a.Flags)
	defer p.free()
	if res := s.note(s.fn.cuMemCreate.call(s.out.addr(), a.Size, p.addr(), 0)); res != cuda.Success {
		s.refund(a.Size)
		return res
	}
	handle := *s.out.u64(0)
	if !s.mems.put(a.Memhandle, &physical{handle: handle, size: a.Size}) {
		s.refund(a.Size)
		s.fn.cuMemRelease.call(handle)
		return cuda.ErrorInvalidHandle
	}
	s.created += a.Size
	return cuda.Success
}

// MemRelease frees memory; the guest has seen to it that no mapping is left.
func (s *session) MemRelease(c *wire.Call, a *wire.MemReleaseArgs) cuda.Result {
	m, ok := s.mems.get(a.Memhandle)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	res := s.note(s.fn.cuMemRelease.call(m.handle))
	if res == cuda.Success {
		s.mems.remove(a.Memhandle)
		s.refund(m.charged())
		s.created -= m.charged()
		s.unshare(sharePhysical, uint64(a.Memhandle))
	}
	return res
}

// MemMap puts memory at reserved addresses.
func (s *session) MemMap(c *wire.Call, a *wire.MemMapArgs) cuda.Result {
	v, ok := s.resvs.get(a.Resv)
	m, known := s.mems.get(a.Memhandle)
	if !ok || !known || a.Ptr < v.base || a.Ptr-v.base > v.size || a.Size > v.size-(a.Ptr-v.base) {
		return cuda.ErrorInvalidValue
	}
	if _, used := s.mappings.get(a.Mapping); used || len(s.mappings.m) >= maxObjects {
		return cuda.ErrorInvalidHandle
	}
	res := s.note(s.fn.cuMemMap.call(a.Ptr, a.Size, a.Offset, m.handle, uint64(a.Flags)))
	if res == cuda.Success && !s.mappings.put(a.Mapping, mapping{a.Ptr, a.Size}) {
		s.fn.cuMemUnmap.call(a.Ptr, a.Size)
		return cuda.ErrorInvalidHandle
	}
	return res
}

// MemUnmap takes memory from its addresses.
func (s *session) MemUnmap(c *wire.Call, a *wire.MemUnmapArgs) cuda.Result {
	m, ok := s.mappings.get(a.Mapping)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	res := s.note(s.fn.cuMemUnmap.call(m.base, m.size))
	if res == cuda.Success {
		s.mappings.remove(a.Mapping)
	}
	return res
}

// MemSetAccess says what a device may do with a mapping.
func (s *session) MemSetAccess(c *wire.Call, a *wire.MemSetAccessArgs) cuda.Result {
	m, ok := s.mappings.get(a.Mapping)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	desc := accessDesc(a.Dev, a.Flags)
	defer desc.free()
	return s.note(s.fn.cuMemSetAccess.call(m.base, m.size, desc.addr(), 1))
}

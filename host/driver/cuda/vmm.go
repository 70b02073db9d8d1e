package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

const (
	memPinned         = 1 // CU_MEM_ALLOCATION_TYPE_PINNED
	memLocationDevice = 1 // CU_MEM_LOCATION_TYPE_DEVICE
	memLocationNUMA   = 3 // CU_MEM_LOCATION_TYPE_HOST_NUMA
	accessReadWrite   = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
)

func onDevice(dev uint32) bind.MemLocation {
	return bind.MemLocation{Type: memLocationDevice, Id: int32(dev)}
}

// allocationProp is memory on a device; flags are compression, gpuDirectRDMACapable << 8, usage <<
// 16.
func allocationProp(dev, handles, flags uint32) *bind.MemAllocationProp {
	p := &bind.MemAllocationProp{Type: memPinned, RequestedHandleTypes: handles, Location: onDevice(dev)}
	p.AllocFlags.CompressionType, p.AllocFlags.GpuDirectRDMACapable, p.AllocFlags.Usage = uint8(flags), uint8(flags>>8), uint16(flags>>16)
	return p
}

// hostProp is memory on the host's node that is next to a device; false: the driver makes none.
func (s *session) hostProp(dev uint32) (*bind.MemAllocationProp, bool) {
	if can, res := s.drv.DeviceGetAttribute(cuda.DeviceAttrHostNUMAVirtualMemoryManagementSupported, dev); res != cuda.Success || can == 0 {
		return nil, false
	}
	node, res := s.drv.DeviceGetAttribute(cuda.DeviceAttrHostNUMAID, dev)
	if res != cuda.Success {
		return nil, false
	}
	p := allocationProp(dev, 0, 0)
	// -1: the host has no nodes to tell apart
	p.Location = bind.MemLocation{Type: memLocationNUMA, Id: max(node, 0)}
	return p, true
}

// makesOnHost reports whether the driver makes memory on the host for each of the session's n
// devices.
func (s *session) makesOnHost(n int) bool {
	for dev := range uint32(n) {
		if _, ok := s.hostProp(dev); !ok {
			return false
		}
	}
	return n > 0
}

func accessDesc(dev, flags uint32) []bind.MemAccessDesc {
	return []bind.MemAccessDesc{{Location: onDevice(dev), Flags: flags}}
}

// MemGetAllocationGranularity asks for the unit of MemCreate and MemMap.
func (s *session) MemGetAllocationGranularity(c *wire.Call, a *wire.MemGetAllocationGranularityArgs, r *wire.MemGetAllocationGranularityReply) (res cuda.Result) {
	r.Granularity, res = s.drv.MemGetAllocationGranularity(allocationProp(a.Dev, a.Handles, 0), a.Option)
	return res
}

// MemAddressReserve takes device addresses.
func (s *session) MemAddressReserve(c *wire.Call, a *wire.MemAddressReserveArgs, r *wire.MemAddressReserveReply) cuda.Result {
	addr, recorded := c.Place()
	if !recorded {
		addr = a.Addr
	}
	m, ok := bind.Mem{}, false
	if addr == 0 {
		m, ok = s.reserveApart(a)
	}
	if !ok {
		var res cuda.Result
		if m, res = s.drv.MemAddressReserve(a.Size, a.Align, bind.Hint(addr), uint64(a.Flags)); res != cuda.Success {
			return res
		}
	}
	r.Ptr = m.Address().Value()
	if recorded && r.Ptr != addr {
		s.drv.MemAddressFree(m)
		c.Because("%d bytes of reserved addresses come out at %#x, and were at %#x", a.Size, r.Ptr, addr)
		return cuda.ErrorNotSupported
	}
	if !s.resvs.put(a.Resv, m) {
		s.drv.MemAddressFree(m)
		return cuda.ErrorOutOfMemory
	}
	if r.Ptr-apartFrom < apartTo-apartFrom {
		s.apart = max(s.apart, r.Ptr+a.Size)
	}
	if !recorded {
		c.Placed = append(c.Placed, r.Ptr)
	}
	return cuda.Success
}

// Where a session that may move has addresses reserved that the guest leaves to the driver: apart
// from what processes map, and from the ranges.
const (
	apartFrom, apartTo = 0x6800_0000_0000, 0x7000_0000_0000
	apartUnit          = 1 << 30
)

// reserveApart reserves addresses that another process can reserve again, whatever it has mapped by
// then; false: the driver takes no such wish.
func (s *session) reserveApart(a *wire.MemAddressReserveArgs) (bind.Mem, bool) {
	if !s.arenas.on || s.apartRefused || a.Align&(a.Align-1) != 0 || max(a.Align, a.Size) > apartTo-apartFrom {
		return bind.Mem{}, false
	}
	unit := max(a.Align, apartUnit)
	at := (max(s.apart, apartFrom) + unit - 1) &^ (unit - 1)
	if a.Size > apartTo-min(at, apartTo) {
		return bind.Mem{}, false
	}
	m, res := s.drv.MemAddressReserve(a.Size, a.Align, bind.Hint(at), uint64(a.Flags))
	if res != cuda.Success {
		return m, false
	}
	if m.Address().Value() != at {
		s.drv.MemAddressFree(m)
		s.apartRefused = true
		return bind.Mem{}, false
	}
	return m, true
}

// MemAddressFree gives device addresses back.
func (s *session) MemAddressFree(c *wire.Call, a *wire.MemAddressFreeArgs) cuda.Result {
	_, res := end(s, &s.resvs, a.Resv, s.drv.MemAddressFree)
	return res
}

// MemCreate allocates memory without an address.
func (s *session) MemCreate(c *wire.Call, a *wire.MemCreateArgs) cuda.Result {
	if a.Place != wire.MemOnDevice {
		return s.createOnHost(c, a)
	}
	if res := s.charge(a.Size); res != cuda.Success {
		return res
	}
	var handle bind.MemGenericAllocationHandle
	if res := cuda.Success; !s.opt.Rehearsal {
		if handle, res = s.drv.MemCreate(a.Size, allocationProp(a.Dev, a.Handles, a.Flags), 0); s.note(res) != cuda.Success {
			s.refund(a.Size)
			return res
		}
	}
	if !s.mems.put(a.Memhandle, &physical{handle: handle, size: a.Size, dev: a.Dev, handles: a.Handles, flags: a.Flags}) {
		s.refund(a.Size)
		s.drv.MemRelease(handle)
		return cuda.ErrorInvalidHandle
	}
	s.created += a.Size
	return cuda.Success
}

// createOnHost is MemCreate of the host's memory, which counts as the caller says and not as a
// device's.
func (s *session) createOnHost(c *wire.Call, a *wire.MemCreateArgs) cuda.Result {
	if a.Place != wire.MemOnHost || a.Handles != 0 || a.Flags != 0 {
		return cuda.ErrorInvalidValue
	}
	prop, ok := s.hostProp(a.Dev)
	if !ok {
		c.Because("the driver makes no memory on this host (attribute 141 of GPU %d is 0), and %d bytes of managed memory lay there for lack of room at the GPU", a.Dev, a.Size)
		return cuda.ErrorNotSupported
	}
	p := &physical{size: a.Size, host: true, dev: a.Dev}
	if !s.opt.Rehearsal {
		var res cuda.Result
		if p.handle, res = s.drv.MemCreate(a.Size, prop, 0); s.note(res) != cuda.Success {
			return res
		}
	}
	if !s.mems.put(a.Memhandle, p) {
		s.drv.MemRelease(p.handle)
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// MemRelease frees memory that is not mapped. A driver keeps what is until its last mapping goes,
// and it would be charged to nobody; what lies behind tiles is kept here, too.
func (s *session) MemRelease(c *wire.Call, a *wire.MemReleaseArgs) cuda.Result {
	if m, ok := s.mems.get(a.Memhandle); ok && m.mapped > 0 {
		return cuda.ErrorInvalidValue
	}
	if m, ok := s.mems.get(a.Memhandle); ok && m.tiles > 0 {
		s.mems.drop(a.Memhandle)
		s.unshare(sharePhysical, uint64(a.Memhandle))
		s.released = append(s.released, m)
		return cuda.Success
	}
	m, res := end(s, &s.mems, a.Memhandle, func(m *physical) cuda.Result { return s.drv.MemRelease(m.handle) })
	if res == cuda.Success {
		// Counted for who has it open, before it counts no more here.
		s.unshare(sharePhysical, uint64(a.Memhandle))
		s.chargedNoMore(m)
	}
	return res
}

// chargedNoMore is for memory that has ended.
func (s *session) chargedNoMore(m *physical) {
	s.giveUp(m.token)
	s.refund(m.charged())
	s.created -= m.charged()
}

// MemMap puts memory at reserved addresses.
func (s *session) MemMap(c *wire.Call, a *wire.MemMapArgs) cuda.Result {
	v, ok := s.resvs.get(a.Resv)
	m, known := s.mems.get(a.Memhandle)
	at, within := v.From(a.Ptr, a.Size)
	if !ok || !known || !within {
		return cuda.ErrorInvalidValue
	}
	if _, used := s.mappings.get(a.Mapping); used || len(s.mappings.m) >= maxObjects {
		return cuda.ErrorInvalidHandle
	}
	res := cuda.Success
	if !s.opt.Rehearsal && !m.awaited {
		res = s.note(s.drv.MemMap(at, a.Offset, m.handle, uint64(a.Flags)))
	}
	if res == cuda.Success && !s.mappings.put(a.Mapping, &mapping{mem: at, of: m, offset: a.Offset}) {
		s.drv.MemUnmap(at)
		return cuda.ErrorInvalidHandle
	}
	if res != cuda.Success {
		return res
	}
	m.mapped++
	if m.host {
		s.space.MapFar(at)
	}
	return res
}

// MemUnmap takes memory from its addresses.
func (s *session) MemUnmap(c *wire.Call, a *wire.MemUnmapArgs) cuda.Result {
	m, res := end(s, &s.mappings, a.Mapping, func(m *mapping) cuda.Result { return s.drv.MemUnmap(m.mem) })
	if res != cuda.Success {
		return res
	}
	m.of.mapped--
	if m.of.host {
		s.space.UnmapFar(m.mem)
	}
	return res
}

// MemSetAccess says what a device may do with a mapping.
func (s *session) MemSetAccess(c *wire.Call, a *wire.MemSetAccessArgs) cuda.Result {
	m, ok := s.mappings.get(a.Mapping)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if s.opt.Rehearsal {
		return cuda.Success
	}
	if m.of.awaited {
		m.later(a.Dev, a.Flags)
		return cuda.Success
	}
	return s.note(s.drv.MemSetAccess(m.mem, accessDesc(a.Dev, a.Flags)))
}

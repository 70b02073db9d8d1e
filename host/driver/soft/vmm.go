package soft

import (
	"errors"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// Addresses that guests reserve lie below the arenas (space.go), in a window that nothing else
// uses.
const (
	windowBase = 0x7400_0000_0000
	windowSize = arenaBase - windowBase

	vmmUnit    = chunkSize // granularity of memory and addresses
	maxReserve = 1 << 14   // reservations, and tries to find one

	handleFile, handleWin32, handleWin32Kmt, handleFabric = 1, 2, 4, 8 // CUmemAllocationHandleType
	accessRead, accessReadWrite                           = 1, 3       // CUmemAccess_flags
)

// reservation is an address range of this process without memory behind it.
type reservation struct {
	base uint64
	mem  []byte
}

// physical is memory without an address: a file in memory, which other processes may map too.
type physical struct {
	file   *memoryFile
	size   uint64
	device int
	// Of the host's memory, of which the session's budget is the caller's matter.
	host    bool
	foreign bool              // another session's, which it is charged to
	token   driver.ShareToken // foreign
}

// mapping is memory at reserved addresses. The GPU reaches it once a device has access.
type mapping struct {
	in     *reservation
	of     *physical
	mem    []byte
	access map[uint32]uint32 // device: CUmemAccess_flags
	a      *allocation       // nil: no access
}

// MemGetAllocationGranularity is the unit of MemCreate, MemMap and MemAddressReserve.
func (s *session) MemGetAllocationGranularity(c *wire.Call, a *wire.MemGetAllocationGranularityArgs, r *wire.MemGetAllocationGranularityReply) cuda.Result {
	if a.Option > 1 {
		return cuda.ErrorInvalidValue
	}
	r.Granularity = vmmUnit
	return cuda.Success
}

// MemAddressReserve takes addresses: the recorded ones on replay, else the wanted ones if they are
// free, else others.
func (s *session) MemAddressReserve(c *wire.Call, a *wire.MemAddressReserveArgs, r *wire.MemAddressReserveReply) cuda.Result {
	align := max(a.Align, vmmUnit)
	if a.Size == 0 || a.Size%vmmUnit != 0 || a.Align&(a.Align-1) != 0 || a.Flags != 0 || a.Addr%vmmUnit != 0 {
		return cuda.ErrorInvalidValue
	}
	if _, used := s.resvs[a.Resv]; used || a.Size > windowSize || align > windowSize || len(s.resvs) >= maxReserve {
		return cuda.ErrorOutOfMemory
	}
	v, ok := s.reserve(c, a.Addr, a.Size, align)
	if !ok {
		return cuda.ErrorOutOfMemory
	}
	if s.resvs == nil {
		s.resvs = map[uint32]*reservation{}
	}
	s.resvs[a.Resv] = v
	r.Ptr = v.base
	return cuda.Success
}

func (s *session) reserve(c *wire.Call, wish, size, align uint64) (*reservation, bool) {
	if at, ok := c.Place(); ok {
		return reserveWindow(at, size)
	}
	v, ok := reserveWindow(wish, size)
	if at := max(s.window, windowBase); !ok {
		for range maxReserve {
			at = (at + align - 1) &^ (align - 1)
			if at > windowBase+windowSize-size {
				at = (windowBase + align - 1) &^ (align - 1)
			}
			if v, ok = reserveWindow(at, size); ok {
				break
			}
			at += max(align, size)
			for _, o := range s.resvs { // one may be larger than this goes far
				if at >= o.base && at < o.base+uint64(len(o.mem)) {
					at = o.base + uint64(len(o.mem))
				}
			}
		}
		s.window = at + size
	}
	if ok {
		c.Placed = append(c.Placed, v.base)
	}
	return v, ok
}

// reserveWindow takes addresses within the window, if they are free.
func reserveWindow(at, size uint64) (*reservation, bool) {
	if at < windowBase || at > windowBase+windowSize-size {
		return nil, false
	}
	mem, err := reserveAt(at, size)
	return &reservation{at, mem}, err == nil
}

// MemAddressFree gives addresses back.
func (s *session) MemAddressFree(c *wire.Call, a *wire.MemAddressFreeArgs) cuda.Result {
	v := s.resvs[a.Resv]
	if v == nil {
		return cuda.ErrorInvalidValue
	}
	for _, m := range s.mappings {
		if m.in == v {
			return cuda.ErrorInvalidValue
		}
	}
	delete(s.resvs, a.Resv)
	if releaseAll(v.mem) != nil {
		return cuda.ErrorOperatingSystem
	}
	return cuda.Success
}

// MemCreate allocates memory without an address.
func (s *session) MemCreate(c *wire.Call, a *wire.MemCreateArgs) cuda.Result {
	switch {
	case a.Size == 0, a.Size%vmmUnit != 0, a.Handles&(handleWin32|handleWin32Kmt) != 0:
		return cuda.ErrorInvalidValue
	case int(a.Dev) >= len(s.gpus):
		return cuda.ErrorInvalidDevice
	case a.Handles&handleFabric != 0:
		return cuda.ErrorNotPermitted
	case a.Place > wire.MemOnHost, a.Place == wire.MemOnHost && (a.Handles != 0 || a.Size > windowSize):
		return cuda.ErrorInvalidValue
	}
	if _, used := s.mems[a.Memhandle]; used || len(s.mems) >= maxObjects {
		return cuda.ErrorInvalidHandle
	}
	p := &physical{size: a.Size, device: int(a.Dev), host: a.Place == wire.MemOnHost}
	if res := s.takePhysical(p); res != cuda.Success {
		return res
	}
	var err error
	if p.file, err = newMemoryFile(a.Size); err != nil {
		s.givePhysical(p)
		return cuda.ErrorOutOfMemory
	}
	s.keepPhysical(a.Memhandle, p)
	return cuda.Success
}

func (s *session) takePhysical(p *physical) cuda.Result {
	if p.host {
		return cuda.Success
	}
	return s.space.take(p.device, p.size)
}

func (s *session) givePhysical(p *physical) {
	if !p.host && !p.foreign {
		s.space.give(p.device, p.size)
	}
}

func (s *session) keepPhysical(id uint32, p *physical) {
	if s.mems == nil {
		s.mems = map[uint32]*physical{}
	}
	s.mems[id] = p
}

// MemRelease frees memory.
func (s *session) MemRelease(c *wire.Call, a *wire.MemReleaseArgs) cuda.Result {
	p := s.mems[a.Memhandle]
	if p == nil {
		return cuda.ErrorInvalidValue
	}
	for _, m := range s.mappings {
		if m.of == p {
			return cuda.ErrorInvalidValue
		}
	}
	delete(s.mems, a.Memhandle)
	s.unshare(sharePhysical, uint64(a.Memhandle))
	s.givePhysical(p)
	err := p.file.close()
	driver.LetGo(s.host, p.token)
	if err != nil {
		return cuda.ErrorOperatingSystem
	}
	return cuda.Success
}

// MemMap puts memory at reserved addresses: all of it, as on real GPUs.
func (s *session) MemMap(c *wire.Call, a *wire.MemMapArgs) cuda.Result {
	v, p := s.resvs[a.Resv], s.mems[a.Memhandle]
	if v == nil || p == nil || a.Flags != 0 || a.Ptr < v.base || a.Ptr%vmmUnit != 0 {
		return cuda.ErrorInvalidValue
	}
	off := a.Ptr - v.base
	switch {
	case a.Size != p.size || a.Offset != 0:
		return cuda.ErrorNotSupported
	case off > uint64(len(v.mem)) || a.Size > uint64(len(v.mem))-off:
		return cuda.ErrorInvalidValue
	}
	if _, used := s.mappings[a.Mapping]; used || len(s.mappings) >= maxObjects {
		return cuda.ErrorInvalidHandle
	}
	for _, o := range s.mappings {
		if base := addressOf(o.mem); a.Ptr < base+uint64(len(o.mem)) && base < a.Ptr+a.Size {
			return cuda.ErrorInvalidValue
		}
	}
	m := &mapping{in: v, of: p, mem: v.mem[off : off+a.Size : off+a.Size], access: map[uint32]uint32{}}
	if p.file != nil && p.file.mapAt(m.mem, 0) != nil {
		// Else it is awaited, and mapped when it comes.
		return cuda.ErrorMapFailed
	}
	if s.mappings == nil {
		s.mappings = map[uint32]*mapping{}
	}
	s.mappings[a.Mapping] = m
	return cuda.Success
}

// MemUnmap takes memory from its addresses, after the work that may use it.
func (s *session) MemUnmap(c *wire.Call, a *wire.MemUnmapArgs) cuda.Result {
	m := s.mappings[a.Mapping]
	if m == nil {
		return cuda.ErrorInvalidValue
	}
	s.awaitIdle()
	if m.a != nil {
		s.space.unmap(m.a)
	}
	delete(s.mappings, a.Mapping)
	if decommit(m.mem) != nil {
		return cuda.ErrorOperatingSystem
	}
	return cuda.Success
}

// MemSetAccess says what a device may do with a mapping. The devices of a session share their
// memory: the widest right counts.
func (s *session) MemSetAccess(c *wire.Call, a *wire.MemSetAccessArgs) cuda.Result {
	m := s.mappings[a.Mapping]
	if m == nil || int(a.Dev) >= len(s.gpus) || a.Flags != 0 && a.Flags != accessRead && a.Flags != accessReadWrite {
		return cuda.ErrorInvalidValue
	}
	m.access[a.Dev] = a.Flags
	var widest uint32
	for _, f := range m.access {
		widest = max(widest, f)
	}
	if m.a != nil {
		s.space.unmap(m.a)
		m.a = nil
	}
	if widest != 0 {
		m.a = s.space.mapped(m, a.Dev, widest == accessRead)
	}
	return cuda.Success
}

// closeVMM gives back what the guest left. Nothing runs.
func (s *session) closeVMM() error {
	var errs []error
	for _, v := range s.resvs {
		errs = append(errs, releaseAll(v.mem)) // and what is mapped there
	}
	for _, p := range s.mems {
		errs = append(errs, p.file.close())
	}
	for _, o := range s.opened {
		errs = append(errs, releaseAll(o.in.mem), o.file.close())
	}
	for _, e := range s.events {
		e.close()
	}
	s.resvs, s.mems, s.mappings, s.opened = nil, nil, nil, nil
	return errors.Join(errs...)
}

package bind

import (
	"slices"

	"causeway/cuda"
)

// Space is what a guest may name by address: device memory of this process, pinned regions of the
// guest, and what allocation nodes of its graphs have. Anything else is this process's own. Worker
// goroutine.
type Space struct {
	driver *Driver
	pinned []pinned
	graphs map[uint64]uint64 // size by address
	// Addresses of those whose node is gone: what was instantiated from it may have it yet.
	gone map[uint64]bool
	// Where memory of the host's is mapped that the driver has made for this guest.
	far   []Mem
	block func(addr uint64) (Mem, bool)
}

// pinned is a region of the guest that it pinned and that is registered with the driver, at one
// address for all.
type pinned struct {
	id  uint32
	mem Mem
}

// NewSpace is one in which only the driver's memory is.
func NewSpace(d *Driver) *Space {
	return &Space{driver: d, graphs: map[uint64]uint64{}, gone: map[uint64]bool{}}
}

// Pin makes a region known that lies in this process where it lies for the guest.
func (s *Space) Pin(id uint32, r Registered) {
	s.pinned = append(s.pinned, pinned{id, Mem{at: r.host.at, size: r.host.size}})
}

// Unpin forgets a region.
func (s *Space) Unpin(id uint32) {
	s.pinned = slices.DeleteFunc(s.pinned, func(p pinned) bool { return p.id == id })
}

// pinnedAt is the pinned region that an address lies in, nil if none.
func (s *Space) pinnedAt(addr uint64) *pinned {
	for i := range s.pinned {
		if p := &s.pinned[i]; addr >= p.mem.at && addr-p.mem.at < p.mem.size {
			return p
		}
	}
	return nil
}

// MapFar makes a mapping known of memory that the driver has made on the host: a pointer into it is
// one of the host's to the driver, as all of this process's own are.
func (s *Space) MapFar(m Mem) { s.far = append(s.far, m) }

// UnmapFar forgets it.
func (s *Space) UnmapFar(m Mem) {
	if i := slices.Index(s.far, m); i >= 0 {
		s.far = slices.Delete(s.far, i, i+1)
	}
}

// farAt is which of those mappings an address lies in, -1 if none.
func (s *Space) farAt(addr uint64) int {
	return slices.IndexFunc(s.far, func(m Mem) bool { return addr-m.at < m.size })
}

// reachesFar reports whether a range begins in memory that was mapped so, and ends there or in what
// is beside it: more of the kind, or device memory.
func (s *Space) reachesFar(addr, size uint64) bool {
	for end := addr + size; ; {
		i := s.farAt(addr)
		if i < 0 {
			m, ok := s.device(addr)
			if !ok {
				return false
			}
			addr = m.at + m.size
		} else {
			addr = s.far[i].at + s.far[i].size
		}
		if addr >= end {
			return true
		}
	}
}

// onDevice reports whether an address lies in memory of the device's.
func (s *Space) onDevice(addr uint64) bool {
	kind, res := s.driver.pointerGetAttribute(cuda.PointerAttrMemoryType, addr)
	return res == cuda.Success && kind == cuda.MemoryTypeDevice
}

// device is the allocation of the device's that an address lies in, false if there is none.
func (s *Space) device(addr uint64) (Mem, bool) {
	if !s.onDevice(addr) {
		return Mem{}, false
	}
	start, res1 := s.driver.pointerGetAttribute(cuda.PointerAttrRangeStartAddr, addr)
	length, res2 := s.driver.pointerGetAttribute(cuda.PointerAttrRangeSize, addr)
	return Mem{at: start, size: length}, res1 == cuda.Success && res2 == cuda.Success && addr-start < length && start+length > start
}

// Allocation is the allocation of the device's that an address lies in, false if there is none.
func (s *Space) Allocation(addr uint64) (Mem, bool) { return s.device(addr) }

// Hold has block asked first: of an address that the session gives out by itself it tells the
// memory, none if that is not the guest's.
func (s *Space) Hold(block func(addr uint64) (m Mem, ours bool)) { s.block = block }

// held is memory at an address that the session gives out by itself.
func (s *Space) held(addr uint64) (Mem, bool) {
	if s.block == nil {
		return Mem{}, false
	}
	return s.block(addr)
}

// IsPinned reports whether an address lies in a pinned region.
func (s *Space) IsPinned(addr uint64) bool { return s.pinnedAt(addr) != nil }

// HostOf is memory in a pinned region as this process has it, false for other memory.
func (s *Space) HostOf(m Mem) (Host, bool) {
	p := s.pinnedAt(m.at)
	if p == nil {
		return Host{}, false
	}
	_, ok := p.mem.From(m.at, m.size)
	return Host{at: m.at, size: m.size}, ok
}

// Mem is memory that a guest names: device memory, whose length the driver checks when it is used,
// or wholly inside a pinned region.
func (s *Space) Mem(addr, size uint64) (Mem, cuda.Result) {
	if addr+size < addr {
		return Mem{}, cuda.ErrorInvalidValue
	}
	if p := s.pinnedAt(addr); p != nil {
		if m, ok := p.mem.From(addr, size); ok {
			return m, cuda.Success
		}
		return Mem{}, cuda.ErrorInvalidValue
	}
	if m, ours := s.held(addr); ours {
		if m, ok := m.From(addr, size); ok {
			return m, cuda.Success
		}
		return Mem{}, cuda.ErrorInvalidValue
	}
	kind, res := s.driver.pointerGetAttribute(cuda.PointerAttrMemoryType, addr)
	if res == cuda.Success && kind == cuda.MemoryTypeDevice && s.endsThere(addr, size) {
		return Mem{at: addr, size: size}, cuda.Success
	}
	if s.farAt(addr) >= 0 && s.reachesFar(addr, size) {
		return Mem{at: addr, size: size}, cuda.Success
	}
	if res != cuda.Success {
		for at, n := range s.graphs {
			if m, ok := (Mem{at: at, size: n}).From(addr, size); ok {
				return m, cuda.Success
			}
		}
	}
	return Mem{}, cuda.ErrorInvalidValue
}

// endsThere reports whether what begins in device memory ends in memory of the guest's, too. Of
// lengths that no worker's own memory is far enough for the driver alone is asked, when it is used:
// a question takes longer than a small copy's call.
func (s *Space) endsThere(addr, size uint64) bool {
	const sure = 1 << 30
	if size <= sure {
		return true
	}
	return s.onDevice(addr+size-1) || s.farAt(addr+size-1) >= 0
}

// Near is Mem with a memory of what the last address lay in, for many addresses at once: nothing is
// freed between them.
func (s *Space) Near(last *Mem, addr, size uint64) (Mem, cuda.Result) {
	if m, ok := last.From(addr, size); ok && size > 0 {
		return m, cuda.Success
	}
	m, res := s.Mem(addr, size)
	if res != cuda.Success {
		return m, res
	}
	if p := s.pinnedAt(addr); p != nil {
		*last = p.mem
		return m, res
	}
	if b, ours := s.held(addr); ours {
		*last = b
		return m, res
	}
	if i := s.farAt(addr); i >= 0 {
		*last = s.far[i]
	} else if d, ok := s.device(addr); ok {
		*last = d
	}
	return m, cuda.Success
}

// AddGraph makes memory known that an allocation node of a graph has: the driver may not know it
// before a launch.
func (s *Space) AddGraph(at Address, size uint64) {
	if at.v+size >= at.v {
		s.graphs[at.v] = size
		delete(s.gone, at.v)
	}
}

// Graph is the memory of an allocation node that begins at an address: one that is there, or that
// the driver still knows.
func (s *Space) Graph(addr uint64) (Address, bool) {
	_, there := s.graphs[addr]
	if !there && s.gone[addr] {
		_, res := s.Mem(addr, 1)
		there = res == cuda.Success
	}
	return Address{v: addr}, there
}

// AnyGraph is the address of memory of an allocation node, if there is any.
func (s *Space) AnyGraph() (uint64, bool) {
	for at := range s.graphs {
		return at, true
	}
	for at := range s.gone {
		if _, ok := s.Graph(at); ok {
			return at, true
		}
	}
	return 0, false
}

// maxGone bounds what is remembered of nodes that are gone.
const maxGone = 1 << 16

// DropGraph forgets memory of an allocation node that is gone. It may be there yet, but then the
// driver knows it.
func (s *Space) DropGraph(addr uint64) {
	delete(s.graphs, addr)
	if len(s.gone) >= maxGone {
		clear(s.gone)
	}
	s.gone[addr] = true
}

// guestAttributes are what a guest may ask of a pointer: numbers, and addresses that it has.
var guestAttributes = []uint32{
	cuda.PointerAttrMemoryType, cuda.PointerAttrDevicePointer, cuda.PointerAttrSyncMemops, cuda.PointerAttrBufferID, cuda.PointerAttrIsManaged,
	cuda.PointerAttrDeviceOrdinal, cuda.PointerAttrRangeStartAddr, cuda.PointerAttrRangeSize, cuda.PointerAttrMapped,
}

// Attribute answers a guest's question about a pointer. Others would tell of this process: handles,
// where host memory lies here.
func (s *Space) Attribute(attr uint32, addr uint64) (uint64, cuda.Result) {
	if !slices.Contains(guestAttributes, attr) {
		return 0, cuda.ErrorNotSupported
	}
	if m, ours := s.held(addr); ours {
		// The driver knows the pages, not what of them is one allocation.
		switch {
		case m.IsZero():
			return 0, cuda.ErrorInvalidValue
		case attr == cuda.PointerAttrRangeStartAddr:
			return m.at, cuda.Success
		case attr == cuda.PointerAttrRangeSize:
			return m.size, cuda.Success
		}
	}
	return s.driver.pointerGetAttribute(attr, addr)
}

// AttributeOf is what the driver says of memory.
func (d *Driver) AttributeOf(attr uint32, at Address) (uint64, cuda.Result) {
	return d.pointerGetAttribute(attr, at.v)
}

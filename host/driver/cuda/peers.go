package cuda

import (
	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

// Which devices reach the memory of a session's ranges.

// access is what devices may do with the range's pages: all that can reach them, since the driver
// copies such memory between two devices in no other way.
func (r *addressRange) access() []bind.MemAccessDesc {
	list := accessDesc(r.dev, accessReadWrite)
	for i := range r.s.devices {
		if dev := uint32(i); dev != r.dev && (r.s.arenas.reach[r.dev][dev] || r.s.reaches(dev, r.dev)) {
			list = append(list, accessDesc(dev, accessReadWrite)...)
		}
	}
	return list
}

// reaches reports whether a device can reach another's memory.
func (s *session) reaches(dev, memory uint32) bool {
	pair := [2]uint32{dev, memory}
	can, known := s.arenas.peers[pair]
	if !known {
		answer, res := s.drv.DeviceCanAccessPeer(dev, memory)
		if can = res == cuda.Success && answer != 0; s.arenas.peers == nil {
			s.arenas.peers = map[[2]uint32]bool{}
		}
		s.arenas.peers[pair] = can
	}
	return can
}

// allow lets a device reach the memory of another one, as peer access between contexts does for the
// driver's own.
func (s *session) allow(dev, memory uint32) cuda.Result {
	a := &s.arenas
	if !a.on || dev == memory || a.reach[memory][dev] {
		return cuda.Success
	}
	if a.reach == nil {
		a.reach = map[uint32]map[uint32]bool{}
	}
	if a.reach[memory] == nil {
		a.reach[memory] = map[uint32]bool{}
	}
	a.reach[memory][dev] = true
	r := a.ranges[memory]
	if r == nil {
		return cuda.Success
	}
	for _, p := range r.pages {
		if res := s.drv.MemSetAccess(p.mem, r.access()); res != cuda.Success {
			return res
		}
	}
	return cuda.Success
}

package cuda

import "causeway/host/driver"

// ReleaseArenas gives back the addresses of a session that has closed, and the memory there, which a worker's end does.
func ReleaseArenas(s driver.Session) {
	x := s.(*session)
	for _, r := range x.arenas.ranges {
		for at := range r.pages {
			r.Unback(at, 0)
		}
		x.drv.MemAddressFree(r.all)
	}
}

// Ranges are where sessions' memory may begin.
var Ranges = []uint64{lowRanges, highRanges}

// UsedBy is how many bytes a session has booked.
func UsedBy(s driver.Session) uint64 { return s.(*session).used }

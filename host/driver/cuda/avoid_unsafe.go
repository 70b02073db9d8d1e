package cuda

import "golang.org/x/sys/unix"

const (
	maxAvoided  = 64       // times that a session may keep the driver from addresses
	maxDistance = 64 << 30 // bytes to either side
	avoidUnit   = 2 << 20
)

// avoid takes the addresses of this process that are free within a distance of addr, without memory
// behind them, so that the driver maps what it opens next elsewhere. They stay taken: what is in
// use in the guest process stays so, as a rule.
func (s *session) avoid(addr, distance uint64) bool {
	const top = 1 << 47
	if s.avoided >= maxAvoided || distance > maxDistance || addr >= top {
		return false
	}
	s.avoided++
	low := max(addr, distance+avoidUnit) - distance
	for at := low &^ (avoidUnit - 1); at < min(addr+distance, top-avoidUnit); at += avoidUnit {
		// What is in use here stays, and neighbours become one mapping.
		_, _ = unix.MmapPtr(-1, 0, pointerTo(at), avoidUnit, unix.PROT_NONE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED_NOREPLACE)
	}
	return true
}

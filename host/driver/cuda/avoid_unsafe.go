package cuda

import "golang.org/x/sys/unix"

// maxAvoided bounds the addresses that a session keeps the driver from.
const maxAvoided = 64

// avoid takes addresses of this process that are free, without memory behind them, so that the driver maps what it opens next
// elsewhere. They stay taken: what is in use in the guest process stays so, as a rule.
func (s *session) avoid(addr, size uint64) bool {
	page := addr &^ 0xfff
	if s.avoided >= maxAvoided || page == 0 {
		return false
	}
	_, err := unix.MmapPtr(-1, 0, pointerTo(page), uintptr(addr+size-page), unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED_NOREPLACE)
	s.avoided++
	return err == nil || err == unix.EEXIST
}

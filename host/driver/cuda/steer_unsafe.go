package cuda

import (
	"slices"

	"golang.org/x/sys/unix"

	"causeway/cuda/wire"
)

// chunk is what the driver takes addresses for variables by, and what their beginning is a multiple of: seen on H200s with driver 580. They lie where the
// kernel finds room for a mapping of that size first.
const chunk = 32 << 20

// steer has the driver find room for variables of a call that is made again no earlier than where they were: what was mapped below then, and is not
// now, is taken until the returned function is called.
func (s *session) steer(c *wire.Call) func() {
	if !c.Replay || len(c.Placed) == 0 {
		return func() {}
	}
	limit := uintptr(slices.Min(c.Placed)) &^ (chunk - 1)
	type taken struct{ at, size uintptr }
	var list []taken
	for size := uintptr(1) << 40; size >= chunk; size /= 2 {
		for {
			p, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
			if err != nil {
				break // there is no room of this size at all
			}
			if uintptr(p)+size > limit {
				_ = unix.MunmapPtr(p, size)
				break
			}
			list = append(list, taken{uintptr(p), size})
		}
	}
	return func() {
		for _, t := range list {
			_ = unix.MunmapPtr(pointerTo(uint64(t.at)), t.size)
		}
	}
}

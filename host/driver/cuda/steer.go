package cuda

import (
	"slices"

	"causeway/cuda/wire"
	"causeway/remote/sys"
)

// chunk is what the driver takes addresses for variables by, and what their beginning is a multiple
// of: seen on H200s with driver 580. They lie where the kernel finds room for a mapping of that
// size first.
const chunk = 32 << 20

// steer has the driver find room for variables of a call that is made again no earlier than where
// they were: what was mapped below then, and is not now, is taken until the returned function is
// called.
func (s *session) steer(c *wire.Call) func() {
	if !c.Replay || len(c.Placed) == 0 {
		return func() {}
	}
	held := sys.HoldBelow(uintptr(slices.Min(c.Placed))&^(chunk-1), chunk)
	return func() {
		for _, h := range held {
			h.Release()
		}
	}
}

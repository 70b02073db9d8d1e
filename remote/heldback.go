package remote

import "time"

// A session that changes its memory as fast as that goes elsewhere is held back, by its worker or
// its relay.
const (
	HeldSlice = 20 * time.Millisecond // that it works at least
	HeldMost  = 10 * time.Second      // that it waits at once
)

// HeldFor is for how long a session waits that has worked, held back for share hundredths of the
// time.
func HeldFor(worked time.Duration, share uint32) time.Duration {
	if share >= 100 {
		return HeldMost
	}
	return min(HeldMost, worked*time.Duration(share)/time.Duration(100-share))
}

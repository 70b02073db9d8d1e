package cuda

import (
	"os"
	"testing"

	"causeway/host/driver"
)

// Needed takes why there is no GPU: a test that needs one is skipped, and fails where one was
// promised (CAUSEWAY_REQUIRE_GPU=1).
func Needed(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if os.Getenv("CAUSEWAY_REQUIRE_GPU") != "" {
		t.Fatalf("a GPU was promised: %v", err)
	}
	t.Skipf("no NVIDIA GPU here: %v", err)
}

// ReleaseArenas gives back the addresses of a session that has closed, and the memory there, which
// a worker's end does.
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

package remote_test

import (
	"testing"
	"time"

	"causeway/remote"
)

func TestHeldFor(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		worked time.Duration
		share  uint32
		want   time.Duration
	}{{20 * ms, 20, 5 * ms}, {20 * ms, 50, 20 * ms}, {20 * ms, 99, 1980 * ms}, {time.Second, 99, remote.HeldMost}, {time.Hour, 1, remote.HeldMost}, {20 * ms, 0, 0}, {ms, 100, remote.HeldMost}} {
		if got := remote.HeldFor(c.worked, c.share); got != c.want {
			t.Errorf("%v worked, %d %%: %v, want %v", c.worked, c.share, got, c.want)
		}
	}
}

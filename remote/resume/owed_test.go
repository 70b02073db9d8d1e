package resume

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestFits: what fits what is booked is kept; more is booked first, with what was booked without
// being asked for; a budget that had no room is asked again after a while.
func TestFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{limit: (keptLeast + 2) * keptChunk}
		k := kept{pin: noPin}
		if err := k.begin(b); err != nil {
			t.Fatal(err)
		}
		fits := func(n int, now, want bool, booked, owed int) {
			t.Helper()
			if got := k.fits(n, now); got != want || k.booked != keptLeast+booked || k.owed != owed || b.used() != uint64(k.booked)*keptChunk {
				t.Errorf("%d bytes fit: %v; %d are booked beyond the least, %d of them owed", n, got, k.booked-keptLeast, k.owed)
			}
		}
		const least = keptLeast * keptChunk
		fits(least, false, true, 0, 0)
		fits(least+1, false, true, 1, 0)
		fits(least+3*keptChunk, false, false, 1, 0)
		fits(least+2*keptChunk, false, false, 1, 0) // it would, and is not asked yet
		time.Sleep(keptAgain - 1)
		fits(least+2*keptChunk, false, false, 1, 0)
		time.Sleep(time.Nanosecond)
		fits(least+2*keptChunk, false, true, 2, 0)
		fits(least+4*keptChunk, true, true, 4, 2) // it has to
		fits(least+4*keptChunk, true, true, 4, 2)
		fits(1, true, true, 4, 2)
		fits(1, false, false, 4, 2) // before it has room for what is owed
		time.Sleep(keptAgain)
		b.limit += 2 * keptChunk
		fits(1, false, true, 4, 0)
		b.limit = 0
		fits(least+4*keptChunk, false, true, 4, 0) // of what is booked
		k.owed = 3
		k.have = keptLeast + 3
		k.gone(2)
		if k.booked != keptLeast+1 || k.owed != 1 || b.used() != uint64(k.booked)*keptChunk {
			t.Errorf("%d are booked beyond the least, %d of them owed", k.booked-keptLeast, k.owed)
		}
		if k.gone(1); k.booked != keptLeast || k.owed != 0 {
			t.Errorf("%d are booked beyond the least, %d of them owed", k.booked-keptLeast, k.owed)
		}
		k.finish()
		k.finish()
		if b.used() != 0 {
			t.Errorf("%d bytes stay booked", b.used())
		}
	})
}

// TestFreed: chunks that are dropped are kept for what comes next, up to a number, and not while
// some are owed or are being read; nothing empty is taken.
func TestFreed(t *testing.T) {
	full := func() *kept {
		k := &kept{pin: noPin, budget: &budget{limit: 1 << 30}}
		k.fits((keptFree+2)*keptChunk, true)
		k.owed = 0
		k.added(k.grow(nil, (keptFree+2)*keptChunk), true)
		return k
	}
	for name, x := range map[string]struct {
		set  func(k *kept)
		free int
	}{
		"as many as there is room for": {func(*kept) {}, keptFree},
		"owed, until none is":          {func(k *kept) { k.owed = 1 }, keptLeast},
		"read":                         {func(k *kept) { k.pin = 0 }, 0},
		"read from the second on":      {func(k *kept) { k.pin = keptChunk }, 1},
		"read within the second":       {func(k *kept) { k.pin = 2*keptChunk - 1 }, 1},
	} {
		k := full()
		x.set(k)
		if k.drop(k.end); len(k.free) != x.free || k.chunks != nil || k.have != x.free || k.start != k.end || k.skip != 0 {
			t.Errorf("%s: %d are free, %d in memory, %d left", name, len(k.free), k.have, len(k.chunks))
		}
	}
	k := full()
	list, n := k.take(nil, 5, 2*keptChunk-5)
	if n != 2*keptChunk-5 || len(list) != 2 || len(list[0]) != keptChunk-5 || len(list[1]) != keptChunk || k.pin != 5 {
		t.Errorf("%d bytes in %d pieces", n, len(list))
	}
	if list, n = k.take(nil, keptChunk, 1); n != 1 || len(list) != 1 {
		t.Errorf("%d bytes in %d pieces", n, len(list))
	}
	if list, n = k.take(nil, k.end, 0); n != 0 || len(list) != 0 {
		t.Errorf("%d bytes in %d pieces", n, len(list))
	}
}

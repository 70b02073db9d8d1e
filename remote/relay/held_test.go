package relay

import (
	"errors"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// TestHeldWaits: records are taken for a slice of time, or so many of them, and then none for as
// long as the share says.
func TestHeldWaits(t *testing.T) {
	const ms = time.Millisecond
	now := time.Now()
	for what, c := range map[string]struct {
		share  uint32
		bytes  uint64        // of each batch
		after  time.Duration // between two of them
		passes int           // how many go until one waits
		wait   time.Duration
	}{
		"nobody says so":            {0, 1 << 20, time.Second, -1, 0},
		"a fifth":                   {20, 100, 5 * ms, 5, 5 * ms},
		"half":                      {50, 100, 10 * ms, 3, 20 * ms},
		"one that takes long":       {50, 100, 400 * ms, 2, 400 * ms},
		"one that takes very long":  {50, 100, time.Minute, 2, remote.HeldMost},
		"many at once":              {50, heldBytes / 4, 0, 2, 20 * ms},
		"nearly all":                {heldShare, 640, 0, 2, 1980 * ms},
		"nearly all, one large one": {heldShare, 4096, 0, 1, 1980 * ms},
	} {
		h := held{}
		h.share.Store(c.share)
		at, passes := now, 0
		clock := func() time.Time { return at }
		for passes < 100 && h.rest(at) <= 0 {
			if passes > 0 {
				at = at.Add(c.after)
			}
			h.passed(c.bytes, clock)
			passes++
		}
		if passes != c.passes && (c.passes >= 0 || passes != 100) || h.rest(at) != c.wait {
			t.Errorf("%s: %d go, and then none for %v", what, passes, h.rest(at))
		}
		if h.rest(at.Add(c.wait)) > 0 || c.passes >= 0 && (h.took != 0 || !h.since.IsZero()) {
			t.Errorf("%s: it does not begin anew", what)
		}
		h.share.Store(0)
		if h.rest(at) != 0 {
			t.Errorf("%s: it waits although nobody says so", what)
		}
		if h.passed(1, clock); !h.until.IsZero() || h.most() != batchMost {
			t.Errorf("%s: something is left of it", what)
		}
	}
	h := held{}
	h.share.Store(75)
	if h.most() != heldBytes/4 {
		t.Errorf("%d bytes at once", h.most())
	}
}

// TestHeldBack: a session whose memory goes ahead is held back from a round on as that says, which
// its server's replies, parks and what it does beside the ring pass by; it is let go when it is to
// stand, or stays.
func TestHeldBack(t *testing.T) {
	for name, row := range map[string]struct {
		do   func(x *rounding)
		goes bool
	}{
		"it stays": {func(x *rounding) {
			if err := x.m.Decide(false); err != nil {
				t.Error(err)
			}
		}, false},
		"another round says so": {func(x *rounding) {
			x.held = 0
			x.asks(t.Context(), t)
			x.one.say(whole(frame.Round{}))
			if err := errorOf(x); err != nil {
				t.Error(err)
			}
		}, false},
		"the server refuses another": {func(x *rounding) {
			x.asks(t.Context(), t)
			x.one.say(framed(frame.Header{Kind: frame.State, Flags: frame.Refused}, nil))
			if err := errorOf(x); !errors.Is(err, ErrRefused) {
				t.Error(err)
			}
		}, false},
		"it is to stand": {func(x *rounding) {
			go func() { x.moved <- x.m.Stand(t.Context()) }()
			x.one.await(func() bool { return x.one.sends(frame.Leave) })
			x.told(t)
			if err := x.m.Decide(true); err != nil {
				t.Error(err)
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			x := rounds(t)
			x.held = 1000 // more than there is
			x.asks(t.Context(), t)
			x.one.say(whole(frame.Round{}))
			if err := errorOf(x); err != nil {
				t.Fatal(err)
			}
			if share := x.Session.held.share.Load(); share != heldShare {
				t.Fatalf("held back for %d %%", share)
			}
			n := x.count(frame.Ring)
			x.g.submit(make([]byte, 4096))
			x.one.await(func() bool { return countIn(x.one.out, frame.Ring) == n+1 })
			began := time.Now()
			x.g.submit(make([]byte, 32))
			x.one.say(word(9, 5))
			x.g.awaitWord(9, 5)
			if _, err := x.Park(t.Context(), nothing); err != nil {
				t.Error(err)
			}
			if err := x.Resume(nothing); err != nil {
				t.Error(err)
			}
			x.Session.regions.Dropped(1)
			x.one.await(func() bool { return countIn(x.one.out, frame.RegionEnd) == 1 })
			if x.count(frame.Ring) != n+1 && time.Since(began) < time.Second {
				// Of two that it waits.
				t.Error("it is not held back")
			}
			row.do(x)
			to := x.one
			if row.goes {
				to, n = x.two, -1
			}
			to.await(func() bool { return countIn(to.out, frame.Ring) == n+2 })
			if took := time.Since(began); took > 1900*time.Millisecond {
				t.Logf("it may just have had its turn, after %v", took)
			}
			if share := x.Session.held.share.Load(); share != 0 {
				t.Errorf("held back for %d %% still", share)
			}
			x.guestGoes(t)
		})
	}
}

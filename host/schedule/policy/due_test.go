package policy

import (
	"testing"
	"time"
)

// TestNextLook: when something is due that no report announces: of a slice, of a cap's bucket, of
// work that does not end, of one that is not expected back.
func TestNextLook(t *testing.T) {
	const ms = time.Millisecond
	now := epoch.Add(time.Hour)
	holder := func() *Share { return &Share{active: true, Mode: Metered, leftAt: epoch} }
	other := func() *Share { return &Share{active: true, opened: true, closedAt: now.Add(-ms), leftAt: epoch} }
	capped := Limits{Cap: 50}
	for what, c := range map[string]struct {
		set  func(h, o *Share)
		want int // that want the GPU
		due  time.Duration
	}{
		"one alone": {func(_, o *Share) { o.active = false }, 1, 0},
		// The least slice, which is not over.
		"two":                                    {func(_, o *Share) { o.opened = false }, 2, ms},
		"the holder waits for work that is left": {func(h, _ *Share) { h.Mode = Closed }, 1, Patience - ms},
		"it is not left by one that had nothing": {func(h, o *Share) { h.Mode, o.opened = Closed, false }, 1, 0},
		"nor by one that is drained":             {func(h, o *Share) { h.Mode, o.drained = Closed, true }, 1, 0},
		"nor by one that is quiet":               {func(h, o *Share) { h.Mode, o.active = Closed, false }, 1, 0},
		"nor by the holder itself":               {func(h, o *Share) { h.Mode, h.opened, h.closedAt, o.active = Closed, true, now, false }, 1, 0},
		"the holder does not wait":               {func(*Share, *Share) {}, 1, 0},
		// 2 ms, at half the time
		"a bucket that fills":                 {func(_, o *Share) { o.Limits, o.throttled = capped, true }, 1, 4 * ms},
		"one that is not empty":               {func(_, o *Share) { o.Limits, o.throttled, o.tokens = capped, true, float64(ms) }, 1, 2 * ms},
		"of one that is quiet":                {func(_, o *Share) { o.Limits, o.throttled, o.active = capped, true, false }, 1, 0},
		"a bucket that drains":                {func(_, o *Share) { o.Limits, o.Mode, o.tokens = capped, Metered, float64(3*ms) }, 1, 6 * ms},
		"of one that is quiet, and may begin": {func(_, o *Share) { o.Limits, o.Mode, o.tokens, o.active = capped, Metered, float64(3*ms), false }, 1, 0},
		"of one that is free":                 {func(_, o *Share) { o.Limits, o.Mode, o.tokens = capped, Free, float64(3*ms) }, 1, 0},
		"one that may come back":              {func(_, o *Share) { o.active, o.leftAt = false, now.Add(-Calm/4) }, 1, Calm * 3 / 4},
		"not beside one that is free":         {func(h, o *Share) { h.Mode, o.active, o.leftAt = Free, false, now.Add(-Calm/4) }, 1, 0},
		"beside one that is capped": {func(h, o *Share) {
			h.Limits, h.tokens, o.active, o.leftAt = capped, float64(ms), false, now.Add(-Calm/4)
		}, 1, 2 * ms}, // by its own bucket
		"however late that is": {func(h, o *Share) {
			h.Limits, h.tokens, o.active, o.leftAt = capped, float64(2*time.Second), false, now.Add(-Calm/4)
		}, 1, 4 * time.Second},
		"the first of several": {func(h, o *Share) { h.Mode, o.closedAt = Closed, now.Add(-Patience+ms/2) }, 2, ms / 2},
		"not before a moment":  {func(h, o *Share) { h.Mode, o.closedAt = Closed, epoch }, 1, shortNext},
	} {
		// A slice is 3 ms, the least 0.5.
		g := &GPU{Quantum: 3 * ms, last: now, sliceAt: now.Add(ms / 2), sliceEnd: now.Add(2 * ms)}
		h, o := holder(), other()
		c.set(h, o)
		g.holder, g.shares = h, []*Share{h, o}
		next := g.next(now, g.shares[:c.want])
		if (c.due == 0) != next.IsZero() || c.due != 0 && next.Sub(now) != c.due {
			t.Errorf("%s: in %v, not %v", what, next.Sub(now), c.due)
		}
	}
	g := &GPU{Quantum: 3 * ms, sliceAt: now.Add(-2 * ms), sliceEnd: now.Add(ms)}
	h, o := holder(), other()
	g.holder, g.shares = h, []*Share{h, o}
	if next := g.next(now, g.shares); next.Sub(now) != ms {
		t.Errorf("behind the least slice: in %v", next.Sub(now))
	}
	g.holder = nil
	if next := g.next(now, g.shares); !next.IsZero() {
		t.Errorf("nobody holds it: in %v", next.Sub(now))
	}
}

// TestFloor: the least virtual time is of those that want the GPU; where nobody does, of the one
// that is furthest; of others than the one that asks.
func TestFloor(t *testing.T) {
	a, b, c := &Share{virtual: 5}, &Share{virtual: 9}, &Share{virtual: 7}
	g := &GPU{shares: []*Share{a, b, c}}
	for what, f := range map[string]struct {
		active []*Share
		but    *Share
		want   float64
	}{
		"nobody wants it":              {nil, nil, 9},
		"nobody but who asks":          {[]*Share{b}, b, 7},
		"one":                          {[]*Share{b}, nil, 9},
		"two":                          {[]*Share{b, c}, nil, 7},
		"two and who asks":             {[]*Share{a, b, c}, a, 7},
		"one that is not the furthest": {[]*Share{c}, a, 7},
	} {
		for _, s := range g.shares {
			s.active = false
		}
		for _, s := range f.active {
			s.active = true
		}
		if got := g.floor(f.but); got != f.want {
			t.Errorf("%s: %v, not %v", what, got, f.want)
		}
	}
	if got := (&GPU{shares: []*Share{a}}).floor(a); got != 0 {
		t.Errorf("who is alone: %v", got)
	}
}

// TestWhoTypes: who uses far less of the GPU than its part among those that want it, and is not
// suspected, goes first: of several the one that used the least.
func TestWhoTypes(t *testing.T) {
	now := epoch.Add(time.Hour)
	a, b, c := &Share{Limits: Limits{Weight: 1}, active: true}, &Share{Limits: Limits{Weight: 1}, active: true}, &Share{Limits: Limits{Weight: 2}}
	g := &GPU{shares: []*Share{a, b, c}, last: now}
	for what, f := range map[string]struct {
		a, b    float64 // recent
		c       bool    // wants the GPU, too
		suspect time.Duration
		want    *Share
	}{
		"both use much": {0.5, 0.5, false, 0, nil},
		// An eighth is a quarter of its half.
		"one little":        {0.12, 0.5, false, 0, a},
		"not little enough": {0.125, 0.5, false, 0, nil},
		// Of a quarter of the GPU it would be a sixteenth.
		"of a smaller part":            {0.12, 0.5, true, 0, nil},
		"little of a smaller part":     {0.06, 0.5, true, 0, a},
		"both little, one less":        {0.05, 0.04, false, 0, b},
		"both little, the other":       {0.03, 0.04, false, 0, a},
		"suspected":                    {0.05, 0.5, false, time.Nanosecond, nil},
		"both as little":               {0.04, 0.04, false, 0, a},
		"suspected until a moment ago": {0.05, 0.5, false, 0, a},
	} {
		a.recent, b.recent, c.active, a.suspect = f.a, f.b, f.c, now.Add(f.suspect)
		if got := g.typist([]*Share{a, b}); got != f.want {
			t.Errorf("%s: %p of %p and %p", what, got, a, b)
		}
	}
}

// TestWhoIsGranted: what each may do while one holds the GPU, and how much of its work may be in
// flight.
func TestWhoIsGranted(t *testing.T) {
	now := epoch.Add(time.Hour)
	busy := func() *Share { return &Share{active: true, recent: 0.5, drained: true, leftAt: epoch} }
	for what, c := range map[string]struct {
		set    func(g *GPU, h, o *Share)
		h, o   Mode
		flight time.Duration
	}{
		"two that want it":         {func(_ *GPU, h, _ *Share) { h.Mode = Metered }, Metered, Closed, Quantum / 2},
		"one, the other long gone": {func(_ *GPU, _, o *Share) { o.active = false }, Free, Closed, Quantum / 2},
		"one, the other just gone": {func(_ *GPU, h, o *Share) { h.Mode, o.active, o.leftAt = Metered, false, now.Add(-Calm/2) }, Metered, Closed, Quantum / 2},
		"beside one that types":    {func(_ *GPU, h, o *Share) { h.Mode, o.recent = Metered, 0 }, Metered, Closed, FlightInteractive},
		"that typed just now": {func(_ *GPU, h, o *Share) { h.Mode, o.recent, o.active, o.leftAt = Metered, 0, false, now.Add(-Calm/2) },
			Metered, Metered, FlightInteractive},
		"that typed long ago": {func(_ *GPU, _, o *Share) { o.recent, o.active = 0, false }, Free, Metered, Quantum / 2},
		"one under a cap":     {func(_ *GPU, h, o *Share) { h.Limits, o.active = Limits{Cap: 50}, false }, Metered, Closed, Quantum / 2},
		"that types itself":   {func(_ *GPU, h, _ *Share) { h.Mode, h.recent = Metered, 0 }, Metered, Closed, Quantum / 2},
		"that goes on while work is left": {func(_ *GPU, h, o *Share) { h.Mode, o.opened, o.drained, o.closedAt = Metered, true, false, now },
			Metered, Closed, Quantum / 2},
		"that has work of its own left":     {func(_ *GPU, h, _ *Share) { h.opened, h.drained, h.closedAt = true, false, now }, Metered, Closed, Quantum / 2},
		"beside one that has begun nothing": {func(_ *GPU, _, o *Share) { o.drained, o.closedAt = false, now }, Metered, Closed, Quantum / 2},
		"while work is left":                {func(_ *GPU, _, o *Share) { o.opened, o.drained, o.closedAt = true, false, now }, Closed, Closed, Quantum / 2},
		"for too long":                      {func(_ *GPU, _, o *Share) { o.opened, o.drained, o.closedAt = true, false, now.Add(-Patience) }, Metered, Closed, Quantum / 2},
		"beside work that is left":          {func(g *GPU, _, o *Share) { g.beside, o.opened, o.drained, o.closedAt = true, true, false, now }, Metered, Closed, Quantum / 2},
		"the other is throttled":            {func(_ *GPU, h, o *Share) { h.Mode, o.active, o.recent, o.throttled = Metered, false, 0, true }, Free, Closed, Quantum / 2},
	} {
		h, o := busy(), busy()
		g := &GPU{holder: h, shares: []*Share{h, o}, last: now, sliceAt: epoch, sliceEnd: epoch}
		c.set(g, h, o)
		was := h.Mode
		var want []*Share
		for _, s := range g.shares {
			if s.active && !s.throttled {
				want = append(want, s)
			}
		}
		g.grant(now, want)
		if h.Mode != c.h || o.Mode != c.o || h.Budget != c.flight {
			t.Errorf("%s: %v with %v in flight, the other %v; not %v, %v, %v", what, h.Mode, h.Budget, o.Mode, c.h, c.flight, c.o)
		}
		// A slice begins when its holder may begin.
		if began := was == Closed && c.h == Metered; began != (g.sliceAt == now && g.sliceEnd == now.Add(Quantum)) {
			t.Errorf("%s: the slice is from %v to %v", what, g.sliceAt.Sub(now), g.sliceEnd.Sub(now))
		}
	}
	a, b := &Share{leftAt: epoch, recent: 0.5}, &Share{leftAt: epoch, recent: 0.5}
	if (&GPU{shares: []*Share{a, b}, last: now}).grant(now, nil); a.Mode != Metered || b.Mode != Metered {
		t.Errorf("two of which neither wants the GPU: %v and %v", a.Mode, b.Mode)
	}
	alone := &Share{leftAt: epoch}
	g := &GPU{shares: []*Share{alone}}
	if g.grant(now, nil); alone.Mode != Free {
		t.Errorf("one that is quiet, and has no other beside it: %v", alone.Mode)
	}
	alone.Limits = Limits{Cap: 50}
	if g.grant(now, nil); alone.Mode != Metered {
		t.Errorf("under a cap: %v", alone.Mode)
	}
}

// TestClosing: one that is closed has work left until it says otherwise, since then; one that had
// nothing since it was opened is as if it had not been.
func TestClosing(t *testing.T) {
	s := &Share{Mode: Metered, opened: true, drained: true}
	s.set(epoch, Closed, time.Second)
	if s.Mode != Closed || s.Budget != time.Second || s.drained || !s.opened || s.closedAt != epoch {
		t.Errorf("%+v", s)
	}
	s.set(epoch.Add(time.Second), Closed, 0)
	if s.closedAt != epoch || !s.opened {
		t.Errorf("closed again: %+v", s)
	}
	s.drained = true
	if s.set(epoch, Closed, 0); s.opened {
		t.Error("one that has drained has been opened")
	}
	if s.set(epoch, Metered, 0); !s.opened {
		t.Error("not opened")
	}
	s.drained = true
	if s.set(epoch.Add(time.Second), Metered, 0); !s.drained || s.closedAt != epoch {
		t.Errorf("opened again, as if it had been closed: %+v", s)
	}
}

// TestNoPeriod: an account of no time says nothing.
func TestNoPeriod(t *testing.T) {
	var g GPU
	s := g.Join(epoch, Limits{Weight: 1})
	now := run(&g, epoch, 100*time.Millisecond, s)
	before := *s
	for _, period := range []time.Duration{0, -time.Second} {
		if charged := g.Account(s, now.Add(time.Second), time.Second, period); charged != 0 || *s != before {
			t.Errorf("over %v: charged %v, %+v", period, charged, *s)
		}
	}
}

// TestCaps: none, and the whole GPU, are no caps.
func TestCaps(t *testing.T) {
	for c, want := range map[uint32]float64{0: 0, 1: 0.01, 50: 0.5, 99: 0.99, 100: 0, 101: 0} {
		if got := (Limits{Cap: c}).cap(); got != want {
			t.Errorf("%d %%: %v", c, got)
		}
	}
}

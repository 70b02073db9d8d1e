package policy

import (
	"math"
	"testing"
	"time"
)

// TestTimesOfSlices: what else follows from the length of a slice.
func TestTimesOfSlices(t *testing.T) {
	const ms = time.Millisecond
	g := &GPU{Quantum: 12 * ms}
	for what, c := range map[string]struct{ got, want time.Duration }{
		"a slice": {g.quantum(), 12 * ms}, "the least": {g.minSlice(), 2 * ms}, "in flight": {g.flight(), 6 * ms}, "grace": {g.grace(), 3 * ms},
		"owed": {g.maxLag(), 120 * ms}, "late reports": {g.maxSlack(), 24 * ms}, "a bucket": {time.Duration(g.capSlice()), 8 * ms},
		"a full bucket": {time.Duration(g.capBurst()), 40 * ms}, "where nobody said": {new(GPU).quantum(), Quantum}, "the shortest": {(&GPU{Quantum: 1}).quantum(), 1},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, not %v", what, c.got, c.want)
		}
	}
}

// TestTurns: who holds the GPU next, since when, and whether it waits for the work of the one
// before.
func TestTurns(t *testing.T) {
	const ms = time.Millisecond
	now := epoch.Add(time.Hour)
	// A slice that ends now, and one that has lasted as long as the least.
	over, least := now.Add(-3*ms), now.Add(-ms/2)
	// As far as a slice of the other, whose weight is one.
	behind := float64(3 * ms)
	for what, c := range map[string]struct {
		set    func(h, o *Share)
		at     time.Time // the holder's slice began; zero: nobody holds it
		other  bool      // is the holder then
		begins bool      // a slice
		beside bool      // as it was, if none begins
	}{
		"nobody holds it: who is behind":          {func(h, o *Share) { o.virtual = h.virtual - 1 }, time.Time{}, true, true, false},
		"nobody holds it, both as far: the first": {func(_, _ *Share) {}, time.Time{}, false, true, false},
		"nobody holds it, one types":              {func(_, o *Share) { o.recent, o.virtual = 0, 1e12 }, time.Time{}, true, true, true},
		"within a slice":                          {func(_, o *Share) { o.virtual -= behind }, now.Add(-2 * ms), false, false, true},
		"within the least slice":                  {func(_, o *Share) { o.virtual -= 2 * behind }, least.Add(1), false, false, true},
		"at the end of the least, one far behind": {func(_, o *Share) { o.virtual -= behind + 1 }, least, true, true, false},
		"not so far":                              {func(_, o *Share) { o.virtual -= behind }, least, false, false, true},
		"far by its weight":                       {func(_, o *Share) { o.Weight, o.virtual = 3, o.virtual-behind/3-1 }, least, true, true, false},
		"the slice is over, the other is behind":  {func(_, o *Share) { o.virtual-- }, over, true, true, false},
		// What was said of its beginning stays.
		"over, and it is behind itself":           {func(_, o *Share) { o.virtual++ }, over, false, true, true},
		"the other types":                         {func(_, o *Share) { o.recent, o.virtual = 0, 1e12 }, now, true, true, true},
		"both type":                               {func(h, o *Share) { h.recent, o.recent = 0.1, 0 }, now, false, false, true},
		"the holder types":                        {func(h, _ *Share) { h.recent = 0 }, now, false, false, true},
		"the holder types, and its slice is over": {func(h, o *Share) { h.recent, o.virtual = 0, o.virtual-1 }, over, true, true, false},
		"alone, long after the slice":             {func(_, o *Share) { o.active = false }, epoch, false, false, true},
		"the holder does not want it":             {func(h, _ *Share) { h.active = false }, now, true, true, false},
		"nobody wants it":                         {func(h, o *Share) { h.active, o.active = false, false }, now, false, false, true},
		"who types does not want it":              {func(_, o *Share) { o.active, o.recent = false, 0 }, over, false, false, true},
	} {
		h, o := &Share{active: true, recent: 0.5, virtual: 1e9}, &Share{active: true, recent: 0.5, virtual: 1e9}
		c.set(h, o)
		g := &GPU{Quantum: 3 * ms, shares: []*Share{h, o}, last: now}
		if !c.at.IsZero() {
			g.holder, g.sliceAt, g.sliceEnd, g.beside = h, c.at, c.at.Add(3*ms), true
		}
		h.sliceHeld, o.sliceHeld = ms/2, ms/2
		var want []*Share
		for _, s := range g.shares {
			if s.active {
				want = append(want, s)
			}
		}
		g.pick(now, want)
		holder := h
		if c.other {
			holder = o
		}
		if len(want) == 0 {
			holder = nil
		}
		if g.holder != holder || g.beside != c.beside {
			t.Errorf("%s: held by the other %v, beside what others have there %v", what, g.holder == o, g.beside)
		}
		if began := g.sliceAt == now && g.sliceEnd == now.Add(3*ms); began != c.begins && c.at != now {
			t.Errorf("%s: a slice from %v to %v", what, g.sliceAt.Sub(now), g.sliceEnd.Sub(now))
		}
		if c.begins != (holder != nil && holder.sliceHeld == 0 && holder.returned == ms/2) {
			t.Errorf("%s: the account of the slice before is not closed: %v, %v", what, holder.sliceHeld, holder.returned)
		}
	}
}

// TestTimeWithoutWork: of who has nothing on the GPU any more is given back what passed without
// work, at the next decision; of who has something nothing.
func TestTimeWithoutWork(t *testing.T) {
	const ms = time.Millisecond
	for active, back := range map[bool]time.Duration{true: 0, false: ms / 2} {
		g := &GPU{Quantum: 12 * ms}
		s := g.Join(epoch, Limits{})
		g.Report(s, epoch, Report{Active: true})
		g.Decide(epoch)
		now := epoch.Add(ms)
		g.Report(s, now, Report{Active: active, Busy: ms / 2})
		g.Decide(now)
		if s.Held != ms || s.returned != back || s.virtual != float64(ms-back) {
			t.Errorf("active %v: of %v are given back %v", active, s.Held, s.returned)
		}
	}
}

// TestMoments: the first decision charges nothing, whatever the clock says, and each one after it
// what has passed since, to the nanosecond.
func TestMoments(t *testing.T) {
	var g GPU
	s := g.Join(epoch, Limits{Cap: 50})
	g.Report(s, epoch, Report{Active: true})
	g.Decide(epoch)
	if tokens := g.capSlice(); s.Held != 0 || s.tokens != tokens || s.virtual != 0 {
		t.Errorf("the first decision: %+v", s)
	}
	g.Decide(epoch.Add(1))
	if s.Held != 1 || s.tokens != g.capSlice()+0.5 || s.sliceHeld != 1 {
		t.Errorf("a nanosecond: %+v", s)
	}
}

// TestBuckets: a cap holds one back from an empty bucket to one that is filled for a slice.
func TestBuckets(t *testing.T) {
	g := &GPU{Quantum: 3 * time.Millisecond}
	full := g.capSlice()
	for _, c := range []struct {
		cap            uint32
		tokens         float64
		was, throttled bool
		left           float64
	}{
		{50, 0, false, true, 0}, {50, 1, false, false, 1}, {50, 1, true, true, 1}, {50, full, true, false, full}, {50, full - 1, true, true, full - 1},
		{50, -5, true, true, -5}, {50, 10 * full, true, false, 5 * full}, {0, -5, true, false, full}, {100, 7, false, false, full},
	} {
		s := &Share{Limits: Limits{Cap: c.cap}, tokens: c.tokens, throttled: c.was}
		if s.fill(g); s.throttled != c.throttled || s.tokens != c.left {
			t.Errorf("%+v: %v with %v", c, s.throttled, s.tokens)
		}
	}
}

// TestLedgerAtItsBounds: what is charged of a period, by what was counted before, and what stays
// for later.
func TestLedgerAtItsBounds(t *testing.T) {
	const s = time.Second
	for what, c := range map[string]struct {
		before       ledger
		counted      time.Duration
		card         time.Duration
		due          time.Duration
		credit, less time.Duration
	}{
		"as much":                             {ledger{}, 4 * s, 4 * s, 0, s, 0},
		"what may be missing for ever":        {ledger{short: s}, 3 * s, 4 * s, 0, 0, 0},
		"a little more":                       {ledger{short: s}, 3*s - 1, 4 * s, 0, -1, 2*s + 1},
		"just too little to charge":           {ledger{}, 3*s - accountLeast + 1, 4 * s, 0, 1 - accountLeast, s + accountLeast - 1},
		"enough to charge: all":               {ledger{}, 3*s - accountLeast, 4 * s, s + accountLeast, 0, 0},
		"with what was missing before":        {ledger{short: s, credit: -1}, 3*s - accountLeast, 4 * s, 2*s + accountLeast, 0, 0},
		"held against what came earlier":      {ledger{credit: accountLag}, 3*s - accountLag, 4 * s, 0, 0, 0},
		"of which no more is kept":            {ledger{}, 9 * s, 4 * s, 0, accountLag, 0},
		"counted since the last account":      {ledger{at: 5 * s}, 8 * s, 4 * s, 0, 0, 0},
		"more was counted, and is not due":    {ledger{credit: -2 * s, short: s}, 4 * s, 2 * s, 0, s / 2, 0},
		"more was counted than had been less": {ledger{credit: -5 * s, short: s}, 4 * s, 2 * s, 0, 0, 0},
	} {
		l := c.before
		if due := l.due(c.counted, c.card); due != c.due || l.at != c.counted || l.credit != c.credit || l.short != c.less {
			t.Errorf("%s: %v is due, %+v is left", what, due, l)
		}
	}
}

// TestLeastAccounts: the shortest period counts, and the least charge has its owner be suspected.
func TestLeastAccounts(t *testing.T) {
	var g GPU
	s := g.Join(epoch, Limits{})
	if g.Account(s, epoch, 1, 1); s.Card != 1 || g.users[0] != (user{s, epoch}) || !s.suspect.IsZero() {
		t.Errorf("a nanosecond: %+v", s)
	}
	s.byHeld.credit, s.byHeld.short = -accountLeast, 1
	if charged := g.Account(s, epoch.Add(1), 0, 1); charged != 1 || s.Charged != 1 || s.suspect != epoch.Add(1+Distrust) || g.users[0].at != epoch {
		t.Errorf("charged %v, %+v", charged, s)
	}
}

// TestTakeTurns: the driver's account is one of each where it divides the time of those that are on
// the GPU; that is asked of two of late, and judged when there was time enough.
func TestTakeTurns(t *testing.T) {
	const period = 4 * time.Second
	now := epoch.Add(time.Hour)
	for what, c := range map[string]struct {
		other     user // before one that is there
		claimed   float64
		there     float64
		exclusive bool
	}{
		"one":                        {user{}, 1e12, 8e9, true},
		"the other was there before": {user{&Share{}, now.Add(-accountMemory - 1)}, 1e12, 8e9, true},
		"but of late":                {user{&Share{}, now.Add(-accountMemory)}, 1e12, 8e9, false},
		// 9 of 8 seconds
		"they take turns":          {user{&Share{}, now}, 7e9, 8e9, true},
		"each as if it were alone": {user{&Share{}, now}, 7e9 + 1, 8e9, false},
		"not enough was seen":      {user{&Share{}, now}, 0, 8e9 - 1, false},
	} {
		s := &Share{Held: 7 * time.Second, occupied: 10 * time.Second, returned: time.Second, BusyTotal: 3 * time.Second}
		g := &GPU{shares: []*Share{s}, users: [2]user{{s, now}, c.other}, last: now, together: now, claimed: c.claimed, there: c.there}
		if got := g.exclusive(now, 2*time.Second, period); got != c.exclusive {
			t.Errorf("%s: %v", what, got)
		}
		g.claimed, g.there = c.claimed, c.there
		if g.Account(s, now, 2*time.Second, period); s.byHeld.at != 9*time.Second || s.byBusy.at != 3*time.Second {
			t.Errorf("%s: the next account is against what was counted until %v and %v", what, s.byHeld.at, s.byBusy.at)
		}
	}
	g := &GPU{users: [2]user{{&Share{}, now}, {&Share{}, now}}, claimed: 8e9, there: 8e9, together: now.Add(-accountMemory)}
	g.exclusive(now, 0, period)
	if want := 8e9 / math.E; math.Abs(g.claimed-want) > 1 || math.Abs(g.there-want-4e9) > 1 || g.together != now {
		t.Errorf("a minute later %v of %v, seen until %v", g.claimed, g.there, g.together)
	}
}

// TestOnlyOthersWorkIsAwaited: the GPU is done with those that could have something there, and for
// no longer than it is worth.
func TestOnlyOthersWorkIsAwaited(t *testing.T) {
	now := epoch.Add(time.Hour)
	left := Share{active: true, opened: true, closedAt: now}
	for what, c := range map[string]struct {
		set     func(*Share)
		cleared bool
	}{
		"it has something": {func(*Share) {}, false}, "almost too long": {func(s *Share) { s.closedAt = now.Add(1 - Patience) }, false}, "too long": {func(s *Share) { s.closedAt = now.Add(-Patience) }, true},
		"it has drained": {func(s *Share) { s.drained = true }, true}, "it had nothing": {func(s *Share) { s.opened = false }, true}, "it is quiet": {func(s *Share) { s.active = false }, true},
	} {
		s := left
		c.set(&s)
		if got := (&GPU{shares: []*Share{{}, &s}}).cleared(now); got != c.cleared {
			t.Errorf("%s: %v", what, got)
		}
	}
	s := left
	if !(&GPU{holder: &s, shares: []*Share{&s}}).cleared(now) {
		t.Error("the holder awaits itself")
	}
}

package policy

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Parameters of all GPUs.
const (
	Patience = 15 * time.Millisecond // how long a slice waits for the end of the work before it
	Calm     = time.Second           // how long one that became quiet is still expected back

	// Work in flight while one that types may come; less gains nothing beside the GPU's own switch.
	FlightInteractive = 60 * time.Microsecond

	// Slices. A software GPU takes longer to go from one to another: what it waits for are the
	// CPUs.
	Quantum     = 3 * time.Millisecond
	SoftQuantum = 12 * time.Millisecond

	memory    = 150 * time.Millisecond
	farBelow  = 4 // who uses less than one part in farBelow of its share is interactive
	shortNext = 100 * time.Microsecond
)

// Times that follow from the length of a slice.
func (g *GPU) quantum() time.Duration {
	if g.Quantum > 0 {
		return g.Quantum
	}
	return Quantum
}

// Turn is how often reports are to come of several sessions of one virtual GPU that work: those
// that use the GPU by turns, for less than that each, seem to use it less.
func (g *GPU) Turn() time.Duration { return g.quantum() / 24 }

// Before it ends for the sake of one that is behind.
func (g *GPU) minSlice() time.Duration { return g.quantum() / 6 }

// Work in flight while several want the GPU, or under a cap.
func (g *GPU) flight() time.Duration { return g.quantum() / 2 }

// Of a slice that is not charged if nothing was on the GPU: wake-ups take their time.
func (g *GPU) grace() time.Duration { return g.quantum() / 4 }

// Of GPU time that one can be owed for the past.
func (g *GPU) maxLag() time.Duration { return 10 * g.quantum() }

// Reports of busy time may come so late.
func (g *GPU) maxSlack() time.Duration { return 2 * g.quantum() }

// What an empty bucket is filled with before its owner goes on.
func (g *GPU) capSlice() float64 { return float64(g.quantum()) * 2 / 3 }

// What a bucket holds.
func (g *GPU) capBurst() float64 { return 5 * g.capSlice() }

// Mode is what a virtual GPU may do.
type Mode int

// Modes.
const (
	Closed  Mode = iota // submit nothing
	Metered             // submit, with fences, within the budget
	Free                // submit as if there were nobody else
)

func (m Mode) String() string { return [...]string{"closed", "metered", "free"}[m] }

// Limits of a virtual GPU.
type Limits struct {
	Weight uint32 // relative to others'; 0 counts as 1
	Cap    uint32 // per cent of the GPU's time; 0 or from 100 on: none
}

func (l Limits) weight() float64 { return float64(max(l.Weight, 1)) }

func (l Limits) cap() float64 {
	if l.Cap >= 100 {
		return 0
	}
	return float64(l.Cap) / 100
}

// Report is what the sessions of a virtual GPU say, together.
type Report struct {
	Active  bool          // one has work on the GPU, or wants to submit some
	Drained bool          // none has work on the GPU; counts while closed
	Busy    time.Duration // GPU time since the last report
}

// Share is a virtual GPU on its GPU. Its owner reads Grant and Budget after Decide.
type Share struct {
	Limits
	Mode   Mode
	Budget time.Duration // of work in flight, while Metered

	// Time so far: held is GPU time charged, Busy what was measured.
	Held, BusyTotal time.Duration
	// Card is the driver's account, as far as it is told; Charged is what of Held, or BusyTotal,
	// comes from it.
	Card, Charged time.Duration

	active    bool
	drained   bool
	heldAt    time.Duration // Held at its last report
	slack     time.Duration // held and not yet reported busy, of late
	sliceHeld time.Duration // of this slice
	sliceBusy time.Duration
	leftAt    time.Time // became quiet
	closedAt  time.Time
	opened    bool    // has been granted something since it became active
	virtual   float64 // nanoseconds held, divided by weight
	tokens    float64 // nanoseconds in the cap's bucket
	throttled bool
	recent    float64 // part of the GPU's time, over memory

	joined, capped time.Time     // since when it is counted, and measured for a cap
	occupied       time.Duration // as Held, but for those that are absent
	absent         bool          // the driver's last account has nothing of it, or none came
	returned       time.Duration // of Held, so far
	byHeld, byBusy ledger
	suspect        time.Time // until then it is not interactive
	// Nanoseconds charged by the driver's account, divided by weight, for which it is barred.
	penalty float64
	debt    float64 // nanoseconds that it held after its turn, divided by weight (debt.go)
}

// Throttled reports whether the cap holds it back.
func (s *Share) Throttled() bool { return s.throttled }

// Active reports whether it wants the GPU.
func (s *Share) Active() bool { return s.active }

// GPU shares one GPU. The zero value is ready.
type GPU struct {
	Quantum time.Duration // of slices; 0: Quantum

	shares   []*Share
	holder   *Share
	sliceAt  time.Time // the holder's slice began
	sliceEnd time.Time
	beside   bool // the holder does not wait for the end of the work before
	last     time.Time

	// What the driver said of all while several used the GPU, of late, and what time there was, in
	// nanoseconds.
	claimed, there float64
	together       time.Time // of the last account
	users          [2]user
}

// Join adds a virtual GPU. It is quiet until a Report says otherwise.
func (g *GPU) Join(now time.Time, l Limits) *Share {
	s := &Share{Limits: l, drained: true, leftAt: now.Add(-Calm), tokens: g.capSlice(), joined: now, capped: now, absent: true}
	s.virtual = g.floor(nil)
	g.shares = append(g.shares, s)
	return s
}

// Limit changes what a virtual GPU may have. Decide comes after it.
func (g *GPU) Limit(s *Share, now time.Time, l Limits) {
	if s.cap() == 0 {
		s.capped = now
	}
	s.Limits = l
}

// Leave removes a virtual GPU. One that holds the GPU does so until Decide.
func (g *GPU) Leave(s *Share) {
	g.shares = slices.DeleteFunc(g.shares, func(o *Share) bool { return o == s })
}

// Len is how many virtual GPUs there are.
func (g *GPU) Len() int { return len(g.shares) }

// Report takes what a virtual GPU's sessions say now. Decide comes after the reports of all. What a
// worker says is worth no more than the time that it was charged for of late: Busy is cut to it.
func (g *GPU) Report(s *Share, now time.Time, r Report) {
	g.charge(now)                // by what was known until now
	s.slack += s.Held - s.heldAt // beside others' work, a part of the time
	s.heldAt = s.Held
	busy := min(max(r.Busy, 0), s.slack)
	s.slack = min(s.slack-busy, g.maxSlack())
	s.sliceBusy += busy
	s.BusyTotal += busy
	s.tokens -= float64(busy)
	s.drained = r.Drained || !r.Active
	if r.Active == s.active {
		return
	}
	s.active = r.Active
	if !r.Active {
		s.leftAt = now
		return
	}
	// What it did not use long ago is nobody's debt any more.
	s.virtual = max(s.virtual, g.floor(s)-float64(g.maxLag())/s.weight())
}

// floor is the least virtual time of those that want the GPU, but of s.
func (g *GPU) floor(but *Share) float64 {
	least := math.Inf(1)
	for _, s := range g.shares {
		if s != but && s.active {
			least = min(least, s.virtual)
		}
	}
	if !math.IsInf(least, 1) {
		return least
	}
	for _, s := range g.shares { // nobody: then of the one that is furthest
		if s != but && (math.IsInf(least, 1) || s.virtual > least) {
			least = s.virtual
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

// Decide charges the time since the last call and sets Mode and Budget of every Share. The next
// call is due at the time that it returns, or when a report changes; the zero time: not before.
func (g *GPU) Decide(now time.Time) (next time.Time) {
	g.charge(now)
	for _, s := range g.shares {
		s.fill(g)
		if !s.occupies() {
			s.settle(g)
		}
	}
	var want []*Share
	for _, s := range g.shares {
		if s.active && !g.heldBack(now, s) {
			want = append(want, s)
		}
	}
	g.pick(now, want)
	g.grant(now, want)
	return g.next(now, want)
}

// occupies reports whether s has, or may have, work on the GPU.
func (s *Share) occupies() bool { return s.active && (s.Mode != Closed || !s.drained && s.opened) }

// charge accounts for the time since the last call.
func (g *GPU) charge(now time.Time) {
	dt := now.Sub(g.last)
	if g.last.IsZero() {
		dt = 0
	}
	g.last = now
	if dt <= 0 { // also of a clock that steps back
		return
	}
	n, present := 0, 0
	for _, s := range g.shares {
		if s.occupies() {
			n++
			if !s.absent {
				present++
			}
		}
	}
	fade := 1 - math.Exp(-float64(dt)/float64(memory))
	for _, s := range g.shares {
		part := 0.0
		if s.occupies() {
			part = 1 / float64(n)
			m := present
			if s.absent {
				m++
			}
			s.occupied += dt / time.Duration(m)
		}
		held := part * float64(dt)
		s.Held += time.Duration(held)
		s.sliceHeld += time.Duration(held)
		s.virtual += held / s.weight()
		s.recent += (part - s.recent) * fade
		s.tokens += s.cap() * float64(dt)
		g.owe(now, s, time.Duration(held), dt)
		if s.penalty > 0 {
			s.penalty = max(s.penalty-float64(dt)/g.weightBeside(now, s), 0)
		}
	}
}

// fill sees to the cap's bucket.
func (s *Share) fill(g *GPU) {
	switch {
	case s.cap() == 0:
		s.throttled, s.tokens = false, g.capSlice()
	case s.tokens <= 0:
		s.throttled = true
	case s.tokens >= g.capSlice():
		s.throttled, s.tokens = false, min(s.tokens, g.capBurst())
	}
}

// settle ends a slice's account: what passed without work on the GPU is given back, up to the
// grace.
func (s *Share) settle(g *GPU) {
	back := min(max(s.sliceHeld-s.sliceBusy, 0), g.grace())
	s.virtual -= float64(back) / s.weight()
	s.returned += back
	s.sliceHeld, s.sliceBusy = 0, 0
}

// interactive reports whether s uses far less than its share among those that want the GPU.
func (g *GPU) interactive(s *Share) bool {
	if g.last.Before(s.suspect) {
		return false
	}
	sum := s.weight()
	for _, o := range g.shares {
		if o != s && o.active {
			sum += o.weight()
		}
	}
	return s.recent*farBelow < s.weight()/sum
}

// pick chooses the holder among those that want the GPU.
func (g *GPU) pick(now time.Time, want []*Share) {
	if !slices.Contains(want, g.holder) {
		g.holder = nil
	}
	if len(want) == 0 {
		return
	}
	h := g.holder
	if h != nil && len(want) == 1 {
		return
	}
	if h == nil || !g.interactive(h) {
		if i := g.typist(want); i != nil { // it is not the holder
			g.begin(now, i, true)
			return
		}
	}
	best := slices.MinFunc(want, func(a, b *Share) int { return cmp.Compare(a.virtual, b.virtual) })
	switch {
	case h == nil, !now.Before(g.sliceEnd):
		g.begin(now, best, false)
	case now.Sub(g.sliceAt) >= g.minSlice() && best.virtual+float64(g.quantum())/best.weight() < h.virtual:
		g.begin(now, best, false) // it was away for a moment, and is behind
	}
}

// typist is the interactive one that used the least, nil if none is.
func (g *GPU) typist(want []*Share) *Share {
	var best *Share
	for _, s := range want {
		if g.interactive(s) && (best == nil || s.recent < best.recent) {
			best = s
		}
	}
	return best
}

// begin starts a slice. beside: without waiting for the end of what others have on the GPU.
func (g *GPU) begin(now time.Time, s *Share, beside bool) {
	if s != g.holder {
		g.beside = beside
	}
	s.settle(g)
	g.holder, g.sliceAt, g.sliceEnd = s, now, now.Add(g.quantum())
}

package policy

import (
	"math"
	"time"
)

/*
The card's account. What a session has used is known from words that the GPU writes into memory
which the session's kernels can reach: a guest can forge them, and then seems to use nothing. The
driver's own account of each process is out of its reach, but comes late and is coarse. So it is
compared over seconds: a virtual GPU of which far less was counted than the driver says is charged
by the driver's account, and is not believed to be interactive for a while. Slices and caps go by
what was counted otherwise.
*/
const (
	// accountPart: what was counted may fall short of the driver's account by one part in so many,
	// for ever. Its samples are means, in whole per cents.
	accountPart = 4
	// accountLag: the driver's samples cover up to a second each and come after it. So much that
	// was counted before is held against them.
	accountLag = 2 * time.Second
	// accountMost is how much of a GPU's time those that take turns on it can have together, over
	// accountMemory: periods are not aligned.
	accountMost   = 1.125
	accountMemory = time.Minute
	// accountDebt is how much of what one was charged it is barred for: what it had while nobody
	// else was there took nothing from those that come later.
	accountDebt = 10 * time.Second
	// accountNothing: less than one part in so many of a period is none.
	accountNothing = 50
	// accountLeast is too little to charge.
	accountLeast = 250 * time.Millisecond
	// Distrust is how long one that was charged counts as one that wants all that it can get.
	Distrust = time.Minute
)

// ledger is one way of counting a share's time, against the driver's account.
type ledger struct {
	at     time.Duration // counted at the last account
	credit time.Duration // counted and not claimed by the driver; negative: the other way round
	short  time.Duration // what the driver claims beyond what was counted, since there was credit
}

// due closes a period, in which the driver says card, and returns what is to be charged of that.
func (l *ledger) due(counted, card time.Duration) time.Duration {
	had := counted - l.at
	l.at = counted
	l.credit = min(l.credit+had-(card-card/accountPart), accountLag)
	if l.credit >= 0 {
		l.short = 0
		return 0
	}
	if l.short += card - had; l.credit > -accountLeast {
		return 0
	}
	due := max(l.short, 0)
	l.credit, l.short = 0, 0
	return due
}

// Account takes what the driver says that the GPU worked for a virtual GPU, card of the last
// period, and returns what was charged for it beyond what had been counted.
func (g *GPU) Account(s *Share, now time.Time, card, period time.Duration) time.Duration {
	if period <= 0 {
		return 0
	}
	g.charge(now)
	card = min(max(card, 0), period)
	s.Card += card
	s.absent = card < period/accountNothing
	if card > 0 {
		g.sees(s, now)
	}
	// What a scheduler before this one counted, or nobody while there was none, is not known here.
	if !g.exclusive(now, card, period) || now.Sub(s.joined) < period {
		s.byHeld.at, s.byBusy.at = s.counted(), s.BusyTotal
		return 0
	}
	held := s.byHeld.due(s.counted(), card)
	s.Held += held
	s.heldAt += held // it says nothing about what workers may report
	s.virtual += float64(held) / s.weight()
	s.penalty = min(s.penalty+float64(held)/s.weight(), float64(accountDebt)/s.weight())
	busy := s.byBusy.due(s.BusyTotal, card)
	if s.cap() == 0 || now.Sub(s.capped) < period { // it was not measured while free
		busy, s.byBusy.credit, s.byBusy.short = 0, 0, 0
	}
	s.BusyTotal += busy
	s.byBusy.at += busy
	s.tokens -= float64(busy)
	charged := max(held, busy)
	if s.Charged += charged; charged > 0 {
		s.suspect = now.Add(Distrust)
	}
	return charged
}

// counted is what the driver's account is held against: the time that it was charged for, and what
// was charged beside it to those of which that account has nothing. Their work may wait on the GPU
// for ever, and take no time from who is there.
func (s *Share) counted() time.Duration { return s.occupied - s.returned }

// barred is for how long yet one gets nothing that was charged by the driver's account: until those
// that want the GPU, or did a moment ago, could have had what is theirs of it. Turns do not
// suffice: one whose words are forged is never seen to have enough, so whenever the others pause,
// for a moment, it has the GPU do as much as it likes. 0: it is not.
func (g *GPU) barred(now time.Time, s *Share) time.Duration {
	if s.penalty <= 0 {
		return 0
	}
	w := g.weightBeside(now, s)
	if math.IsInf(w, 1) {
		return 0
	}
	return time.Duration(math.Ceil(s.penalty * w))
}

// weightBeside is that of all others that want the GPU, or did a moment ago; infinite: there are
// none.
func (g *GPU) weightBeside(now time.Time, s *Share) (w float64) {
	for _, o := range g.shares {
		if o != s && o.recently(now) {
			w += o.weight()
		}
	}
	if w == 0 {
		return math.Inf(1)
	}
	return w
}

// user is one that had something on the GPU, by the driver's account.
type user struct {
	share *Share // may have left
	at    time.Time
}

// sees notes that s had something on the GPU: users are the last one, and the last one that was
// another.
func (g *GPU) sees(s *Share, now time.Time) {
	if g.users[0].share != s {
		g.users[1] = g.users[0]
	}
	g.users[0] = user{s, now}
}

// exclusive reports whether the driver divides the time of those that take turns on the GPU, as far
// as is known. Where it counts each as if it were alone, its account says nothing of who took whose
// time. What it says of all is held against the clock, for as long as two had something within
// accountMemory: of those alone that have something at a moment, two that take turns by periods
// would seem to have twice the time.
func (g *GPU) exclusive(now time.Time, card, period time.Duration) bool {
	since := max(now.Sub(g.together), 0)
	g.together = now
	if g.users[1].share == nil || now.Sub(g.users[1].at) > accountMemory {
		return true
	}
	fade := math.Exp(-float64(since) / float64(accountMemory))
	g.claimed = g.claimed*fade + float64(card)
	g.there = g.there*fade + float64(min(since, period)) // nobody speaks for more
	return g.there >= float64(2*period) && g.claimed <= accountMost*g.there
}

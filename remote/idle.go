package remote

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Spinning: how long a consumer polls an empty ring before it sleeps. It grows when sleeping turned
// out to be rash, and shrinks when polling was in vain.
const (
	spinLeast  = 20 * time.Microsecond
	spinFirst  = 50 * time.Microsecond
	SpinMost   = 200 * time.Microsecond
	pollPauses = 24 // pauses between looks at the clock

	// With fewer cores polling gives way to others between looks, and after others took the core
	// for longer than it is worth polling it is left alone for so many sleeps.
	plentyCores = 4
	crowdedFor  = 256
)

// Idle is what the consumer of a ring does while that is empty. The consumer owns it.
type Idle struct {
	Ring Ring
	Bell Doorbell
	// Pending says that there is something else to do, for which the doorbell was rung from within.
	Pending func() bool

	patience
}

// patience is how long polling is worth while, learnt from how long sleeping took.
type patience struct {
	spin    time.Duration
	giveWay bool // cores are few: what is waited for may need this one
	crowded int  // sleeps until the next attempt at polling
}

// NewIdle begins with a medium patience; with one core polling keeps the guest from what it is
// waited for, and there is none.
func NewIdle(ring Ring, bell Doorbell, pending func() bool) *Idle {
	p := patience{spin: spinFirst, giveWay: runtime.NumCPU() < plentyCores}
	if runtime.NumCPU() == 1 {
		p.spin = 0
	}
	return &Idle{Ring: ring, Bell: bell, Pending: pending, patience: p}
}

// NewFarIdle is NewIdle for a ring whose next record comes a round trip of a link behind the last
// answer. Where cores are few, whoever brings it needs the one that polling takes.
func NewFarIdle(ring Ring, bell Doorbell, pending func() bool) *Idle {
	i := NewIdle(ring, bell, pending)
	if i.giveWay {
		i.spin = 0
	}
	return i
}

// Patience is how long polling is worth while: not at all while others want this core.
func (p *patience) Patience() time.Duration {
	if p.crowded > 0 {
		return 0
	}
	return p.spin
}

// Spin polls for about d, and reports whether there is something to do.
func (i *Idle) Spin(d time.Duration) bool {
	if i.Ring.Poll(pollPauses) {
		return true
	}
	for start, last := time.Now(), time.Duration(0); last < d; {
		if i.Ring.Poll(pollPauses) || i.Pending() {
			return true
		}
		if i.giveWay {
			_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
		now := time.Since(start)
		if i.giveWay && now-last > SpinMost {
			i.crowded = crowdedFor
			return i.Ring.Poll(0) || i.Pending()
		}
		last = now
	}
	return false
}

// Sleep blocks on the doorbell unless something came meanwhile, and learns from how long it took.
func (i *Idle) Sleep(ctx context.Context) error {
	start := time.Now()
	i.Ring.SetState(WorkerSleeping)
	defer i.Ring.SetState(WorkerPolling)
	if i.Ring.Poll(0) || i.Pending() {
		return nil
	}
	if err := i.Bell.Wait(ctx); err != nil {
		return err
	}
	i.slept(time.Since(start))
	return nil
}

// slept learns from a sleep.
func (p *patience) slept(d time.Duration) {
	if p.crowded > 0 {
		p.crowded--
		return
	}
	p.spin = adapt(p.spin, d)
}

func adapt(spin, slept time.Duration) time.Duration {
	switch {
	case spin == 0 || slept == 0:
		return spin
	case slept < SpinMost:
		return min(2*spin, SpinMost)
	default:
		return max(spin/2, spinLeast)
	}
}

package remote

import (
	"context"
	"runtime"
	"time"
)

// Spinning: how long a consumer polls an empty ring before it sleeps. It grows when sleeping turned out to be rash, and shrinks when polling
// was in vain.
const (
	spinLeast = 20 * time.Microsecond
	spinFirst = 50 * time.Microsecond
	SpinMost  = 200 * time.Microsecond
	pollTurns = 24 // pauses between looks at the clock
)

// Idle is what the consumer of a ring does while that is empty. The consumer owns it.
type Idle struct {
	Ring Ring
	Bell Doorbell
	// Pending says that there is something else to do, for which the doorbell was rung from within.
	Pending func() bool

	spin time.Duration
}

// NewIdle begins with a medium patience; with one core polling keeps the guest from what it is waited for, and there is none.
func NewIdle(ring Ring, bell Doorbell, pending func() bool) *Idle {
	i := &Idle{Ring: ring, Bell: bell, Pending: pending, spin: spinFirst}
	if runtime.NumCPU() == 1 {
		i.spin = 0
	}
	return i
}

// Patience is how long Spin is worth while.
func (i *Idle) Patience() time.Duration { return i.spin }

// Spin polls for about d, and reports whether there is something to do.
func (i *Idle) Spin(d time.Duration) bool {
	if i.Ring.Poll(pollTurns) {
		return true
	}
	for start := time.Now(); time.Since(start) < d; {
		if i.Ring.Poll(pollTurns) || i.Pending() {
			return true
		}
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
	i.spin = adapt(i.spin, time.Since(start))
	return nil
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

package worker

import (
	"context"
	"errors"
	"runtime"
	"time"

	"causeway/cuda/wire"
	"causeway/remote"
)

// Spinning: how long the consumer polls an empty ring before it sleeps. It grows when sleeping turned out to be rash,
// and shrinks when polling was in vain.
const (
	spinLeast = 20 * time.Microsecond
	spinFirst = 50 * time.Microsecond
	spinMost  = 200 * time.Microsecond
	pollTurns = 24 // pauses between looks at the clock

	// patienceMost: how long it polls while the guest's last request is a wait that the GPU will answer: the next record
	// follows at once, and a wake-up here takes some 200 us. Only where cores are plenty.
	patienceMost = 25 * time.Millisecond
	plentyCores  = 4
)

// loop consumes the ring. It owns its OS thread.
func (w *Worker) loop(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if w.pending.Load() { // a session that begins parked has no ring yet
		if err := w.runTask(); err != nil {
			return err
		}
	}
	w.ring.SetState(remote.WorkerPolling)
	spin := spinFirst
	patience := time.Duration(0)
	switch n := runtime.NumCPU(); {
	case n == 1:
		spin = 0
	case n >= plentyCores:
		patience = patienceMost
	}
	behind := false // the next record waits already
	for {
		if w.pending.Load() {
			if err := w.runTask(); err != nil {
				return err
			}
		}
		ok, err := w.ring.Next(&w.incoming)
		switch {
		case err != nil:
			return err
		case ok:
			if err := w.consume(ctx, behind); err != nil {
				return err
			}
			if w.room.stalled > 0 {
				if err := w.awaitRoom(ctx); err != nil {
					return err
				}
				continue // with the same record
			}
			if w.ring.Advance() {
				w.bell.Wake(remote.SlotCount)
			}
			behind = true
			continue
		}
		behind = false
		if w.gate != nil {
			w.gate.Rest()
		}
		waits := w.waits && patience > spin
		limit := spin
		if waits {
			limit = patience
		}
		if w.spin(limit) {
			if waits {
				patience = min(2*patience, patienceMost)
			}
			continue
		}
		if waits {
			patience = max(patience/2, 2*spinMost)
		}
		slept, err := w.sleep(ctx)
		if err != nil {
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		}
		spin = adapt(spin, slept)
	}
}

// consume executes the incoming record. One that pads to the ring's end is nobody's operation: submitters that waited for it would run
// empty once in every turn of the ring.
func (w *Worker) consume(ctx context.Context, behind bool) error {
	op := wire.Op(w.incoming.Op)
	if op == wire.OpSkip {
		return nil
	}
	if w.ordered != nil {
		w.ordered.Before(op, behind)
	}
	if w.gate != nil {
		return w.pass(ctx, op)
	}
	return w.execute(&w.incoming)
}

// spin polls for about d, and reports whether there is something to do.
func (w *Worker) spin(d time.Duration) bool {
	if w.ring.Poll(pollTurns) {
		return true
	}
	for start := time.Now(); time.Since(start) < d; {
		if w.ring.Poll(pollTurns) || w.pending.Load() {
			return true
		}
	}
	return false
}

// sleep blocks on the doorbell unless something came meanwhile. It returns how long it took.
func (w *Worker) sleep(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	w.ring.SetState(remote.WorkerSleeping)
	defer w.ring.SetState(remote.WorkerPolling)
	if w.ring.Poll(0) || w.pending.Load() {
		return 0, nil
	}
	if err := w.bell.Wait(ctx); err != nil {
		return 0, err
	}
	return time.Since(start), nil
}

func adapt(spin, slept time.Duration) time.Duration {
	switch {
	case spin == 0 || slept == 0:
		return spin
	case slept < spinMost:
		return min(2*spin, spinMost)
	default:
		return max(spin/2, spinLeast)
	}
}

// onLoop has the consumer run f between two records, and waits for it. It reports errEnded if the session is over. An error
// of f ends the session; onLoop returns it.
func (w *Worker) onLoop(f func() error) error {
	var result error
	ran := make(chan struct{})
	task := func() error {
		result = f()
		close(ran)
		return result
	}
	select {
	case w.tasks <- task:
	case <-w.ended:
		return errEnded
	}
	w.pending.Store(true)
	w.bell.Ring()
	if w.gate != nil {
		w.gate.Poke()
	}
	select {
	case <-ran:
		return result
	case <-w.ended:
		select {
		case <-ran:
			return result
		default:
			return errEnded
		}
	}
}

// Ends of the loop that are no failures of the session.
var (
	errEnded = errors.New("session has ended")
	errMoved = errors.New("session moved to another worker")
)

func (w *Worker) runTask() error {
	select {
	case t := <-w.tasks:
		// Cleared before the task runs: who queues the next one sets it again.
		w.pending.Store(len(w.tasks) > 0)
		return t()
	default:
		w.pending.Store(false)
		return nil
	}
}

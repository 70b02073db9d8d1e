package worker

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"time"

	"causeway/cuda/wire"
	"causeway/remote"
	"causeway/remote/sys"
)

const (
	longPollMost = 25 * time.Millisecond
	plentyCores  = 4
)

// longPoll is how long the consumer polls while the guest's last request is a wait that the GPU
// will answer: the next record follows at once, and a wake-up here takes some 200 us. Only where
// cores are plenty: 0 is no longer than elsewhere.
type longPoll time.Duration

func longPollOn(cores int) longPoll {
	if cores < plentyCores {
		return 0
	}
	return longPoll(longPollMost)
}

// spin is how long it polls where it would for so long; long: for the guest's wait.
func (p longPoll) spin(would time.Duration, waits bool) (d time.Duration, long bool) {
	if waits && time.Duration(p) > would {
		return time.Duration(p), true
	}
	return would, false
}

// learn has it be more patient where a long poll was worth it, and less where it was in vain.
func (p *longPoll) learn(came bool) {
	if came {
		*p = min(2**p, longPoll(longPollMost))
	} else {
		*p = max(*p/2, longPoll(2*remote.SpinMost))
	}
}

// guarded is loop for a program that may take away memory that it shares with others: that ends its
// session, and says so.
func (w *Worker) guarded(ctx context.Context) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := sys.Faulted(recover()); fault != nil {
			err = fault
		}
	}()
	defer w.asked.tell(w.log)
	return w.loop(ctx)
}

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
	newIdle := remote.NewIdle
	if w.early != nil { // the guest is across a link
		newIdle = remote.NewFarIdle
	}
	idle := newIdle(w.ring, w.bell, w.pending.Load)
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
		spin, long := w.longPoll.spin(idle.Patience(), w.waits)
		came := idle.Spin(spin)
		if long {
			w.longPoll.learn(came)
		}
		if came {
			continue
		}
		if err := idle.Sleep(ctx); errors.Is(err, context.Canceled) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// consume executes the incoming record. One that pads to the ring's end is nobody's operation:
// submitters that waited for it would run empty once in every turn of the ring.
func (w *Worker) consume(ctx context.Context, behind bool) error {
	op := wire.Op(w.incoming.Op)
	if op == wire.OpSkip {
		return nil
	}
	if w.ordered != nil {
		w.ordered.Before(op, behind)
	}
	if op == wire.OpMemcpyStaged && w.early != nil {
		w.early.begin(w.ring.Head()) // before it is executed, so that none is noted behind that
		defer w.early.end()
	}
	if w.throttle.share.Load() != 0 {
		if err := w.holdBack(ctx, op); err != nil {
			return err
		}
	}
	if w.gate != nil {
		return w.pass(ctx, op)
	}
	return w.execute(&w.incoming)
}

// onLoop has the consumer run f between two records, and waits for it. It reports errEnded if the
// session is over. An error of f ends the session; onLoop returns it.
func (w *Worker) onLoop(f func() error) error { return w.onLoopUntil(context.Background(), f) }

// onLoopUntil is onLoop for who waits no longer than ctx, and returns its error then; f is run all
// the same, later.
func (w *Worker) onLoopUntil(ctx context.Context, f func() error) error {
	var result error
	ran := make(chan struct{})
	task := func() error {
		result = f()
		close(ran)
		return result
	}
	select {
	case w.tasks <- task:
	case <-ctx.Done():
		return ctx.Err()
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
	case <-ctx.Done():
		return ctx.Err()
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

// runTask runs the next of tasks, if there is one.
func (w *Worker) runTask() error {
	// Cleared before it looks: who queued one that it does not find sets it again.
	w.pending.Store(false)
	select {
	case t := <-w.tasks:
		return t()
	default:
		return nil
	}
}

package worker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"causeway/host/worker/link"
	"causeway/remote"
)

// parking is a session that has let go of guest memory, or is about to. The link's goroutine owns
// it.
type parking struct {
	resume  chan struct{} // closed by resume
	waiting bool          // the guest had submitted more; set before the session stands
	tasks   chan func()   // what the consumer does while it stands
}

func newParking() *parking {
	return &parking{resume: make(chan struct{}), tasks: make(chan func())}
}

// errBusy says that the GPU does not let go of guest memory in time. The session goes on.
var errBusy = errors.New("the GPU does not let go of guest memory")

// replyPatience is how long replies that are on their way may take to the guest's slots once the
// GPU is idle.
const replyPatience = 100 * time.Millisecond

// park stops everything that touches guest memory, and takes the pages away. When it returns nil,
// neither this process nor the GPU touches them until resume. It may take limit, and the GPU
// patience of it: with errBusy the session goes on as if nothing had been asked. Another error ends
// the session.
func (w *Worker) park(l *virtiofs, how link.Park) error {
	if l == nil {
		return errors.New("only lent memory can be parked")
	}
	if w.parked != nil {
		return errors.New("parked twice")
	}
	stopped := make(chan error, 1)
	p := newParking()
	late := time.Now().Add(how.Limit)
	var settled atomic.Bool // that it is to park, or not
	go func() {
		err := w.onLoop(func() error {
			if !settled.CompareAndSwap(false, true) {
				return nil
			}
			ctx, cancel := context.WithTimeout(context.Background(), min(how.Patience, time.Until(late)))
			defer cancel()
			ctx, inVain := context.WithCancelCause(ctx)
			defer inVain(nil)
			if how.Standing {
				go w.routineInVain(ctx, inVain, inVainLeast)
			}
			if err := w.session.Quiesce(ctx); err != nil {
				if errors.Is(context.Cause(ctx), errHostFunction) {
					err = errHostFunction
				}
				stopped <- fmt.Errorf("%w: %w", errBusy, err)
				return nil
			}
			ctx, cancel = context.WithTimeout(context.Background(), replyPatience)
			defer cancel()
			// Those that do not come now come after the park.
			_ = w.awaitReplies(ctx, func() bool { return false })
			// From here on no goroutine writes to guest memory: replies and words wait for guestMu.
			w.guestMu.Lock()
			// Whoever submits from here on rings, which may be what ends the park.
			w.ring.SetState(remote.WorkerSleeping)
			p.waiting = w.ring.Poll(0)
			w.away.Store(true)
			if err := l.mem.Detach(); err != nil {
				w.guestMu.Unlock()
				stopped <- err
				return err
			}
			stopped <- nil
			return w.stand(l, p)
		})
		if err != nil {
			select {
			case stopped <- err:
			default:
			}
		}
	}()
	t := time.NewTimer(how.Limit)
	defer t.Stop()
	var err error
	select {
	case err = <-stopped:
	case <-t.C:
		if settled.CompareAndSwap(false, true) {
			return fmt.Errorf("%w: a call is going on", errBusy)
		}
		err = <-stopped
	}
	if err == nil {
		w.parked = p
	}
	return err
}

// errHostFunction says that a stream waits for a function of a guest that stands, or that may want
// the consumer.
var errHostFunction = errors.New("a stream waits for a function of the program (cuLaunchHostFunc)")

// How often functions of the guest are looked for that have not returned, and for how long at a
// stretch they must be seen, until they do not as long as it stands: one that has is noticed within
// a millisecond.
const (
	inVainLook  = 10 * time.Millisecond
	inVainLeast = 100 * time.Millisecond
)

// routineInVain ends a wait for the GPU that waits for the guest, for so long at a stretch.
func (w *Worker) routineInVain(ctx context.Context, giveUp context.CancelCauseFunc, most time.Duration) {
	t := time.NewTicker(inVainLook)
	defer t.Stop()
	for seen := time.Duration(0); seen < most; seen += inVainLook {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if !w.calls.out() {
			seen = -inVainLook
		}
	}
	giveUp(errHostFunction)
}

// stand is the consumer's park: it holds guestMu, which it lets go of with the pages back.
func (w *Worker) stand(l *virtiofs, p *parking) error {
	err := w.standStill(l, p)
	if err == nil {
		w.graphs.renew()
	}
	return err
}

func (w *Worker) standStill(l *virtiofs, p *parking) error {
	defer w.guestMu.Unlock()
	for {
		select {
		case f := <-p.tasks:
			f()
		case <-p.resume:
			err := l.mem.Attach()
			if err == nil {
				w.away.Store(false)
				w.ring.SetState(remote.WorkerPolling)
			}
			return err
		case <-l.done:
			return errEnded
		}
	}
}

// whileParked has the consumer of a parked session do something.
func (w *Worker) whileParked(f func()) error {
	if w.parked == nil {
		return errors.New("the session is not parked")
	}
	done := make(chan struct{})
	select {
	case w.parked.tasks <- func() { f(); close(done) }:
	case <-w.ended:
		return errEnded
	}
	<-done
	return nil
}

// resume ends a park: the loans are back, perhaps with other pages.
func (w *Worker) resume(l *virtiofs) error {
	if l == nil || w.parked == nil {
		return errors.New("resume without park")
	}
	close(w.parked.resume)
	w.parked = nil
	return nil
}

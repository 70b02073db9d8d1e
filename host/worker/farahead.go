package worker

import (
	"bufio"
	"context"
	"errors"
	"time"

	"causeway/host/driver"
	"causeway/host/worker/precopy"
	"causeway/host/worker/state"
	"causeway/remote/frame"
	"causeway/remote/tcp"
)

// farAhead is memory of a session that goes ahead of it to another GPU server by its guest's end,
// which says when there is another round. routineLeave owns it. What it has written begins as what
// is written of a session that stands still does, so that who reads it sees no difference.
type farAhead struct {
	send *precopy.Sender // nil: nothing went ahead
	over <-chan struct{} // closed when it is to be forgotten
	seen still           // when the last whole round began
}

// round sends what has changed of a session's memory, while that goes on.
func (s *starter) round(w *Worker, a *farAhead, r *tcp.Round) (did frame.Round, err error) {
	ctx, cancel := until(r.Over(), w.ended)
	defer cancel()
	b := bufio.NewWriterSize(r, roundBuffer)
	if r.First() {
		if err := s.mayLeave(); err != nil {
			return did, err
		}
		*a = farAhead{send: precopy.NewSender(), over: r.Over()}
		if err := errors.Join(begins(state.NewWriter(b), s.warm), w.movableSoon(ctx)); err != nil {
			return did, err
		}
	}
	if a.send == nil {
		return did, errNoCopy
	}
	done, err := a.copy(ctx, w, b)
	return frame.Round{Looked: done.Looked, Sent: done.Sent, Cut: done.Cut}, err
}

// Times of movableSoon.
const (
	movableLook  = 100 * time.Millisecond
	movableTries = 10
)

// movableSoon says what of a session cannot move, before its memory does; what is over in a moment,
// as a stream that captures, is waited for, and so is a consumer that is busy with one long
// request, until ctx ends. Whether it can is asked again when it stands.
func (w *Worker) movableSoon(ctx context.Context) error {
	for n := 1; ; n++ {
		reason, err := w.askMovable(ctx, false)
		if err != nil || reason == nil || n == movableTries {
			return errors.Join(reason, err)
		}
		select {
		case <-time.After(movableLook):
		case <-ctx.Done():
			return reason
		}
	}
}

// begins is what a session's description begins with: how its driver was started.
func begins(out *state.Writer, warm bool) error {
	out.Bool(warm)
	return out.Flush()
}

// copy writes a round. Memory that cannot be read while programs run goes when they stand.
func (a *farAhead) copy(ctx context.Context, w *Worker, b *bufio.Writer) (precopy.Round, error) {
	p, ok := w.session.(driver.Precopier)
	if !ok {
		return precopy.Round{}, b.Flush()
	}
	return sendRound(ctx, a.send, p, &a.seen, w.idles(ctx), b)
}

// rest is who sends what of a session that stands still has not gone ahead. guestMu is held.
func (a *farAhead) rest(w *Worker, l *tcp.Leaving, out *state.Writer, warm bool) *precopy.Sender {
	if !l.Ahead() {
		out.Bool(warm)
		return precopy.NewSender()
	}
	sameSince(a.send, a.seen, still{w.ring.Head(), true})
	return a.send
}

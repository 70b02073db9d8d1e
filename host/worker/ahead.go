package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/worker/link"
	"causeway/host/worker/precopy"
)

// ahead is memory of a session that goes ahead of it to another host, a round at a time and beside
// the consumer. The parent says when there is another one, and carries what is written. The link's
// goroutine owns it; a round's goroutine owns h until it closes done.
type ahead struct {
	h      *handover // nil: nothing went ahead
	total  uint64    // bytes written to h
	failed bool      // a round did
	cancel context.CancelFunc
	done   chan struct{} // closed: no round is under way
	seen   still         // when the last whole round began
}

// roundBuffer is how much of a round is written at once.
const roundBuffer = 256 << 10

// still is where a session stood that had nothing to do: until its ring moves on nobody writes to
// its memory, unless others share it.
type still struct {
	head uint64
	idle bool
}

// Times of idles: how long the consumer and the GPU may take to find nothing to do.
const (
	stillLimit = 5 * time.Millisecond
	stillGPU   = 200 * time.Microsecond
)

// sameSince tells a sender where nobody can have written to the memory of a session since seen.
func sameSince(send *precopy.Sender, seen, now still) {
	if now.idle && now == seen {
		send.Same()
	}
}

// sendRound sends what has changed since the last whole round, which began at seen; this one begins
// now.
func sendRound(ctx context.Context, send *precopy.Sender, p driver.Precopier, seen *still, now still, b *bufio.Writer) (precopy.Round, error) {
	sameSince(send, *seen, now)
	r, err := send.Round(ctx, p.ExportRunning, b)
	if !r.Cut {
		*seen = now
	}
	return r, errors.Join(err, b.Flush())
}

// idles asks the consumer whether there is nothing to do. One that has no time has.
func (w *Worker) idles(ctx context.Context) still {
	if k := w.graphs.keeper; k != nil && k.HoldsPages() {
		// To ask lets go of pages, which is dear there.
		return still{}
	}
	ctx, cancel := context.WithTimeout(ctx, stillLimit)
	defer cancel()
	found := make(chan still, 1)
	task := func() error {
		ctx, cancel := context.WithTimeout(ctx, stillGPU)
		defer cancel()
		if c, ok := w.session.(driver.Companion); ok && c.Shared() != nil {
			return nil // others may write to its memory
		}
		if ctx.Err() == nil && w.session.Quiesce(ctx) == nil {
			found <- still{w.ring.Head(), true}
		}
		return nil
	}
	select {
	case w.tasks <- task:
	case <-ctx.Done():
		return still{}
	case <-w.ended:
		return still{}
	}
	w.pending.Store(true)
	w.bell.Ring()
	select {
	case at := <-found:
		return at
	case <-ctx.Done():
	case <-w.ended:
	}
	return still{}
}

var errNoCopy = errors.New("no memory went ahead, or not well")

// copy begins a round, on a stream of its own or on that of the last.
func (a *ahead) copy(s *starter, w *Worker, m link.Copy) error {
	if m.Rehearsal {
		return s.rehearse(w, m)
	}
	if stream := m.Stream.FD(); stream >= 0 {
		a.drop()
		h, err := newHandover(stream, 0)
		if err != nil {
			return s.link.Send(link.Copied{Number: m.Number, Status: link.StatusOf(unix.EIO, err)})
		}
		a.h = h
	}
	p, ok := w.session.(driver.Precopier)
	switch {
	case !ok:
		return s.link.Send(link.Copied{Number: m.Number, Status: link.StatusOf(unix.EOPNOTSUPP, errors.New("this GPU's memory cannot be read while programs run"))})
	case a.h == nil:
		return s.link.Send(link.Copied{Number: m.Number, Status: link.StatusOf(unix.EINVAL, errNoCopy)})
	case a.running():
		return fmt.Errorf("%w: a round is under way", link.ErrUnexpected)
	}
	var ctx context.Context
	ctx, a.cancel = context.WithCancel(context.Background())
	done := make(chan struct{})
	a.done = done
	go func() {
		said := a.round(ctx, p, m.Number, w.idles(ctx))
		close(done)           // before the parent hears of it, and asks for the next
		_ = s.link.Send(said) // a parent that is gone asks nothing
	}()
	return nil
}

// round is one, as its answer. After an error the stream has ended.
func (a *ahead) round(ctx context.Context, p driver.Precopier, number uint64, at still) link.Copied {
	r, err := sendRound(ctx, a.h.send, p, &a.seen, at, bufio.NewWriterSize(counted{a}, roundBuffer))
	if err != nil {
		a.h.close()
		a.failed = true
	}
	return link.Copied{Number: number, Looked: r.Looked, Sent: r.Sent, Total: a.total, Cut: r.Cut, Status: link.StatusOf(unix.EIO, err)}
}

// counted counts what is written ahead.
type counted struct{ a *ahead }

// Write implements io.Writer.
func (c counted) Write(b []byte) (int, error) {
	n, err := c.a.h.Write(b)
	c.a.total += uint64(n)
	return n, err
}

func (a *ahead) running() bool {
	if a.done == nil {
		return false
	}
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// cut ends a round early. over: there will be no other.
func (a *ahead) cut(over bool) {
	if a.cancel != nil {
		a.cancel()
	}
	if over {
		a.drop()
	}
}

// take ends the rounds: what the receiver lacks is the returned sender's to say. The session
// stands, its ring at head.
func (a *ahead) take(head uint64) (*precopy.Sender, error) {
	h, seen := a.h, a.seen
	if failed := a.drop(); failed || h == nil {
		return nil, errNoCopy
	}
	sameSince(h.send, seen, still{head, true})
	return h.send, nil
}

// drop forgets what went ahead. A round that is under way fails, as it may wait for who reads.
// failed: one did.
func (a *ahead) drop() (failed bool) {
	if a.h == nil {
		return false
	}
	if a.cancel != nil {
		a.cancel()
	}
	a.h.close()
	if a.done != nil {
		<-a.done
	}
	failed = a.failed
	*a = ahead{}
	return failed
}

// readAhead takes the memory that comes before the session does.
func (h *handover) readAhead(log *slog.Logger) error {
	h.idle = true
	defer func() { h.idle = false }()
	if err := h.recv.Rounds(context.Background(), h.in.Rest()); err != nil {
		return fmt.Errorf("memory ahead of the session: %w", err)
	}
	log.Debug("the session follows its memory")
	return nil
}

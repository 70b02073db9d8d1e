package worker

import (
	"bufio"
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/precopy"
	"causeway/host/worker/state"
	"causeway/remote/frame"
	"causeway/remote/shm"
	"causeway/remote/tcp"
)

// A session that is to go to another GPU server is rehearsed there by its guest's end: the server
// that has it says what it is made of, in the place of a round of memory, while it goes on; the
// other one makes all of that once, in a worker of its own, answers whether it could, and ends it.
// It is a session of that lease for as long: what it takes is within what the lease's sessions may
// take, of which none is there yet.

// outlined says what a session is made of, for a rehearsal.
func (s *starter) outlined(w *Worker, r *tcp.Round) {
	did, err := s.outline(w, r)
	if err != nil {
		s.log.Warn("the session is not rehearsed at another server", "error", err)
	}
	_ = r.End(did, err) // a guest's end that is gone needs no answer
}

func (s *starter) outline(w *Worker, r *tcp.Round) (did frame.Round, err error) {
	if err := s.mayLeave(); err != nil {
		return did, err
	}
	ctx, cancel := until(r.Over(), w.ended)
	defer cancel()
	var snap *snapshot // the consumer's, which may say it to nobody
	if err := w.onLoopUntil(ctx, func() error { snap = w.outline(w.elsewhere()); return nil }); err != nil {
		return did, err
	}
	snap.Warm = s.warm
	b := bufio.NewWriterSize(&outlining{r, &did}, roundBuffer)
	out := state.NewWriter(b)
	if err := errors.Join(begins(out, s.warm), precopy.NewSender().Still(out)); err != nil {
		return did, err
	}
	snap.write(out)
	return did, errors.Join(out.Flush(), b.Flush())
}

// outlining counts what is written of a round.
type outlining struct {
	r   *tcp.Round
	did *frame.Round
}

// Write implements io.Writer.
func (o *outlining) Write(b []byte) (int, error) {
	n, err := o.r.Write(b)
	o.did.Looked += uint64(n)
	o.did.Sent += uint64(n)
	return n, err
}

// elsewhere is what another process is told of the guest: its regions, as the consumer knows them.
func (w *Worker) elsewhere() *virtiofsState {
	s := &virtiofsState{Head: w.ring.Head()}
	w.regionMu.RLock()
	defer w.regionMu.RUnlock()
	for id, r := range w.regions {
		if id != 0 {
			s.Regions = append(s.Regions, shm.RegionState{ID: id, VA: r.VA, Size: r.Size})
		}
	}
	return s
}

// rehearsed makes what a session is made of that another server has, answers, and ends.
func (s *starter) rehearsed(a arrival) error {
	began := time.Now()
	s.cfg.Rehearsal = true
	_ = s.link.Send(link.Rehearses{}) // a parent that is gone ends it
	w, err := s.tried(a)
	_ = a.state.Close()
	status := uint32(0)
	var d *differs
	switch {
	case errors.As(err, &d):
		status = uint32(unix.EADDRNOTAVAIL)
	case err != nil:
		status = uint32(unix.EIO)
	}
	s.log.Info("session of another server rehearsed", "took", time.Since(began).Round(time.Millisecond), "error", err)
	text := ""
	if err != nil {
		text = err.Error()
	}
	answered := a.answerLast(status, text)
	if w != nil {
		answered = errors.Join(answered, w.session.Close())
	}
	return answered
}

// tried is the session that was made; nil: the GPU was not opened for it. A *differs says what it
// cannot be here.
func (s *starter) tried(a arrival) (*Worker, error) {
	w, h, snap, err := s.described(a)
	if err != nil {
		return nil, err
	}
	if l := snap.Virtiofs; l == nil || len(l.Guest) != 0 || len(l.Pieces) != 0 {
		return w, errors.New("it comes with guest memory")
	}
	if snap.Warm && !s.warm {
		return w, errors.New("its driver was started in another way than this one")
	}
	for _, r := range snap.Virtiofs.Regions {
		if err := a.carrier.Declare(r.ID, r.Declared()); err != nil {
			return w, err
		}
	}
	if err := w.carry(a.carrier); err != nil {
		return w, err
	}
	w.guestMu.Lock() // for good: nothing of it may reach the guest
	if err := w.perform(snap); err != nil {
		return w, err
	}
	return w, endsHere(h.in.Rest())
}

// until is a context that ends with either.
func until(over, ended <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-over:
		case <-ended:
		case <-ctx.Done():
		}
		cancel()
	}()
	return ctx, cancel
}

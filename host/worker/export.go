package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/worker/bulk"
	"causeway/host/worker/link"
	"causeway/host/worker/precopy"
)

// A session also moves without its guest memory, as bytes that another host may read: a parked
// worker writes what it is made of and stays as it is, and a worker there begins parked, with the
// same session, until the guest lends its pages again.

// export writes a parked session to a stream, which it takes over. It waits for who reads.
func (s *starter) export(w *Worker, m link.Export) error {
	memory := aside(m.Memory)
	defer memory.Close()
	h, err := newHandover(m.Stream.FD(), 0)
	if err != nil {
		return err
	}
	defer h.close()
	if m.Ahead {
		if h.send, err = s.ahead.take(s.virtiofs.ring.Head()); err != nil {
			return err
		}
	}
	defer s.listen(w, false)()
	if err := w.whileParked(func() { err = w.exportTo(h, s.virtiofs, s.warm, m.Together, memory) }); err != nil {
		return err
	}
	return err
}

func (w *Worker) exportTo(h *handover, l *virtiofs, warm, together bool, memory bulk.Files) error {
	if op, waits := w.unanswered(); waits {
		return fmt.Errorf("%s is still waiting for its answer", op)
	}
	if err := w.movable(together); err != nil {
		return err
	}
	snap, err := w.snapshot()
	if err != nil {
		return err
	}
	snap.Virtiofs, snap.Warm = l.bare(), warm
	if err := h.send.Still(h.out); err != nil {
		return err
	}
	if len(memory) == 0 {
		_, err = h.sendSession(w, snap, nil)
		return err
	}
	return w.layAside(h, snap, memory)
}

// movable says what of the session cannot be rebuilt elsewhere, together with the sessions that it
// shares with or alone. It runs on the consumer.
func (w *Worker) movable(together bool) error {
	if s, ok := w.session.(driver.Movable); ok {
		if err := s.Movable(); err != nil {
			return err
		}
	}
	if c, ok := w.session.(driver.Companion); ok {
		if err := c.Shared(); err != nil && !together {
			return err
		}
		if err := w.had(c.Foreign()); err != nil {
			return err
		}
	}
	return w.graphs.movable()
}

// askMovable is movable for other goroutines. err: the session has ended, or ctx has while the
// consumer had no time.
func (w *Worker) askMovable(ctx context.Context, together bool) (reason, err error) {
	var said error // the consumer's, which may say it to nobody
	if err = w.onLoopUntil(ctx, func() error { said = w.movable(together); return nil }); err != nil {
		return nil, err
	}
	return said, nil
}

// probe answers link.Probe, beside the link's goroutine.
func (s *starter) probe(w *Worker, how link.Probe) {
	reason, err := w.askMovable(context.Background(), how.Together)
	if err == nil && reason == nil && how.OtherModel {
		err = w.onLoop(func() error { reason = w.record.portable(); return nil })
	}
	if err != nil {
		return
	}
	// A parent that is gone asks nothing.
	_ = s.link.Send(link.Probed{Status: link.StatusOf(unix.EOPNOTSUPP, reason)})
}

// bare describes the carrier without guest memory.
func (l *virtiofs) bare() *virtiofsState {
	return &virtiofsState{Head: l.ring.Head(), Regions: l.mem.Declared()}
}

// mostHeld bounds what a worker without a limit of host memory keeps of a session from elsewhere.
const mostHeld = 64 << 30

// adoptParked makes the session that comes over the stream, which it takes over, and runs it
// parked.
func (s *starter) adoptParked(ctx context.Context, stream int) error {
	runtime.LockOSThread() // as in adopt
	w, err := s.receiveParked(stream)
	if s.cfg.Rehearsal {
		return s.performed(err)
	}
	if err != nil {
		return errors.Join(err, s.link.Send(adopted(err)))
	}
	if err := s.link.Send(adopted(nil)); err != nil {
		return err
	}
	return s.run(ctx, w)
}

func (s *starter) receiveParked(stream int) (*Worker, error) {
	h, err := newHandover(stream, cmp.Or(s.cfg.HostMemory, mostHeld))
	if err != nil {
		return nil, err
	}
	defer h.close()
	h.recv = precopy.NewReceiver(cmp.Or(s.cfg.MemoryLimit, localMost), maxRanges)
	if err := s.awaitLent(); err != nil {
		return nil, err
	}
	bell, memory, err := s.awaitBell()
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	b, err := s.gpu()
	if err == nil && s.cfg.Base != 0 && !s.warm {
		// As its predecessor did, which is known before anything of it has come: it may still run.
		s.warmUp()
	}
	var w *Worker
	if err == nil {
		w, err = s.comes(b, h)
	}
	if err == nil {
		err = s.link.Send(link.Started{})
	}
	if err == nil {
		err = h.readAhead(s.log)
	}
	if err != nil {
		_ = unix.Close(bell)
		return nil, err
	}
	snap, err := readSnapshot(h.in)
	switch {
	case err != nil:
	case snap.Virtiofs == nil || len(snap.Virtiofs.Guest) != 0 || len(snap.Virtiofs.Pieces) != 0:
		err = errors.New("it comes with guest memory")
	case snap.Warm && !s.warm:
		err = errors.New("its driver was started in another way than this one")
	}
	if err != nil {
		_ = unix.Close(bell)
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	came := time.Now()
	l := newVirtiofs(s.link)
	if err := errors.Join(l.mem.Detach(), l.adoptDetached(snap.Virtiofs, bell)); err != nil {
		return nil, err
	}
	s.virtiofs = l
	if err := w.carry(l); err != nil {
		return nil, err
	}
	w.away.Store(true)
	if s.cfg.Rehearsal {
		return nil, w.perform(snap)
	}
	defer s.listen(w, true)()
	if err := w.restore(snap); err != nil {
		return nil, err
	}
	if err := w.host.fits(); err != nil {
		return nil, err
	}
	rebuilt := time.Now()
	if len(memory) > 0 {
		err = w.takeBack(memory)
	} else {
		err = h.receiveMemory(w)
	}
	if err != nil {
		return nil, err
	}
	if c, ok := w.session.(driver.Companion); ok {
		if err := c.Rejoin(); err != nil {
			return nil, err
		}
	}
	if s.budget != nil {
		s.budget.Bring(false)
	}
	s.log.Info("session adopted, parked", "rebuilt_in", rebuilt.Sub(came).Round(time.Millisecond), "filled_in", time.Since(rebuilt).Round(time.Millisecond))
	p := newParking()
	w.parked = p
	w.guestMu.Lock() // before anything else of the session runs
	w.tasks <- func() error { return w.stand(l, p) }
	w.pending.Store(true)
	return w, nil
}

// awaitBell takes the session's doorbell, and the files of its memory, if that does not come over
// the stream.
func (s *starter) awaitBell() (bell int, memory bulk.Files, err error) {
	r, err := s.link.Receive()
	if err != nil {
		return -1, nil, fmt.Errorf("no doorbell: %w", err)
	}
	m, ok := r.Message().(link.Start)
	if !ok {
		return -1, nil, r.Refuse()
	}
	return m.Doorbell.FD(), aside(m.Memory), nil
}

// adoptDetached takes over regions that the guest will lend again. bell is taken over.
func (l *virtiofs) adoptDetached(s *virtiofsState, bell int) error {
	for _, r := range s.Regions {
		if err := l.mem.Declare(r.ID, r.Declared(), nil); err != nil {
			_ = unix.Close(bell)
			return err
		}
	}
	return l.start(bell, s.Head, false)
}

func (w *Worker) exported(err error) link.Exported {
	return link.Exported{Waiting: w.parked != nil && w.parked.waiting, Status: link.StatusOf(unix.EIO, err)}
}

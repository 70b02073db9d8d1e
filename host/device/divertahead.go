package device

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/worker/link"
	"causeway/host/worker/precopy"
	"causeway/host/worker/spawn"
)

// Memory goes ahead of programs to another GPU server, in rounds of all of them together, while
// they run: what it ends with is that little is left of all, as they stand together. Where that
// becomes no less they are held back, if that is wanted, by the steps of a VM's migration
// (copythrottle.go).

// After how many rounds little is no aim any more: a program may change its memory as fast as the
// link takes it. One that is held back, more and more, may take as many again, and two for each
// step.
const (
	mostDivertRounds = 12
	mostHeldRounds   = 2*mostDivertRounds + 2*(2+(link.MostThrottle-throttleFirst)/throttleStep)
)

// ahead has the memory of all sessions that run go to the other server. An error calls all of it
// off, before anybody has stood.
func (t *turning) ahead(ctx context.Context) error {
	pace := precopy.Pace{Pause: DefaultCopyPause, Most: mostDivertRounds}
	if t.throttle {
		pace.Most = mostHeldRounds
	}
	for n := 1; ; n++ {
		began := time.Now()
		sum, of, err := t.round(ctx)
		if err != nil || of == 0 {
			return err
		}
		took := time.Since(began)
		t.rounds, t.wentAhead = n, t.wentAhead+sum.Sent
		t.d.advanced(of, api.CopyRound{Looked: sum.Looked, Sent: sum.Sent, Took: took})
		t.d.log.Info("GPU memory has gone ahead to another GPU server", "round", n, "programs", of, "looked_at", sum.Looked, "sent", sum.Sent, "took", took.Round(time.Millisecond))
		if pace.Next(sum, took) {
			continue
		}
		if !pace.Stuck() || !t.holdBack() {
			return nil
		}
		pace.Again()
	}
}

// holdBack has programs held back more from the next round on, if that is wanted and possible,
// until they stand, or stay where they are.
func (t *turning) holdBack() bool {
	more, ok := heldMore(t.held)
	if !t.throttle || !ok {
		return false
	}
	t.held = more
	t.d.mu.Lock()
	t.d.relocation.held = more
	t.d.mu.Unlock()
	t.d.log.Info("GPU memory changes as fast as it is sent to the other GPU server: programs are held back", "percent", more)
	return true
}

// round is one of all sessions that run, those that have begun since the one before too, and
// returns how many they are. The first error ends it.
func (t *turning) round(outer context.Context) (sum precopy.Round, of int, err error) {
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, s := range t.d.all() {
		p := s.runner(t)
		if p == nil || t.without(s) {
			continue
		}
		wg.Go(func() {
			r, took, failed := t.roundOf(ctx, s, p)
			mu.Lock()
			defer mu.Unlock()
			if sum.Looked, sum.Sent = sum.Looked+r.Looked, sum.Sent+r.Sent; took {
				of++
			}
			if failed != nil && err == nil { // the others end with it
				err = s.named(failed)
				cancel(failed)
			}
		})
	}
	wg.Wait()
	if outer.Err() != nil {
		err = context.Cause(outer)
	}
	return sum, of, err
}

// runner is the relay of a session that runs at its server; nil: its memory does not go ahead.
func (s *session) runner(t *turning) workerProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != running || s.direct != nil || s.arrival != nil || s.at == t.to {
		return nil
	}
	return s.proc
}

func (t *turning) without(s *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.plain[s]
}

// roundOf is a round of one session, whose relay is told of the other server before the first.
// took: there was one.
func (t *turning) roundOf(ctx context.Context, s *session, p workerProcess) (r precopy.Round, took bool, err error) {
	t.mu.Lock()
	known, begun := t.tried[s], t.begun[s] == p
	t.leaves[s], t.begun[s] = p, p
	t.mu.Unlock()
	if !known { // it has begun behind the others
		err = t.rehearsed(ctx, s, p)
	}
	if !begun && err == nil {
		t.d.opts.Reached("ahead")
		err = p.Ahead(ctx, *t.to.Worker.Relay)
	}
	if err == nil && t.held > 0 {
		_ = p.Send(link.Throttle{Share: uint32(t.held)}) // an error is the round's, too
	}
	if err == nil {
		m, failed := p.Round(ctx)
		r, err = precopy.Round{Looked: m.Looked, Sent: m.Sent, Cut: m.Cut}, failed
	}
	switch {
	case err == nil:
		return r, true, nil
	case t.ended(p, err):
		t.forget(s)
		return precopy.Round{}, false, nil
	case errors.Is(err, unix.EBUSY):
		// It is about to begin, and is asked again in the next round, or when all stand.
		t.forget(s)
		return precopy.Round{}, false, nil
	case errors.Is(err, spawn.ErrNoRounds):
		t.allAtOnce(s, err)
		return precopy.Round{}, false, nil
	}
	return precopy.Round{}, false, err
}

// allAtOnce has a session go as it is, when all stand, whose memory does not go ahead. Its relay
// was asked, and is told what is decided.
func (t *turning) allAtOnce(s *session, why error) {
	s.log.Info("its memory does not go ahead", "reason", why)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.plain[s] = true
}

// forget has nothing be settled with a session.
func (t *turning) forget(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.leaves, s)
	delete(t.begun, s)
}

// advanced notes a round of so many programs' memory.
func (d *Device) advanced(of int, r api.CopyRound) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &d.relocation
	p.of = max(p.of, of)
	p.rounds++
	p.last = r
}

package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// What one session does of a move to another GPU server.

// leaver is the relay of a session that has begun at its server; nil: it has not, or is over.
func (t *turning) leaver(ctx context.Context, s *session, last bool) (workerProcess, error) {
	for end := time.Now().Add(standsLimit); ; {
		a, err := s.leaverNow(ctx, t, last)
		if !a.again || err != nil {
			return a.p, err
		}
		select {
		case <-time.After(divertLook):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if time.Now().After(end) {
			return nil, errStands
		}
	}
}

// leaver is what a session's routine says of it.
type leaver struct {
	p     workerProcess
	again bool // it is about to be something else
	waits bool // it has a relay, and has not begun at any server
	err   error
}

// leaverNow asks routine, where a worker that is told to start has begun, or not at all. last: one
// that has not stays so until it is decided where it does.
func (s *session) leaverNow(ctx context.Context, t *turning, last bool) (leaver, error) {
	found := make(chan leaver, 1)
	if !s.do(func() {
		l := s.leaver(t)
		found <- l
		if l.waits && last {
			s.beginsAt(t)
		}
	}) {
		return leaver{}, errSettling
	}
	select {
	case l := <-found:
		return l, l.err
	case <-s.over:
		return leaver{}, errGone
	case <-ctx.Done():
		return leaver{}, ctx.Err()
	}
}

func (s *session) leaver(t *turning) leaver {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch st := s.state; {
	case st >= dead || s.proc == nil || s.at == t.to:
		return leaver{}
	case s.direct != nil:
		return leaver{err: ErrDirect}
	case s.arrival != nil:
		return leaver{err: fmt.Errorf("%w: it has just come with its VM", errSettling)}
	case st == opening || st == starting:
		return leaver{waits: true}
	case st == running:
		return leaver{p: s.proc}
	}
	return leaver{again: true}
}

// divert asks one relay, until it has begun. Its session is at both servers then.
func (t *turning) divert(ctx context.Context, s *session, p workerProcess) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go s.watchStanding(ctx, cancel)
	for end := time.Now().Add(startLimit); ; {
		err := p.Divert(ctx, *t.to.Worker.Relay)
		if cause := context.Cause(ctx); errors.Is(cause, errStands) {
			return cause
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(divertLook):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watchStanding gives a move up whose program stands for long: its session can follow nothing then.
func (s *session) watchStanding(ctx context.Context, giveUp context.CancelCauseFunc) {
	t := time.NewTicker(divertLook)
	defer t.Stop()
	since := time.Time{}
	for {
		select {
		case now := <-t.C:
			s.mu.Lock()
			stands := s.state == parked
			s.mu.Unlock()
			switch {
			case !stands:
				since = time.Time{}
			case since.IsZero():
				since = now
			case now.Sub(since) > standsLimit:
				giveUp(errStands)
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// beginsAt has a session that has a relay, and has not begun at any server, wait for what is
// decided, and begin there. It runs on routine.
func (s *session) beginsAt(t *turning) {
	<-t.decided
	s.mu.Lock()
	old, st := s.proc, s.state
	if !t.goes || old == nil || st != opening && st != starting {
		s.mu.Unlock()
		return
	}
	s.at = t.to
	s.mu.Unlock()
	if err := s.renewWorker(old); err != nil {
		s.fail(err)
	}
}

// renewWorker gives a session another worker in place of one that has done nothing yet. It runs on
// routine.
func (s *session) renewWorker(old workerProcess) error {
	cfg := s.config()
	cfg.Spare = s.fits
	p, err := s.dev.workers.start(s.at, cfg, s.wake)
	if err != nil {
		return err
	}
	s.mu.Lock()
	gone := s.state >= dead
	if !gone {
		s.proc = p
		if s.res != nil {
			s.res.left = append(s.res.left, old)
		}
	}
	s.mu.Unlock()
	if gone {
		p.Kill()
		return errGone
	}
	old.Kill()
	if err := s.sendMemory(p); err != nil {
		return err
	}
	s.follow(p)
	return nil
}

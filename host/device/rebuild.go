package device

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// rebuildLimit bounds the move of one session, memory included.
const rebuildLimit = 2 * time.Minute

// Rebuild moves every running session to a fresh worker process. It returns how many moved.
func (d *Device) Rebuild(ctx context.Context) (int, error) {
	return d.eachSession(func(s *session) error { return s.rebuild(ctx, false) })
}

// eachSession has every session do something on its routine, and counts those that did. Those to
// which it does not apply say errState.
func (d *Device) eachSession(f func(*session) error) (int, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	n := 0
	for _, s := range d.all() {
		wg.Go(func() {
			err := s.onRoutine(func() error { return f(s) })
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				n++
			case !errors.Is(err, errState) && !errors.Is(err, errGone):
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return n, errors.Join(errs...)
}

// onRoutine has routine do something, and waits for it. A session that ends lets the caller go
// while f may run still: askRoutine has what f finds.
func (s *session) onRoutine(f func() error) error {
	done := make(chan error, 1)
	if !s.do(func() { done <- f() }) {
		return errState
	}
	select {
	case err := <-done:
		return err
	case <-s.over:
		return errGone
	}
}

// askRoutine is onRoutine where something is to be found.
func askRoutine[T any](s *session, f func() (T, error)) (found T, err error) {
	got := make(chan T, 1)
	err = s.onRoutine(func() error {
		v, err := f()
		got <- v
		return err
	})
	if err == nil {
		found = <-got
	}
	return found, err
}

// rebuild moves the session, elsewhere to another GPU. It runs on routine, so that nothing else is
// sent to the worker meanwhile.
func (s *session) rebuild(ctx context.Context, elsewhere bool) error {
	if err := s.fixed(); err != nil {
		return err
	}
	s.mu.Lock()
	p, st := s.proc, s.state
	if st == running {
		s.moving = p
	}
	s.mu.Unlock()
	if st != running {
		return errState
	}
	ctx, cancel := context.WithTimeout(ctx, rebuildLimit)
	defer cancel()
	cfg := s.config()
	cfg.Elsewhere = elsewhere
	next, err := s.dev.workers.rebuild(ctx, p, s.at, cfg)
	s.mu.Lock()
	s.moving = nil
	if err == nil {
		s.proc = next
		if s.res != nil {
			s.res.left = append(s.res.left, p)
		}
	}
	gone := s.state >= dead
	s.mu.Unlock()
	if err == nil {
		s.dev.mu.Lock()
		s.dev.departedLocked(p)
		s.dev.mu.Unlock()
	}
	switch {
	case err == nil && gone:
		next.Kill()
		return errState
	case err == nil:
		s.log.Info("session moved", "worker", next.PID())
		s.follow(next)
		return nil
	}
	select {
	case <-p.Done(): // too late to go on there
		s.fail(err)
	default:
	}
	return fmt.Errorf("worker %d: %w", p.PID(), err)
}

// peer is who the guest process is, for logs.
func (s *session) peer() string {
	if s.connected != "" {
		return s.connected
	}
	return fmt.Sprintf("guest process %d of uid %d", s.caller.PID, s.caller.UID)
}

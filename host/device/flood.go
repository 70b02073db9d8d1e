package device

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/time/rate"
)

// How fast sessions open: so many at once, then so many a second. Those that come faster wait, up to a bound; the rest is refused.
const (
	openBurst    = 64
	openRate     = 20 // a second
	openPatience = 10 * time.Second
)

var (
	errSessions = errors.New("this virtual GPU has as many CUDA processes as it may")
	errTooFast  = errors.New("CUDA processes start too fast")
	errGone     = errors.New("the session was given up while it waited")
)

// door lets sessions in at a bounded rate.
type door struct{ pace *rate.Limiter }

func newDoor() door { return door{rate.NewLimiter(openRate, openBurst)} }

// enter takes a place, and says how long to wait for it. ErrTooFast: too many wait already.
func (d door) enter(now time.Time) (time.Duration, error) {
	place := d.pace.ReserveN(now, 1)
	wait := place.DelayFrom(now)
	if wait > openPatience {
		place.CancelAt(now)
		return 0, fmt.Errorf("%w: more than %d at once and %d a second; try again later", errTooFast, openBurst, openRate)
	}
	return wait, nil
}

// startsAtOnce is how many workers of a virtual GPU may be starting at a time.
func startsAtOnce() int { return max(2, min(runtime.NumCPU(), 16)) }

// admit lets a session in, which may take a while, or says why not. It runs on routine. With nil, leave must follow.
func (s *session) admit() error {
	d := s.dev
	d.mu.Lock()
	limit := d.limits.Sessions
	full := d.admitted >= int(limit)
	if !full {
		d.admitted++
	}
	d.mu.Unlock()
	if full {
		return fmt.Errorf("%w: %d", errSessions, limit)
	}
	wait, err := d.door.enter(time.Now())
	if err == nil && wait > 0 {
		s.log.Debug("session waits", "for", wait)
		err = s.pause(wait)
	}
	if err != nil {
		s.leave()
		return err
	}
	d.mu.Lock()
	d.begun++
	d.mu.Unlock()
	return nil
}

// leave is the end of what admit let in.
func (s *session) leave() {
	s.dev.mu.Lock()
	s.dev.admitted--
	s.dev.mu.Unlock()
}

// pause waits, unless the session is given up.
func (s *session) pause(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-s.hurry:
	case <-s.over:
	}
	return errGone
}

// starting waits for its turn to start a worker; the function ends it. A turn that is free is had in a hurry, too.
func (s *session) starting() (func(), error) {
	end := func() { <-s.dev.starts }
	select {
	case s.dev.starts <- struct{}{}:
		return end, nil
	default:
	}
	select {
	case s.dev.starts <- struct{}{}:
		return end, nil
	case <-s.hurry:
	case <-s.over:
	}
	return nil, errGone
}

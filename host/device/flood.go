package device

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"causeway/host/limit"
)

// How fast sessions open: so many at once, then so many a second. Those that come faster wait, up
// to a bound; the rest is refused.
const (
	openBurst    = 64
	openRate     = 20 // a second
	openPatience = 10 * time.Second
)

// endPatience is how long a session waits for the place of one that is on its way out: a program
// that starts when another has just ended finds that one's worker still there.
const endPatience = 2 * time.Second

var (
	errSessions = errors.New("this virtual GPU has as many CUDA processes as it may")
	errUser     = errors.New("this user has as many CUDA processes on this virtual GPU as one user may")
	errTooFast  = errors.New("CUDA processes start too fast")
	errGone     = errors.New("the session was given up while it waited")
	errLate     = errors.New("what it waited for does not come")
)

// door lets sessions in at a bounded rate, those of one user of the guest, root excepted, at half
// of it: one that floods leaves the others the rest.
type door struct {
	pace *rate.Limiter

	mu    sync.Mutex
	users map[uint32]*rate.Limiter // who is not there has not come of late
}

// mostPaces is how many users are remembered before those who have not come of late are forgotten.
const mostPaces = 256

func newDoor() *door {
	return &door{pace: rate.NewLimiter(openRate, openBurst), users: map[uint32]*rate.Limiter{}}
}

// enter takes a place for a session of a user, and says how long to wait for it. ErrTooFast: too
// many wait already.
func (d *door) enter(uid uint32, now time.Time) (time.Duration, error) {
	wait := time.Duration(0)
	if uid != 0 {
		own := d.user(uid, now).ReserveN(now, 1)
		if wait = own.DelayFrom(now); wait > openPatience {
			own.CancelAt(now)
			return 0, fmt.Errorf("%w: one user more than %d at once and %d a second; try again later", errTooFast, openBurst/2, openRate/2)
		}
	}
	place := d.pace.ReserveN(now, 1)
	if wait = max(wait, place.DelayFrom(now)); wait > openPatience {
		place.CancelAt(now)
		return 0, fmt.Errorf("%w: more than %d at once and %d a second; try again later", errTooFast, openBurst, openRate)
	}
	return wait, nil
}

// user is a user's pace.
func (d *door) user(uid uint32, now time.Time) *rate.Limiter {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.users[uid]
	if l != nil {
		return l
	}
	if len(d.users) >= mostPaces {
		maps.DeleteFunc(d.users, func(_ uint32, l *rate.Limiter) bool { return l.TokensAt(now) >= openBurst/2 })
	}
	l = rate.NewLimiter(openRate/2, openBurst/2)
	d.users[uid] = l
	return l
}

// startsAtOnce is how many workers of a virtual GPU may be starting at a time.
func startsAtOnce() int { return max(2, min(runtime.NumCPU(), 16)) }

// arrivalsAtOnce is how many workers of sessions that come with their VM, which stands meanwhile,
// may be starting at a time: a driver that starts mostly waits.
const arrivalsAtOnce = 16

// admit lets a session in, which may take a while, or says why not. It runs on routine. With nil,
// leave must follow.
func (s *session) admit() error {
	d := s.dev
	if err := s.takePlace(); err != nil {
		return err
	}
	wait, err := d.door.enter(s.caller.UID, time.Now())
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

// takePlace counts the session, if the limits allow one more, or do so as soon as those that are
// ending have ended.
func (s *session) takePlace() error {
	d := s.dev
	late := time.Now().Add(endPatience)
	for {
		d.mu.Lock()
		err := d.admitLocked(s.caller.UID)
		s.counted = err == nil
		if err == nil {
			d.mu.Unlock()
			return nil
		}
		if d.departed == nil {
			d.departed = make(chan struct{})
		}
		departed := d.departed
		var counted []*session
		for other := range d.sessions {
			if other.counted && (errors.Is(err, errSessions) || other.caller.UID == s.caller.UID) {
				counted = append(counted, other)
			}
		}
		d.mu.Unlock()
		if !slices.ContainsFunc(counted, (*session).ending) {
			select {
			case <-departed: // meanwhile
				continue
			default:
				return err
			}
		}
		if s.pauseFor(departed, time.Until(late)) != nil {
			return err
		}
	}
}

// ending reports whether the session's worker is about to go, as that of a rehearsal is.
func (s *session) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state >= dead || s.proc != nil && s.proc.Rehearses()
}

// admitLocked counts a session of a user of the guest, if the limits allow one more. The guest's
// kernel says who it is.
func (d *Device) admitLocked(uid uint32) error {
	l := &d.limits
	most := limit.UserSessions(l.UserSessions).Of(limit.Sessions(l.Sessions))
	switch {
	case d.admitted >= int(l.Sessions):
		return fmt.Errorf("%w: %d", errSessions, l.Sessions)
	case uid != 0 && d.users[uid].admitted >= most: // root can be any user
		return fmt.Errorf("%w: %d", errUser, most)
	}
	d.admitted++
	d.userLocked(uid, func(u *guestUser) { u.admitted++ })
	return nil
}

// departLocked is the end of what admitLocked counted.
func (d *Device) departLocked(uid uint32) {
	d.admitted--
	d.userLocked(uid, func(u *guestUser) { u.admitted-- })
	if d.departed != nil {
		close(d.departed)
		d.departed = nil
	}
}

// guestUser is what a user of the guest has of the device. Who has nothing is not kept.
type guestUser struct{ opened, admitted int }

func (d *Device) userLocked(uid uint32, change func(*guestUser)) {
	u := d.users[uid]
	if change(&u); u == (guestUser{}) {
		delete(d.users, uid)
		return
	}
	d.users[uid] = u
}

// leave is the end of what admit let in.
func (s *session) leave() {
	s.dev.mu.Lock()
	s.dev.departLocked(s.caller.UID)
	s.counted = false
	s.dev.mu.Unlock()
}

// pause waits, unless the session is given up.
func (s *session) pause(d time.Duration) error {
	if err := s.pauseFor(nil, d); !errors.Is(err, errLate) {
		return err
	}
	return nil
}

// pauseFor waits for what a channel says, so long at most.
func (s *session) pauseFor(what <-chan struct{}, most time.Duration) error {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-what:
		return nil
	case <-t.C:
		return errLate
	case <-s.hurry:
	case <-s.over:
	}
	return errGone
}

// starting waits for its turn to start a worker; the function ends it.
func (s *session) starting() (func(), error) { return s.acquire(s.dev.starts) }

// acquire waits for one of a bounded number; the function ends it. One that is free is had in a
// hurry, too.
func (s *session) acquire(slots chan struct{}) (func(), error) {
	end := func() { <-slots }
	select {
	case slots <- struct{}{}:
		return end, nil
	default:
	}
	select {
	case slots <- struct{}{}:
		return end, nil
	case <-s.hurry:
	case <-s.over:
	}
	return nil, errGone
}

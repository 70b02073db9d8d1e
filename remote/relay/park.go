package relay

import (
	"context"
	"errors"
	"sync"

	"causeway/remote"
)

// parks has the consumer stand while guest memory is out of reach.
type parks struct {
	mu     sync.Mutex
	want   func() error  // takes the memory away; nil: no park is asked for
	took   chan error    // one place: how that went
	resume chan struct{} // of the park that holds; nil: none does
	// The consumer is at the network, and touches no guest memory until it is back.
	out  bool
	over bool

	// Of a session that stands still, or is about to.
	still bool
	// Its goroutines are to end, and Session.away is not held meanwhile.
	leaving bool
	halt    context.CancelCauseFunc // ends them; nil: they do not run
	halted  chan struct{}           // closed when they have ended; nil: they do not run
}

// Errors of Park and Resume.
var (
	ErrParked    = errors.New("the session is parked, or about to be")
	ErrNotParked = errors.New("resume without park")
	ErrOver      = errors.New("the session is over")
)

// Park has take called while nothing of the session touches guest memory, and nothing does until
// Resume; both directions of the stream stand meanwhile. waiting: the guest had submitted more.
// What the server reaches by itself is taken from it first. If ctx ends first, or take fails, the
// session goes on as if nothing had been asked.
func (s *Session) Park(ctx context.Context, take func() error) (waiting bool, err error) {
	p, took := &s.parks, make(chan error, 1)
	want := func() error {
		s.away.Lock()
		// Whoever submits from here on rings, which may be what ends the park.
		s.ring.SetState(remote.WorkerSleeping)
		waiting = s.ring.Poll(0)
		err := take()
		if err != nil {
			s.ring.SetState(remote.WorkerPolling)
			s.away.Unlock()
		}
		return err
	}
	if err := p.free(); err != nil {
		return false, err
	}
	s.recall(ctx)
	defer func() {
		if err != nil && p.free() == nil { // else another park has what was recalled
			s.unpark()
		}
	}()
	p.mu.Lock()
	if err = p.freeLocked(); err == nil {
		if p.want, p.took = want, took; p.out {
			s.parkLocked()
		}
	}
	p.mu.Unlock()
	if err != nil {
		return false, err
	}
	s.poke()
	select {
	case err = <-took:
		return waiting, err
	case <-ctx.Done():
	}
	p.mu.Lock()
	begun := p.want == nil
	p.want = nil
	p.mu.Unlock()
	if !begun {
		return false, ctx.Err()
	}
	err = <-took
	return waiting, err
}

// free says why a session cannot be parked now.
func (p *parks) free() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.freeLocked()
}

func (p *parks) freeLocked() error {
	switch {
	case p.over:
		return ErrOver
	case p.want != nil || p.resume != nil:
		return ErrParked
	}
	return nil
}

// Resume ends a park, after give has brought the memory back. If it fails the session is still
// parked.
func (s *Session) Resume(give func() error) error {
	p := &s.parks
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.over:
		return ErrOver
	case p.resume == nil:
		return ErrNotParked
	}
	if err := give(); err != nil {
		return err
	}
	s.ring.SetState(remote.WorkerPolling)
	s.away.Unlock()
	close(p.resume)
	p.resume = nil
	s.unpark()
	if p.still {
		p.still = false
		s.out.conn.(Lasting).Release()
	}
	return nil
}

// parkLocked does what Park asked for, on the consumer, or while that is at the network.
func (s *Session) parkLocked() {
	p := &s.parks
	err := p.want()
	p.want = nil
	if err == nil {
		p.resume = make(chan struct{})
	}
	p.took <- err
}

// stand is the consumer's part: it parks if that is asked for, until Resume.
func (s *Session) stand(ctx context.Context) error {
	p := &s.parks
	p.mu.Lock()
	if p.want != nil {
		s.parkLocked()
	}
	p.mu.Unlock()
	return s.back(ctx)
}

// atNetwork has the consumer do something at the network, which may take any time: a park does not
// wait for it.
func (s *Session) atNetwork(ctx context.Context, f func() error) error {
	p := &s.parks
	p.mu.Lock()
	p.out = true
	if p.want != nil {
		s.parkLocked()
	}
	p.mu.Unlock()
	if err := f(); err != nil {
		return err
	}
	return s.back(ctx)
}

// back is the consumer's way to guest memory again, for which it waits while a park holds.
func (s *Session) back(ctx context.Context) error {
	p := &s.parks
	for {
		p.mu.Lock()
		resume := p.resume
		if resume == nil {
			p.out = false
		}
		p.mu.Unlock()
		if resume == nil {
			return ctx.Err()
		}
		select {
		case <-resume:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// endPark lets go of a park, whose memory does not come back.
func (s *Session) endPark() {
	p := &s.parks
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.want != nil {
		p.took <- ErrOver
		p.want = nil
	}
	if p.resume != nil {
		p.resume = nil
		if p.leaving {
			s.away.Lock()
		}
		s.gone = true
		s.away.Unlock()
	}
}

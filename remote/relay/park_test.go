package relay

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"causeway/remote"
)

// quietRing is one of which a park says what it does.
type quietRing struct {
	remote.Ring
	states []uint32
}

func (r *quietRing) SetState(s uint32) { r.states = append(r.states, s) }
func (r *quietRing) Poll(int) bool     { return false }

type noBell struct{ remote.Doorbell }

func (noBell) Ring() {}

// TestWhoParks: a consumer that touches guest memory parks by itself, when it comes to that; for one that is at the network Park does, and it stands when it comes back.
func TestWhoParks(t *testing.T) {
	ctx, ring := t.Context(), &quietRing{}
	s := &Session{ring: ring, bell: noBell{}, poked: make(chan struct{}, 1)}
	park := func(take error) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := s.Park(ctx, func() error { return take })
			done <- err
		}()
		return done
	}
	// asked is whether a park waits for the consumer, once it has been asked for.
	asked := func() bool {
		for ; ; runtime.Gosched() {
			s.parks.mu.Lock()
			waits, holds := s.parks.want != nil, s.parks.resume != nil
			s.parks.mu.Unlock()
			if waits || holds {
				return waits
			}
		}
	}
	give := func() error { return nil }
	for round := range 3 {
		stood := make(chan error, 1)
		if err := s.atNetwork(ctx, func() error { // and back again
			if round == 0 {
				return nil
			}
			done := park(nil)
			if err := <-done; err != nil || asked() {
				t.Errorf("at the network: %v", err)
			}
			go func() { stood <- s.Resume(give) }()
			return nil
		}); err != nil {
			t.Error(err)
		}
		if round > 0 {
			if err := <-stood; err != nil {
				t.Error(err)
			}
		}
		done := park(nil)
		if !asked() {
			t.Fatalf("round %d: it is parked, and the consumer did not stand", round)
		}
		go func() { stood <- s.stand(ctx) }()
		if err := <-done; err != nil || s.touchable() {
			t.Errorf("round %d: %v, within reach %v", round, err, s.touchable())
		}
		if err := s.Resume(give); err != nil {
			t.Error(err)
		}
		if err := <-stood; err != nil || !s.touchable() {
			t.Errorf("round %d: it does not go on: %v", round, err)
		}
		no := errors.New("no")
		done = park(no)
		asked()
		if err := s.stand(ctx); err != nil || !errors.Is(<-done, no) || !s.touchable() || ring.states[len(ring.states)-1] != remote.WorkerPolling {
			t.Errorf("round %d: a park that fails: %v, states %v", round, err, ring.states)
		}
	}
	if err := s.Resume(give); !errors.Is(err, ErrNotParked) {
		t.Error(err)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Park(over, nil); !errors.Is(err, context.Canceled) || s.parks.want != nil {
		t.Errorf("a park that is given up: %v", err)
	}
}

// touchable reports whether guest memory is within reach.
func (s *Session) touchable() bool {
	if !s.away.TryRLock() {
		return false
	}
	s.away.RUnlock()
	return true
}

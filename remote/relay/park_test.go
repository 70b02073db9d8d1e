package relay

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"

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

// TestWhoParks: a consumer that touches guest memory parks by itself, when it comes to that; for
// one that is at the network Park does, and it stands when it comes back.
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
		if err := <-park(nil); !errors.Is(err, ErrParked) || !asked() {
			t.Errorf("round %d: a second park, before the first: %v", round, err)
		}
		go func() { stood <- s.stand(ctx) }()
		if err := <-done; err != nil || s.touchable() {
			t.Errorf("round %d: %v, within reach %v", round, err, s.touchable())
		}
		if err := <-park(nil); !errors.Is(err, ErrParked) || s.touchable() {
			t.Errorf("round %d: a second park: %v", round, err)
		}
		if err := s.Resume(give); err != nil {
			t.Error(err)
		}
		if err := <-stood; err != nil || !s.touchable() {
			t.Errorf("round %d: it does not go on: %v", round, err)
		}
		done = park(nil) // the consumer is about to go to the network
		asked()
		go func() {
			stood <- s.atNetwork(ctx, func() error {
				if asked() {
					return errTest
				}
				return <-done
			})
		}()
		for s.touchable() && len(stood) == 0 {
			runtime.Gosched()
		}
		if err := s.Resume(give); err != nil {
			t.Errorf("round %d: parked on the way to the network: %v", round, err)
		}
		if err := <-stood; err != nil {
			t.Errorf("round %d: on the way to the network: %v", round, err)
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

// TestParksAtTheEnd: a session that is over lets go of whoever parks it or has parked it, which
// hear of it, and of its guest's memory, which nobody touches any more.
func TestParksAtTheEnd(t *testing.T) {
	for what, c := range map[string]struct{ asks, holds bool }{"not parked": {}, "about to be parked": {asks: true}, "parked": {asks: true, holds: true}} {
		synctest.Test(t, func(t *testing.T) {
			s := &Session{ring: &quietRing{}, bell: noBell{}, poked: make(chan struct{}, 1)}
			s.parks.out = c.holds // its consumer is at the network
			parked := make(chan error, 1)
			nothing := func() error { return nil }
			if c.asks {
				go func() {
					_, err := s.Park(t.Context(), nothing)
					parked <- err
				}()
			}
			synctest.Wait()
			s.endPark()
			synctest.Wait()
			want := ErrOver
			if c.holds {
				want = nil
			}
			select {
			case err := <-parked:
				if !c.asks || !errors.Is(err, want) {
					t.Errorf("%s: who parks it hears %v", what, err)
				}
			default:
				if c.asks {
					t.Fatalf("%s: who parks it hears nothing", what)
				}
			}
			if s.parks.want != nil || s.parks.resume != nil || s.gone != c.holds {
				t.Errorf("%s: a park is left, or memory is not gone: %v", what, s.gone)
			}
			if !s.touchable() || (s.touch(nothing) != nil) != c.holds {
				t.Errorf("%s: memory is within reach: %v, may be touched: %v", what, s.touchable(), s.touch(nothing))
			}
			_, err := s.Park(t.Context(), nothing)
			if again := s.Resume(nothing); !errors.Is(err, ErrOver) || !errors.Is(again, ErrOver) {
				t.Errorf("%s: afterwards a park is %v, a resume %v", what, err, again)
			}
		})
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

package worker_test

import (
	"sync"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// TestCallbacks runs more callbacks than there are entries, some outstanding at once, while the
// consumer does nothing else.
func TestCallbacks(t *testing.T) { overCarriers(t, testCallbacks) }

func testCallbacks(t *testing.T, s *session) {
	const n = 300
	ended := make(chan uint64, n)
	call := func(id uint64, status cuda.Result) {
		go func() {
			if s.driver.Host.CallBack(id, status) {
				ended <- id
			}
		}()
	}
	if s.driver.Host.CallBack(1, cuda.Success) {
		t.Fatal("a callback ran before the guest could take any")
	}
	from, err := s.OpenCallbacks(7)
	if err != nil {
		t.Fatal(err)
	}
	s.must(t, cuda.ErrorInvalidValue, &wire.CallbackOpenArgs{}, nil) // once is enough
	for id := range uint64(n) {
		call(id, cuda.Result(id))
	}
	seen := map[uint64]bool{}
	var late []func()
	for range n {
		id, status, done, err := from.Take()
		if err != nil {
			t.Fatal(err)
		}
		if seen[id] || id >= n || status != cuda.Result(id) {
			t.Fatalf("callback %d with status %d", id, status)
		}
		seen[id] = true
		if late = append(late, done); len(late) == 5 { // out of order, and several at once
			for i := range late {
				late[len(late)-1-i]()
			}
			late = late[:0]
		}
	}
	for range n {
		select {
		case id := <-ended:
			delete(seen, id)
		case <-time.After(time.Minute):
			t.Fatalf("%d callbacks never ended", len(seen))
		}
	}
	if len(seen) != 0 {
		t.Errorf("%d callbacks ended twice", len(seen))
	}
	if err := s.finish(t); err != nil {
		t.Error(err)
	}
}

// TestCallbackOfALostGuest: what waits for a guest that is gone is released.
func TestCallbackOfALostGuest(t *testing.T) { overCarriers(t, testCallbackOfALostGuest) }

func testCallbackOfALostGuest(t *testing.T, s *session) {
	if _, err := s.OpenCallbacks(3); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for id := range uint64(100) {
		wg.Go(func() {
			if s.driver.Host.CallBack(id, cuda.Success) {
				t.Error("a callback ended that nobody ran")
			}
		})
	}
	time.Sleep(5 * time.Millisecond)
	if err := s.finish(t); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// TestCallbackOfALostGuestInACall: the consumer is in a call of the driver that waits for a
// function of the guest when that goes: the worker ends all the same.
func TestCallbackOfALostGuestInACall(t *testing.T) { overCarriers(t, testCallbackOfALostGuestInACall) }

func testCallbackOfALostGuestInACall(t *testing.T, s *session) {
	if _, err := s.OpenCallbacks(3); err != nil {
		t.Fatal(err)
	}
	there := make(chan bool, 1)
	s.driver.OnLaunch(func() {
		there <- true
		if s.driver.Host.CallBack(1, cuda.Success) {
			t.Error("a callback ended that nobody ran")
		}
	})
	if err := s.Send(&wire.LaunchArgs{}); err != nil {
		t.Fatal(err)
	}
	<-there
	if err := s.finish(t); err != nil {
		t.Error(err)
	}
}

// TestCallbackAfterTheSession: a driver's thread may ask when the session's ring is no longer
// mapped.
func TestCallbackAfterTheSession(t *testing.T) { overCarriers(t, testCallbackAfterTheSession) }

func testCallbackAfterTheSession(t *testing.T, s *session) {
	if _, err := s.OpenCallbacks(3); err != nil {
		t.Fatal(err)
	}
	if err := s.finish(t); err != nil {
		t.Error(err)
	}
	if s.driver.Host.CallBack(1, cuda.Success) {
		t.Error("a callback ended that nobody ran")
	}
}

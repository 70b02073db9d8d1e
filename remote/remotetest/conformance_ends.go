package remotetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
)

// testDoorbell: a host that sleeps is woken by a record, by itself, and by its context.
func testDoorbell(t *testing.T, s *session) {
	ring, bell := s.Carrier.Ring(), s.Carrier.Doorbell()
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	for range 50 {
		ring.SetState(remote.WorkerSleeping)
		if ring.Poll(0) {
			t.Fatal("a record that nobody sent")
		}
		sent := make(chan error, 1)
		r := s.record(1, 32)
		go func() { sent <- s.Append(r) }()
		for !ring.Poll(0) { // Wait may return for no reason
			if err := bell.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
		ring.SetState(remote.WorkerPolling)
		s.consume(t)
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
	bell.Ring()
	if err := bell.Wait(ctx); err != nil {
		t.Error(err)
	}
	waiting, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		for {
			if err := bell.Wait(waiting); err != nil {
				ended <- err
				return
			}
		}
	}()
	stop()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(Limit):
		t.Fatal("the doorbell outlasts its context")
	}
}

// testGuestEnds: a guest that goes ends the session, in order, with whatever it had begun.
func testGuestEnds(t *testing.T, s *session) {
	s.declare(t, 1, 4096)
	if err := s.Append(s.record(1, 32)); err != nil {
		t.Fatal(err)
	}
	s.next(t)
	s.closed = true
	if err := s.Guest.Close(); err != nil {
		t.Error(err)
	}
	s.awaitEnd(t)
	if err := s.Carrier.Err(); err != nil {
		t.Errorf("an orderly end: %v", err)
	}
}

// testHostEnds: a guest whose host goes hears of it, and what it waits for ends.
func testHostEnds(t *testing.T, s *session) {
	r := s.record(1, 32)
	if err := s.Append(r); err != nil {
		t.Fatal(err)
	}
	s.consume(t)
	waits := make(chan error, 1)
	go func() { waits <- s.Await(1, 99) }()
	s.Carrier.Ring().SetState(remote.WorkerDead)
	if err := s.Carrier.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-s.Gone():
	case <-time.After(Limit):
		t.Fatal("the guest does not hear of its host's end")
	}
	if err := <-waits; !errors.Is(err, ErrGone) {
		t.Errorf("a reply that never comes: %v", err)
	}
	s.closed = true
	if err := s.Guest.Close(); err != nil {
		t.Error(err)
	}
	s.Carrier = ended{s.Carrier}
}

// ended is a carrier that is closed already.
type ended struct{ remote.Carrier }

func (ended) Close() error { return nil }

// testViolations breaks a rule of the ring in each row. The session ends, wherever that is noticed.
func testViolations(t *testing.T, open func() (Ends, error)) {
	for name, do := range map[string]func(s *session){
		"size 0":         func(s *session) { _ = s.Append(make([]byte, 32)) },
		"size odd":       func(s *session) { r := s.record(1, 64); r[0] = 41; _ = s.Append(r) },
		"size too long":  func(s *session) { r := s.record(1, 64); r[2] = 0xff; _ = s.Append(r) },
		"tail backwards": func(s *session) { _ = s.Append(s.record(1, 64)); s.Publish(8) },
		"tail far ahead": func(s *session) { s.Publish(1 << 40) },
		"tail unaligned": func(s *session) { _ = s.Append(s.record(1, 64)); s.Publish(1) },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, open)
			do(s)
			ctx, cancel := context.WithTimeout(context.Background(), Limit)
			defer cancel()
			over := make(chan struct{})
			go func() { // as Worker.Run does
				select {
				case <-s.Carrier.Done():
					cancel()
				case <-over:
				}
			}()
			for {
				_, err := s.await(ctx)
				if err == nil {
					if s.Carrier.Ring().Advance() {
						s.Carrier.Doorbell().Wake(remote.SlotCount)
					}
					continue
				}
				if errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, context.Canceled) && !errors.Is(err, remote.ErrProtocol) {
					t.Errorf("the session ends with %v", err)
				}
				break
			}
			close(over)
			s.closed = true
			_ = s.Guest.Close()
			s.end(t)
		})
	}
}

// testRefused: a guest whom the host does not take hears why.
func testRefused(t *testing.T, open func() (Ends, error)) {
	ends, err := open()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		c, err := ends.Accept()
		if err == nil {
			err = errors.Join(c.Welcome(uint32(unix.ENODEV), "no GPU is left"), c.Close())
		}
		done <- err
	}()
	if _, err := ends.Connect(); !errors.Is(err, ErrRefused) {
		t.Errorf("refused: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

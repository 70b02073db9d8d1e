package worker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"causeway/host/driver"
	"causeway/host/worker/link"
	"causeway/remote/shm"
)

// TestParkOfABusyGPU: if the GPU does not let go, park says so in time.
func TestParkOfABusyGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := newFake(t, func(s driver.Session) driver.Session { return neverQuiet{s} })
		l := &virtiofs{mem: shm.NewMemory(), done: make(chan struct{})}
		parked := make(chan error, 1)
		begin := time.Now()
		go func() { parked <- w.park(l, link.Park{Limit: time.Second, Patience: patience}) }()
		synctest.Wait()
		if err := w.runTask(); err != nil {
			t.Error("the session ends", err)
		}
		if err := <-parked; !errors.Is(err, errBusy) || time.Since(begin) != patience {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if !w.guestMu.TryRLock() || w.parked != nil {
			t.Error("guest memory stays out of reach")
		}
	})
}

// TestParkThatWaitsForTheGuest: a GPU that waits for a function of a guest that stands is not
// waited for; one whose function returns is.
func TestParkThatWaitsForTheGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := newFake(t, func(s driver.Session) driver.Session { return neverQuiet{s} })
		l := &virtiofs{mem: shm.NewMemory(), done: make(chan struct{})}
		for _, c := range []struct {
			standing, returns bool
			want              time.Duration
		}{{true, false, inVainLeast}, {true, true, time.Minute}, {false, false, time.Minute}} {
			w.calls.posted[3] = &callback{}
			parked := make(chan error, 1)
			begin := time.Now()
			go func() { parked <- w.park(l, link.Park{Limit: time.Hour, Patience: time.Minute, Standing: c.standing}) }()
			synctest.Wait()
			go func() {
				if err := w.runTask(); err != nil {
					t.Error(err)
				}
			}()
			if c.returns {
				time.Sleep(inVainLeast / 2)
				w.calls.mu.Lock()
				w.calls.posted[3] = nil
				w.calls.mu.Unlock()
			}
			if err := <-parked; !errors.Is(err, errBusy) || time.Since(begin) != c.want || errors.Is(err, errHostFunction) != (c.standing && !c.returns) {
				t.Errorf("%+v: %v after %v", c, err, time.Since(begin))
			}
			synctest.Wait()
		}
	})
}

type neverQuiet struct{ driver.Session }

func (neverQuiet) Quiesce(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestParkThatHasBegun: a park that the consumer is at when its time is over is waited for: pages
// that are about to go away are not there any more, and those that stay are.
func TestParkThatHasBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, quiet := range []error{nil, errTurn} {
			w, _ := newFake(t, func(s driver.Session) driver.Session { return lateQuiet{s, quiet} })
			l := &virtiofs{mem: shm.NewMemory(), done: make(chan struct{})}
			parked, ran := make(chan error, 1), make(chan error, 1)
			begin := time.Now()
			go func() { parked <- w.park(l, link.Park{Limit: lateBy / 2, Patience: time.Minute}) }()
			synctest.Wait()
			go func() { ran <- w.runTask() }()
			err := <-parked
			if (err == nil) != (quiet == nil) || quiet != nil && !errors.Is(err, errBusy) || time.Since(begin) != lateBy || w.away.Load() != (quiet == nil) || (w.parked != nil) != (quiet == nil) {
				t.Errorf("the GPU says %v: %v after %v, away: %v", quiet, err, time.Since(begin), w.away.Load())
			}
			if err == nil {
				err = w.resume(l)
			} else {
				err = nil
			}
			if err = errors.Join(err, <-ran); err != nil || w.away.Load() {
				t.Errorf("afterwards: %v", err)
			}
		}
	})
}

const lateBy = 2 * time.Second

// lateQuiet is a GPU that takes its time, whatever it is given.
type lateQuiet struct {
	driver.Session
	says error
}

func (q lateQuiet) Quiesce(context.Context) error {
	time.Sleep(lateBy)
	return q.says
}

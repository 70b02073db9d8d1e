package worker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/worker/link"
	"causeway/remote"
)

// TestHoldBack: a session that is held back still does what others want of it, its work waits, and
// goes on when it is held back no more.
func TestHoldBack(t *testing.T) {
	s := newSoft(t)
	w := s.w
	w.throttle.share.Store(link.MostThrottle)
	hold := func() chan error {
		held := make(chan error, 1)
		go func() { held <- w.holdBack(t.Context(), wire.OpLaunch) }()
		return held
	}
	if err := w.holdBack(t.Context(), wire.OpLaunch); err != nil || w.throttle.since.IsZero() {
		t.Fatal("the first does not pass: ", err)
	}
	w.throttle.since = time.Now().Add(-time.Hour)
	if err := w.holdBack(t.Context(), wire.OpStreamQuery); err != nil {
		t.Error(err)
	}
	held := hold()
	for range 3 { // it hears of tasks meanwhile
		ran := make(chan struct{})
		w.tasks <- func() error { close(ran); return nil }
		w.pending.Store(true)
		<-ran
	}
	select {
	case err := <-held:
		t.Fatal("it is not held back: ", err)
	default:
	}
	w.throttle.share.Store(0)
	if err := <-held; err != nil {
		t.Error(err)
	}
	w.throttle.share.Store(link.MostThrottle)
	w.throttle.since = time.Now().Add(-time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.holdBack(ctx, wire.OpLaunch); err != errEnded {
		t.Errorf("the session has ended: %v", err)
	}
}

// keeps is a session of which a stream captures, or whose graphs refer to pages.
type keeps struct {
	driver.GraphKeeper
	captures, holds bool
}

func (k keeps) Capturing() bool  { return k.captures }
func (k keeps) HoldsPages() bool { return k.holds }

// quieted counts how often its work was waited for, which is always done.
type quieted struct {
	driver.Session
	asked int
}

func (q *quieted) Quiesce(context.Context) error { q.asked++; return nil }

// TestWhoIsHeldBack: what gives the GPU work waits for its share of the time, once in a slice;
// nothing waits of a session that captures, nor asks its driver, which must not be disturbed, and
// one whose graphs hold pages is not asked.
func TestWhoIsHeldBack(t *testing.T) {
	for what, c := range map[string]struct {
		op     wire.Op
		share  uint32
		keeper driver.GraphKeeper
		waits  bool
		asks   int
	}{
		"work":                     {wire.OpLaunch, 50, nil, true, 1},
		"beside graphs":            {wire.OpLaunch, 50, keeps{}, true, 1},
		"no work":                  {wire.OpStreamQuery, 50, nil, false, 0},
		"at full speed":            {wire.OpLaunch, 0, nil, false, 0},
		"while it captures":        {wire.OpLaunch, 50, keeps{captures: true}, false, 0},
		"of a graph with pages":    {wire.OpLaunch, 50, keeps{holds: true}, true, 0},
		"captured, and with pages": {wire.OpLaunch, 50, keeps{captures: true, holds: true}, false, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			q := &quieted{}
			w, _ := newFake(t, func(s driver.Session) driver.Session { q.Session = s; return q })
			w.throttle.share.Store(c.share)
			w.throttle.since = time.Now()
			if w.graphs.keeper = nil; c.keeper != nil {
				w.graphs.keeper = c.keeper
			}
			began := time.Now()
			if err := w.holdBack(t.Context(), c.op); err != nil || !time.Now().Equal(began) {
				t.Errorf("%s, within its slice: %v after %v", what, err, time.Since(began))
			}
			time.Sleep(remote.HeldSlice)
			began = time.Now()
			err := w.holdBack(t.Context(), c.op)
			if took := time.Since(began); err != nil || q.asked != c.asks || (took >= remote.HeldFor(remote.HeldSlice, c.share)) != c.waits && c.share != 0 || !c.waits && took != 0 {
				t.Errorf("%s: %v after %v, the driver was asked %d times", what, err, took, q.asked)
			}
		})
	}
}

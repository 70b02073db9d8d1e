package worker

import (
	"context"
	"testing"
	"time"

	"causeway/cuda/wire"
	"causeway/host/worker/link"
)

// TestHoldBack: a session that is held back still does what others want of it, its work waits, and goes on when it is held back no more.
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

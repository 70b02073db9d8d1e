package worker

import (
	"context"
	"sync/atomic"
	"time"

	"causeway/cuda/wire"
	"causeway/remote"
)

/*
A session that changes its memory faster than that can be sent is held back, if its operator asks
for it: what gives the GPU work waits for a share of the time. It runs for a slice, until the GPU
has nothing to do, and then waits for as long as the share says; what takes no GPU time, tasks, and
a park pass by.
*/

// throttle is how much a session is held back.
type throttle struct {
	share atomic.Uint32 // hundredths of the time; 0: not at all
	since time.Time     // when it was let through; the consumer's
}

const (
	throttleLook = time.Millisecond // how long a consumer that waits is deaf
	throttleIdle = 200 * time.Microsecond
)

// holdBack waits before an operation, if the session has had its share.
func (w *Worker) holdBack(ctx context.Context, op wire.Op) error {
	t := &w.throttle
	share := t.share.Load()
	if info := op.Info(); share == 0 || info == nil || !info.GPU {
		return nil
	}
	k := w.graphs.keeper
	if k != nil && k.Capturing() { // which gives the GPU no work, and must not be disturbed
		return nil
	}
	now := time.Now()
	if t.since.IsZero() {
		t.since = now
	}
	if now.Sub(t.since) < remote.HeldSlice {
		return nil
	}
	worked := remote.HeldSlice
	if k == nil || !k.HoldsPages() { // to ask lets go of pages, which is dear there
		if !w.drained(ctx, throttleIdle) {
			if err := w.awaitUntil(ctx, now.Add(remote.HeldMost), func() bool { return w.drained(ctx, throttleLook) }); err != nil {
				return err
			}
			worked = time.Since(t.since)
		}
	}
	err := w.awaitUntil(ctx, time.Now().Add(remote.HeldFor(worked, share)), func() bool {
		time.Sleep(throttleLook)
		return false
	})
	t.since = time.Now()
	return err
}

// drained reports whether the GPU has nothing to do within a while.
func (w *Worker) drained(ctx context.Context, most time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return w.session.Quiesce(ctx) == nil
}

// awaitUntil does what others want of the consumer until something is so, it is late, or the
// session is held back no more.
func (w *Worker) awaitUntil(ctx context.Context, late time.Time, so func() bool) error {
	for w.throttle.share.Load() != 0 && time.Now().Before(late) {
		if ctx.Err() != nil {
			return errEnded
		}
		if w.pending.Load() {
			if err := w.runTask(); err != nil {
				return err
			}
		}
		if so() {
			return nil
		}
	}
	return nil
}

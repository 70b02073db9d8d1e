package worker

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// quiesceLimit is how long the GPU may take to let go of guest memory whose lease has lapsed; a session that takes longer ends.
// A program that was killed cannot exit before, and is promised to within 2 s: a lease's term and this.
const quiesceLimit = 250 * time.Millisecond

// park stops everything that touches guest memory, and takes the pages away. When it returns nil, neither this process nor
// the GPU touches them until resume. An error ends the session.
func (w *Worker) park(l *leased) error {
	if l == nil {
		return errors.New("only leased memory can be parked")
	}
	stopped := make(chan error, 1)
	held := make(chan struct{})
	w.parked = held
	go func() {
		err := w.onLoop(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), quiesceLimit)
			defer cancel()
			if err := w.session.Quiesce(ctx); err != nil {
				err = fmt.Errorf("lease lapsed and the GPU does not let go of guest memory: %w", err)
				stopped <- err
				return err
			}
			// From here on no goroutine writes to guest memory: replies and words wait for guestMu.
			w.guestMu.Lock()
			defer w.guestMu.Unlock()
			if err := l.mem.Detach(); err != nil {
				stopped <- err
				return err
			}
			stopped <- nil
			select {
			case <-held:
				return l.mem.Attach()
			case <-l.done:
				return errEnded
			}
		})
		if err != nil {
			select {
			case stopped <- err:
			default:
			}
		}
	}()
	return <-stopped
}

// resume ends a park: the leases are back, perhaps with other pages.
func (w *Worker) resume(l *leased) error {
	if l == nil || w.parked == nil {
		return errors.New("resume without park")
	}
	close(w.parked)
	w.parked = nil
	return nil
}

package device

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"causeway/host/worker/spawn"
)

// Before any of their memory goes to another GPU server, programs are rehearsed there: what they
// are made of is made once, by workers that end then. What cannot be there as it is keeps all of
// them where they are; where it is not known, for want of room above all or since one of the
// servers is of a version without, nothing is promised, and it is found when they stand.

// rehearsesAtOnce bounds how many programs are rehearsed at a time: each has a driver start there.
const rehearsesAtOnce = 16

// rehearse has all sessions that run be rehearsed at the other server.
func (t *turning) rehearse(outer context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, rehearsesAtOnce)
	defer t.d.rehearsing(0)
	for _, s := range t.d.all() {
		p := s.runner(t)
		if p == nil {
			continue
		}
		t.d.rehearsing(1)
		wg.Go(func() {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			defer func() { <-slots }()
			failed := t.rehearsed(ctx, s, p)
			if t.ended(p, failed) {
				t.forget(s)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			t.d.progress(1, 0)
			if failed != nil && err == nil { // the others end with it
				err = s.named(failed)
				cancel(failed)
			}
		})
	}
	wg.Wait()
	if outer.Err() != nil {
		err = context.Cause(outer)
	}
	return err
}

// rehearsed has one session be rehearsed. The error says that it cannot be there, or that it is not
// to be known any more, as its relay or whoever asked is gone.
func (t *turning) rehearsed(ctx context.Context, s *session, p workerProcess) error {
	t.mu.Lock()
	t.leaves[s] = p
	t.mu.Unlock()
	t.d.opts.Reached("rehearsing")
	err := p.Rehearse(ctx, *t.to.Worker.Relay)
	var cannot *spawn.Cannot
	switch {
	case errors.As(err, &cannot):
		s.log.Warn("it cannot be rebuilt at the other GPU server", "error", err)
		return fmt.Errorf("%w: %w", ErrElsewhere, err)
	case ctx.Err() != nil, errors.Is(err, spawn.ErrEnded):
		return err
	case errors.Is(err, unix.EBUSY): // it is about to begin, and is asked again
		return nil
	case err != nil:
		s.log.Info("whether it can be rebuilt at the other GPU server is not known", "reason", err)
	}
	t.mu.Lock()
	t.tried[s] = true
	t.mu.Unlock()
	return nil
}

// rehearsing notes that so many programs more are rehearsed; 0: none any longer, and who stands
// counts anew.
func (d *Device) rehearsing(more int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if more == 0 {
		d.relocation = progress{}
		return
	}
	d.relocation.rehearsing = true
	d.relocation.of += more
}

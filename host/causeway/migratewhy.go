package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"causeway/host/api"
)

// Why a VM did not move: of QEMU and libvirt one hears that something broke, of the device
// processes what.

// errVMGone is in the errors of a migration whose VM has ended meanwhile.
var errVMGone = errors.New("the VM here has ended meanwhile, or nobody answers for it")

// stays says of a migration that has come to nothing what has become of the VM.
func stays(m mover, err error) error {
	switch here, gone := m.here(); {
	case gone != nil:
		return fmt.Errorf("%w: %w (%w)", err, errVMGone, gone)
	case here:
		return fmt.Errorf("%w: %w", err, errStays)
	}
	return err
}

// Times in which whoever took part may say what it knows: what the other host says travels a little
// longer than what QEMU does.
const (
	whyLimit = 5 * time.Second
	wordMost = 2 * time.Second
)

// why adds to the error of a VM that did not move what the device processes know of it.
func (a *ahead) why(ctx context.Context, err error) error {
	if ctx.Err() != nil { // it was called off
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, whyLimit)
	defer cancel()
	for _, g := range a.gpus {
		if why := g.why(ctx); why != nil {
			err = fmt.Errorf("%w: %s: %w", err, g.vgpu.Spec.Key(), why)
		}
	}
	return err
}

// why is what a vGPU's device processes know of a VM that did not move.
func (g *aheadOf) why(ctx context.Context) error {
	st, err := g.near.Status(ctx)
	if err != nil {
		return err
	}
	if st.SaveEnd != "" {
		return errors.New(st.SaveEnd)
	}
	select {
	case <-g.way.Done():
	case <-time.After(wordMost):
		return nil // nobody there has anything against it
	case <-ctx.Done():
		return nil
	}
	if st, err = g.near.Status(ctx); err != nil {
		return err
	}
	return g.ended(ctx, &st)
}

// ended is why memory goes ahead no longer, by the device process here; what has become of the one
// there its causewayd knows.
func (g *aheadOf) ended(ctx context.Context, st *api.Status) error {
	ctx, cancel := context.WithTimeout(ctx, whyLimit)
	defer cancel()
	why := g.way.Err()
	if st.CopyEnd != "" {
		why = errors.New(st.CopyEnd)
	}
	err := g.far.Do(ctx, http.MethodGet, api.AwaitedPath(&g.vgpu.Spec), nil, nil)
	var e *api.Error
	if err == nil || errors.As(err, &e) && e.Status == http.StatusConflict {
		// It awaits a VM, or does not: both are as well.
		return why
	}
	return fmt.Errorf("%w: on the other host: %w", why, err)
}

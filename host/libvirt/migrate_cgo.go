//go:build libvirt_dlopen || libvirt

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"libvirt.org/go/libvirt"
)

// OpenMovable is Open for a domain that is to be moved.
func OpenMovable(ctx context.Context, uri, domain string) (Movable, error) {
	d, err := Open(ctx, uri, domain)
	if err != nil {
		return nil, err
	}
	return d.(*realDomain), nil
}

// jobLook is how often a migration is asked how far it is.
const jobLook = 500 * time.Millisecond

// Migrate implements Movable. libvirt is asked from two goroutines at once, which it allows.
func (d *realDomain) Migrate(ctx context.Context, m Migration, progress func(Job)) error {
	places, err := d.Places()
	if err != nil {
		return err
	}
	if places&Live == 0 {
		return fmt.Errorf("%s: %w", d.name, ErrNotRunning)
	}
	to, err := connect(ctx, m.To)
	if err != nil {
		return fmt.Errorf("the other host's libvirt, %s: %w", m.To, plain(err))
	}
	defer to.Close()
	flags := libvirt.MIGRATE_LIVE
	if places&Config != 0 {
		flags |= libvirt.MIGRATE_PERSIST_DEST | libvirt.MIGRATE_UNDEFINE_SOURCE
	}
	p := libvirt.DomainMigrateParameters{URISet: m.URI != "", URI: m.URI, BandwidthSet: m.Bandwidth != 0, Bandwidth: max(m.Bandwidth>>20, 1)}
	done := make(chan error, 1)
	go func() {
		there, err := d.dom.Migrate3(to, &p, flags)
		if there != nil {
			_ = there.Free()
		}
		done <- err
	}()
	t := time.NewTicker(jobLook)
	defer t.Stop()
	over, planned := ctx.Done(), m.Downtime == 0
	for {
		select {
		case err := <-done:
			if err != nil && ctx.Err() != nil {
				return fmt.Errorf("called off: %w", plain(err))
			}
			if err != nil {
				return fmt.Errorf("libvirt: %w", plain(err))
			}
			return nil
		case <-over:
			over = nil
			if err := d.dom.AbortJob(); err != nil {
				progress(Job{}) // it may have ended, or not begun: the answer says which
			}
		case <-t.C:
			if !planned {
				planned = d.dom.MigrateSetMaxDowntime(uint64(m.Downtime.Milliseconds()), 0) == nil
			}
			if j, err := d.dom.GetJobStats(0); err == nil && j.MemTotalSet {
				progress(Job{j.MemProcessed, j.MemTotal})
			}
			if over == nil && errors.Is(ctx.Err(), context.Canceled) {
				_ = d.dom.AbortJob() // again: the job may not have begun then
			}
		}
	}
}

// callOffLook is how soon libvirt is asked again.
const callOffLook = 100 * time.Millisecond

// sending are the jobs that need the state of all devices.
var sending = []libvirt.DomainJobOperationType{libvirt.DOMAIN_JOB_OPERATION_MIGRATION_OUT, libvirt.DOMAIN_JOB_OPERATION_SAVE, libvirt.DOMAIN_JOB_OPERATION_SNAPSHOT, libvirt.DOMAIN_JOB_OPERATION_DUMP}

// CallOff implements Movable. QEMU begins a job before libvirt lets it be aborted.
func (d *realDomain) CallOff(ctx context.Context) error {
	for {
		j, err := d.dom.GetJobStats(0)
		if err == nil && (j.Type == libvirt.DOMAIN_JOB_NONE || !slices.Contains(sending, j.Operation)) {
			err = ErrNoJob
		} else if err == nil {
			err = d.dom.AbortJob()
		}
		if err == nil || errors.Is(err, ErrNoJob) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("libvirt: %w", plain(err))
		case <-time.After(callOffLook):
		}
	}
}

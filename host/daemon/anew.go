package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/process"
)

/*
A lease is gone when its server was started anew, or had heard nothing of this host for a term, or
has lost the device process that it was of. Its programs have got device errors. When the last of
them has ended the vGPU takes another lease of that server, for the programs that come then: nobody
has to make it again. A lease that somebody ended at the server stays lost. A vGPU that has awaited
a VM in vain (comes.go) takes another so, too.
*/

// renewal is what came of a lease's renewal.
type renewal int

const (
	leaseHolds renewal = iota // or may still hold
	leaseOver                 // it is another's, or was ended on purpose
	leaseGone                 // the server does not know it any more, or has lost what it was of
)

// renewalOf tells by a server's answer.
func renewalOf(st api.LeaseState, err error) renewal {
	var e *api.Error
	switch {
	case err == nil && st.Why != "":
		return leaseGone
	case errors.As(err, &e) && e.Status == http.StatusGone:
		return leaseGone
	case errors.As(err, &e) && e.Status == http.StatusPreconditionFailed:
		return leaseOver
	}
	return leaseHolds
}

// anewMost is the longest wait between two times that a server is asked for another lease.
const anewMost = time.Minute

// errPrograms: programs of before are still there.
var errPrograms = errors.New("the vGPU is leased again when they have ended")

// leaseAnew has a vGPU whose lease is gone take another, until it has one or is at its end.
func (d *Daemon) leaseAnew(v *vgpu, p *process.Process, log *slog.Logger) {
	wait := d.opt.Renew
	for {
		d.mu.Lock()
		up, comes := v.up, v.comes
		over := v.end || up == nil || !up.Lost || comes != "" && comes != lease.ComesHad
		d.mu.Unlock()
		if over {
			return
		}
		err := d.nobodyThere(v)
		if err == nil {
			if _, err = d.leaseAgain(v, comes); err == nil {
				return
			}
			wait = min(2*wait, max(anewMost, d.opt.Renew))
		}
		d.waitsFor(v, err, log)
		if !d.pause(p, wait) {
			return
		}
	}
}

// nobodyThere says why a vGPU cannot take another lease yet.
func (d *Daemon) nobodyThere(v *vgpu) error {
	st, err := d.ask(d.ctx, v)
	if err != nil {
		return err
	}
	if n := len(st.Sessions); n > 0 {
		return fmt.Errorf("%d programs of the lease that is lost are there: %w", n, errPrograms)
	}
	return nil
}

// waitsFor notes why a vGPU has no lease yet.
func (d *Daemon) waitsFor(v *vgpu, why error, log *slog.Logger) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v.up == nil || !v.up.Lost || v.up.Error == why.Error() {
		return
	}
	next := *v.up
	next.Error = why.Error()
	v.up = &next
	if d.ctx.Err() == nil {
		log.Warn("a vGPU whose lease is gone has no other yet", "error", why)
	}
}

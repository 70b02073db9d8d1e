package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/process"
)

/*
A vGPU that awaits a VM from another host goes on with that VM's lease. If the VM comes the lease is
this host's. If it does not, the server refuses to renew: a vGPU that was made for the VM ends, and
one that had a lease of its own before takes another, so that it is as before. One of a fleet's
claim waits on (kept.go).
*/

// awaits says why no VM is awaited here.
func (d *Daemon) awaits(ctx context.Context, v *vgpu, key string) error {
	if v == nil {
		return unknown(key)
	}
	st, err := d.askWithin(ctx, v, awaitsTimeout) // on a machine that is busy, beside QEMU's start
	switch rec, _ := d.copyOf(v); {
	case rec.Lost, errors.Is(err, api.ErrNotRunning):
		return refuse(http.StatusServiceUnavailable, fmt.Sprintf("`causeway logs %s` there says why", rec.Spec.Key()), "the device process of %s has ended", key)
	case err != nil:
		return refuse(http.StatusServiceUnavailable, fmt.Sprintf("`causeway inspect %s` there asks it again", rec.Spec.Key()), "the device process of %s does not say whether it awaits a VM: %v", key, err)
	case !st.Connected, st.Runs, len(st.Sessions) > 0:
		return refuse(http.StatusConflict, "", "%s awaits no VM here", key)
	}
	return nil
}

// hasCome notes that the VM is here whose lease it is.
func (d *Daemon) hasCome(v *vgpu, up *api.Upstream, log *slog.Logger) {
	v.written.Lock()
	defer v.written.Unlock()
	d.mu.Lock()
	came := v.comes != "" && v.up != nil && v.up.Lease == up.Lease
	if came {
		v.comes = ""
	}
	path := v.rec.Spec.LeasePath(d.run)
	d.mu.Unlock()
	if !came {
		return
	}
	f, err := lease.Read(path)
	if err == nil && f.ID == up.Lease {
		f.Comes = ""
		err = f.Write(path)
	}
	if err != nil {
		log.Warn("that a VM has come is not written down", "error", err)
		return
	}
	log.Info("a VM has come with its lease", "lease", up.Lease)
}

// notRenewed does what is left to do for a vGPU whose lease is not renewed any more.
func (d *Daemon) notRenewed(v *vgpu, p *process.Process, came renewal, log *slog.Logger) {
	d.mu.Lock()
	comes := v.comes
	d.mu.Unlock()
	switch {
	case comes == lease.ComesMade:
		d.routineNotCome(v, p, log)
	case comes == lease.ComesKept:
		d.leaseWhenOurs(v, p, log)
	case comes == lease.ComesHad, came == leaseGone:
		d.leaseAnew(v, p, log)
	}
}

// routineNotCome ends a vGPU that was made for a VM, and whose lease is not renewed any more
// because the VM stays.
func (d *Daemon) routineNotCome(v *vgpu, p *process.Process, log *slog.Logger) {
	for {
		err := d.endNotCome(v)
		if !errors.As(err, new(silence)) {
			if !errors.Is(err, errAwaited) && d.ctx.Err() == nil {
				notCome(err, log)
			}
			return
		}
		if !d.pause(p, d.opt.Renew) {
			return
		}
	}
}

// errAwaited: another migration of the VM has begun meanwhile.
var errAwaited = errors.New("its VM is awaited again")

// endNotCome ends a vGPU that was made for a VM, unless it awaits that again.
func (d *Daemon) endNotCome(v *vgpu) error {
	rec, _ := d.copyOf(v)
	key := rec.Spec.Key()
	leave, err := d.locks.enter(d.ctx, key)
	if err != nil {
		return err
	}
	defer leave()
	d.mu.Lock()
	awaited := v.comes != lease.ComesMade || v.up != nil && !v.up.Lost || d.vgpus[key] != v
	d.mu.Unlock()
	if awaited {
		return errAwaited
	}
	ctx, cancel := context.WithTimeout(d.ctx, endTime)
	defer cancel()
	return d.release(ctx, key, true)
}

// leaseAgain has a vGPU whose lease is over have another of its server, if it awaits a VM as it is
// said to.
func (d *Daemon) leaseAgain(v *vgpu, comes lease.Coming) (*lease.File, error) {
	rec, p := d.copyOf(v)
	leave, err := d.locks.enter(d.ctx, rec.Spec.Key())
	if err != nil {
		return nil, err
	}
	defer leave()
	d.mu.Lock()
	over := v.end || v.rec.Lost || d.vgpus[rec.Spec.Key()] != v || v.comes != comes
	renewed := v.up != nil && !v.up.Lost
	beside := v.beside != nil
	d.mu.Unlock()
	if over || renewed || beside || p == nil {
		// Another VM comes meanwhile, or its programs may have gone to another server: keepLease
		// has it renewed again.
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(d.ctx, grantTime)
	defer cancel()
	w := api.Wish{}
	w.Profile = rec.Spec.Profile
	if err := d.leaseFrom(ctx, v, rec.Spec.Remote, remoteChange(&w, &rec.Spec)); err != nil {
		return nil, atServer(rec.Spec.Remote, err)
	}
	f, err := lease.Read(rec.Spec.LeasePath(d.run))
	if err == nil {
		err = d.useLease(ctx, d.opt.Obey, v, f)
	}
	if err == nil {
		err = d.goOn(v, p, f)
	}
	if err != nil {
		d.mu.Lock()
		up := *v.up
		up.Lost, up.Error = true, err.Error()
		v.up = &up
		d.mu.Unlock()
		return nil, errors.Join(err, d.leave(&up))
	}
	d.log.Info("a vGPU has a lease of its own again", "vgpu", rec.Spec.Key(), "server", rec.Spec.Remote, "lease", f.ID)
	return f, nil
}

// foundComing has a device process that an earlier causewayd started go on with the lease that this
// one has found: that one may have ended before it told it.
func (d *Daemon) foundComing(v *vgpu, p *process.Process) {
	d.mu.Lock()
	comes, path := v.comes, v.rec.Spec.LeasePath(d.run)
	d.mu.Unlock()
	if comes == "" || p == nil {
		return
	}
	f, err := lease.Read(path)
	if err == nil {
		err = d.useLease(d.ctx, askTimeout, v, f)
	}
	if err != nil { // the VM has come
		d.log.Debug("a device process keeps its lease", "vgpu", v.rec.Spec.Key(), "error", err)
	}
}

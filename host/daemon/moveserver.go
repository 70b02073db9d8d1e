package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/process"
	"causeway/host/limit"
)

/*
A vGPU's programs go to another GPU server: this causewayd has that server lease a vGPU, too, writes
both leases down, and has the device process move the programs. Both are renewed until the device
process says by which of the two its programs go: it alone knows, whether its answer came, was lost,
or is asked for by the next causewayd. The other lease ends then.
*/

// Times of a move to another server.
const (
	strayPatience = 5 * time.Second // for a program that has just ended to be gone at the server
	strayLook     = 200 * time.Millisecond
	// For a device process to say how a move has ended, which it bounds itself.
	settlePatience = 90 * time.Second
	// For one to say anything: a vGPU whose device process hangs must be free to be ended.
	silentPatience = 30 * time.Second
)

// moveServer has a vGPU's programs go on at another GPU server. The vGPU's lock is held.
func (d *Daemon) moveServer(ctx context.Context, v *vgpu, c api.Relocation) (did api.Relocated, err error) {
	rec, p := d.copyOf(v)
	leave, err := d.handing.enter(ctx, rec.Spec.Key()) // nobody takes the lease over meanwhile
	if err != nil {
		return did, err
	}
	defer leave()
	name, err := d.mayMoveServer(ctx, v, c.Remote)
	if err != nil {
		return did, err
	}
	own, other, err := d.leaseBeside(ctx, v, name)
	if err != nil {
		return did, err
	}
	renewing, stop := context.WithCancel(d.ctx)
	defer stop()
	d.wg.Go(func() { d.renewBeside(renewing, other) })
	d.reached(stepBeside)
	did, err = d.divertDevice(ctx, v, other, c.Throttle)
	d.reached(stepDiverted)
	went, settled := d.settleBeside(v, p, own, other)
	switch {
	case settled != nil:
		d.wg.Go(func() { d.routineBeside(v, p) })
		return did, errors.Join(err, settled)
	case went && err != nil: // its answer was lost
		d.log.Warn("programs have moved to another GPU server, which their device process did not get to say", "vgpu", rec.Spec.Key(), "error", err)
		return api.Relocated{GPU: other.Upstream.GPU, UUID: other.Upstream.UUID}, nil
	case !went && err == nil:
		err = errors.New("its device process says that it moved, and goes by the lease before")
	}
	return did, err
}

// mayMoveServer finds what would be in the way, as far as it can be known before, and the server's
// name.
func (d *Daemon) mayMoveServer(ctx context.Context, v *vgpu, to string) (string, error) {
	d.mu.Lock()
	rec, up, comes, beside := v.rec, v.up, v.comes, v.beside
	d.mu.Unlock()
	key := rec.Spec.Key()
	switch {
	case rec.Spec.Remote == "":
		return "", refuse(http.StatusConflict, "`causeway move --gpu` moves it on this host; to use a GPU server end its programs, and attach it anew with --remote", "%s is on a GPU of this host, not on a GPU server", key)
	case to == api.RemoteAny:
		return "", refuse(http.StatusBadRequest, "`causeway gpus --all` lists GPU servers: name one", "where %s is to go is not said", key)
	case strings.HasPrefix(rec.Spec.VM, api.ClaimPrefix):
		return "", refuse(http.StatusConflict, "end its programs, and claim it anew", "%s is of a fleet's claim, which says which server has it: such vGPUs do not go to another", key)
	case rec.Spec.MIG != "":
		return "", refuse(http.StatusConflict, "end its programs, and attach it anew", "%s is on a MIG slice: only vGPUs of whole GPUs go to another server", key)
	case comes != "":
		return "", refuse(http.StatusConflict, "try again when the VM is here", "%s awaits its VM from another host", key)
	case beside != nil:
		return "", refuse(http.StatusConflict, "try again in a moment; `causeway inspect "+key+"` shows whether its device process answers", "whether %s has moved to %s is not known yet", key, beside.Server)
	case up == nil || up.Lost:
		return "", refuse(http.StatusConflict, lostRemedy, "the GPU server %s of %s is lost", rec.Spec.Remote, key)
	}
	name, err := d.named(ctx, to)
	if err != nil {
		return "", err
	}
	if api.ServerAddress(name) == up.Address {
		return "", refuse(http.StatusConflict, "`causeway gpus --all` lists the others", "%s is on the GPU server %s already", key, up.Server)
	}
	if err := d.mayLeave(ctx, up); err != nil {
		return "", err
	}
	if err := d.isAnother(ctx, v, name); err != nil {
		return "", err
	}
	return name, d.noStrays(ctx, v, up)
}

// mayLeave refuses real GPUs whose lease is not migratable: their sessions do not move.
func (d *Daemon) mayLeave(ctx context.Context, up *api.Upstream) error {
	if up.Migratable {
		return nil
	}
	g, err := d.gpuAt(ctx, up.Server, up.UUID)
	if err == nil && g.Backend != backendSoft {
		return refuse(http.StatusConflict, "end its programs, and attach it anew with --migratable", "sessions on the %s of %s stay there: its lease is not migratable", g.Name, up.Server)
	}
	return err
}

// backendSoft is the backend of the software GPU.
const backendSoft = "soft"

// isAnother refuses a second name of the vGPU's own server, which would end the lease that it has
// before it gave another one of the same name. It is asked by a lease of which that one alone
// knows.
func (d *Daemon) isAnother(ctx context.Context, v *vgpu, name string) error {
	d.mu.Lock()
	up, epoch := v.up, v.epoch
	d.mu.Unlock()
	if up == nil {
		return unknown(v.rec.Spec.Key())
	}
	st, err := d.leaseNow(ctx, renewTime, name, up.Lease, epoch)
	switch {
	case err == nil:
		return refuse(http.StatusConflict, "`causeway gpus --all` lists the others", "%s is the GPU server %s by another name, and %s is there already", name, up.Server, v.rec.Spec.Key())
	case renewalOf(st, err) != leaseGone:
		return atServer(name, err)
	}
	return nil
}

// noStrays refuses a vGPU whose lease is used by programs besides those of its device process
// (`causeway run --remote`): they would end with the lease.
func (d *Daemon) noStrays(ctx context.Context, v *vgpu, up *api.Upstream) error {
	for end := time.Now().Add(strayPatience); ; {
		d.mu.Lock()
		epoch := v.epoch
		d.mu.Unlock()
		far, err := d.leaseNow(ctx, renewTime, up.Server, up.Lease, epoch)
		if err != nil {
			return atServer(up.Server, err)
		}
		st, err := d.ask(ctx, v)
		if err != nil {
			return silent(v.rec.Spec.Key())
		}
		n := far.Sessions - len(st.Sessions)
		if n <= 0 {
			return nil
		}
		if time.Now().After(end) {
			return refuse(http.StatusConflict, "end them first", "programs under `causeway run --remote` use the lease of %s on %s, and would end with it (sessions: %d)", v.rec.Spec.Key(), up.Server, n)
		}
		select {
		case <-time.After(strayLook):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leaseBeside has another server lease the vGPU as well, and writes both leases down.
func (d *Daemon) leaseBeside(ctx context.Context, v *vgpu, name string) (own, other *lease.File, err error) {
	rec, _ := d.copyOf(v)
	spec := rec.Spec
	spec.GPU = "any" // which it has here says nothing of there
	d.mu.Lock()
	up := v.up
	d.mu.Unlock()
	// By this server's configuration, or at the wish of the host from which the VM came.
	spec.Migratable = spec.Migratable || up != nil && up.Migratable
	w := api.Wish{}
	w.Profile = spec.Profile
	other, granted, err := d.askLease(ctx, &spec, name, remoteChange(&w, &spec))
	if err != nil {
		return nil, nil, atServer(name, err)
	}
	v.written.Lock()
	defer v.written.Unlock()
	path := spec.LeasePath(d.run)
	own, err = lease.Read(path)
	d.mu.Lock()
	up = v.up
	d.mu.Unlock()
	switch {
	case err != nil:
	case up == nil || own.ID != up.Lease:
		err = refuse(http.StatusConflict, "try again", "the lease of %s has ended meanwhile", spec.Key())
	case other.Upstream.GPU != up.GPU:
		err = refuse(http.StatusConflict, "`causeway gpus --all` lists GPUs of other servers", "the GPU that the server %s has for %s is a %s, and its programs have a %s", name, spec.Key(), other.Upstream.GPU, up.GPU)
	case other.Upstream.Driver != up.Driver:
		err = refuse(http.StatusConflict, "install the same on both, or end its programs, and attach it anew", "the driver of the GPU that the server %s has for %s is %s, and its programs have %s", name, spec.Key(), other.Upstream.Driver, up.Driver)
	case up.Migratable && !granted.Migratable && granted.GPU.Backend != backendSoft:
		err = refuse(http.StatusConflict, "install the same version of Causeway there", "the server %s has a lease for %s that is not migratable", name, spec.Key())
	case granted.Limits.Memory != spec.Memory:
		err = refuse(http.StatusConflict, "see `causeway gpus --all`", "the server %s gives %s %s of memory, and it has %s", name, spec.Key(), limit.FormatSize(granted.Limits.Memory), limit.FormatSize(spec.Memory))
	default:
		own.Upstream, own.Beside = up, other
		err = own.Write(path)
	}
	if err != nil {
		return nil, nil, errors.Join(err, d.leave(other.Upstream))
	}
	d.mu.Lock()
	v.beside = other.Upstream
	d.mu.Unlock()
	return own, other, nil
}

// renewBeside renews the lease to which programs are on their way, or which they leave, until ctx
// ends.
func (d *Daemon) renewBeside(ctx context.Context, f *lease.File) {
	for {
		if _, err := d.leaseNow(ctx, renewTime, f.Upstream.Server, f.ID, f.Epoch); err != nil && ctx.Err() == nil {
			d.log.Warn("the lease beside a vGPU's own is not renewed", "server", f.Upstream.Server, "lease", f.ID, "error", err)
		}
		select {
		case <-time.After(d.opt.Renew):
		case <-ctx.Done():
			return
		}
	}
}

// divertDevice has the device process move the programs.
func (d *Daemon) divertDevice(ctx context.Context, v *vgpu, to *lease.File, throttle bool) (did api.Relocated, err error) {
	rec, _ := d.copyOf(v)
	ctx, cancel := context.WithTimeout(ctx, moveLimit)
	defer cancel()
	defer context.AfterFunc(d.closing, cancel)()
	d.wg.Go(func() { d.whileAnswers(ctx, v, cancel) })
	device := api.NewClient(rec.Spec.ControlPath(d.run))
	defer device.Close()
	d.log.Info("programs are to go to another GPU server", "vgpu", rec.Spec.Key(), "from", rec.Spec.Remote, "to", to.Upstream.Server)
	return did, device.Do(ctx, http.MethodPost, "/v1/divert", api.Diversion{To: *to.Upstream, Addresses: to.Addresses, Identity: to.Identity, Throttle: throttle}, &did)
}

// whileAnswers calls a move off whose device process does not answer any more.
func (d *Daemon) whileAnswers(ctx context.Context, v *vgpu, off func()) {
	for heard := time.Now(); ; {
		select {
		case <-time.After(silentPatience / 10):
		case <-ctx.Done():
			return
		}
		if _, err := d.ask(ctx, v); err == nil {
			heard = time.Now()
		}
		if time.Since(heard) > silentPatience {
			off()
			return
		}
	}
}

// settleBeside waits until the device process says by which of two leases its programs go, keeps
// that, and ends the other one. went: it is the other server's. An error says that it is not known:
// routineBeside asks on.
func (d *Daemon) settleBeside(v *vgpu, p *process.Process, own, other *lease.File) (went bool, err error) {
	began := time.Now()
	heard := began
	for pause := strayLook; ; pause = min(2*pause, d.opt.Renew) {
		went, known, err := d.settleNow(v, p, own, other)
		if known {
			return went, err
		}
		if errors.Is(err, errUndecided) {
			heard = time.Now()
		}
		if time.Since(began) > settlePatience || time.Since(heard) > silentPatience || d.closing.Err() != nil || !d.pause(p, pause) {
			// Who asks is not waited for when causewayd ends.
			return false, cmp.Or(d.closing.Err(), fmt.Errorf("whether it has moved to the GPU server %s is not known yet: %w", other.Upstream.Server, err))
		}
	}
}

// errUndecided: the device process has not decided.
var errUndecided = errors.New("its device process says that the programs are on their way")

// settleNow is settleBeside if the device process says so now.
func (d *Daemon) settleNow(v *vgpu, p *process.Process, own, other *lease.File) (went, known bool, err error) {
	st, err := d.ask(d.ctx, v)
	switch {
	case err != nil:
		return false, false, err
	case !st.Next.IsZero():
		return false, false, errUndecided
	case st.Lease == other.ID:
		return true, true, d.keepLease(v, p, other, own)
	case st.Lease == own.ID, st.Lease.IsZero():
		// One that says nothing of leases is of a version that does not move.
		return false, true, d.keepLease(v, p, own, other)
	}
	return false, true, fmt.Errorf("the programs of %s go by the lease %v, of which this causewayd knows nothing", v.rec.Spec.Key(), st.Lease)
}

// keepLease has a vGPU go on with one of its two leases; the other ends. What is written down in
// between has the next causewayd do the same.
func (d *Daemon) keepLease(v *vgpu, p *process.Process, keep, end *lease.File) error {
	d.mu.Lock()
	over := v.end || v.up == nil
	if !over {
		if v.up.Lease != keep.ID {
			v.up, v.epoch = keep.Upstream, keep.Epoch
		}
		// Also where an earlier causewayd ended between writing the lease and the record.
		v.rec.Spec.Remote = keep.Upstream.Server
	}
	rec := v.rec
	d.mu.Unlock()
	if over {
		return fmt.Errorf("%s has ended meanwhile", rec.Spec.Key())
	}
	path := rec.Spec.LeasePath(d.run)
	both, alone := *keep, *keep
	last := *end
	last.Beside, both.Beside, alone.Beside = nil, &last, nil
	v.written.Lock()
	err := both.Write(path)
	if err == nil {
		err = writeJSON(recordPath(d.run, &rec.Spec), &rec)
	}
	v.written.Unlock()
	if err != nil {
		return fmt.Errorf("%s goes on at %s, which is not written down: %w", rec.Spec.Key(), keep.Upstream.Server, err)
	}
	d.reached(stepKept)
	if err := d.leave(end.Upstream); err != nil {
		d.log.Warn("a lease is not given back: it ends at the server after its term", "vgpu", rec.Spec.Key(), "server", end.Upstream.Server, "error", err)
	}
	d.mu.Lock()
	v.beside = nil
	d.mu.Unlock()
	v.written.Lock()
	err = alone.Write(path)
	v.written.Unlock()
	d.log.Info("a vGPU goes on with one of two leases", "vgpu", rec.Spec.Key(), "server", keep.Upstream.Server, "lease", keep.ID, "ended", end.Upstream.Server)
	d.tellUpstream(v)
	d.wg.Go(func() { d.routineRenew(v, p) }) // which may have ended with the other lease
	if err != nil {
		d.log.Warn("a lease that has ended is still written down: the next causewayd ends it again", "vgpu", rec.Spec.Key(), "server", end.Upstream.Server, "error", err)
	}
	return nil
}

// routineBeside settles a move of which it is not known yet whether it was one: an earlier
// causewayd's, or one whose device process does not answer. Meanwhile the vGPU can be ended.
func (d *Daemon) routineBeside(v *vgpu, p *process.Process) {
	own, err := lease.Read(v.rec.Spec.LeasePath(d.run))
	if err != nil || own.Beside == nil {
		return
	}
	other := own.Beside
	own.Beside = nil
	renewing, stop := context.WithCancel(d.ctx)
	defer stop()
	d.wg.Go(func() { d.renewBeside(renewing, other) })
	for last := ""; !d.settleLater(v, p, own, other, &last); {
		if !d.pause(p, d.opt.Renew) {
			return
		}
	}
}

// settleLater is settleNow with the vGPU's locks, and reports whether there is nothing more to
// settle. What fails is logged once.
func (d *Daemon) settleLater(v *vgpu, p *process.Process, own, other *lease.File, last *string) (over bool) {
	key := v.rec.Spec.Key()
	leave, err := d.locks.enter(d.ctx, key)
	if err != nil {
		return true
	}
	defer leave()
	handed, err := d.handing.enter(d.ctx, key)
	if err != nil {
		return true
	}
	defer handed()
	d.mu.Lock()
	over = v.end || v.beside == nil
	d.mu.Unlock()
	if over {
		return true
	}
	went, known, err := d.settleNow(v, p, own, other)
	switch {
	case known && err == nil:
		d.log.Info("a move to another GPU server is settled", "vgpu", key, "programs", "at "+map[bool]string{true: other.Upstream.Server, false: own.Upstream.Server}[went])
		return true
	case err.Error() != *last:
		*last = err.Error()
		d.log.Warn("which of two leases a vGPU's programs go by is not settled: both are renewed", "vgpu", key, "error", err)
	}
	return false
}

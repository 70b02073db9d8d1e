package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/process"
	"causeway/host/worker/link"
	"causeway/remote"
)

/*
A VM whose vGPU is on a GPU server moves to another host: that one readies a vGPU with the same
lease. The lease's keys go from causewayd to causewayd, over TLS by which both know one another, and
not with the VM, whose state may go any way. All that can be known is known before the VM is sent:
the other host has the server, reaches it, and may take the lease over.
*/

// HandOver has another host be able to go on with a vGPU's lease; with no host named, nobody may
// any more.
func (d *Daemon) HandOver(ctx context.Context, key string, h api.Handover) error {
	leave, err := d.handing.enter(ctx, key)
	if err != nil {
		return err
	}
	defer leave()
	v := d.find(key)
	if v == nil {
		return unknown(key)
	}
	return d.handOver(ctx, v, key, h)
}

// handOver is HandOver of whoever has entered the vGPU's lock of hand-overs.
func (d *Daemon) handOver(ctx context.Context, v *vgpu, key string, h api.Handover) error {
	d.mu.Lock()
	up, beside := v.up, v.beside
	d.mu.Unlock()
	switch {
	case beside != nil && h.Host != "":
		return refuse(http.StatusConflict, "try again in a moment", "whether the programs of %s have moved to the GPU server %s is not known yet", key, beside.Server)
	case up == nil:
		return refuse(http.StatusConflict, "", "%s is on no GPU server", key)
	case up.Lost:
		return refuse(http.StatusConflict, lostRemedy, "the GPU server %s of %s is lost: %s", up.Server, key, up.Error)
	}
	nobody := func() error { return errors.Join(d.promise(ctx, up, ""), d.allowHandover(ctx, v, "")) }
	if h.Host == "" {
		return nobody()
	}
	// The device process hears of it last: what it gives out from then on may arrive at once.
	host, err := d.handOverTo(ctx, v, up, h)
	if err == nil {
		d.reached(stepReadied)
		err = d.allowHandover(ctx, v, host)
	}
	if err != nil {
		return errors.Join(err, nobody())
	}
	d.reached(stepHanded)
	d.log.Info("the lease of a vGPU may be taken over with its VM", "vgpu", key, "server", up.Server, "host", host)
	d.watchHanded(v)
	return nil
}

// promise has a lease's server let another host take it over; "": none.
func (d *Daemon) promise(ctx context.Context, up *api.Upstream, host string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), promiseTime)
	defer cancel()
	server, err := d.server(up.Server)
	if err != nil {
		return err
	}
	defer server.Close()
	if err := server.Do(ctx, http.MethodPut, leasePath(up.Lease)+"/heir", api.LeaseHeir{Host: host}, nil); err != nil {
		return atServer(up.Server, err)
	}
	return nil
}

// handOverTo readies the other host, whose name it returns.
func (d *Daemon) handOverTo(ctx context.Context, v *vgpu, up *api.Upstream, h api.Handover) (string, error) {
	far, err := api.NewHostClient(h.Host, func(host string) (*tls.Config, error) { return d.identity().Client(api.HostProtocol, host) })
	if err != nil {
		return "", err
	}
	defer far.Close()
	name, err := called(ctx, far, http.MethodGet, "/v1/host", nil, lease.DecodeHostName)
	if err != nil {
		return "", atOther(h.Host, err)
	}
	rec, _ := d.copyOf(v)
	f, err := lease.Read(rec.Spec.LeasePath(d.run))
	if err != nil {
		return "", err
	}
	if err := d.promise(ctx, up, name.Host); err != nil {
		return "", err
	}
	d.reached(stepPromised)
	f.Upstream = up
	i := lease.Inheritance{Wish: rec.Spec.Wish(), Awaited: h.Awaited, Lease: *f}
	if err := far.Do(ctx, http.MethodPost, "/v1/vgpus/"+rec.Spec.Key()+"/lease", i, nil); err != nil {
		return "", atOther(h.Host, err)
	}
	return name.Host, nil
}

// atOther is another host's error with its name.
func atOther(host string, err error) error {
	var e *api.Error
	if errors.As(err, &e) {
		return &api.Error{Status: e.Status, Text: "on the other host, " + host + ": " + e.Text, Remedy: e.Remedy}
	}
	return refuse(http.StatusBadGateway, "see to causewayd there (migration.listen), and the way to it", "the other host, %s: %v", host, err)
}

// allowHandover has the device process give out the state of programs, or not. It has the time of a
// change of limits: what it does later, when nobody waits for it, would undo what it is told next.
func (d *Daemon) allowHandover(ctx context.Context, v *vgpu, host string) error {
	rec, _ := d.copyOf(v)
	c := api.NewClient(rec.Spec.ControlPath(d.run))
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.opt.Obey)
	defer cancel()
	return c.Do(ctx, http.MethodPut, "/v1/handover", api.Handover{Host: host}, nil)
}

func (d *Daemon) postHandover(w http.ResponseWriter, req *http.Request) error {
	var h api.Handover
	if err := body(req, &h); err != nil {
		return err
	}
	if err := d.HandOver(req.Context(), key(req), h); err != nil {
		return err
	}
	return reply(w, struct{}{})
}

// ownName is what this host calls itself, by its certificate.
func (d *Daemon) ownName() (api.HostName, error) {
	cfg, err := d.identity().Client(api.RemoteProtocol, "")
	if err != nil {
		return api.HostName{}, err
	}
	h, err := lease.HostOf(cfg.Certificates[0].Leaf)
	return api.HostName{Host: h.String()}, err
}

// inherit readies a vGPU for a VM that comes with its lease.
func (d *Daemon) inherit(ctx context.Context, i lease.Inheritance) error {
	was := i.Lease.Upstream
	name, err := d.named(ctx, was.Server)
	if err != nil {
		return err
	}
	leave, err := d.locks.enter(ctx, i.Wish.Key())
	if err != nil {
		return err
	}
	defer leave()
	v := d.find(i.Wish.Key())
	if i.Awaited {
		if err := d.awaits(ctx, v, i.Wish.Key()); err != nil {
			return err
		}
	}
	addresses, err := resolve(ctx, name)
	if err != nil {
		return err
	}
	f := i.Lease
	up := *was
	up.Server, up.Address = name, api.ServerAddress(name)
	f.Upstream, f.Addresses, f.Host, f.Heir, f.Before = &up, addresses, "", "", ""
	f.Comes = lease.ComesMade
	f.Epoch++
	st, err := d.mayInherit(ctx, &f)
	if err != nil {
		return atServer(name, err)
	}
	if v != nil {
		return d.inheritAs(v, &f)
	}
	w := i.Wish
	w.Owner, w.Remote = "", name // which is for this host to say
	if err := d.checkWish(ctx, &w); err != nil {
		return err
	}
	spec := d.wanted(&w, nil)
	spec.Limits = st.Limits
	_, err = d.startFar(ctx, newRecord(spec), func(v *vgpu) error { return d.hasLease(v, &f) })
	return err
}

// mayInherit asks the server whether this host may go on with a lease.
func (d *Daemon) mayInherit(ctx context.Context, f *lease.File) (api.LeaseState, error) {
	return d.leaseNow(ctx, renewTime, f.Upstream.Server, f.ID, f.Epoch)
}

// leaseNow is what a lease's server says of it now, which renews it.
func (d *Daemon) leaseNow(ctx context.Context, limit time.Duration, server string, id remote.LeaseID, epoch uint64) (api.LeaseState, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := d.server(server)
	if err != nil {
		return api.LeaseState{}, err
	}
	defer c.Close()
	return called(ctx, c, http.MethodPost, leasePath(id)+"/renew", api.LeaseRenewal{Epoch: epoch}, lease.DecodeState)
}

// hasLease notes the lease of a vGPU, and writes it down.
func (d *Daemon) hasLease(v *vgpu, f *lease.File) error {
	v.written.Lock()
	defer v.written.Unlock()
	d.mu.Lock()
	v.up, v.epoch, v.comes = f.Upstream, f.Epoch, f.Comes
	path := v.rec.Spec.LeasePath(d.run)
	d.mu.Unlock()
	return f.Write(path)
}

// inheritAs has a vGPU that is there, and that no program uses, go on with another lease of its
// server. The one that it had ends.
func (d *Daemon) inheritAs(v *vgpu, f *lease.File) error {
	rec, proc := d.copyOf(v)
	key := rec.Spec.Key()
	d.mu.Lock()
	had, comes, beside := v.up, v.comes, v.beside
	d.mu.Unlock()
	if f.Comes = comes; comes == "" {
		f.Comes = lease.ComesHad
	}
	switch {
	case beside != nil:
		return refuse(http.StatusConflict, "try again in a moment", "whether %s has moved to the GPU server %s is not known yet there", key, beside.Server)
	case rec.Spec.Remote == "":
		return refuse(http.StatusConflict, "create it with --remote "+f.Upstream.Server+" there, or delete it there", "%s is on a GPU of its host, not on a GPU server", key)
	case had == nil || rec.Lost || proc == nil || !proc.Alive():
		return refuse(http.StatusConflict, "delete it there", "%s is lost", key)
	case had.Address != f.Upstream.Address:
		return refuse(http.StatusConflict, "create it with --remote "+f.Upstream.Server+" there", "%s is on the GPU server %s, and the VM's programs are on %s", key, had.Server, f.Upstream.Server)
	case had.Lease == f.ID:
		return d.goOn(v, proc, f)
	}
	// What is written down first is what the next causewayd finds: it tells the device process
	// again (foundComing).
	own, err := lease.Read(rec.Spec.LeasePath(d.run))
	if err == nil {
		err = d.hasLease(v, f)
	}
	if err != nil {
		return err
	}
	// Who asks may be gone before this is done: a hand-over that has begun is not left in the
	// middle, where the VM may have come.
	if err := d.useLease(d.closing, d.opt.Obey, v, f); err != nil {
		if errors.Is(err, context.Canceled) { // causewayd ends: the next one takes it up
			return err
		}
		own.Upstream = had
		d.wg.Go(func() { d.routineReturn(v, proc, own) })
		return errors.Join(err, d.goOn(v, proc, own))
	}
	if err := d.leave(had); err != nil {
		d.log.Warn("a lease is not given back: it ends at the server after its term", "vgpu", key, "server", rec.Spec.Remote, "error", err)
	}
	d.log.Info("a vGPU goes on with the lease of the VM that comes", "vgpu", key, "server", f.Upstream.Server, "lease", f.ID)
	return d.goOn(v, proc, f)
}

// routineReturn has a device process that did not say in time whether it uses another lease use its
// own again, until it has answered.
func (d *Daemon) routineReturn(v *vgpu, p *process.Process, own *lease.File) {
	rec, _ := d.copyOf(v)
	key := rec.Spec.Key()
	for {
		leave, err := d.locks.enter(d.ctx, key)
		if err != nil {
			return
		}
		d.mu.Lock()
		over := v.end || v.up == nil || v.up.Lease != own.ID
		d.mu.Unlock()
		if !over {
			err = d.useLease(d.ctx, askTimeout, v, own)
		}
		leave()
		var refused *api.Error
		if over || err == nil || errors.As(err, &refused) {
			return
		}
		if !d.pause(p, d.opt.Renew) {
			return
		}
	}
}

// useLease has a device process without programs use another lease.
func (d *Daemon) useLease(ctx context.Context, limit time.Duration, v *vgpu, f *lease.File) error {
	rec, _ := d.copyOf(v)
	c := api.NewClient(rec.Spec.ControlPath(d.run))
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return c.Do(ctx, http.MethodPut, "/v1/relay", link.Relay{Server: f.Upstream.Server, Addresses: f.Addresses, Lease: f.ID, Identity: f.Identity}, nil)
}

// goOn has a vGPU go on with a lease, which is renewed again.
func (d *Daemon) goOn(v *vgpu, p *process.Process, f *lease.File) error {
	if err := d.hasLease(v, f); err != nil {
		return err
	}
	d.tellUpstream(v)
	d.wg.Go(func() { d.routineRenew(v, p) })
	return nil
}

// runsHere reports whether programs of a VM run on a vGPU of this host.
func (d *Daemon) runsHere(ctx context.Context, v *vgpu) bool {
	st, err := d.ask(ctx, v)
	if err != nil {
		return false
	}
	for _, s := range st.Sessions {
		if s.State == "running" {
			return true
		}
	}
	return false
}

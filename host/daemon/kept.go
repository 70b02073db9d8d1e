package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/process"
	"causeway/remote"
	"causeway/remote/mtls"
)

/*
A vGPU of a fleet's claim that another host has, whose VM is to move here: the GPU server keeps one
lease for both hosts, so this one has none of its own while it waits, and no memory there. QEMU
connects to it as to any. It goes on with the VM's lease when that comes (handover.go), or takes one
when the fleet says that the claim is this host's alone: the VM has ended there, and starts here.
*/

// movesHere reports whether a server refuses a lease because it comes with its VM.
func movesHere(err error) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Status == http.StatusLocked
}

// leaseKept notes that a vGPU has no lease yet, for why. What stands in the lease's place is none
// that any server knows.
func (d *Daemon) leaseKept(ctx context.Context, v *vgpu, name string, why error) error {
	keys, err := mtls.NewPinned()
	if err != nil {
		return err
	}
	if keys.Peer, err = keys.Hash(); err != nil {
		return err
	}
	addresses, err := resolve(ctx, name)
	if err != nil {
		return err
	}
	rec, _ := d.copyOf(v)
	spec := rec.Spec
	spec.Remote = name
	g, err := d.gpuAt(ctx, name, spec.GPU)
	if err != nil {
		return err
	}
	up := &api.Upstream{Server: name, Address: api.ServerAddress(name), Lease: remote.NewLeaseID(), GPU: g.Name, UUID: g.ID, Memory: g.Memory, Driver: g.Driver, Lost: true, Error: why.Error()}
	f := &lease.File{ID: up.Lease, Identity: keys, Epoch: 1, Upstream: up, Addresses: addresses, Comes: lease.ComesKept}
	if err := d.granted(v, spec, f); err != nil {
		return err
	}
	d.log.Info("a vGPU waits for the lease that comes with its VM", "vgpu", spec.Key(), "server", name, "why", why)
	return nil
}

// gpuAt is a server's GPU: programs of a VM go on where the GPU is the same.
func (d *Daemon) gpuAt(ctx context.Context, name, id string) (api.GPU, error) {
	ctx, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	c, err := d.server(name)
	if err != nil {
		return api.GPU{}, err
	}
	defer c.Close()
	o, err := called(ctx, c, http.MethodGet, "/v1/gpus", nil, lease.DecodeOffer)
	if err != nil {
		return api.GPU{}, atServer(name, err)
	}
	at := slices.IndexFunc(o.GPUs, func(g api.GPU) bool { return g.ID == id })
	if at < 0 {
		return api.GPU{}, refuse(http.StatusNotFound, "", "the GPU server %s has no GPU %s", name, id)
	}
	return o.GPUs[at], nil
}

// leaseWhenOurs has a vGPU that waits take a lease when the fleet says that it is this host's,
// until a VM has brought one or the vGPU is at its end.
func (d *Daemon) leaseWhenOurs(v *vgpu, p *process.Process, log *slog.Logger) {
	d.tellUpstream(v)
	t := time.NewTicker(d.opt.Renew)
	defer t.Stop()
	for {
		d.mu.Lock()
		up, comes := v.up, v.comes
		over := v.end || up == nil || !up.Lost
		d.mu.Unlock()
		switch {
		case over:
			return
		case comes != lease.ComesKept: // it had one, and could not begin with it
			d.leaseAnew(v, p, log)
			return
		}
		err := d.nobodyThere(v)
		if err == nil {
			var f *lease.File
			if f, err = d.leaseAgain(v, lease.ComesKept); err == nil && f != nil {
				return
			}
		}
		if err != nil {
			d.waitsFor(v, err, log)
		}
		select {
		case <-t.C:
		case <-p.Done():
			return
		case <-d.ctx.Done():
			return
		}
	}
}

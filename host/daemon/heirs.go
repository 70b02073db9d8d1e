package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/remote"
)

/*
A GPU server's side of leases that move with a VM. The host that has one says which other may take
it over; until that does both renew it, so that it ends neither on the way nor if the VM stays. The
vGPU keeps the name that it has here.
*/

// besideMoved is a host's wish, by a name that no vGPU has which was the host's and left with its
// VM: that one keeps its name.
func (d *Daemon) besideMoved(w api.Wish, h lease.Host) api.Wish {
	base := w.Name
	for n := 2; n <= lease.MostPerHost; n++ {
		v := d.find(w.Key())
		if v == nil {
			return w
		}
		rec, _ := d.copyOf(v)
		if rec.Spec.Lease == "" || rec.Spec.Lease == h.String() {
			return w
		}
		w.Name = fmt.Sprintf("%s:%d", base, n)
	}
	return w
}

// setHeir notes which host may take a lease over, at the wish of the one that has it.
func (d *Daemon) setHeir(h lease.Host, e lease.Entry, heir string) error {
	allow := d.config().Remote.Allow
	switch {
	case e.Host != h.String():
		return refuse(http.StatusForbidden, "", "the host %s has the lease, %s may only take it over", e.Host, h)
	case heir == e.Host:
		return refuse(http.StatusConflict, "name the host to which the VM moves", "the host %s has the lease already", heir)
	case heir != "" && len(allow) > 0 && !slices.Contains(allow, heir):
		return refuse(http.StatusForbidden, "an administrator of the GPU server adds that host to remote.allow there", "remote.allow does not name the host %s", heir)
	}
	if r, is := d.fleet.Of(e.VGPU); is && heir != "" && r.Heir != heir {
		return refuse(http.StatusForbidden, "a VM moves to a pod of the same claim there, if the fleet lets claims of this GPU host move; else end the pod, and start it where it is to run",
			"the lease is of the claim %s, whose fleet gave it to %s alone", r.Of, cmp.Or(r.Heir, e.Host))
	}
	d.leases.Allow(e.ID, heir, e.Before)
	if heir != "" {
		d.log.Info("a lease may move with its VM", "host", h, "to", heir, "vgpu", e.VGPU, "lease", e.ID)
	}
	v := d.find(e.VGPU)
	if v == nil {
		return lease.ErrUnknown
	}
	return d.noteHeir(v, e.ID)
}

// leaveLease is the last that a host says of a lease, which ends unless another may take it over,
// whose it is then.
func (d *Daemon) leaveLease(ctx context.Context, e lease.Entry, h lease.Host) error {
	e, over, err := d.leases.Leave(e.ID, h.String())
	if err != nil {
		return err
	}
	if over {
		return d.endLease(ctx, e, "its host has ended it")
	}
	d.log.Info("a host leaves a lease", "host", h, "to", e.Host, "vgpu", e.VGPU, "lease", e.ID)
	if _, _, err := d.fleet.Follow(e.VGPU, &d.leases); err != nil {
		return err
	}
	if v := d.find(e.VGPU); v != nil {
		return d.noteHeir(v, e.ID)
	}
	return nil
}

// noteHeir writes down who has a lease, and who may: what is so now, as others may note it at once.
func (d *Daemon) noteHeir(v *vgpu, id remote.LeaseID) error {
	v.written.Lock()
	defer v.written.Unlock()
	e, ok := d.leases.Find(id)
	if !ok {
		return lease.ErrUnknown
	}
	d.mu.Lock()
	v.rec.Spec.Lease = e.Host
	rec := v.rec
	d.mu.Unlock()
	path := rec.Spec.LeasePath(d.run)
	f, err := lease.Read(path)
	if err != nil {
		return err
	}
	f.Host, f.Heir, f.Before = e.Host, e.Heir, e.Before
	if err := f.Write(path); err != nil {
		return err
	}
	return writeJSON(recordPath(d.run, &rec.Spec), &rec)
}

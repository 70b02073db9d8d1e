package daemon

import (
	"context"
	"net/http"

	"causeway/host/api"
	"causeway/host/daemon/lease"
)

/*
Claims whose VM moves, at a GPU server. The pods of two hosts hold such a claim for a while, and its
reservation names both: the host that has the lease, and its heir, which may take it over as any
lease is that moves with its VM (heirs.go). There is one lease and one vGPU all the time, so memory
is promised once. Whoever changes a reservation has to have heard of its last move.
*/

// reserveAgain judges a reservation whose place is taken. done: it holds as it is wished. The
// reservation's lock is held.
func (d *Daemon) reserveAgain(ctx context.Context, was *lease.Kept, r api.Reservation) (done bool, err error) {
	if was.Reservation == r {
		return true, nil
	}
	same := r
	same.Host, same.Heir, same.Moved = was.Host, was.Heir, was.Moved
	switch {
	case same != was.Reservation: // another allocation, or of another size
		return false, d.withdraw(ctx, r.Key(), "")
	case was.Moved != r.Moved:
		return false, refuse(http.StatusPreconditionFailed, "the next heartbeat says where it is", "the lease of the claim %s is the host %s's by now", r.Of, was.Host)
	case was.Host == r.Host:
		return true, d.reserveHeir(ctx, was, r)
	}
	return true, d.reserveFor(ctx, was, r)
}

// reserveHeir says which host may take a lease over, or that none may any more.
func (d *Daemon) reserveHeir(ctx context.Context, was *lease.Kept, r api.Reservation) error {
	next := lease.Kept{Reservation: r, VGPU: was.VGPU}
	if err := d.fleet.Swap(*was, next); err != nil {
		return err
	}
	d.log.Info("a claim's lease may move", "claim", r.Of, "host", r.Host, "to", r.Heir, "vgpu", r.Key())
	e, has := d.leases.At(was.Lease())
	v := d.find(was.Lease())
	if !has || v == nil || e.Heir == "" || e.Heir == r.Heir {
		return nil
	}
	d.leases.Allow(e.ID, "", e.Before)
	if now, has := d.leases.At(was.Lease()); has && now.Host != r.Host {
		// Who may not has taken it at this moment.
		return d.endReserved(ctx, &next)
	}
	return d.noteHeir(v, e.ID)
}

// reserveFor has a reservation be another host's, as the one that had it has no pod of the claim
// any more. The lease is the other's if it was to take it over; else it ends, and the other asks
// for one.
func (d *Daemon) reserveFor(ctx context.Context, was *lease.Kept, r api.Reservation) error {
	next := lease.Kept{Reservation: r}
	next.Moved++
	e, has := d.leases.At(was.Lease())
	if has && e.Host == was.Host && e.Heir == r.Host {
		d.log.Info("a claim's lease is its heir's, as the host that had it has no pod any more", "claim", r.Of, "from", was.Host, "to", r.Host, "vgpu", r.Key())
		if _, _, err := d.leases.Leave(e.ID, e.Host); err != nil {
			return err
		}
		if _, _, err := d.fleet.Follow(e.VGPU, &d.leases); err != nil {
			return err
		}
		if v := d.find(e.VGPU); v != nil {
			return d.noteHeir(v, e.ID)
		}
		return nil
	}
	d.log.Info("a claim is another host's", "claim", r.Of, "from", was.Host, "to", r.Host, "vgpu", r.Key())
	if err := d.fleet.Swap(*was, next); err != nil { // first: the one that had it gets no other
		return err
	}
	return d.endReserved(ctx, was)
}

// movesOn notes who has a lease of a claim, if that has changed, and is the host to which the VM
// may move next.
func (d *Daemon) movesOn(h lease.Host, e lease.Entry) (heir string, err error) {
	r, is, err := d.fleet.Follow(e.VGPU, &d.leases)
	if err != nil || !is || r.Host != h.String() {
		return "", err
	}
	return r.Heir, nil
}

// endMoved ends the lease that a host has of a claim by another host's name, from which it has
// moved: it asks for one in its place. The lock of the one that it asks for is held.
func (d *Daemon) endMoved(ctx context.Context, key string, h lease.Host, asked lease.Request) error {
	r, is := d.fleet.Find(asked.VM() + "/" + asked.Name())
	if !is || r.VGPU == "" || r.VGPU == key {
		return nil
	}
	leave, err := d.locks.enter(ctx, r.VGPU)
	if err != nil {
		return err
	}
	defer leave()
	if v := d.find(r.VGPU); v != nil {
		if rec, _ := d.copyOf(v); rec.Spec.Lease == h.String() {
			if err := d.end(ctx, v); err != nil {
				return err
			}
		}
	}
	next := r
	next.VGPU = ""
	return d.fleet.Swap(r, next) // one that was withdrawn meanwhile stays so
}

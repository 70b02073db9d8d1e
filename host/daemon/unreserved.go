package daemon

import (
	"net/http"
	"slices"

	"causeway/host/api"
	"causeway/host/daemon/place"
	"causeway/host/limit"
)

/*
A GPU server in a fleet gives hosts what the fleet has reserved for them. What they lease besides,
by whatever name, has of each GPU no more than remote.unreserved, which claims are not offered: else
a host of remote.allow could have the memory that the scheduler is about to give away.
*/

// unreservedLocked: it is a lease that no controller has reserved, and this server is in a fleet.
// d.mu is held.
func (d *Daemon) unreservedLocked(s *api.Spec) bool {
	if s.Lease == "" || len(d.cfg.Remote.Fleet) == 0 {
		return false
	}
	_, is := d.fleet.Of(s.Key())
	return !is
}

// boundLocked bounds what a vGPU may be promised of each of all if it is a lease that is not
// reserved. Its own promise is not counted. d.mu is held.
func (d *Daemon) boundLocked(all []place.GPU, s *api.Spec) {
	if !d.unreservedLocked(s) {
		return
	}
	for i := range all {
		g, most := &all[i], uint64(d.cfg.Remote.Unreserved)
		g.Bounded, g.Bound = true, most-min(most, d.unreservedOfLocked(g, s.Key()))
	}
}

// unreservedOfLocked is what leases that are not reserved were promised of a GPU, but the one of a
// key. d.mu is held.
func (d *Daemon) unreservedOfLocked(g *place.GPU, but string) (had uint64) {
	for key, v := range d.vgpus {
		if key != but && !v.rec.Lost && slices.Contains(v.places(), g.ID) && d.unreservedLocked(&v.rec.Spec) {
			had += promisedOf(v, g)
		}
	}
	return had
}

// promisedOf is what a vGPU was promised of a GPU; one without a limit has all of it.
func promisedOf(v *vgpu, g *place.GPU) uint64 {
	if v.rec.Spec.Memory == 0 {
		return g.Memory
	}
	return min(v.rec.Spec.Memory, g.Memory)
}

// judgeUnreservedLocked refuses limits of a lease that is not reserved by which it would have more
// than it may, whatever there is. d.mu is held.
func (d *Daemon) judgeUnreservedLocked(s *api.Spec) error {
	if !d.unreservedLocked(s) {
		return nil
	}
	switch {
	case s.Memory == 0:
		return refuse(http.StatusForbidden, "name its memory: up to remote.unreserved of the server", "a lease that the fleet of this GPU server has not reserved is not for a whole GPU")
	case s.Share > limit.DefaultShare:
		return refuse(http.StatusForbidden, "leave the share out, or make a claim with compute", "a share of %d: more than %d is for claims, at this GPU server", s.Share, limit.DefaultShare)
	}
	return nil
}

// keptUnreservedLocked is how much of a GPU claims are not offered, as hosts lease it, or may,
// without a reservation. d.mu is held.
func (d *Daemon) keptUnreservedLocked(g *api.GPU) uint64 {
	had := d.unreservedOfLocked(&place.GPU{GPU: *g}, "")
	return min(max(had, uint64(d.cfg.Remote.Unreserved)), g.Memory)
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/place"
	"causeway/host/limit"
	"causeway/remote"
)

/*
A GPU server in a fleet: the controller reserves room for a claim's vGPU, and says which host may
lease it. So the scheduler's decision holds before a pod is bound, and a host that is frozen, or
whose claim is gone, has nothing any more from the moment at which the controller says so.
Reservations are kept over a restart of causewayd; a reboot ends them with the vGPUs, and the
controller makes them again.
*/

// reservedFile is where reservations are written down, below the run directory.
const reservedFile = "fleet.json"

// openReserved finds the reservations of before causewayd's restart.
func (d *Daemon) openReserved() error {
	name := filepath.Join(d.run, reservedFile)
	var f lease.ReservedFile
	if err := readJSON(name, &f); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reservations for a fleet: %w", err)
	}
	var err error
	d.fleet, err = lease.NewReserved(f, func(f lease.ReservedFile) error { return writeJSON(name, &f) })
	if err != nil {
		return fmt.Errorf("reservations for a fleet: %s: %w", name, err)
	}
	return nil
}

// controller is who looks after the fleet that this server is in, if that is who asks.
func (d *Daemon) controller(r *http.Request) (h lease.Host, err error) {
	if h, err = d.asker(r); err != nil {
		return h, err
	}
	if !slices.Contains(d.config().Remote.Fleet, h.String()) {
		return h, refuse(http.StatusForbidden, "an administrator of the GPU server adds it to remote.fleet there", "remote.fleet does not name %s", h)
	}
	epoch, err := strconv.ParseUint(r.URL.Query().Get("epoch"), 10, 64)
	if err != nil {
		return h, refuse(http.StatusBadRequest, "", "no controller's epoch: %v", err)
	}
	if r.Method == http.MethodGet { // one that is not the newest any more has to learn that
		return h, d.heard(epoch)
	}
	return h, d.fleet.Heartbeat(epoch)
}

func (d *Daemon) heard(epoch uint64) error {
	if err := d.fleet.Heartbeat(epoch); err != nil && !errors.Is(err, lease.ErrController) {
		return err
	}
	return nil
}

// fleetRoutes are all that the controller of a fleet may ask of a GPU server.
var fleetRoutes = map[string]remoteRoute{
	"GET " + api.FleetPath: func(d *Daemon, w http.ResponseWriter, r *http.Request, _ lease.Host) error {
		s, err := d.fleetState(r.Context())
		if err != nil {
			return err
		}
		return reply(w, s)
	},
	"PUT " + api.FleetPath + "/reservations/{vm}/{name}": func(d *Daemon, w http.ResponseWriter, r *http.Request, _ lease.Host) error {
		v, err := lease.DecodeReservation(r.Body)
		if err != nil {
			return err
		}
		if v.Key() != key(r) {
			return refuse(http.StatusBadRequest, "", "a reservation of %s at the place of %s", v.Key(), key(r))
		}
		if err := d.reserveLease(r.Context(), v); err != nil {
			return err
		}
		return reply(w, struct{}{})
	},
	"DELETE " + api.FleetPath + "/reservations/{vm}/{name}": func(d *Daemon, w http.ResponseWriter, r *http.Request, _ lease.Host) error {
		leave, err := d.locks.enter(r.Context(), "reservation "+key(r))
		if err != nil {
			return err
		}
		defer leave()
		if err := d.withdraw(r.Context(), key(r), r.URL.Query().Get("id")); err != nil {
			return err
		}
		return reply(w, struct{}{})
	},
}

// fleetState is what the controller hears.
func (d *Daemon) fleetState(ctx context.Context) (api.FleetState, error) {
	s := api.FleetState{Version: d.opt.Version, Protocol: remote.ProtocolVersion, Epoch: d.fleet.Epoch(), GPUs: []api.FleetGPU{}, Reserved: []api.Reserved{}}
	list, err := d.GPUs(ctx)
	if err != nil {
		return s, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range list {
		g.VGPUs, g.Why = nil, said(g.Why)
		s.GPUs = append(s.GPUs, api.FleetGPU{GPU: g, Claimable: d.claimableLocked(&g)})
	}
	for _, r := range d.fleet.All() {
		v := d.vgpus[r.Lease()]
		s.Reserved = append(s.Reserved, api.Reserved{Reservation: r.Reservation, Leased: v != nil && !v.rec.Lost && v.ready})
	}
	return s, nil
}

// said is a text as another host takes it.
func said(s string) string {
	const most = 150
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), most)], ""))
}

// claimableLocked is what a GPU has for claims: what nobody else was promised. d.mu is held.
func (d *Daemon) claimableLocked(g *api.GPU) uint64 {
	left := g.Memory - d.keptUnreservedLocked(g)
	for key, v := range d.vgpus {
		if v.rec.Lost || v.rec.Spec.Remote != "" || !slices.Contains(v.places(), g.ID) || strings.HasPrefix(v.rec.Spec.VM, api.ClaimPrefix) {
			continue
		}
		if _, is := d.fleet.Of(key); v.rec.Spec.Lease != "" && (is || d.unreservedLocked(&v.rec.Spec)) {
			continue
		}
		if v.rec.Spec.Memory == 0 { // all of it
			return 0
		}
		left -= min(left, v.rec.Spec.Memory)
	}
	return left
}

// addReservedLocked adds what is reserved and not leased yet to what is promised of GPUs, less what
// is reserved for the vGPU of key. d.mu is held.
func (d *Daemon) addReservedLocked(all []place.GPU, key string) {
	for _, r := range d.fleet.All() {
		if v := d.vgpus[r.Lease()]; r.Lease() == key || v != nil && !v.rec.Lost {
			continue
		}
		at := slices.IndexFunc(all, func(g place.GPU) bool { return g.ID == r.GPU })
		if at < 0 {
			continue
		}
		g := &all[at]
		g.Promised += min(uint64(r.Memory), math.MaxInt64-min(g.Promised, math.MaxInt64))
		g.Share += uint64(r.Share)
		g.Count++
	}
}

// reserveLease keeps room for a lease. Another allocation's that has its place ends first, with the
// lease: that claim is not where it was. One that may move, or has, keeps its room (fleetmove.go).
func (d *Daemon) reserveLease(ctx context.Context, r api.Reservation) error {
	leave, err := d.locks.enter(ctx, "reservation "+r.Key())
	if err != nil {
		return err
	}
	defer leave()
	if was, is := d.fleet.Find(r.Key()); is {
		if done, err := d.reserveAgain(ctx, &was, r); done || err != nil {
			return err
		}
	}
	reading, err := d.gpus.read(ctx)
	if err != nil {
		return fmt.Errorf("read the host's GPUs: %w", err)
	}
	if slices.ContainsFunc(reading.GPUs, func(g api.GPU) bool { return g.Backend != "soft" }) {
		d.refresh(ctx)
	}
	if err := d.holds(ctx, api.Change{Memory: &r.Memory, Share: &r.Share}); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.tallyLocked(reading)
	at := slices.IndexFunc(all, func(g place.GPU) bool { return g.ID == r.GPU })
	if at < 0 || all[at].Parent != "" || len(all[at].MIG) > 0 {
		return refuse(http.StatusNotFound, "", "this host has no GPU %s that is not divided", r.GPU)
	}
	if all[at].Drained {
		return fmt.Errorf("%w: the GPU %s: %s", place.ErrDrained, r.GPU, all[at].Why)
	}
	// Not overcommitted: a claim's memory is there.
	if err := place.Fits(all, at, uint64(r.Memory), place.Rules{Overcommit: 1}); err != nil {
		return err
	}
	if err := onGPU(&all[at].GPU, d.cfg.Devices.WarmWorkers).Fits(r.Memory, 1); err != nil {
		return err
	}
	if err := d.fleet.Put(lease.Kept{Reservation: r}); err != nil {
		return err
	}
	d.log.Info("reserved for a claim", "claim", r.Of, "host", r.Host, "vgpu", r.Key(), "gpu", r.GPU, "memory", r.Memory)
	return nil
}

// withdraw ends a reservation and the lease of it. The reservation's lock is held. It goes first,
// so that no lease comes after.
func (d *Daemon) withdraw(ctx context.Context, key, id string) error {
	r, was, err := d.fleet.Remove(key, id)
	if err != nil || !was {
		return err
	}
	d.log.Info("a claim's reservation is over", "claim", r.Of, "host", r.Host, "vgpu", r.Key())
	if err := d.endReserved(ctx, &r); err != nil {
		return errors.Join(err, d.fleet.Put(r)) // which is asked for again
	}
	return nil
}

// endReserved ends the lease of a reservation, if it has one.
func (d *Daemon) endReserved(ctx context.Context, r *lease.Kept) error {
	ctx = context.WithoutCancel(ctx) // nobody will ask for the rest
	leave, err := d.locks.enter(ctx, r.Lease())
	if err != nil {
		return err
	}
	defer leave()
	v := d.find(r.Lease())
	if v == nil {
		return nil
	}
	if rec, _ := d.copyOf(v); rec.Spec.Lease == "" {
		return nil // it is this host's own
	}
	d.leases.Deny(r.Lease())
	return d.end(ctx, v)
}

// asReserved holds a host's wish to what its fleet has reserved. Leases of claims are given to
// nobody else; of other wishes: unreserved.go.
func (d *Daemon) asReserved(w *api.Wish, h lease.Host, asked lease.Request) error {
	r, is := d.fleet.Find(asked.VM() + "/" + asked.Name())
	switch {
	case !is && len(d.config().Remote.Fleet) > 0 && strings.HasPrefix(asked.VM(), api.ClaimPrefix):
		return refuse(http.StatusForbidden, "the claim is gone, or its fleet's controller has not reserved it yet", "nothing is reserved here for %s of %s", asked.VM(), h)
	case !is && len(d.config().Remote.Fleet) > 0 && d.config().Remote.Unreserved == 0:
		return refuse(http.StatusForbidden, "make a claim; or an administrator of the GPU server sets remote.unreserved there", "this GPU server's fleet has reserved nothing for %s of %s, and leaves nothing of its GPUs to others", asked.VM(), h)
	case !is:
		return nil
	case r.Heir == h.String():
		return refuse(http.StatusLocked, "it comes with the VM", "the lease of the claim %s is the host %s's until its VM is at %s", r.Of, r.Host, h)
	case r.Host != h.String():
		return refuse(http.StatusForbidden, "", "the claim %s is for the host %s, not for %s", r.Of, r.Host, h)
	case w.Memory == nil || *w.Memory != r.Memory, w.Share == nil || *w.Share > r.Share:
		return refuse(http.StatusForbidden, "", "the claim %s has %v of memory and the share %v, and %s asks for something else", r.Of, r.Memory, r.Share, h)
	}
	w.GPU, w.MIG, w.Profile = r.GPU, "", ""
	return nil
}

// withinReserved judges a change of a lease's limits that its host wishes.
func (d *Daemon) withinReserved(vgpu string, c api.Change) error {
	r, is := d.fleet.Of(vgpu)
	if !is {
		return nil
	}
	if c.Profile != "" || c.Memory != nil && *c.Memory != r.Memory || c.Share != nil && *c.Share > r.Share {
		return refuse(http.StatusForbidden, "make another claim", "the claim %s has %v of memory and the share %v", r.Of, r.Memory, limit.Share(r.Share))
	}
	return nil
}

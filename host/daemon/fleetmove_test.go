package daemon_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/config"
	"causeway/host/limit"
)

// claimOne is the vGPU of a fleet's claim at its hosts.
var claimOne = api.Spec{VM: "claim-1-a", Name: "gpu0"}

// movingClaim is a fleet with two hosts, of which the first has a VM with the vGPU of a claim. The
// GPU has no room for the claim twice.
type movingClaim struct {
	*moving
	controller *api.Client
	r          api.Reservation
}

func newMovingClaim(t *testing.T) *movingClaim {
	t.Helper()
	dir := t.TempDir()
	m := movingHosts(t, dir, 1<<30, func(r *config.Remote) { r.Allow, r.Fleet = []string{"hosta", "hostb"}, []string{"fleet"} })
	c := &movingClaim{moving: m, controller: caller(t, m.server, hostFiles(t, dir, "fleet"))}
	c.r = api.Reservation{VM: claimOne.VM, Name: claimOne.Name, ID: "share-1", Of: "team/1-a", Host: "hosta", GPU: c.state().GPUs[0].ID, Memory: limit.Memory(768 << 20), Share: 100}
	c.reserves("hosta", "")
	m.v = c.ensures(m.here)
	return c
}

func (c *movingClaim) state() api.FleetState {
	c.t.Helper()
	return (&fleet{t: c.t, controller: c.controller}).state(1)
}

// reserved is the claim's reservation as the server tells of it.
func (c *movingClaim) reserved() api.Reserved {
	c.t.Helper()
	s := c.state()
	if len(s.Reserved) != 1 || s.GPUs[0].Promised != 768<<20 {
		c.t.Fatalf("%+v: reserved, and promised once, is not so", s)
	}
	return s.Reserved[0]
}

// reserves has the controller say whose the claim is, knowing what the server told.
func (c *movingClaim) reserves(host, heir string) {
	c.t.Helper()
	r := c.r
	r.Host, r.Heir = host, heir
	if s := c.state(); len(s.Reserved) == 1 {
		r.Moved = s.Reserved[0].Moved
	}
	if err := c.controller.Reserve(c.t.Context(), 1, &r); err != nil {
		c.t.Fatal(err)
	}
}

func (c *movingClaim) wish() api.Wish {
	w := claimOne.Wish()
	share, m, programs := limit.Share(100), limit.Memory(768<<20), false
	w.Remote, w.GPU, w.Share, w.Memory, w.Programs = c.server.address, c.r.GPU, &share, &m, &programs
	return w
}

// ensures is what a node's driver has its causewayd do for a pod of the claim.
func (c *movingClaim) ensures(h *host) api.VGPU {
	c.t.Helper()
	v, err := h.c.Ensure(c.t.Context(), c.wish())
	if err != nil {
		c.t.Fatal(err)
	}
	return v
}

func (c *movingClaim) says(h *host, migrating, runs bool, sessions ...api.Session) {
	c.t.Helper()
	dev := api.NewClient(h.vgpu(claimOne).Control)
	defer dev.Close()
	if err := dev.Do(c.t.Context(), http.MethodPut, "/fake", map[string]any{"connected": true, "migrating": migrating, "runs": runs, "sessions": sessions}, nil); err != nil {
		c.t.Fatal(err)
	}
}

func (c *movingClaim) upstream(h *host) api.Upstream { return *h.vgpu(claimOne).Upstream }

// begins has the second host wait for the VM, and QEMU at the first begin to send it, until the
// second has the lease's keys.
func (c *movingClaim) begins() {
	c.t.Helper()
	c.awaitsAtNext()
	c.here.cfg.Migration.Peers = []string{c.at}
	if _, err := c.here.d.Reload(c.here.cfg); err != nil {
		c.t.Fatal(err)
	}
	c.says(c.here, true, true, program1)
	until(c.t, "the other host has the lease", func() bool { return c.upstream(c.next).Lease == c.v.Upstream.Lease && !c.upstream(c.next).Lost })
	until(c.t, "the device process is told", func() bool { return c.here.vgpu(claimOne).Status.Heir == "hostb" })
}

// awaitsAtNext has a pod of the claim at the second host, whose QEMU waits for the VM.
func (c *movingClaim) awaitsAtNext() {
	c.t.Helper()
	c.reserves("hosta", "hostb")
	if v := c.ensures(c.next); v.Upstream == nil || !v.Upstream.Lost || v.Created && (v.Upstream.GPU == "" || v.Upstream.GPU != c.state().GPUs[0].Name || v.Upstream.UUID != c.r.GPU) {
		c.t.Fatalf("%+v: programs would not go on there", v.Upstream)
	}
	until(c.t, "it says what it waits for", func() bool { return strings.Contains(c.upstream(c.next).Error, "until its VM is at hostb") })
	if r := c.reserved(); r.Host != "hosta" {
		c.t.Errorf("%+v", r)
	}
	c.says(c.next, false, false)
}

// TestClaimMoves: pods of two hosts hold a claim while its VM moves. The one lease goes to the
// other host when the VM is there, its memory is promised once all the time, the first host is
// refused afterwards, and nothing is left when both pods are gone. And back again.
func TestClaimMoves(t *testing.T) {
	t.Parallel()
	c := newMovingClaim(t)
	p := program(t, c.server, c.v.Upstream.Lease)
	hears(t, p)
	c.begins()
	if r := c.reserved(); r.Host != "hosta" || !r.Leased || r.Moved != 0 {
		t.Errorf("before the VM is there: %+v", r)
	}
	c.says(c.here, true, false, program1)
	c.says(c.next, false, true, program1)
	until(t, "the lease has moved", func() bool { r := c.reserved(); return r.Host == "hostb" && r.Heir == "" && r.Moved == 1 && r.Leased })
	until(t, "the first is told", func() bool { u := c.upstream(c.here); return u.Lost && strings.Contains(u.Error, "hostb") })
	// A controller that has not heard of it changes nothing.
	late := c.r
	refused(t, c.controller.Reserve(t.Context(), 1, &late), http.StatusPreconditionFailed, "the host hostb's by now")
	if err := c.here.c.Release(t.Context(), claimOne.VM, claimOne.Name, false); err != nil {
		t.Fatal(err)
	}
	_, err := c.here.c.Ensure(t.Context(), c.wish())
	refused(t, err, http.StatusForbidden, "for the host hostb, not for hosta")
	if r := c.reserved(); r.Host != "hostb" || !r.Leased {
		t.Errorf("%+v", r)
	}
	// The session, and the lease, are the same as before.
	hears(t, program(t, c.server, c.v.Upstream.Lease))
	// Back: the lease's vGPU at the server has had its name all the time.
	c.reserves("hostb", "hosta")
	if v := c.ensures(c.here); !v.Upstream.Lost {
		t.Fatalf("%+v", v.Upstream)
	}
	// The VM's pod at hostb ended, and nothing came: hosta's is a lease of its own.
	c.reserves("hosta", "")
	until(t, "the first has a lease again", func() bool { u := c.upstream(c.here); return !u.Lost && u.Lease != c.v.Upstream.Lease })
	gone(t, "the claim is another host's", p)
	if r := c.reserved(); r.Host != "hosta" || !r.Leased || r.Moved != 2 {
		t.Errorf("%+v", r)
	}
	for _, h := range []*host{c.here, c.next} {
		if err := h.c.Release(t.Context(), claimOne.VM, claimOne.Name, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.controller.Withdraw(t.Context(), 1, &c.r); err != nil {
		t.Fatal(err)
	}
	if s := c.state(); len(s.Reserved) != 0 || s.GPUs[0].Promised != 0 {
		t.Errorf("%+v", s)
	}
}

// TestClaimMovesAtOnce: a migration may begin as soon as the fleet lets the lease move, before the
// next renewal would tell.
func TestClaimMovesAtOnce(t *testing.T) {
	t.Parallel()
	c := newMovingClaim(t)
	c.here.stop()
	c.here.renew = time.Hour
	c.here.start()
	until(t, "it has renewed once", func() bool { s := c.upstream(c.here).State; return s != nil && s.Heir == "" })
	c.awaitsAtNext()
	c.says(c.here, true, true, program1)
	// Which nobody here finds by that name.
	until(t, "it asks whom the fleet has named", func() bool { return c.here.log.has(`not handed to this peer" vgpu=claim-1-a/gpu0 host=hostb`) })
}

// TestClaimStays: a migration that fails leaves the lease where it was, with its programs; the host
// that waited has none, can wait again, and is refused when its pod is gone.
func TestClaimStays(t *testing.T) {
	t.Parallel()
	c := newMovingClaim(t)
	p := program(t, c.server, c.v.Upstream.Lease)
	hears(t, p)
	for range 2 {
		c.begins()
		c.says(c.here, false, true, program1) // QEMU gave it up
		until(t, "the lease is taken back", func() bool { return c.here.vgpu(claimOne).Status.Heir == "" && c.upstream(c.next).Lost })
		if r := c.reserved(); r.Host != "hosta" || !r.Leased || c.upstream(c.here).Lost {
			t.Fatalf("%+v", r)
		}
	}
	c.reserves("hosta", "")
	until(t, "it waits in vain", func() bool { return strings.Contains(c.upstream(c.next).Error, "for the host hosta, not for hostb") })
	if err := c.next.c.Release(t.Context(), claimOne.VM, claimOne.Name, false); err != nil {
		t.Fatal(err)
	}
	_, err := c.next.c.Ensure(t.Context(), c.wish())
	refused(t, err, http.StatusForbidden, "for the host hosta, not for hostb")
	if c.upstream(c.here).Lease != c.v.Upstream.Lease {
		t.Error("the lease is another")
	}
	hears(t, program(t, c.server, c.v.Upstream.Lease))
}

// TestClaimMovesIdle: a VM without programs leaves its lease to the other host when its pod is
// gone; so it does when the fleet says so first.
func TestClaimMovesIdle(t *testing.T) {
	t.Parallel()
	for _, fleetFirst := range []bool{false, true} {
		c := newMovingClaim(t)
		c.awaitsAtNext()
		if err := c.here.c.HandOver(t.Context(), &c.v.Spec, api.Handover{Host: c.at}); err != nil {
			t.Fatal(err)
		}
		c.says(c.here, true, false)
		c.says(c.next, false, true)
		if fleetFirst {
			c.reserves("hostb", "")
		}
		if err := c.here.c.Release(t.Context(), claimOne.VM, claimOne.Name, false); err != nil {
			t.Fatal(err)
		}
		if r := c.reserved(); r.Host != "hostb" || !r.Leased || r.Moved != 1 || c.upstream(c.next).Lost {
			t.Errorf("fleet first %v: %+v", fleetFirst, r)
		}
	}
}

// TestClaimMovesRestarts: causewayds that end while a VM is on its way, and before it is: nothing
// is lost, and nothing is promised twice.
func TestClaimMovesRestarts(t *testing.T) {
	t.Parallel()
	c := newMovingClaim(t)
	c.reserves("hosta", "hostb")
	c.ensures(c.next)
	restart := func() {
		for _, h := range []*host{c.here, c.next, c.server} {
			h.stop()
			h.start()
			if h == c.server {
				h.serves()
			}
		}
		c.next.awaitsHosts(c.next.files())
		c.at = c.next.address
	}
	restart()
	if r := c.reserved(); r.Host != "hosta" || r.Heir != "hostb" || !c.upstream(c.next).Lost {
		t.Fatalf("%+v", r)
	}
	c.awaitsAtNext()
	// In one go: who ends between the two answers of this takes the lease back (TestHandedPhases).
	if err := c.here.c.HandOver(t.Context(), &c.v.Spec, api.Handover{Host: c.at}); err != nil {
		t.Fatal(err)
	}
	restart()
	c.says(c.here, true, false, program1)
	c.says(c.next, false, true, program1)
	until(t, "the lease has moved", func() bool { r := c.reserved(); return r.Host == "hostb" && r.Moved == 1 })
	restart()
	if r := c.reserved(); r.Host != "hostb" || r.Heir != "" || !r.Leased {
		t.Errorf("%+v", r)
	}
}

// TestClaimHeir: a host hands a claim's lease to whom its fleet has named, and to nobody else.
func TestClaimHeir(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.reservation("1-a", "share-1", "hosta", 768)
	a.Heir = "hostb"
	if err := f.reserve(1, a); err != nil {
		t.Fatal(err)
	}
	_, err := ask(t, f.hostb, wishOf(a))
	refused(t, err, http.StatusLocked, "until its VM is at hostb")
	l, err := ask(t, f.hosta, wishOf(a))
	if err != nil {
		t.Fatal(err)
	}
	heir := func(c *api.Client, host string) error {
		return c.Do(t.Context(), http.MethodPut, "/v1/leases/"+l.ID.String()+"/heir", api.LeaseHeir{Host: host}, nil)
	}
	renew := func(c *api.Client, take bool) (s api.LeaseState, err error) {
		return s, c.Do(t.Context(), http.MethodPost, "/v1/leases/"+l.ID.String()+"/renew", api.LeaseRenewal{Epoch: 1, Take: take}, &s)
	}
	if s, err := renew(f.hosta, false); err != nil || s.Heir != "hostb" {
		t.Errorf("%+v, %v", s, err)
	}
	refused(t, heir(f.hosta, "hostc"), http.StatusForbidden)
	_, err = renew(f.hostb, true)
	refused(t, err, http.StatusGone) // hosta has not handed it over
	if err := heir(f.hosta, "hostb"); err != nil {
		t.Fatal(err)
	}
	if s, err := renew(f.hostb, false); err != nil || s.Heir != "" {
		t.Errorf("%+v, %v", s, err)
	}
	b := *a
	b.Heir = ""
	if err := f.reserve(1, &b); err != nil { // its pod at hostb is gone
		t.Fatal(err)
	}
	_, err = renew(f.hostb, true)
	refused(t, err, http.StatusGone)
	refused(t, heir(f.hosta, "hostb"), http.StatusForbidden, "hosta alone")
	for _, bad := range []string{"hosta", "../x"} {
		r := *a
		r.Heir = bad
		if err := f.reserve(1, &r); err == nil {
			t.Errorf("the heir %q", bad)
		}
	}
}

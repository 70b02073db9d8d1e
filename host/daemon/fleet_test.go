package daemon_test

import (
	"net/http"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
	"causeway/host/daemon/lease"
	"causeway/host/limit"
)

// fleet is a GPU server in a fleet, its controller, and two hosts.
type fleet struct {
	t            *testing.T
	server       *host
	controller   *api.Client
	hosta, hostb *api.Client
	gpu          string
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	dir := t.TempDir()
	server := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "gpu1"))
	server.cfg.Remote.Allow, server.cfg.Remote.Fleet = []string{"hosta", "hostb"}, []string{"fleet"}
	server.start().serves()
	f := &fleet{t: t, server: server, controller: caller(t, server, hostFiles(t, dir, "fleet")), hosta: caller(t, server, hostFiles(t, dir, "hosta")), hostb: caller(t, server, hostFiles(t, dir, "hostb"))}
	f.gpu = f.state(0).GPUs[0].ID
	return f
}

func (f *fleet) state(epoch uint64) api.FleetState {
	f.t.Helper()
	body, err := f.controller.Fleet(f.t.Context(), epoch)
	if err != nil {
		f.t.Fatal(err)
	}
	defer body.Close()
	s, err := lease.DecodeFleet(body)
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

func (f *fleet) reservation(claim, id, host string, mib uint64) *api.Reservation {
	return &api.Reservation{VM: "claim-" + claim, Name: "gpu0", ID: id, Of: "team/" + claim, Host: host, GPU: f.gpu, Memory: limit.Memory(mib << 20), Share: 100}
}

func (f *fleet) reserve(epoch uint64, r *api.Reservation) error {
	return f.controller.Reserve(f.t.Context(), epoch, r)
}

// wishOf is what a host asks for of a reservation.
func wishOf(r *api.Reservation) api.LeaseWish {
	m, s := r.Memory, r.Share
	return api.LeaseWish{VM: r.VM, Name: r.Name, GPU: r.GPU, Change: api.Change{Memory: &m, Share: &s}}
}

// TestFleetReserved: what is reserved has room from then on, its host alone gets it and nothing
// else, and when it is withdrawn the program there ends and no other lease comes.
func TestFleetReserved(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.reservation("1-a", "share-1", "hosta", 768)
	for range 2 {
		if err := f.reserve(1, a); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, f.reserve(1, f.reservation("1-b", "share-2", "hostb", 512)), http.StatusInsufficientStorage)
	if _, err := ask(t, f.hostb, api.LeaseWish{VM: "vm1", Name: "gpu0", Change: limitOf(512 << 20)}); err == nil {
		t.Error("the room of a reservation is given to another")
	}
	_, err := ask(t, f.hostb, wishOf(a))
	refused(t, err, http.StatusForbidden, "for the host hosta, not for hostb")
	more := wishOf(a)
	more.Change = limitOf(1 << 30)
	_, err = ask(t, f.hosta, more)
	refused(t, err, http.StatusForbidden, "asks for something else")
	_, err = ask(t, f.hosta, wishOf(f.reservation("1-x", "", "hosta", 64)))
	refused(t, err, http.StatusForbidden, "nothing is reserved")
	l, err := ask(t, f.hosta, wishOf(a))
	if err != nil {
		t.Fatal(err)
	}
	c := program(t, f.server, l.ID)
	hears(t, c)
	for _, change := range []api.Change{limitOf(1 << 30), limitOf(64 << 20)} {
		refused(t, f.hosta.Do(t.Context(), http.MethodPut, "/v1/leases/"+l.ID.String()+"/limits", change, nil), http.StatusForbidden, "team/1-a")
	}
	refused(t, f.hosta.Do(t.Context(), http.MethodPut, "/v1/leases/"+l.ID.String()+"/heir", api.LeaseHeir{Host: "hostb"}, nil), http.StatusForbidden, "hosta alone")
	if s := f.state(1); len(s.Reserved) != 1 || !s.Reserved[0].Leased || s.Reserved[0].Reservation != *a || s.GPUs[0].Claimable != 1<<30 || s.GPUs[0].Promised != 768<<20 {
		t.Errorf("%+v", s)
	}
	for range 2 {
		if err := f.controller.Withdraw(t.Context(), 1, a); err != nil {
			t.Fatal(err)
		}
	}
	gone(t, "the claim is gone", c)
	_, err = ask(t, f.hosta, wishOf(a))
	refused(t, err, http.StatusForbidden, "nothing is reserved")
	refused(t, f.hosta.Do(t.Context(), http.MethodPost, "/v1/leases/"+l.ID.String()+"/renew", api.LeaseRenewal{Epoch: 9}, nil), http.StatusPreconditionFailed, "ended at the server")
	if s := f.state(1); len(s.Reserved) != 0 || s.GPUs[0].Promised != 0 {
		t.Errorf("%+v", s)
	}
}

// TestFleetElsewhere: a claim that is allocated anew, to another node, has nothing any more where
// it was.
func TestFleetElsewhere(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.reservation("1-a", "share-1", "hosta", 768)
	if err := f.reserve(1, a); err != nil {
		t.Fatal(err)
	}
	l, err := ask(t, f.hosta, wishOf(a))
	if err != nil {
		t.Fatal(err)
	}
	c := program(t, f.server, l.ID)
	hears(t, c)
	// The same claim is allocated anew, to another host: the one that has it has it no more.
	b := f.reservation("1-a", "share-2", "hostb", 768)
	if err := f.reserve(1, b); err != nil {
		t.Fatal(err)
	}
	gone(t, "the claim is another host's", c)
	_, err = ask(t, f.hosta, wishOf(a))
	refused(t, err, http.StatusForbidden, "for the host hostb")
	if err := f.controller.Withdraw(t.Context(), 1, a); err != nil { // of before
		t.Fatal(err)
	}
	if _, err := ask(t, f.hostb, wishOf(b)); err != nil {
		t.Error(err)
	}
}

// TestFleetRestart: causewayd's restart loses no reservation and no epoch.
func TestFleetRestart(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.reservation("1-a", "share-1", "hosta", 768)
	if err := f.reserve(7, a); err != nil {
		t.Fatal(err)
	}
	f.server.stop()
	f.server.start().serves()
	if s := f.state(0); s.Epoch != 7 || len(s.Reserved) != 1 || s.Reserved[0].Leased || s.GPUs[0].Promised != 768<<20 {
		t.Fatalf("%+v", s)
	}
	if _, err := ask(t, f.hosta, wishOf(a)); err != nil {
		t.Fatal(err)
	}
	f.server.stop()
	f.server.start().serves()
	if s := f.state(0); len(s.Reserved) != 1 || !s.Reserved[0].Leased {
		t.Errorf("%+v", s)
	}
}

// TestFleetControllers: of two controllers the newer is heard, and who is none is not.
func TestFleetControllers(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.reservation("1-a", "share-1", "hosta", 64)
	if err := f.reserve(3, a); err != nil {
		t.Fatal(err)
	}
	f.state(4) // a heartbeat is enough
	refused(t, f.controller.Withdraw(t.Context(), 3, a), http.StatusPreconditionFailed, "newer controller")
	refused(t, f.reserve(3, f.reservation("1-b", "s", "hosta", 64)), http.StatusPreconditionFailed, "newer controller")
	if s := f.state(3); s.Epoch != 4 || len(s.Reserved) != 1 {
		t.Errorf("%+v", s)
	}
	refused(t, f.hosta.Reserve(t.Context(), 9, a), http.StatusForbidden, "remote.fleet does not name hosta")
	_, err := ask(t, f.controller, api.LeaseWish{VM: "vm1", Name: "gpu0"})
	refused(t, err, http.StatusForbidden, "remote.allow")
	for _, bad := range []func(*api.Reservation){
		func(r *api.Reservation) { r.GPU = "GPU-none" }, func(r *api.Reservation) { r.Host = "../x" }, func(r *api.Reservation) { r.Memory = 0 },
		func(r *api.Reservation) { r.Memory = 1 << 63 }, func(r *api.Reservation) { r.Of = "a\nb" }, func(r *api.Reservation) { r.Share = 1 << 31 },
	} {
		r := f.reservation("1-c", "s", "hosta", 64)
		bad(r)
		if err := f.reserve(4, r); err == nil {
			t.Errorf("reserved: %+v", r)
		}
	}
}

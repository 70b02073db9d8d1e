package daemon_test

import (
	"net/http"
	"testing"

	"causeway/host/api"
	"causeway/host/limit"
)

// other is what a host asks for that no controller has reserved.
func other(vm string, mib uint64) api.LeaseWish {
	return api.LeaseWish{VM: vm, Name: "gpu0", Change: limitOf(mib << 20)}
}

// TestFleetUnreserved: a host of a GPU server that is in a fleet gets nothing by any name that is
// not reserved for it, however much is free.
func TestFleetUnreserved(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for _, w := range []api.LeaseWish{other("vm1", 64), {VM: "vm1", Name: "gpu0"}, {VM: "vm1", Name: "gpu0", GPU: f.gpu}, {VM: "vm1", Name: "gpu0", Change: api.Change{Profile: "quarter"}}} {
		_, err := ask(t, f.hosta, w)
		refused(t, err, http.StatusForbidden, "reserved nothing for vm1 of hosta", "remote.unreserved")
	}
	if s := f.state(1); s.GPUs[0].Promised != 0 || s.GPUs[0].Claimable != 1<<30 {
		t.Errorf("%+v", s.GPUs[0])
	}
}

// TestFleetUnreservedBound: hosts have together what the configuration leaves them, claims are
// offered the rest from the start, and nobody gets more by a change.
func TestFleetUnreservedBound(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.server.stop()
	f.server.cfg.Remote.Unreserved = 256 << 20
	f.server.cfg.Scheduler.Enabled = true
	f.server.start().serves()
	claimable := func(mib uint64) {
		t.Helper()
		if s := f.state(1); s.GPUs[0].Claimable != mib<<20 {
			t.Errorf("%d MiB are for claims, want %d", s.GPUs[0].Claimable>>20, mib)
		}
	}
	claimable(768)
	_, err := ask(t, f.hosta, api.LeaseWish{VM: "vm1", Name: "gpu0"})
	refused(t, err, http.StatusForbidden, "name its memory")
	_, err = ask(t, f.hosta, other("vm1", 257))
	refused(t, err, http.StatusInsufficientStorage, "256 MiB without a reservation", "remote.unreserved")
	big := other("vm1", 64)
	big.Share = new(limit.Share)
	*big.Share = 101
	_, err = ask(t, f.hosta, big)
	refused(t, err, http.StatusForbidden, "more than 100 is for claims")
	l, err := ask(t, f.hosta, other("vm1", 192))
	if err != nil {
		t.Fatal(err)
	}
	claimable(768)
	_, err = ask(t, f.hostb, other("vm2", 65)) // the bound is for all hosts together
	refused(t, err, http.StatusInsufficientStorage, "64 MiB without a reservation")
	if _, err := ask(t, f.hostb, other("vm2", 64)); err != nil {
		t.Error(err)
	}
	limits := func(c api.Change) error {
		return f.hosta.Do(t.Context(), http.MethodPut, "/v1/leases/"+l.ID.String()+"/limits", c, nil)
	}
	refused(t, limits(limitOf(193<<20)), http.StatusInsufficientStorage, "192 MiB without a reservation")
	refused(t, limits(limitOf(0)), http.StatusForbidden, "name its memory")
	refused(t, limits(api.Change{Share: big.Share}), http.StatusForbidden, "more than 100 is for claims")
	if err := limits(limitOf(128 << 20)); err != nil {
		t.Error(err)
	}
	// All that is offered to claims is there for them.
	a := f.reservation("1-a", "share-1", "hosta", 768)
	if err := f.reserve(1, a); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, f.hosta, wishOf(a)); err != nil {
		t.Error(err)
	}
	claimable(768)
}

// TestFleetJoined: leases of before a server was in a fleet go on, count for what is left to
// others, and are not offered to claims.
func TestFleetJoined(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.server.stop()
	f.server.cfg.Remote.Fleet = nil
	f.server.start().serves()
	l, err := ask(t, f.hosta, other("vm1", 512))
	if err != nil {
		t.Fatal(err)
	}
	f.server.stop()
	f.server.cfg.Remote.Fleet, f.server.cfg.Remote.Unreserved = []string{"fleet"}, 256<<20
	f.server.start().serves()
	if s := f.state(1); s.GPUs[0].Claimable != 512<<20 || s.GPUs[0].Promised != 512<<20 {
		t.Errorf("%+v", s.GPUs[0])
	}
	if err := f.hosta.Do(t.Context(), http.MethodPost, "/v1/leases/"+l.ID.String()+"/renew", api.LeaseRenewal{}, nil); err != nil {
		t.Error(err)
	}
	_, err = ask(t, f.hostb, other("vm2", 1))
	refused(t, err, http.StatusInsufficientStorage, "0 bytes without a reservation")
}

package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"testing"

	"causeway/host/api"
)

// TestGivenBackMeanwhile: a lease that was given back when it is to be renewed is asked for no
// more.
func TestGivenBackMeanwhile(t *testing.T) {
	v := &vgpu{renew: true}
	if came := (&Daemon{}).renewOnce(nil, "", v, slog.New(slog.DiscardHandler)); came != leaseOver || v.renew {
		t.Errorf("%v, to be renewed: %v", came, v.renew)
	}
}

// TestRenewals: of all that a server may answer of a lease, two say that this host has it no more;
// any other leaves it to its term.
func TestRenewals(t *testing.T) {
	want := map[int]renewal{http.StatusGone: leaseGone, http.StatusPreconditionFailed: leaseOver}
	for status := 200; status < 600; status++ {
		err := fmt.Errorf("asked: %w", &api.Error{Status: status})
		for _, why := range []string{"", "ended by its operator"} {
			st := api.LeaseState{}
			st.Why = why
			if got := renewalOf(st, err); got != want[status] {
				t.Errorf("status %d: %v", status, got)
			}
		}
	}
	ended := api.LeaseState{}
	ended.Why = "ended by its operator"
	if renewalOf(ended, nil) != leaseGone || renewalOf(api.LeaseState{}, nil) != leaseHolds || renewalOf(api.LeaseState{}, context.DeadlineExceeded) != leaseHolds {
		t.Error("answers without an error, or no answer")
	}
}

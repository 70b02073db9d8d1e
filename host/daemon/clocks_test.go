package daemon_test

import (
	"net/http"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/config"
	"causeway/host/daemon/daemontest"
)

// TestFleetClocks: a GPU server whose clock is minutes ahead of its fleet's, or behind, two
// controllers and two hosts with the machine's own clock, all over mutual TLS. A lease that is
// renewed is never fenced, one that is not is, its claim's memory is nobody else's meanwhile, and
// what a controller says takes effect as ever.
func TestFleetClocks(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"ahead": 9 * time.Minute, "behind": -9 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			clock := newClock()
			clock.pass(off)
			server := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "gpu1"))
			server.clock = clock.Now
			server.cfg.Remote = config.Remote{Allow: []string{"hosta", "hostb"}, Fleet: []string{"fleet"}, RDMA: config.RDMAOff}
			server.start().serves()
			f := &fleet{t: t, server: server, controller: caller(t, server, hostFiles(t, dir, "fleet")), hostb: caller(t, server, hostFiles(t, dir, "hostb"))}
			f.gpu = f.state(0).GPUs[0].ID
			// A causewayd of its own, which renews.
			node := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "hosta"))
			node.cfg.Remote.Servers = []string{server.address}
			node.start()

			a := f.reservation("1-a", "share-1", "hosta", 768)
			if err := f.reserve(1, a); err != nil {
				t.Fatal(err)
			}
			w, programs := api.Wish{VM: a.VM, Name: a.Name, GPU: a.GPU, Remote: server.address}, false
			w.Memory, w.Share, w.Programs = &a.Memory, &a.Share, &programs
			if _, err := node.c.Ensure(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			own := api.Spec{VM: a.VM, Name: a.Name}
			renewed := func() { // by one that began after this
				t.Helper()
				for range 2 {
					last := node.vgpu(own).Upstream.Renewed
					until(t, "the node renews", func() bool { return node.vgpu(own).Upstream.Renewed.After(last) })
				}
			}
			// Five minutes of the server's clock, with a renewal in each of its terms.
			for range 15 {
				renewed()
				clock.pass(api.LeaseTerm - 10*time.Second)
				server.d.EndOverdue()
				if s := f.state(1); len(s.Reserved) != 1 || !s.Reserved[0].Leased || s.GPUs[0].Promised != 768<<20 {
					t.Fatalf("fenced, though it renews: %+v", s)
				}
			}
			renewed()
			// Nobody else has the memory, by a reservation or without.
			b := f.reservation("1-b", "share-2", "hostb", 512)
			refused(t, f.reserve(1, b), http.StatusInsufficientStorage)
			_, err := ask(t, f.hostb, wishOf(b))
			refused(t, err, http.StatusForbidden, "nothing is reserved")
			// Another controller leads, whose word is the newest whatever its clock says; the first
			// one's is none.
			f.state(2)
			refused(t, f.controller.Withdraw(t.Context(), 1, a), http.StatusPreconditionFailed, "newer controller")
			if err := f.reserve(2, a); err != nil {
				t.Fatal(err)
			}
			// The node is cut off: its lease ends after a term of the server's, and not before; the
			// reservation stays.
			node.stop()
			clock.pass(api.LeaseTerm - time.Second)
			server.d.EndOverdue()
			if s := f.state(2); !s.Reserved[0].Leased {
				t.Error("fenced within its term")
			}
			clock.pass(2 * time.Second)
			until(t, "its lease ends", func() bool {
				server.d.EndOverdue()
				s := f.state(2)
				if len(s.Reserved) != 1 || s.GPUs[0].Promised != 768<<20 {
					t.Fatalf("its memory is given away: %+v", s)
				}
				if s.Reserved[0].Leased {
					// A renewal that was on its way when the node ended gave it another term.
					clock.pass(api.LeaseTerm)
				}
				return !s.Reserved[0].Leased
			})
			refused(t, f.reserve(2, b), http.StatusInsufficientStorage)
			// It is back, and has a lease anew; then its claim is gone, and the other's is served.
			node.start()
			until(t, "the node has a lease again", func() bool {
				s := f.state(2)
				return len(s.Reserved) == 1 && s.Reserved[0].Leased
			})
			if err := f.controller.Withdraw(t.Context(), 2, a); err != nil {
				t.Fatal(err)
			}
			if err := f.reserve(2, b); err != nil {
				t.Fatal(err)
			}
			if _, err := ask(t, f.hostb, wishOf(b)); err != nil {
				t.Error(err)
			}
			if s := f.state(2); s.GPUs[0].Promised != 512<<20 {
				t.Errorf("%+v", s)
			}
		})
	}
}

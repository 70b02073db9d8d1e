package daemon_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
	"causeway/remote"
)

// lostLease is a host with a vGPU whose lease its server loses, how it is told by lose: it is gone
// for good.
func lostLease(t *testing.T, lose func(server *host)) (here, server *host, was remote.LeaseID) {
	t.Helper()
	dir := t.TempDir()
	server = newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "gpu1")).start().serves()
	here = newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "hosta"))
	here.cfg.Remote.Servers = []string{server.address}
	here.start()
	w := one
	w.Remote = api.RemoteAny
	w.Memory = 1 << 20
	v := here.ensure(w)
	here.tell(one, api.Status{Connected: true, Sessions: []api.Session{{ID: 1, State: "running"}}})
	lose(server)
	until(t, "the host knows", func() bool { return here.vgpu(one).Upstream.Lost })
	return here, server, v.Upstream.Lease
}

// forgets has a server be as if its machine was started anew.
func forgets(server *host) {
	pid := server.vgpu(far).PID
	server.stop()
	_ = syscall.Kill(pid, syscall.SIGKILL)
	left, _ := filepath.Glob(filepath.Join(server.cfg.RunDir, far.VM))
	for _, f := range left {
		if err := os.RemoveAll(f); err != nil {
			server.t.Fatal(err)
		}
	}
	server.start().serves()
}

// TestLeaseAnew: a vGPU whose server has forgotten its lease, or lost what it was of, has another
// when the programs of before have ended, and not before.
func TestLeaseAnew(t *testing.T) {
	t.Parallel()
	for what, lose := range map[string]func(*host){
		"the server was started anew":  forgets,
		"its device process has ended": func(server *host) { _ = syscall.Kill(server.vgpu(far).PID, syscall.SIGKILL) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			here, server, was := lostLease(t, lose)
			pid := here.vgpu(one).PID
			until(t, "it says that a program of before is there", func() bool {
				return strings.Contains(here.vgpu(one).Upstream.Error, "1 programs of the lease that is lost")
			})
			if v := here.vgpu(one); v.Upstream.Lease != was || !strings.Contains(v.Status.Unheld, "is lost") {
				t.Errorf("with a program of before: %+v", v.Upstream)
			}
			here.tell(one, api.Status{Connected: true, Sessions: []api.Session{}})
			until(t, "it has another lease, which is renewed", func() bool {
				u := here.vgpu(one).Upstream
				return !u.Lost && u.Lease != was && u.State != nil
			})
			v := here.vgpu(one)
			if v.PID != pid || v.Status.Unheld != "" || v.Status.GPU != v.Upstream.Lease.String() || v.Spec.Memory != 1<<20 {
				t.Errorf("%+v of process %d, with %d bytes; its device process goes on with %q, %q", v.Upstream, v.PID, v.Spec.Memory, v.Status.GPU, v.Status.Unheld)
			}
			hears(t, program(t, server, v.Upstream.Lease))
			if list := leasesOf(t, caller(t, server, here.files())); len(list) != 1 || list[0] != v.Upstream.Lease.String() {
				t.Errorf("the server has leases %v, not %v", list, v.Upstream.Lease)
			}
			here.tell(one, api.Status{Sessions: []api.Session{}})
			if err := here.c.Release(t.Context(), "vm1", "gpu0", false); err != nil {
				t.Error(err)
			}
			if left := server.below(); len(left) > 0 {
				t.Errorf("the server has %v", left)
			}
		})
	}
}

// TestLeaseAnewWaits: a server that has no room for another lease is asked again until it has, also
// by the next causewayd; what it says is to be seen.
func TestLeaseAnewWaits(t *testing.T) {
	t.Parallel()
	other := api.Spec{VM: "other", Name: "gpu0"}
	other.Memory = 1 << 30
	here, server, was := lostLease(t, func(server *host) {
		forgets(server)
		server.ensure(other)
	})
	here.tell(one, api.Status{Connected: true, Sessions: []api.Session{}})
	says := func() bool { return strings.Contains(here.vgpu(one).Upstream.Error, "GPU server "+server.address) }
	until(t, "it says why it has none", says)
	here.stop()
	here.start()
	until(t, "the next causewayd says it", says)
	if u := here.vgpu(one).Upstream; !u.Lost || u.Lease != was {
		t.Errorf("%+v", u)
	}
	if err := server.c.Release(t.Context(), other.VM, other.Name, false); err != nil {
		t.Fatal(err)
	}
	until(t, "it has another", func() bool { u := here.vgpu(one).Upstream; return !u.Lost && u.Lease != was })
}

// TestLeaseEndedStaysSo: what somebody ended at the server is not made again, and can be deleted
// and made again.
func TestLeaseEndedStaysSo(t *testing.T) {
	t.Parallel()
	here, server, was := lostLease(t, func(server *host) {
		if err := server.c.Release(server.t.Context(), far.VM, far.Name, false); err != nil {
			server.t.Fatal(err)
		}
	})
	here.tell(one, api.Status{Connected: true, Sessions: []api.Session{}})
	until(t, "it says why it has none", func() bool { return strings.Contains(here.vgpu(one).Upstream.Error, "ended at the server") })
	time.Sleep(200 * time.Millisecond) // ten times as long as between two renewals
	if u := here.vgpu(one).Upstream; !u.Lost || u.Lease != was || !strings.Contains(u.Error, "ended at the server") || len(server.below()) > 0 {
		t.Errorf("%+v, and the server has %v", u, server.below())
	}
	err := caller(t, server, here.files()).Do(t.Context(), http.MethodPost, "/v1/leases/"+was.String()+"/renew", api.LeaseRenewal{Epoch: 9}, nil)
	refused(t, err, http.StatusPreconditionFailed, "ended at the server", "make it again")
	here.tell(one, api.Status{Sessions: []api.Session{}})
	if err := here.c.Release(t.Context(), "vm1", "gpu0", false); err != nil {
		t.Fatal(err)
	}
	w := one
	w.Remote = api.RemoteAny
	if v := here.ensure(w); v.Upstream == nil || v.Upstream.Lost || v.Upstream.Lease == was {
		t.Errorf("%+v", v.Upstream)
	}
}

// TestLeasesComeAndGo: what a lease took of this process, connections to its server above all, is
// there no more when it has been given back.
func TestLeasesComeAndGo(t *testing.T) {
	dir := t.TempDir()
	server := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "gpu1")).start().serves()
	here := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "hosta"))
	here.cfg.Remote.Servers = []string{server.address}
	here.start()
	w := one
	w.Remote = api.RemoteAny
	w.Memory = 1 << 20
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := 0
	for n := range 10 {
		here.ensure(w)
		if err := here.c.Release(t.Context(), w.VM, w.Name, false); err != nil {
			t.Fatalf("the %dth lease: %v", n, err)
		}
		if n == 2 { // whatever stays is there by now
			before = open()
		}
	}
	// Less than what idle connections are kept for by either end.
	for end := time.Now().Add(20 * time.Second); open() > before+1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors, %d after the third lease", open(), before)
		}
	}
}

package daemon_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
	"causeway/host/daemon/lease"
	"causeway/remote"
)

// leasesOf are those that a host has of a server, by the server's book.
func leasesOf(t *testing.T, c *api.Client) (list []string) {
	t.Helper()
	if err := c.Do(t.Context(), http.MethodGet, "/v1/leases", nil, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// altered changes what a side of a lease has written down.
func altered(t *testing.T, path string, change func(*lease.File)) {
	t.Helper()
	f, err := lease.Read(path)
	if err == nil {
		change(f)
		err = f.Write(path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestLeaseThatIsNotGranted: of a lease whose vGPU does not start, or that the host cannot write
// down, nothing is left, in the server's book nor in its folder.
func TestLeaseThatIsNotGranted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := hostFiles(t, dir, "hosta")
	server := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "gpu1")).env(daemontest.FailEnv, "no GPU today").start().serves()
	c := caller(t, server, files)
	if _, err := ask(t, c, api.LeaseWish{VM: "vm1", Name: "gpu0"}); err == nil {
		t.Fatal("it is granted")
	}
	if list, left := leasesOf(t, c), server.below(); len(list) > 0 || len(left) > 0 {
		t.Errorf("of a vGPU that did not start there are leases %v and files %v", list, left)
	}
	if _, err := ask(t, c, api.LeaseWish{VM: "vm1", Name: "gpu0", Change: limitOf(1 << 40)}); err == nil || len(leasesOf(t, c)) > 0 || len(server.below()) > 0 {
		t.Errorf("%v; of a vGPU that has no place there are leases %v and files %v", err, leasesOf(t, c), server.below())
	}
	server.stop()
	server.address = ""
	server.env(daemontest.FailEnv, "").start().serves()

	here := newHost(t, daemontest.Soft(1<<30)).knownAs(files)
	here.cfg.Remote.Servers = []string{server.address}
	here.start()
	path := one.LeasePath(here.cfg.RunDir)
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	w := one.Wish()
	w.Remote = api.RemoteAny
	if v, err := here.c.Ensure(t.Context(), w); err == nil {
		t.Fatalf("%+v is there, with a lease that is nowhere", v)
	}
	if list, left := leasesOf(t, caller(t, server, files)), server.below(); len(list) > 0 || len(left) > 0 {
		t.Errorf("of a lease that the host did not take there are %v and files %v", list, left)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if v, err := here.c.Ensure(t.Context(), w); err != nil || len(leasesOf(t, caller(t, server, files))) != 1 {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestLeaseReplacedMeanwhile: a lease that is over when another takes its place is what ends, and
// not the other.
func TestLeaseReplacedMeanwhile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// So that its end takes a while.
	server, clock := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "gpu1")).env(daemontest.StubbornEnv, "1"), newClock()
	server.clock = clock.Now
	server.start().serves()
	c := caller(t, server, hostFiles(t, dir, "hosta"))
	w := api.LeaseWish{VM: "vm1", Name: "gpu0"}
	old, err := ask(t, c, w)
	if err != nil {
		t.Fatal(err)
	}
	clock.pass(old.Term)
	asked := make(chan api.Lease, 1)
	go func() {
		l, err := ask(t, c, w)
		if err != nil {
			t.Error(err)
		}
		asked <- l
	}()
	until(t, "the other takes its place", func() bool { return server.log.has("a lease is replaced") })
	server.d.EndOverdue()
	now := <-asked
	if list := leasesOf(t, c); len(list) != 1 || list[0] != now.ID.String() || !runs(server.vgpu(far).PID) {
		t.Errorf("there are %v, not %v", list, now.ID)
	}
	hears(t, program(t, server, now.ID))
	unleased(t, "of the one before", program(t, server, old.ID))
}

// TestLeaseWrittenByOthers: what a server finds written down of a lease has to be its vGPU's:
// otherwise that ends.
func TestLeaseWrittenByOthers(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*lease.File){
		"another host's": func(f *lease.File) { f.Host = "hostb" },
		"nobody's":       func(f *lease.File) { f.Host = "" },
		"no lease":       func(f *lease.File) { f.ID = remote.LeaseID{} },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			server, _ := leaseServer(t, dir) // on which no term ends
			files := hostFiles(t, dir, "hosta")
			if _, err := ask(t, caller(t, server, files), api.LeaseWish{VM: "vm1", Name: "gpu0"}); err != nil {
				t.Fatal(err)
			}
			pid := server.vgpu(far).PID
			server.stop()
			altered(t, far.LeasePath(server.cfg.RunDir), change)
			server.address = ""
			server.start().serves()
			until(t, "its device process ends", func() bool { return !runs(pid) })
			until(t, "nothing of it is left", func() bool { return len(server.below()) == 0 })
			if list := leasesOf(t, caller(t, server, files)); len(list) > 0 {
				t.Errorf("its leases are %v", list)
			}
		})
	}
}

// TestServerLostForLong: a host that has not reached its GPU server for a lease's term takes it for
// lost, and says so to its device process; before, it does not.
func TestServerLostForLong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "gpu1")).start().serves()
	here := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "hosta"))
	here.cfg.Remote.Servers = []string{server.address}
	here.start()
	w := one
	w.Remote = api.RemoteAny
	here.ensure(w)
	server.stop()
	until(t, "the host notices", func() bool { return here.vgpu(one).Upstream.Error != "" })
	if up := here.vgpu(one).Upstream; up.Lost && time.Since(up.Renewed) < api.LeaseTerm {
		t.Errorf("it is lost at once: %+v", up)
	}
	here.stop()
	altered(t, one.LeasePath(here.cfg.RunDir), func(f *lease.File) { f.Upstream.Renewed = time.Now().Add(-api.LeaseTerm - time.Second) })
	here.start()
	until(t, "it is lost, and its device process knows", func() bool {
		v := here.vgpu(one)
		return v.Upstream.Lost && v.Status != nil && v.Status.Unheld != ""
	})
	server.start().serves()
	until(t, "it is there again", func() bool {
		v := here.vgpu(one)
		return !v.Upstream.Lost && v.Upstream.Error == "" && v.Status.Unheld == ""
	})
}

package daemon_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
	"causeway/remote/mtls"
)

// TestLeaseOfANewCertificate: a host whose certificate is revoked is refused, and once it has
// another it renews by that, without being started anew.
func TestLeaseOfANewCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "gpu1")).start().serves()
	here := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "hosta"))
	here.cfg.Remote.Servers = []string{server.address}
	here.start()
	w := one
	w.Remote, w.Memory = server.address, 1<<20
	was := here.ensure(w).Upstream.Lease
	until(t, "it is renewed", func() bool { return here.vgpu(one).Upstream.State != nil })
	a, err := mtls.LoadAuthority(dir)
	if err == nil {
		_, err = a.Revoke("hosta")
	}
	if err != nil {
		t.Fatal(err)
	}
	until(t, "it is refused", func() bool { return strings.Contains(here.vgpu(one).Upstream.Error, "revoked") })
	hostFiles(t, dir, "hosta")
	until(t, "it is renewed again", func() bool { return here.vgpu(one).Upstream.Error == "" })
	if is := here.vgpu(one).Upstream.Lease; is != was {
		t.Errorf("lease %v, it was %v", is, was)
	}
}

// TestManyLeases: a host that has more leases at a server than that takes connections of it renews
// them all, also when they begin at once.
func TestManyLeases(t *testing.T) {
	t.Parallel()
	const many = 20
	dir := t.TempDir()
	server := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "gpu1")).start().serves()
	here := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "hosta"))
	here.cfg.Remote.Servers = []string{server.address}
	here.start()
	var begin sync.WaitGroup
	specs := make([]api.Spec, many)
	for i := range specs {
		specs[i] = api.Spec{VM: fmt.Sprint("vm", i), Name: "gpu0"}
		w := api.Wish{VM: specs[i].VM, Name: specs[i].Name, Remote: server.address, Change: limitOf(1 << 20)}
		begin.Go(func() {
			if _, err := here.c.Ensure(t.Context(), w); err != nil {
				t.Error(err)
			}
		})
	}
	begin.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, s := range specs {
		last := here.vgpu(s).Upstream.Renewed
		until(t, s.VM+" is renewed", func() bool { return here.vgpu(s).Upstream.Renewed.After(last) })
	}
	if _, err := here.c.Servers(t.Context()); err != nil {
		t.Error(err)
	}
	if server.log.has("too many connections") {
		t.Error("the server refuses connections")
	}
}

package daemon_test

import (
	"testing"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
)

// TestSharesOfALease: share and cap, which the server holds, are shown at the VM's host as they are
// there: as agreed at first, after each change, and when an operator of the server changes them.
func TestSharesOfALease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "gpu1"))
	server.cfg.Scheduler.Enabled = true
	server.start().serves()
	here := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "hosta"))
	here.cfg.Remote.Servers = []string{server.address}
	here.start()
	shown := func(what string, v api.VGPU, share, limit uint32) {
		t.Helper()
		there := server.vgpu(far).Status.Limits
		if l := v.Status.Limits; l.Share != share || l.Cap != limit || there.Share != share || there.Cap != limit {
			t.Errorf("%s: share %d, cap %d; the server has %d and %d", what, l.Share, l.Cap, there.Share, there.Cap)
		}
	}
	v, err := here.c.Ensure(t.Context(), api.Wish{VM: "vm1", Name: "gpu0", Remote: api.RemoteAny, Change: api.Change{Profile: "quarter"}})
	if err != nil {
		t.Fatal(err)
	}
	shown("made", v, 25, 0)
	set := func(what string, at *host, of api.Spec, text string) {
		t.Helper()
		if _, err := at.c.SetLimits(t.Context(), of.VM, of.Name, change(t, text)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	set("before a renewal", here, one, `{"share":50,"cap":"20%"}`)
	shown("changed", here.vgpu(one), 50, 20)
	until(t, "it is renewed", func() bool { return here.vgpu(one).Upstream.State != nil })
	set("after a renewal", here, one, `{"share":60,"cap":"none"}`)
	shown("changed after a renewal", here.vgpu(one), 60, 0)
	set("at the server", server, far, `{"share":70,"cap":"30%"}`)
	until(t, "the host hears of it", func() bool { return here.vgpu(one).Status.Limits.Share == 70 })
	shown("changed at the server", here.vgpu(one), 70, 30)
}

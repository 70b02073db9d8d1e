package daemon_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/config"
	"causeway/host/daemon/daemontest"
	"causeway/remote"
)

// is has a fake device process say how its VM is.
func (m *moving) is(h *host, migrating, runs bool, sessions ...api.Session) {
	m.t.Helper()
	c := api.NewClient(h.vgpu(one).Control)
	defer c.Close()
	said := map[string]any{"connected": true, "migrating": migrating, "runs": runs, "sessions": sessions}
	if err := c.Do(m.t.Context(), http.MethodPut, "/fake", said, nil); err != nil {
		m.t.Fatal(err)
	}
}

// waits has the other host have a vGPU for the VM, with a lease of its own, to which a QEMU is
// connected that waits.
func (m *moving) waits() remote.LeaseID {
	w := one
	w.Remote, w.Memory = m.server.address, 1<<30
	v := m.next.ensure(w)
	m.is(m.next, false, false)
	return v.Upstream.Lease
}

func (m *moving) lease(h *host) remote.LeaseID {
	u := h.vgpu(one).Upstream
	if u == nil {
		return remote.LeaseID{}
	}
	return u.Lease
}

var program1 = api.Session{ID: 1, State: "running"}

// peers has the first host ask these for VMs that leave.
func (m *moving) peers(list ...string) {
	m.t.Helper()
	m.here.cfg.Migration.Peers = list
	if _, err := m.here.d.Reload(m.here.cfg); err != nil {
		m.t.Fatal(err)
	}
}

// TestHandAhead: a lease goes to the peer that awaits the VM when QEMU begins to send it. It is
// that host's when the VM has come, and stays here if the VM does, whose vGPU there has a lease of
// its own again, and can await it again.
func TestHandAhead(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.peers("127.0.0.1:1", m.at)
	own := m.waits()
	for n := range 2 {
		m.again("it may be taken over", func() { m.is(m.here, true, true, program1) }, func() bool { return m.heirIs("hostb") })
		if l := m.lease(m.next); l != m.v.Upstream.Lease {
			t.Errorf("try %d: the other host has %v", n, l)
		}
		m.is(m.here, false, true, program1)
		until(t, "the other host has one of its own again", func() bool {
			u := m.next.vgpu(one)
			return !u.Upstream.Lost && u.Upstream.Lease != m.v.Upstream.Lease && u.Status != nil && u.Status.GPU == u.Upstream.Lease.String() && u.Status.Unheld == ""
		})
		if l := m.lease(m.next); l == own || !m.has("hosta") || m.here.vgpu(one).Upstream.Lost || m.here.vgpu(one).Status.Heir != "" {
			t.Errorf("try %d: %v, %+v", n, l, m.here.vgpu(one).Upstream)
		}
	}
	m.again("it may be taken over", func() { m.is(m.here, true, true, program1) }, func() bool { return m.heirIs("hostb") })
	m.is(m.here, true, false, program1)
	m.is(m.next, false, true, program1)
	until(t, "it is taken over", func() bool { return m.has("hostb") })
	if err := m.here.c.Release(t.Context(), "vm1", "gpu0", false); err != nil {
		t.Error(err)
	}
	if u := m.next.vgpu(one).Upstream; u.Lost || u.Lease != m.v.Upstream.Lease {
		t.Errorf("%+v", u)
	}
	if err := m.next.c.Release(t.Context(), "vm1", "gpu0", false); err != nil {
		t.Error(err)
	}
	if gpus, err := m.server.c.GPUs(t.Context()); err != nil || gpus[0].Promised != 0 {
		t.Errorf("the server has promised %v, %v", gpus, err)
	}
}

// again has a migration begin, or go on, and waits until it has come so far. On a machine with much
// else to do the other host may be asked in vain for as long as a VM can wait: then another begins.
func (m *moving) again(what string, begin func(), come func() bool) {
	m.t.Helper()
	// Others are always asked in vain.
	no := fmt.Sprintf("a lease is not handed to this peer\" vgpu=%s host=%s ", m.v.Spec.Key(), m.at)
	vain := m.here.log.times(no)
	begin()
	until(m.t, what, func() bool {
		if n := m.here.log.times(no); n > vain {
			vain = n
			m.is(m.here, false, true, program1)
			m.is(m.here, true, true, program1)
		}
		return come()
	})
}

// heirIs reports whether the first host's device process has it that this one may take over its
// lease. One that answers late says nothing.
func (m *moving) heirIs(name string) bool {
	m.t.Helper()
	st := m.here.vgpu(one).Status
	return st != nil && st.Heir == name
}

// TestHandedAgain: a migration that begins while the lease of the last one is being taken back has
// it handed over behind that, and watched again.
func TestHandedAgain(t *testing.T) {
	t.Parallel()
	hold := filepath.Join(t.TempDir(), "hold")
	m := movingHosts(t, t.TempDir(), 4<<30, func(*config.Remote) {})
	m.here.stop()
	m.here.obey = 10 * time.Minute // the device process is held for as long as the test takes
	m.here.env(daemontest.HoldEnv, hold).start()
	m.peers(m.at)
	w := one
	w.Remote, w.Memory = m.server.address, 1<<30
	m.v = m.here.ensure(w)
	m.waits()
	m.again("it may be taken over", func() { m.is(m.here, true, true, program1) }, func() bool { return m.heirIs("hostb") })
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.is(m.here, false, true, program1)
	until(t, "it is being taken back", func() bool { _, err := os.Stat(hold + ".held"); return err == nil })
	m.is(m.here, true, true, program1)
	until(t, "who hands it over again waits", func() bool { return m.here.d.Handing(one.Key()) == 2 })
	m.again("it may be taken over again", func() {
		if err := os.Remove(hold); err != nil {
			t.Fatal(err)
		}
	}, func() bool { return m.here.log.times("may be taken over with its VM") == 2 })
	until(t, "the device process has it so", func() bool { return m.heirIs("hostb") })
	if m.lease(m.next) != m.v.Upstream.Lease {
		t.Errorf("%+v", m.next.vgpu(one).Upstream)
	}
	m.is(m.here, false, true, program1)
	until(t, "it is taken back again", func() bool { return m.heirIs("") })
	if !m.has("hosta") || m.here.vgpu(one).Upstream.Lost {
		t.Errorf("%+v", m.here.vgpu(one).Upstream)
	}
}

// TestHandAheadRefused: the device process is told why no host may take the lease over, so that the
// migration ends by that.
func TestHandAheadRefused(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	for _, c := range []struct {
		name  string
		begin func()
		want  string
	}{
		{"no peers", func() { m.peers() }, "migration.peers"},
		{"nobody there", func() { m.peers("127.0.0.1:1") }, "127.0.0.1:1"},
		{"no vGPU there", func() { m.peers(m.at) }, "no vGPU vm1/gpu0"},
		{"not awaited there", func() { m.waits(); m.is(m.next, false, true) }, "awaits no VM"},
	} {
		m.is(m.here, false, true, program1)
		c.begin()
		m.is(m.here, true, true, program1)
		until(t, c.name, func() bool { return strings.Contains(m.here.vgpu(one).Status.CopyEnd, c.want) })
		if h := m.here.vgpu(one).Status.Heir; h != "" || !m.has("hosta") {
			t.Errorf("%s: %q may take it over", c.name, h)
		}
	}
}

// TestHandedPhases: causewayds that end between a lease's being handed over and the VM's arrival.
// The VM is where it is, with its lease, and the other host's vGPU is as before, or gone.
func TestHandedPhases(t *testing.T) {
	t.Parallel()
	restart := func(h *host, m *moving) {
		h.stop()
		h.start()
		if h == m.server {
			h.serves()
		}
	}
	for _, made := range []bool{false, true} {
		for _, arrives := range []bool{false, true} {
			m := newMoving(t)
			if !made {
				m.waits()
			}
			m.is(m.here, false, true, program1)
			m.handsOver(api.Handover{Host: m.at})
			for _, h := range []*host{m.here, m.next, m.server} {
				restart(h, m)
			}
			if l := m.lease(m.next); l != m.v.Upstream.Lease || !m.has("hosta") {
				t.Fatalf("made %v: after the restarts the other host has %v", made, l)
			}
			if arrives {
				m.is(m.here, false, false, program1)
				m.is(m.next, false, true, program1)
				until(t, "it is taken over", func() bool { return m.has("hostb") })
				until(t, "the first is told", func() bool { return m.here.vgpu(one).Upstream.Lost })
				continue
			}
			m.handsOver(api.Handover{})
			if made {
				until(t, "nothing is left there", func() bool { l, err := m.next.c.VGPUs(t.Context()); return err == nil && len(l) == 0 })
			} else {
				until(t, "it has a lease of its own again", func() bool { u := m.next.vgpu(one).Upstream; return !u.Lost && u.Lease != m.v.Upstream.Lease })
			}
			if u := m.here.vgpu(one).Upstream; u.Lost || !m.has("hosta") {
				t.Errorf("made %v: %+v", made, u)
			}
		}
	}
}

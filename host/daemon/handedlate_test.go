package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
	"causeway/remote"
)

// slow has the other host's device process wait with another lease while there is a file, whose
// name it returns. It has obey to answer.
func (m *moving) slow(obey time.Duration) (hold string, own remote.LeaseID) {
	m.t.Helper()
	hold = filepath.Join(m.t.TempDir(), "hold")
	m.next.stop()
	m.next.obey = obey
	m.next.env(daemontest.HoldRelayEnv, hold).start().awaitsHosts(m.next.files())
	m.at = m.next.address
	m.peers(m.at)
	return hold, m.waits()
}

func (m *moving) holds(hold string) {
	m.t.Helper()
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *moving) lets(hold string) {
	m.t.Helper()
	if err := os.Remove(hold); err != nil {
		m.t.Fatal(err)
	}
}

func isThere(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// TestHandedInFull: a hand-over that has begun is done to its end, also if who asked is gone
// meanwhile: the VM may have come, and its lease is this host's.
func TestHandedInFull(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	hold, own := m.slow(10 * time.Minute)
	m.holds(hold)
	m.again("it is being handed over", func() { m.is(m.here, true, true, program1) }, func() bool { return isThere(hold + ".held") })
	m.is(m.here, true, false, program1)
	m.is(m.next, false, true, program1)
	until(t, "it is taken over", func() bool { return m.has("hostb") })
	if err := m.here.c.Release(t.Context(), "vm1", "gpu0", false); err != nil {
		t.Error(err)
	}
	until(t, "who asked waits no more", func() bool { return m.here.d.Handing(one.Key()) == 0 })
	time.Sleep(200 * time.Millisecond) // of which the other host hears a little later
	m.lets(hold)
	until(t, "it goes on with it", func() bool {
		v := m.next.vgpu(one)
		return v.Status != nil && v.Status.GPU == m.v.Upstream.Lease.String() || m.lease(m.next) == own
	})
	if u := m.next.vgpu(one).Upstream; u.Lost || u.Lease != m.v.Upstream.Lease || !m.has("hostb") {
		t.Errorf("%+v", u)
	}
	until(t, "its own has ended", func() bool { gpus, err := m.server.c.GPUs(t.Context()); return err == nil && gpus[0].Promised == 1<<30 })
	if err := m.next.c.Release(t.Context(), "vm1", "gpu0", false); err != nil {
		t.Error(err)
	}
	if gpus, err := m.server.c.GPUs(t.Context()); err != nil || gpus[0].Promised != 0 {
		t.Errorf("the server has promised %v, %v", gpus, err)
	}
}

// TestHandedInVain: a device process that does not say in time that it goes on with the lease of
// the VM that comes has its own again, of which it is told until it answers.
func TestHandedInVain(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	hold, own := m.slow(time.Second)
	m.holds(hold)
	m.again("it is being handed over", func() { m.is(m.here, true, true, program1) }, func() bool { return isThere(hold + ".held") })
	until(t, "the first host hears why it is not", func() bool { return m.here.log.has("/v1/relay") })
	if u := m.next.vgpu(one).Upstream; u.Lost || u.Lease != own {
		t.Errorf("the other host has %+v", u)
	}
	if !m.has("hosta") || m.here.vgpu(one).Upstream.Lost {
		t.Errorf("%+v", m.here.vgpu(one).Upstream)
	}
	m.lets(hold)
	until(t, "its device process hears so", func() bool { v := m.next.vgpu(one); return v.Status != nil && v.Status.GPU == own.String() })
}

// TestHandedToTheNext: a causewayd that ends in the middle of a hand-over does not wait for the
// device process; the next one takes up what became of it.
func TestHandedToTheNext(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	hold, _ := m.slow(10 * time.Minute)
	m.holds(hold)
	m.again("it is being handed over", func() { m.is(m.here, true, true, program1) }, func() bool { return isThere(hold + ".held") })
	m.next.stop()
	m.lets(hold)
	m.is(m.here, false, true, program1)
	m.next.start()
	until(t, "it has a lease of its own", func() bool {
		v := m.next.vgpu(one)
		return !v.Upstream.Lost && v.Upstream.Lease != m.v.Upstream.Lease && v.Status != nil && v.Status.GPU == v.Upstream.Lease.String()
	})
	if !m.has("hosta") || m.here.vgpu(one).Upstream.Lost {
		t.Errorf("%+v", m.here.vgpu(one).Upstream)
	}
}

// TestLeaseOfItsOwnLater: a vGPU that awaited a VM in vain, and whose device process does not
// answer at once, has a lease of its own again when it does.
func TestLeaseOfItsOwnLater(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	hold, own := m.slow(time.Second)
	m.again("it may be taken over", func() { m.is(m.here, true, true, program1) }, func() bool { return m.heirIs("hostb") })
	m.holds(hold)
	m.is(m.here, false, true, program1)
	until(t, "it has none", func() bool { u := m.next.vgpu(one).Upstream; return u.Lost && strings.Contains(u.Error, "/v1/relay") })
	m.lets(hold)
	var v api.VGPU
	until(t, "it has one of its own again", func() bool {
		v = m.next.vgpu(one)
		return !v.Upstream.Lost && v.Status != nil && v.Status.GPU == v.Upstream.Lease.String() && v.Status.Unheld == ""
	})
	if l := v.Upstream.Lease; l == own || l == m.v.Upstream.Lease || !m.has("hosta") {
		t.Errorf("%v", l)
	}
}

package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon/config"
	"causeway/host/daemon/daemontest"
)

// moving is a GPU server, a host with a vGPU there, and one to which its VM is to move.
type moving struct {
	t                  *testing.T
	server, here, next *host
	at                 string // where next awaits other hosts
	v                  api.VGPU
}

func newMoving(t *testing.T, allow ...string) *moving {
	t.Helper()
	m := movingHosts(t, t.TempDir(), 4<<30, func(r *config.Remote) { r.Allow = allow })
	w := one
	w.Remote, w.Memory = m.server.address, 1<<30
	m.v = m.here.ensure(w)
	return m
}

// movingHosts is a GPU server with a GPU of that memory, as set has it, and two hosts, hosta and
// hostb, the second of which takes VMs.
func movingHosts(t *testing.T, dir string, memory uint64, set func(*config.Remote)) *moving {
	t.Helper()
	m := &moving{t: t, server: newHost(t, daemontest.Soft(memory)).knownAs(hostFiles(t, dir, "gpu1"))}
	set(&m.server.cfg.Remote)
	m.server.start().serves()
	host := func(name string) *host {
		h := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, name))
		h.cfg.Remote.Servers = []string{m.server.address}
		return h.start()
	}
	m.here, m.next = host("hosta"), host("hostb")
	m.next.awaitsHosts(hostFiles(t, dir, "hostb"))
	m.at = m.next.address
	return m
}

func (m *moving) handOver(to api.Handover) error {
	return m.here.c.HandOver(m.t.Context(), &m.v.Spec, to)
}

// handsOver asks until it is done: on a crowded machine a server may take longer to answer than it
// has.
func (m *moving) handsOver(to api.Handover) {
	m.t.Helper()
	until(m.t, fmt.Sprintf("the lease is handed to %q", to.Host), func() bool {
		err := m.handOver(to)
		if err != nil && !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
			m.t.Fatal(err)
		}
		return err == nil
	})
}

// runs has a fake device process say that a program runs.
func (m *moving) runs(h *host) {
	m.t.Helper()
	v := h.vgpu(one)
	c := api.NewClient(v.Control)
	defer c.Close()
	st := *v.Status
	st.Connected, st.Sessions = true, []api.Session{{ID: 1, State: "running"}}
	if err := c.Do(m.t.Context(), http.MethodPut, "/fake", st, nil); err != nil {
		m.t.Fatal(err)
	}
}

func (m *moving) has(name string) bool { return m.server.vgpu(far).Spec.Lease == name }

// TestHandOver: another host readies a vGPU with the lease of a VM's that is about to move there,
// with its keys; the lease is its own when programs run there, and the first host's is over.
func TestHandOver(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		m := newMoving(t)
		if waits { // with a lease of its own
			w := one
			w.Remote, w.Memory = m.server.address, 1<<30
			m.next.ensure(w)
		}
		m.handsOver(api.Handover{Host: m.at})
		there := m.next.vgpu(one)
		if there.Upstream == nil || there.Upstream.Lease != m.v.Upstream.Lease || there.Spec.Memory != 1<<30 {
			t.Errorf("%+v, %+v", there.Spec, there.Upstream)
		}
		if waits && there.Status.GPU != m.v.Upstream.Lease.String() {
			t.Errorf("its device process goes on with %q", there.Status.GPU)
		}
		if h := m.here.vgpu(one).Status.Unheld; h != "hostb" {
			t.Errorf("the device process gives out programs for %q", h)
		}
		if gpus, err := m.server.c.GPUs(t.Context()); err != nil || gpus[0].Promised != 1<<30 {
			t.Errorf("%v, %v", gpus, err)
		}
		if !m.has("hosta") {
			t.Error("it is another's although no program runs there")
		}
		m.runs(m.next)
		until(t, "it is taken over", func() bool { return m.has("hostb") })
		until(t, "the first is told", func() bool { u := m.here.vgpu(one).Upstream; return u.Lost && strings.Contains(u.Error, "hostb") })
		if err := m.here.c.Release(t.Context(), "vm1", "gpu0", false); err != nil {
			t.Error(err)
		}
		w := one
		w.Remote, w.Memory = m.server.address, 1<<30
		if v := m.here.ensure(w); v.Upstream.Lease == m.v.Upstream.Lease || !m.has("hostb") {
			// Beside the one that left.
			t.Errorf("%+v", v.Upstream)
		}
		c := program(t, m.server, m.v.Upstream.Lease)
		hears(t, c)
		if err := m.next.c.Release(t.Context(), "vm1", "gpu0", false); err != nil {
			t.Error(err)
		}
		gone(t, "the lease has ended", c)
		until(t, "the keys are gone at the server", func() bool {
			// Which removes them behind the connection's end, and was asked for a bounded time.
			_, err := os.Stat(far.LeasePath(m.server.cfg.RunDir))
			return errors.Is(err, os.ErrNotExist)
		})
	}
}

// TestHandOverLast: the device process gives out programs only when the other host is ready to go
// on with them: what it gives out may arrive at once.
func TestHandOverLast(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.next.env(daemontest.DelayEnv, "300ms")
	if _, err := m.next.d.Reload(m.next.cfg); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- m.handOver(api.Handover{Host: m.at}) }()
	until(t, "the device process gives out programs", func() bool { return m.here.vgpu(one).Status.Unheld == "hostb" })
	if v, err := m.next.c.VGPU(t.Context(), "vm1", "gpu0"); err != nil || v.State != api.Waiting || v.Upstream.Lease != m.v.Upstream.Lease {
		t.Errorf("the other host has %+v, %v", v, err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestHandOverCalledOff: a VM that stays keeps its lease; what was readied for it ends.
func TestHandOverCalledOff(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	for range 2 {
		m.handsOver(api.Handover{Host: m.at})
		m.handsOver(api.Handover{})
		until(t, "nothing is left there", func() bool { l, err := m.next.c.VGPUs(t.Context()); return err == nil && len(l) == 0 })
		if u := m.here.vgpu(one); u.Upstream.Lost || !m.has("hosta") || u.Status.Unheld != "" {
			t.Errorf("%+v", u.Upstream)
		}
	}
}

// TestHandOverLeft: a host that is left by its VM, in which no program runs, leaves the lease to
// the other.
func TestHandOverLeft(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.handsOver(api.Handover{Host: m.at})
	if err := m.here.c.Release(t.Context(), "vm1", "gpu0", false); err != nil {
		t.Fatal(err)
	}
	if !m.has("hostb") || m.next.vgpu(one).Upstream.Lost {
		t.Error("the lease has not moved")
	}
}

// TestHandOverRefused: what is in the way is said, by name, before a VM moves, and the lease stays.
func TestHandOverRefused(t *testing.T) {
	t.Parallel()
	m := newMoving(t, "hosta", "hostb")
	local := api.Wish{VM: "vm1", Name: "gpu0"}
	for _, c := range []struct {
		name  string
		begin func()
		to    api.Handover
		want  string
	}{
		{"nobody there", nil, api.Handover{Host: "127.0.0.1:1"}, "127.0.0.1:1"},
		{"not awaited", nil, api.Handover{Host: m.at, Awaited: true}, "no vGPU vm1/gpu0"},
		{"a GPU there", func() { m.next.ensure(api.Spec{VM: local.VM, Name: local.Name}) }, api.Handover{Host: m.at}, "not on a GPU server"},
	} {
		if c.begin != nil {
			c.begin()
		}
		if err := m.handOver(c.to); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if u := m.here.vgpu(one); u.Status.Unheld != "" || !m.has("hosta") {
			t.Errorf("%s: it may be taken over by %q", c.name, u.Status.Unheld)
		}
	}
	other := newMoving(t, "hosta")
	if err := other.handOver(api.Handover{Host: other.at}); err == nil || !strings.Contains(err.Error(), "remote.allow does not name the host hostb") {
		t.Errorf("a host that the server does not serve: %v", err)
	}
}

package daemon_test

import (
	"net/http"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
)

// roomOf asks a fake device process.
func (h *host) roomOf(s api.Spec) (st api.RoomStatus) {
	h.t.Helper()
	c := api.NewClient(s.ControlPath(h.cfg.RunDir))
	defer c.Close()
	if err := c.Do(h.t.Context(), http.MethodGet, "/v1/room", nil, &st); err != nil {
		h.t.Fatal(err)
	}
	return st
}

// needs has a session of a fake device process need room.
func (h *host) needs(s api.Spec, n api.Need) {
	h.t.Helper()
	c := api.NewClient(s.ControlPath(h.cfg.RunDir))
	defer c.Close()
	if err := c.Do(h.t.Context(), http.MethodPut, "/fake/room", map[string]any{"needs": []api.Need{n}}, nil); err != nil {
		h.t.Fatal(err)
	}
}

// TestSwapper: with overcommit device processes begin without room, and get it, the idle sessions'
// of others too; also from a causewayd that found them. What no suspension could make room for is
// denied.
func TestSwapper(t *testing.T) {
	const gib = 1 << 30
	h := newHost(t, daemontest.Soft(gib))
	h.cfg.Placement.Overcommit = 2
	h.start()
	a := api.Spec{VM: "vm1", Name: "gpu0", GPU: "soft", Limits: api.Limits{Memory: gib}}
	b := api.Spec{VM: "vm2", Name: "gpu0", GPU: "soft", Limits: api.Limits{Memory: gib}}
	for _, s := range []api.Spec{a, b} {
		h.ensure(s)
		if st := h.roomOf(s); st.Room != 1 {
			t.Errorf("it begins with room for %d bytes", st.Room)
		}
	}
	_, err := h.c.Ensure(t.Context(), api.Spec{VM: "vm3", Name: "gpu0", GPU: "soft", Limits: api.Limits{Memory: gib}}.Wish())
	refused(t, err, 507, "2 GiB", "2 vGPUs")
	met := func(s api.Spec, used uint64) {
		t.Helper()
		until(t, "room is given", func() bool { st := h.roomOf(s); return len(st.Needs) == 0 && st.Used == used })
	}
	h.needs(a, api.Need{Session: 1, Bytes: gib * 3 / 4})
	met(a, gib*3/4)
	h.stop()
	h.start()
	h.needs(b, api.Need{Session: 2, Bytes: gib / 2})
	met(b, gib/2)
	if st := h.roomOf(a); st.Used != 0 || len(st.Sessions) != 0 || st.Room > gib/2 {
		t.Errorf("%+v", st)
	}
	h.needs(a, api.Need{Session: 3, Bytes: gib + 1})
	met(a, 0)
	if n := h.vgpu(a).Status.Swaps; n.Denied != 1 || n.Out != 1 {
		t.Errorf("%+v", n)
	}
	if n := h.vgpu(b).Status.Swaps; n.Out != 0 {
		t.Errorf("%+v", n)
	}
}

// TestNoSwapper: without overcommit, and on several GPUs, vGPUs have all of their limit.
func TestNoSwapper(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).start()
	h.ensure(one)
	if st := h.roomOf(one); st.Room != 0 {
		t.Errorf("%+v", st)
	}
}

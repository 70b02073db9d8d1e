package daemon_test

import (
	"slices"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
)

// TestMove: the promise goes along, also across a restart; what cannot be is refused before the
// device process hears of it, and what that refuses leaves everything as it was.
func TestMove(t *testing.T) {
	m := daemontest.Real(3, "NVIDIA H200", 2<<30)
	h := newHost(t, m).start()
	v := h.ensure(roomy)
	to := func(key, gpu string) error {
		_, err := h.c.Move(t.Context(), "vm1", key, api.Relocation{GPU: gpu})
		return err
	}
	h.tell(roomy, api.Status{Connected: true, UUID: v.GPU})
	refused(t, to("gpu9", "1"), 404, "gpu9")
	refused(t, to("gpu0", "7"), 404, "7")
	refused(t, to("gpu0", v.GPU), 409, "already")
	_, err := h.c.Move(t.Context(), "vm1", "gpu0", api.Relocation{GPU: "1", Throttle: true})
	refused(t, err, 400, "held back")
	there := daemontest.UUID(1)
	if v.GPU == there {
		there = daemontest.UUID(0)
	}
	h.tell(roomy, api.Status{Connected: true, UUID: v.GPU, Sessions: []api.Session{{ID: 1, Program: "stays"}}})
	refused(t, to("gpu0", there), 409, "a program stays")
	promised := func(want string) {
		t.Helper()
		list, err := h.c.GPUs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range list {
			if on := slices.Contains(g.VGPUs, "vm1/gpu0"); on != (g.ID == want) || on && g.Promised == 0 || !on && len(g.VGPUs) == 0 && g.Promised > 0 {
				t.Errorf("of GPU %s %d bytes are promised, to %v", g.ID, g.Promised, g.VGPUs)
			}
		}
		if got := h.vgpu(roomy).GPU; got != want {
			t.Errorf("it is on %s, want %s", got, want)
		}
	}
	promised(v.GPU)
	h.tell(roomy, api.Status{Connected: true, UUID: v.GPU, Sessions: []api.Session{{ID: 1, Program: "goes"}}})
	if err := to("gpu0", there); err != nil {
		t.Fatal(err)
	}
	promised(there)
	h.stop()
	h.start()
	promised(there)
	// One that moved while nobody looked.
	h.stop()
	h.tell(roomy, api.Status{Connected: true, UUID: daemontest.UUID(2)})
	h.start()
	promised(daemontest.UUID(2))
	if err := h.c.Drain(t.Context(), daemontest.UUID(0)); err != nil {
		t.Fatal(err)
	}
	refused(t, to("gpu0", daemontest.UUID(0)), 409, "drained")
	h.ensure(api.Spec{VM: "vm2", Name: "gpu0", GPU: daemontest.UUID(1), Limits: api.Limits{Memory: 3 << 29}})
	refused(t, to("gpu0", daemontest.UUID(1)), 507, "do not fit")
	if err := h.c.Drain(t.Context(), daemontest.UUID(1)); err != nil { // which another vGPU is on
		t.Fatal(err)
	}
	refused(t, to("gpu0", daemontest.UUID(1)), 409, "drained")
	promised(daemontest.UUID(2))
}

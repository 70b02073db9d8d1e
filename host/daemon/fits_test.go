package daemon

import (
	"net/http"
	"syscall"
	"testing"

	"causeway/host/api"
	"causeway/host/limit"
)

// TestProfilesWhereTheyFit: a part of a GPU is placed where that much is free, or as much as is
// named in its place; a lease that nobody has reserved has no more than is left to such.
func TestProfilesWhereTheyFit(t *testing.T) {
	const gib = 1 << 30
	r := Reading{GPUs: []api.GPU{{ID: "GPU-a", Backend: "cuda", Memory: 8 * gib, NUMA: -1, Used: 5 * gib}}}
	memory := func(n uint64) *limit.Memory { m := limit.Memory(n); return &m }
	for what, c := range map[string]struct {
		lease  string
		change api.Change
		status int
	}{
		"half of it":           {"", api.Change{Profile: "half"}, http.StatusInsufficientStorage},
		"a quarter":            {"", api.Change{Profile: "quarter"}, 0},
		"half, of less memory": {"", api.Change{Profile: "half", Memory: memory(gib)}, 0},
		"as much as is free":   {"", api.Change{Memory: memory(3 * gib)}, 0},
		"more":                 {"", api.Change{Memory: memory(3*gib + 1)}, http.StatusInsufficientStorage},
		"what is for others":   {"hosta", api.Change{Memory: memory(gib)}, 0},
		"more than that":       {"hosta", api.Change{Memory: memory(gib + 1)}, http.StatusInsufficientStorage},
	} {
		d := bare(t)
		d.cfg.Profiles, d.cfg.Remote.Fleet, d.cfg.Remote.Unreserved = limit.Profiles(), []string{"fleet"}, gib
		spec := api.Spec{VM: "vm1", Name: "gpu0", GPU: "any", Lease: c.lease}
		spec.Limits = c.change.On(spec.Limits)
		if _, err := d.placeVGPU(r, &vgpu{rec: record{Spec: spec}}, c.change); status(err) != c.status {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestOwnPromise: what a vGPU is promised does not stand in its own way where it is to be made
// anew; what another is does.
func TestOwnPromise(t *testing.T) {
	const gib = 1 << 30
	r := Reading{GPUs: []api.GPU{{ID: "GPU-a", Backend: "cuda", Memory: 8 * gib, NUMA: -1}}}
	d := bare(t)
	has := func(vm string, n uint64) *vgpu {
		v := &vgpu{rec: record{Spec: api.Spec{VM: vm, Name: "gpu0", GPU: "any", Limits: api.Limits{Memory: n}}, GPU: "GPU-a"}}
		d.add(v)
		return v
	}
	v := has("vm1", 6*gib)
	has("vm2", gib)
	for n, fits := range map[uint64]bool{gib: true, 7 * gib: true, 7*gib + 1: false} {
		next := &vgpu{rec: record{Spec: v.rec.Spec}}
		next.rec.Spec.Memory = n
		if err := d.wouldPlace(r, v, next, api.Change{}, nil); (err == nil) != fits || d.find("vm1/gpu0") != v {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// TestProcessThatHasEnded: a vGPU whose process has ended is unused, and does not do as it is.
func TestProcessThatHasEnded(t *testing.T) {
	for _, lost := range []bool{false, true} {
		d := bare(t)
		p := sleeper(t)
		v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}, Lost: lost}, proc: p}
		d.add(v)
		if err := p.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-p.Done()
		if done, err := d.keep(t.Context(), v, &api.Wish{VM: "vm1", Name: "gpu0"}); done || err != nil {
			t.Errorf("lost %v: it does as it is: %v, %v", lost, done, err)
		}
		if err := d.Release(t.Context(), "vm1/gpu0", true); err != nil || p.Alive() || d.find("vm1/gpu0") != nil {
			t.Errorf("lost %v: %v", lost, err)
		}
	}
}

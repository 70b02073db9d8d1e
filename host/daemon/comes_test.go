package daemon

import (
	"errors"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon/lease"
)

// TestAwaitedAgain: a vGPU that was made for a VM that stays is not ended if it awaits that again
// when it is about to be, nor before it is known whether a VM uses it.
func TestAwaitedAgain(t *testing.T) {
	up, lost := &api.Upstream{Server: "gpu1"}, &api.Upstream{Server: "gpu1", Lost: true}
	for what, c := range map[string]struct {
		up      *api.Upstream
		comes   lease.Coming
		other   bool // there is another of its name by now
		awaited bool
	}{
		"its lease is renewed":         {up: up, comes: lease.ComesMade, awaited: true},
		"the VM has come":              {up: lost, awaited: true},
		"it has been made again":       {up: lost, comes: lease.ComesMade, other: true, awaited: true},
		"it does not say what it does": {up: lost, comes: lease.ComesMade},
	} {
		d, p := bare(t), sleeper(t)
		v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0", Remote: "gpu1"}}, proc: p, up: c.up, comes: c.comes}
		d.add(v)
		if c.other {
			d.add(&vgpu{rec: v.rec})
		}
		if err := d.endNotCome(v); errors.Is(err, errAwaited) != c.awaited || errors.As(err, new(silence)) == c.awaited || !p.Alive() {
			t.Errorf("%s: %v, it runs: %v", what, err, p.Alive())
		}
	}
}

package main

import "testing"

// TestAtHome: a vGPU has one name at the host of its VM and at each GPU server, whichever host has
// asked for the lease, and beside a lease that has moved there.
func TestAtHome(t *testing.T) {
	for _, c := range []struct{ vm, name, lease, want string }{
		{"vm1", "gpu0", "", "vm1/gpu0"},
		{"hosta", "vm1:gpu0", "f", "vm1/gpu0"},
		{"hostb", "vm1:gpu0", "f", "vm1/gpu0"},
		{"hosta", "vm1:gpu0:2", "f", "vm1/gpu0"},
		{"hosta", "vm1:gpu1", "f", "vm1/gpu1"},
	} {
		f := deviceFlags{vm: c.vm, name: c.name, lease: c.lease}
		if got := f.atHome(); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

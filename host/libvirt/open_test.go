package libvirt

import (
	"errors"
	"testing"
)

// A build without libvirt says so; one with it refuses hosts that are not this one before it loads
// anything.
func TestOpenRefuses(t *testing.T) {
	_, err := Open("qemu+ssh://elsewhere/system", "vm1")
	if !errors.Is(err, ErrNoLibvirt) && !errors.Is(err, ErrRemote) {
		t.Errorf("%v", err)
	}
}

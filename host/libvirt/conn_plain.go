//go:build !libvirt_dlopen && !libvirt

package libvirt

// Open fails: see ErrNoLibvirt.
func Open(string, string) (Domain, error) { return nil, ErrNoLibvirt }

// OpenMovable fails like Open.
func OpenMovable(string, string) (Movable, error) { return nil, ErrNoLibvirt }

//go:build !libvirt_dlopen && !libvirt

package libvirt

import "context"

// Open fails: see ErrNoLibvirt.
func Open(context.Context, string, string) (Domain, error) { return nil, ErrNoLibvirt }

// OpenMovable fails like Open.
func OpenMovable(context.Context, string, string) (Movable, error) { return nil, ErrNoLibvirt }

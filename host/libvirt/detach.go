package libvirt

import (
	"context"
	"fmt"
	"slices"
	"time"

	"causeway/host/api"
)

// removalPoll is how often the domain is asked whether a device is gone. libvirt's own event says
// no more than its XML, and QEMU has no event for a guest that does not react.
const removalPoll = 100 * time.Millisecond

// Detach takes a vGPU out of the domain; an empty name means its only one. Programs that use it in
// the guest get errors. The order is that of Attach in reverse: once the device is gone, the
// metadata follows, then causewayd ends the vGPU. A guest that does not let go within Timeout keeps
// the vGPU, and nothing has changed but that it has been asked; libvirt takes the device out when
// the guest lets go later.
func (a *Attacher) Detach(ctx context.Context, name string, w Where) (*Result, error) {
	w, err := a.settle(w)
	if err != nil {
		return nil, err
	}
	found, err := a.each(w)
	if err != nil {
		return nil, err
	}
	if name, err = theVGPU(name, found, a.Run); err != nil {
		return nil, err
	}
	spec := api.Wish{VM: a.Domain.Name(), Name: name}
	r := &Result{VM: spec.VM, Name: name, Live: w&Live != 0, Config: w&Config != 0, Socket: spec.SocketPath(a.Run)}
	if r.Filesystem, err = FilesystemXML(r.Socket, name); err != nil {
		return nil, err
	}
	for _, place := range places {
		d := found[place]
		if d == nil {
			continue
		}
		if err := a.take(ctx, d, r, place); err != nil {
			return nil, err
		}
	}
	return r, a.end(ctx, r)
}

// take removes the device and the metadata from one place.
func (a *Attacher) take(ctx context.Context, d *DomainXML, r *Result, place Where) error {
	if err := a.takeDevice(ctx, d, r, place); err != nil {
		return err
	}
	rest := slices.DeleteFunc(slices.Clone(d.VGPUs), func(s api.Wish) bool { return s.Name == r.Name })
	if len(rest) == len(d.VGPUs) {
		return nil
	}
	return a.Domain.SetMetadata(bareMetadata(rest), place)
}

// takeDevice removes the device from one place; that it is not there is fine.
func (a *Attacher) takeDevice(ctx context.Context, d *DomainXML, r *Result, place Where) error {
	f, ok := d.Filesystem(r.Socket)
	if !ok {
		return nil
	}
	device, err := FilesystemXML(r.Socket, f.Target)
	if err == nil {
		err = a.Domain.Detach(device, place)
	}
	if err != nil || place != Live {
		return err
	}
	return a.removed(ctx, r)
}

// removed waits until the guest has let go.
func (a *Attacher) removed(ctx context.Context, r *Result) error {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	for {
		found, err := a.each(Live)
		if err != nil {
			return fmt.Errorf("wait for the guest: %w", err)
		}
		if _, ok := found[Live].Filesystem(r.Socket); !ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w within %v: it has been asked, and the vGPU stays until it does. Is the guest up, and does its kernel support PCI hot-plug? Try again, or stop the domain and use --config",
				ErrGuest, a.Timeout)
		case <-time.After(removalPoll):
		}
	}
}

// end has causewayd end the vGPU, unless the domain still has it in the other place.
func (a *Attacher) end(ctx context.Context, r *Result) error {
	is, err := a.Domain.Places()
	if err != nil {
		return err
	}
	left, err := a.each(is & Live)
	if err != nil {
		return err
	}
	if d := left[Live]; d != nil {
		if _, ok := d.Filesystem(r.Socket); ok {
			r.Notes = append(r.Notes, "the running domain keeps the vGPU until it ends")
			return nil
		}
	}
	if err := a.release(ctx, r.VM, r.Name); err != nil {
		return fmt.Errorf("the domain has no vGPU %s any more, but its device process still runs: %w", r.Name, err)
	}
	return nil
}

// theVGPU is the one of that name, or the only one.
func theVGPU(name string, found map[Where]*DomainXML, run string) (string, error) {
	var names []string
	for _, place := range places {
		if d := found[place]; d != nil {
			for _, n := range d.names(run) {
				if !slices.Contains(names, n) {
					names = append(names, n)
				}
			}
		}
	}
	switch {
	case name != "" && slices.Contains(names, name), name == "" && len(names) == 1:
	case len(names) == 0:
		return "", fmt.Errorf("%w: it has none", ErrNoVGPU)
	case name == "":
		return "", fmt.Errorf("%w: say which of %v", ErrNoVGPU, names)
	default:
		return "", fmt.Errorf("%w: %s: it has %v", ErrNoVGPU, name, names)
	}
	if name == "" {
		name = names[0]
	}
	return name, nil
}

package libvirt

import (
	"context"
	"fmt"
	"slices"

	"causeway/host/api"
)

/*
A vGPU that causewayd has under another name than the domain's, and for somebody else's reason: a
claim of a fleet. The domain is given its device and nothing more: it is not in the domain's
metadata, libvirt's hook neither readies nor releases it, and whoever had causewayd make it ends it.
*/

// Plug gives the domain the device of a vGPU that causewayd has already, as the mount tag; an empty
// tag is the first free one. A place that has it already stays as it is, so it may be asked for
// again and again.
func (a *Attacher) Plug(ctx context.Context, vm, name, tag string, w Where) (*Result, error) {
	v, err := a.Daemon.VGPU(ctx, vm, name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("vGPU %s/%s: %w", vm, name, err)
	case v.Spec.Programs:
		return nil, fmt.Errorf("%w: %s/%s is for programs of this host, and no VM can have it", ErrNoVGPU, vm, name)
	}
	if w, err = a.settle(w); err != nil {
		return nil, err
	}
	p := &plan{spec: api.Wish{VM: a.Domain.Name(), Name: tag}, where: w, socket: v.Socket}
	if p.xml, err = a.each(w); err != nil {
		return nil, err
	}
	missing, err := p.missing()
	if err != nil {
		return nil, err
	}
	r := &Result{VM: vm, Name: p.spec.Name, Live: w&Live != 0, Config: w&Config != 0, Socket: v.Socket, GPU: v.GPU, Limits: v.Spec.Limits}
	if r.Filesystem, err = FilesystemXML(v.Socket, p.spec.Name); err != nil {
		return nil, err
	}
	if missing == 0 {
		return r, nil
	}
	return r, a.Domain.Attach(r.Filesystem, missing)
}

// missing are the places without the device. Where another place has it, its tag is that there.
func (p *plan) missing() (missing Where, err error) {
	had := ""
	for _, place := range places {
		if d := p.xml[place]; d == nil {
			continue
		} else if f, ok := d.Filesystem(p.socket); ok {
			had = f.Target
		} else {
			missing |= place
		}
	}
	switch {
	case had != "":
		p.spec.Name = had
	case p.spec.Name == "":
		p.spec.Name = p.freeName()
	}
	if !api.IsName(p.spec.Name) {
		return 0, fmt.Errorf("%w: mount tag %q: use up to 63 letters, digits and ._+:@-", api.ErrName, p.spec.Name)
	}
	for _, place := range places {
		d := p.xml[place]
		if d == nil || missing&place == 0 {
			continue
		}
		if d.uses(p.spec.Name) {
			return 0, fmt.Errorf("%w: the mount tag %s is taken: --name names another", ErrExists, p.spec.Name)
		}
		if err := d.Check(place == Live); err != nil {
			return 0, err
		}
	}
	return missing, nil
}

// Unplug takes the device of such a vGPU out of the domain. That it has none is fine; a guest that
// does not let go is ErrGuest, as of Detach.
func (a *Attacher) Unplug(ctx context.Context, vm, name string, w Where) (*Result, error) {
	w, err := a.settle(w)
	if err != nil {
		return nil, err
	}
	found, err := a.each(w)
	if err != nil {
		return nil, err
	}
	r := &Result{VM: vm, Name: name, Live: w&Live != 0, Config: w&Config != 0, Socket: (&api.Spec{VM: vm, Name: name}).SocketPath(a.Run)}
	for _, place := range slices.Backward(places[:]) {
		// Its definition first: a domain that ends meanwhile has it no more.
		if d := found[place]; d != nil {
			if err := a.takeDevice(ctx, d, r, place); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/libvirt"
)

// errServed says that --served stands beside what is not its.
var errServed = errors.New("--served names a vGPU that causewayd has already: of what it is to be nothing can be said beside it but --name, its mount tag")

// plug gives a domain the device of a vGPU that causewayd has, for whatever reason.
func (f *domainFlags) plug(cmd *cobra.Command, domain string, w *api.Wish, dry bool) error {
	if dry || w.GPU != "" || w.MIG != "" || w.Remote != "" || w.Migratable != nil || w.Named() {
		return errServed
	}
	vm, name := api.ParseKey(f.served)
	return f.with(cmd, domain, func(ctx context.Context, a *libvirt.Attacher) (*libvirt.Result, error) {
		return done(a.Plug(ctx, vm, name, w.Name, f.where()))
	})
}

// unplug takes it out again.
func (f *domainFlags) unplug(cmd *cobra.Command, domain, tag string) error {
	if tag != "" {
		return errServed
	}
	vm, name := api.ParseKey(f.served)
	return f.with(cmd, domain, func(ctx context.Context, a *libvirt.Attacher) (*libvirt.Result, error) {
		return done(a.Unplug(ctx, vm, name, f.where()))
	})
}

package main

import (
	"context"
	"fmt"
	"strings"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/device"
	"causeway/host/driver"
	"causeway/host/inventory"
	"causeway/host/worker/link"
	"causeway/remote/mtls"
)

// leased are the keys of the lease that another host has of a device; nil: a VM of this host has
// it.
func (f *deviceFlags) leased() (*mtls.Pinned, error) {
	if f.lease == "" {
		return nil, nil
	}
	l, err := lease.Read(f.lease)
	if err != nil {
		return nil, err
	}
	return &l.Identity, nil
}

// atHome is what the vGPU is called at its VM's host: one that another host has by a lease has that
// host's name, and its own behind it (causewayd's besideMoved). It is the same at each server to
// which the vGPU goes, also when its VM has moved to another host.
func (f *deviceFlags) atHome() string {
	if f.lease == "" {
		return f.vm + "/" + f.name
	}
	vm, rest, _ := strings.Cut(f.name, ":")
	name, _, _ := strings.Cut(rest, ":")
	return vm + "/" + name
}

// remoteBackend is what a gpuLine says whose GPU is a server's.
const remoteBackend = "remote"

// whichGPU settles the GPU of a device: one of this machine, or a server's, by the lease that this
// host has.
func (f *deviceFlags) whichGPU(ctx context.Context, cfg *link.Config) (chosen gpuLine, list []gpuLine, err error) {
	if f.relay == "" {
		if list, err = askGPUs(ctx, cfg.Visible); err != nil {
			return chosen, nil, err
		}
		chosen, err = choose(cfg, f.gpu.gpu, list)
		return chosen, list, err
	}
	up, err := relayTo(f.relay, cfg)
	if err != nil {
		return chosen, nil, err
	}
	f.gpu.warm = 0 // no driver is to be started here
	chosen = gpuLine{Backend: remoteBackend, Name: up.GPU, UUID: up.UUID, Memory: up.Memory, Driver: up.Driver}
	return chosen, []gpuLine{chosen}, nil
}

// relayTo has workers of a configuration forward to the GPU server of a lease. They have no GPU,
// and no way to one.
func relayTo(file string, cfg *link.Config) (*api.Upstream, error) {
	l, err := lease.Read(file)
	if err != nil {
		return nil, err
	}
	if l.Upstream == nil || len(l.Addresses) == 0 {
		return nil, fmt.Errorf("%s is no lease of a vGPU on a GPU server", file)
	}
	cfg.GPU, cfg.Devices, cfg.Visible, cfg.Migratable, cfg.Base = "soft", nil, nil, false, 0
	cfg.Relay = &link.Relay{Server: l.Upstream.Server, Addresses: l.Addresses, Lease: l.ID, Identity: l.Identity}
	return l.Upstream, nil
}

// finder finds other GPUs of this host for a device, if its own is of this host.
func (n *neighbours) finder(cfg *link.Config) func(context.Context, *device.Place, api.Relocation) (*device.Place, error) {
	if cfg.Relay != nil {
		return nil
	}
	return n.find
}

// farMachine tells of a server's GPU what the lease says: nobody asks there for each program of a
// guest that wants to know.
func farMachine(g *gpuLine) func(context.Context) (*inventory.Reading, error) {
	return func(context.Context) (*inventory.Reading, error) {
		p := &inventory.Plain{Devices: []driver.DeviceSummary{{Name: g.Name, UUID: g.UUID, TotalMem: g.Memory, PCIBusID: "0000:00:00.0"}}, Driver: g.Driver, NVML: softNVML, CUDA: softCUDA}
		return p.Read()
	}
}

// farGPU is farMachine of a lease to which programs have gone.
func farGPU(up api.Upstream) func(context.Context) (*inventory.Reading, error) {
	return farMachine(&gpuLine{Name: up.GPU, UUID: up.UUID, Memory: up.Memory, Driver: up.Driver})
}

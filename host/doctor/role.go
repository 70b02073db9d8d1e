package doctor

import (
	"context"
	"slices"

	"causeway/host/api"
)

// libvirtd is where libvirt's daemons are, or serve another name space's.
var libvirtd = []string{
	"/usr/sbin/libvirtd", "/usr/sbin/virtqemud", "/usr/bin/libvirtd", "/usr/bin/virtqemud",
	"/run/libvirt/libvirt-sock", "/run/libvirt/virtqemud-sock",
}

// hasLibvirt reports whether this host has libvirt, and not its client alone.
func (m *Machine) hasLibvirt() bool { return slices.ContainsFunc(libvirtd, m.exists) }

// hasVMs reports whether something says that this host has VMs: libvirt, or a vGPU of one.
func (m *Machine) hasVMs(ctx context.Context) bool {
	if m.hasLibvirt() {
		return true
	}
	list, _ := m.Daemon.VGPUs(ctx) // without causewayd nothing says so
	return slices.ContainsFunc(list, func(v api.VGPU) bool { return v.Spec.Lease == "" && !v.Spec.Programs })
}

// forVMs is what to say of a host without what only VMs need.
func (m *Machine) forVMs(ctx context.Context, r Result) Result {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if r.State == OK || !m.Serves || m.hasVMs(ctx) {
		return r
	}
	return ok("not needed here: this host gives GPUs to others (remote.listen), and has no VMs of its own (%s)", r.Found)
}

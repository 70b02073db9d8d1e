package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"causeway/host/api"
	"causeway/host/daemon"
	"causeway/host/daemon/config"
	"causeway/host/driver/cuda"
	"causeway/host/inventory"
)

// machine tells causewayd of this host's GPUs. Real ones are read by a child process, since no
// driver is loaded here.
type machine struct {
	real *inventory.Client // nil: this host has none
	soft []api.GPU
}

// machineTime is what reading the GPUs may take; starting the driver's management library is part
// of it.
const machineTime = 20 * time.Second

func newMachine(cfg *config.Config) (*machine, error) {
	m := &machine{}
	if cfg.Placement.SoftwareGPU != config.SoftNever {
		src, err := openPlain(softName(cfg.Placement.SoftwareGPUs-1), nil)
		if err != nil {
			return nil, err
		}
		r, err := src.Read()
		if err != nil {
			return nil, err
		}
		m.soft = gpusOf(r, "soft")
		for i := range m.soft {
			if most := uint64(cfg.Placement.SoftwareMemory); most != 0 {
				m.soft[i].Memory = min(m.soft[i].Memory, most)
			}
		}
	}
	if cuda.Present() {
		// Device processes count GPUs as the driver does in their environment, so this child has
		// the same.
		m.real = &inventory.Client{
			Command: []string{"/proc/self/exe", "inventory", "--gpu", "cuda", "--watch"},
			Env:     daemon.Environment(cfg.Devices.Environment), Idle: time.Hour,
		}
	}
	return m, nil
}

// Read implements daemon.Machine.
func (m *machine) Read(ctx context.Context) (daemon.Reading, error) {
	var out daemon.Reading
	if m.real != nil {
		ctx, cancel := context.WithTimeout(ctx, machineTime)
		defer cancel()
		r, err := m.real.Read(ctx)
		if err != nil {
			out.Missing = fmt.Sprintf("the NVIDIA driver does not answer: %v", err)
		} else {
			out.GPUs = gpusOf(r, "cuda")
			addWatched(&out, r)
		}
	}
	out.GPUs = append(out.GPUs, m.soft...)
	return out, ctx.Err()
}

// Close implements daemon.Machine.
func (m *machine) Close() {
	if m.real != nil {
		m.real.Close()
	}
}

// addWatched adds faults, and slices, of which their GPUs tell too.
func addWatched(out *daemon.Reading, r *inventory.Reading) {
	for _, f := range r.Faults {
		out.Faults = append(out.Faults, daemon.Fault{GPU: f.UUID, XID: f.XID, Text: f.Text})
	}
	for _, s := range r.Slices {
		out.Slices = append(out.Slices, daemon.Slice{ID: s.UUID, Parent: s.Parent, Profile: s.Profile, Memory: s.Memory})
		for i := range out.GPUs {
			if g := &out.GPUs[i]; g.ID == s.Parent {
				g.MIG = append(g.MIG, s.UUID)
			}
		}
	}
}

func gpusOf(r *inventory.Reading, backend string) []api.GPU {
	var list []api.GPU
	for i := range r.Devices {
		d := &r.Devices[i]
		g := api.GPU{
			ID: inventory.FormatUUID(d.UUID), Index: i, Backend: backend, Name: inventory.Text(d.Name[:]), Memory: known64(d.MemoryTotal),
			NUMA: -1, Driver: r.Driver,
		}
		if backend == "cuda" {
			g.NUMA = numaNode(d)
			g.Used = known64(d.MemoryUsed)
			if d.MemoryFree != inventory.Unknown64 && d.MemoryFree <= d.MemoryTotal {
				g.Used = d.MemoryTotal - d.MemoryFree
			}
			g.Utilization, g.Temperature, g.PowerMW = known(d.UseGpu), known(d.Temperature), known(d.Power)
		}
		list = append(list, g)
	}
	return list
}

func known(n uint32) int {
	if n == inventory.Unknown32 {
		return 0
	}
	return int(n)
}

func known64(n uint64) uint64 {
	if n == inventory.Unknown64 {
		return 0
	}
	return n
}

// numaNode asks the kernel which node a GPU is at; -1: it does not say.
func numaNode(d *inventory.Device) int {
	b, err := os.ReadFile(filepath.Join("/sys/bus/pci/devices", fmt.Sprintf("%04x:%02x:%02x.0", d.PCIDomain, d.PCIBus, d.PCIDevice), "numa_node"))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return -1
	}
	return n
}

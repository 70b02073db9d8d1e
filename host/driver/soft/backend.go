package soft

import (
	"fmt"

	"causeway/host/driver"
)

// MaxDevices is how many arenas fit into the reserved address range.
const MaxDevices = 8

// Backend offers software GPUs.
type Backend struct{ devices int }

// New offers one software GPU.
func New() driver.Backend { return &Backend{devices: 1} }

// NewMany offers n software GPUs, 1 to 8, which share the machine's cores and memory.
func NewMany(n int) driver.Backend { return &Backend{devices: max(1, min(n, MaxDevices))} }

// Name implements driver.Backend.
func (*Backend) Name() string { return "soft" }

// Devices implements driver.Backend.
func (b *Backend) Devices() ([]driver.DeviceSummary, error) {
	var list []driver.DeviceSummary
	for i := range b.devices {
		g := newGPU(i, driver.Options{})
		list = append(list, driver.DeviceSummary{Index: i, Name: g.name, UUID: g.uuidText(), TotalMem: g.memory, PCIBusID: g.pciBusID(), Compute: capability})
	}
	return list, nil
}

// Open implements driver.Backend. A process can have one session at a time: device addresses are
// fixed.
func (b *Backend) Open(h driver.Host, o driver.Options) (driver.Session, error) {
	ordinals := o.Devices
	if ordinals == nil {
		for i := range b.devices {
			ordinals = append(ordinals, i)
		}
	}
	var gpus []*gpu
	for _, n := range ordinals {
		if n < 0 || n >= b.devices {
			return nil, fmt.Errorf("software GPU %d: there are %d", n, b.devices)
		}
		gpus = append(gpus, newGPU(n, o))
	}
	return newSession(h, o, gpus)
}

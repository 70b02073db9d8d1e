package inventory

import (
	"fmt"

	"causeway/host/driver"
)

// Plain reads GPUs of which nothing but identity and memory can be known: the software GPU, which
// has no sensors.
type Plain struct {
	Devices []driver.DeviceSummary
	Driver  string // versions, as a management library tells them
	NVML    string
	CUDA    uint32
}

// Read implements Source. Devices of a plain machine share its memory, so each reaches every other.
func (p *Plain) Read() (*Reading, error) {
	r := &Reading{CUDA: p.CUDA, Driver: p.Driver, NVML: p.NVML}
	for i, s := range p.Devices {
		d := Unknown()
		id, err := ParseUUID(s.UUID)
		if err != nil {
			return nil, err
		}
		d.UUID = id
		setText(d.Name[:], s.Name)
		if _, err := fmt.Sscanf(s.PCIBusID, "%x:%x:%x.0", &d.PCIDomain, &d.PCIBus, &d.PCIDevice); err != nil {
			return nil, fmt.Errorf("GPU %d: PCI address %q: %w", i, s.PCIBusID, err)
		}
		d.MinorNumber = uint32(i)
		d.Major, d.Minor = s.Compute/10, s.Compute%10
		d.MemoryTotal, d.MemoryReserved = s.TotalMem, 0
		d.Architecture = architecture(s.Compute)
		d.Brand, d.MultiGpuBoard, d.ComputeMode, d.Display, d.Accounting, d.Virtualization = 0, 0, 0, 0, 0, 0
		d.Persistence = 1 // nothing is unloaded when the last program ends
		r.Devices = append(r.Devices, d)
		for j := range p.Devices {
			r.Pairs = append(r.Pairs, plainPair(i, j))
		}
	}
	return r, nil
}

// architecture is the public number of what has a compute capability, major*10 + minor.
func architecture(compute uint32) uint32 {
	for _, a := range []struct{ from, number uint32 }{{100, 10}, {90, 9}, {89, 8}, {80, 7}, {75, 6}, {70, 5}} {
		if compute >= a.from {
			return a.number
		}
	}
	return Unknown32
}

// plainPair: memory is reached through the machine's own; there is no NVLink.
func plainPair(i, j int) Pair {
	const sameNode, ok, notSupported = 40, 0, 5
	return Pair{A: uint32(i), B: uint32(j), Topology: sameNode, P2p: [5]uint32{ok, ok, notSupported, ok, ok}}
}

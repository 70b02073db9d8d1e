package inventory

import (
	"encoding/binary"
	"fmt"
)

// NVML reads real GPUs.
type NVML struct {
	lib     Library
	devices []gpu      // in the order of the vGPU
	ids     []Identity // theirs
	watch   *watcher   // nil: only read
	works   []samples  // of each device
}

// Identity is what devices are told apart by.
type Identity struct {
	Name, UUID string
}

// OpenNVML starts a management library. choose picks the vGPU's devices among those of the machine,
// which it gets in NVML's order, and may fail.
func OpenNVML(lib Library, choose func([]Identity) ([]int, error)) (*NVML, error) {
	if r := lib.Call("nvmlInit_v2"); r != Success {
		return nil, fmt.Errorf("%w: nvmlInit: %w", ErrNoNVML, r)
	}
	s := &NVML{lib: lib}
	all, ids, err := s.list()
	if err == nil {
		err = s.pick(all, ids, choose)
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

func (s *NVML) list() (all []gpu, ids []Identity, err error) {
	var n [4]byte
	if r := s.lib.Call("nvmlDeviceGetCount_v2", n[:]); r != Success {
		return nil, nil, fmt.Errorf("nvmlDeviceGetCount: %w", r)
	}
	for i := range min(binary.LittleEndian.Uint32(n[:]), SnapshotDevices) {
		var h [8]byte
		if r := s.lib.Call("nvmlDeviceGetHandleByIndex_v2", uint64(i), h[:]); r != Success {
			return nil, nil, fmt.Errorf("GPU %d: nvmlDeviceGetHandleByIndex: %w", i, r)
		}
		g := gpu{s.lib, binary.LittleEndian.Uint64(h[:])}
		all, ids = append(all, g), append(ids, Identity{Name: g.text("nvmlDeviceGetName"), UUID: g.text("nvmlDeviceGetUUID")})
	}
	return all, ids, nil
}

func (s *NVML) pick(all []gpu, ids []Identity, choose func([]Identity) ([]int, error)) error {
	picked, err := choose(ids)
	if err != nil {
		return err
	}
	for _, i := range picked {
		if i < 0 || i >= len(all) {
			return fmt.Errorf("there is no GPU %d: NVML shows %d", i, len(all))
		}
		s.devices, s.ids = append(s.devices, all[i]), append(s.ids, ids[i])
	}
	return nil
}

// Close ends the management library's use.
func (s *NVML) Close() error {
	if r := s.lib.Call("nvmlShutdown"); r != Success {
		return fmt.Errorf("nvmlShutdown: %w", r)
	}
	return nil
}

// Read implements Source.
func (s *NVML) Read() (*Reading, error) {
	r := &Reading{Driver: systemText(s.lib, "nvmlSystemGetDriverVersion"), NVML: systemText(s.lib, "nvmlSystemGetNVMLVersion")}
	var version [4]byte
	if s.lib.Call("nvmlSystemGetCudaDriverVersion_v2", version[:]) == Success {
		r.CUDA = binary.LittleEndian.Uint32(version[:])
	}
	if s.watch != nil {
		r.Faults = s.faults()
	}
	for i, g := range s.devices {
		dev, err := describe(g, i)
		if err == nil && s.watch != nil {
			err = errLost(g)
		}
		switch {
		case err != nil && s.watch == nil:
			return nil, err
		case err != nil:
			var faults []Fault
			dev, faults = s.watch.lost(i, s.ids[i], err)
			r.Faults = append(r.Faults, faults...)
		case s.watch != nil:
			r.Faults = append(r.Faults, s.watch.judge(i, &dev)...)
			r.Slices = append(r.Slices, migSlices(g, &dev)...)
		}
		r.Devices = append(r.Devices, dev)
		r.Used = append(r.Used, processes(g))
		worked, known := s.work(i, g)
		r.Worked, r.Sampled = append(r.Worked, worked), append(r.Sampled, known)
	}
	for i, a := range s.devices {
		for j, b := range s.devices {
			r.Pairs = append(r.Pairs, pair(a, b, i, j))
		}
		r.Links = append(r.Links, links(a, i, r.Devices)...)
	}
	return r, nil
}

// processes is who uses a device, where the driver tells.
func processes(g gpu) map[int]uint64 {
	const stride, most = 24, 4096
	used := map[int]uint64{}
	var count [4]byte
	binary.LittleEndian.PutUint32(count[:], most)
	list := make([]byte, stride*most)
	if g.call("nvmlDeviceGetComputeRunningProcesses_v3", nil, count[:], list) != Success {
		return used
	}
	for range min(binary.LittleEndian.Uint32(count[:]), most) {
		if n := binary.LittleEndian.Uint64(list[8:]); n != Unknown64 {
			used[int(binary.LittleEndian.Uint32(list))] += n
		}
		list = list[stride:]
	}
	return used
}

func pair(a, b gpu, i, j int) Pair {
	p := Pair{A: uint32(i), B: uint32(j), Topology: a.number("nvmlDeviceGetTopologyCommonAncestor", b.handle)}
	for k := range p.P2p {
		p.P2p[k] = a.number("nvmlDeviceGetP2PStatus", b.handle, uint64(k))
	}
	return p
}

// Public numbers of NVML.
const (
	maxLinks        = 18
	linkToGPU       = 0
	linkCaps        = 6
	fieldLinkSpeed  = 164
	fieldMemoryTemp = 82
	fieldPower      = 185
	fieldPowerNow   = 186
	fieldMargins    = 193 // four
)

// links are a device's NVLinks. One that ends at a device outside the vGPU is not told.
func links(g gpu, i int, own []Device) []Link {
	var list []Link
	for n := range uint64(maxLinks) {
		state := g.number("nvmlDeviceGetNvLinkState", n)
		if state == Unknown32 {
			continue
		}
		l := Link{
			Device: uint32(i), Link: uint32(n), State: state,
			LinkVersion: g.number("nvmlDeviceGetNvLinkVersion", n), RemoteType: g.number("nvmlDeviceGetNvLinkRemoteDeviceType", n),
			RemoteDomain: Unknown32, RemoteBus: Unknown32, RemoteDevice: Unknown32, RemoteID: Unknown32,
			Speed: field(g, fieldLinkSpeed, uint32(n)),
		}
		for c := range uint64(linkCaps) {
			if g.number("nvmlDeviceGetNvLinkCapability", n, c) == 1 {
				l.Capabilities |= 1 << c
			}
		}
		if pci, ok := pciInfo(g, "nvmlDeviceGetNvLinkRemotePciInfo_v2", n); ok {
			l.RemoteDomain, l.RemoteBus, l.RemoteDevice, l.RemoteID = pci.domain, pci.bus, pci.device, pci.id
		}
		if l.RemoteType == linkToGPU && !leadsTo(own, &l) {
			continue
		}
		list = append(list, l)
	}
	return list
}

func leadsTo(own []Device, l *Link) bool {
	for i := range own {
		d := &own[i]
		if d.PCIDomain == l.RemoteDomain && d.PCIBus == l.RemoteBus && d.PCIDevice == l.RemoteDevice {
			return true
		}
	}
	return false
}

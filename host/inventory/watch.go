package inventory

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Fault is what a GPU reported: an XID, or something that its counters show.
type Fault struct {
	UUID string
	XID  uint64 // 0: none
	Text string
}

// Slice is a MIG slice.
type Slice struct {
	UUID, Parent string
	Profile      string // 1g.18gb
	Memory       uint64
	// Instances of the GPU and of its engines; Unknown32 if the driver does not tell.
	GPUInstance, ComputeInstance uint32
}

// Name is the slice's older name, MIG-GPU-UUID/GPU instance/compute instance, which says what it is
// a slice of; "" if that is not known.
func (s *Slice) Name() string {
	if s.GPUInstance == Unknown32 || s.ComputeInstance == Unknown32 {
		return ""
	}
	return fmt.Sprintf("MIG-%s/%d/%d", s.Parent, s.GPUInstance, s.ComputeInstance)
}

// Public numbers of NVML's events (nvml.h).
const (
	eventDoubleBit = 0x2
	eventXID       = 0x8
	doubleBitXID   = 48
	gpuIsLost      = Return(15)
	eventSize      = 32   // nvmlEventData_t: device, type, data, GPU instance, compute instance
	maxEvents      = 64   // read at once; the rest is there at the next reading
	maxSlices      = 1024 // no GPU has that many
)

// watcher is what a Source that is watched knows of its GPUs.
type watcher struct {
	set    uint64 // nvmlEventSet_t; 0: the driver has no events
	last   map[int]counters
	silent map[int]bool
}

// counters are those of which a change is a fault.
type counters struct{ uncorrected, remapFailed uint64 }

// Watch has each reading hold the faults since the one before, and MIG slices. A GPU that does not
// answer is a fault then, no error.
func (s *NVML) Watch() {
	s.watch = &watcher{last: map[int]counters{}, silent: map[int]bool{}}
	var set [8]byte
	if s.lib.Call("nvmlEventSetCreate", set[:]) != Success {
		return // counters are watched all the same
	}
	h := binary.LittleEndian.Uint64(set[:])
	for _, g := range s.devices {
		types := g.long("nvmlDeviceGetSupportedEventTypes")
		if types == Unknown64 {
			continue
		}
		if types &= eventXID | eventDoubleBit; types != 0 {
			// Without events, counters are left.
			_ = s.lib.Call("nvmlDeviceRegisterEvents", g.handle, types, h)
		}
	}
	s.watch.set = h
}

// faults reads the events that wait.
func (s *NVML) faults() []Fault {
	if s.watch.set == 0 {
		return nil
	}
	var list []Fault
	for range maxEvents {
		b := make([]byte, eventSize)
		if s.lib.Call("nvmlEventSetWait_v2", s.watch.set, b, uint64(0)) != Success {
			// NVML_ERROR_TIMEOUT: none waits
			break
		}
		le := binary.LittleEndian
		g := gpu{s.lib, le.Uint64(b)}
		kind, data := le.Uint64(b[8:]), le.Uint64(b[16:])
		f := Fault{UUID: g.text("nvmlDeviceGetUUID"), XID: data, Text: fmt.Sprintf("XID %d", data)}
		if kind == eventDoubleBit {
			f.XID, f.Text = doubleBitXID, "uncorrectable memory error"
		}
		list = append(list, f)
	}
	return list
}

// judge compares a device's counters with those of the reading before.
func (w *watcher) judge(i int, d *Device) []Fault {
	w.silent[i] = false
	now := counters{remapFailed: uint64(d.Remapped[3])}
	if d.Remapped[3] == Unknown32 {
		now.remapFailed = 0
	}
	if d.EccUncorrected != Unknown64 {
		now.uncorrected = d.EccUncorrected
	}
	before, known := w.last[i]
	w.last[i] = now
	var list []Fault
	if known && now.uncorrected > before.uncorrected {
		list = append(list, Fault{UUID: FormatUUID(d.UUID), Text: fmt.Sprintf("%d more uncorrectable memory errors", now.uncorrected-before.uncorrected)})
	}
	if now.remapFailed > before.remapFailed {
		list = append(list, Fault{UUID: FormatUUID(d.UUID), Text: "memory rows could not be remapped"})
	}
	return list
}

// errLost says that the driver has given a device up.
func errLost(g gpu) error {
	b := make([]byte, 40) // nvmlMemory_v2_t
	binary.LittleEndian.PutUint32(b, uint32(len(b))|2<<24)
	if r := g.call("nvmlDeviceGetMemoryInfo_v2", nil, b); r == gpuIsLost {
		return r
	}
	return nil
}

// lost is a device that does not answer any more, as what was known of it.
func (w *watcher) lost(i int, id Identity, err error) (Device, []Fault) {
	d := Unknown()
	d.UUID, _ = ParseUUID(id.UUID) // it answered once
	setText(d.Name[:], id.Name)
	if w.silent[i] {
		return d, nil
	}
	w.silent[i] = true
	return d, []Fault{{UUID: id.UUID, Text: fmt.Sprintf("it does not answer: %v", err)}}
}

// migSlices are the MIG slices of a device.
func migSlices(g gpu, d *Device) []Slice {
	if d.MigCurrent != 1 {
		return nil
	}
	n := g.number("nvmlDeviceGetMaxMigDeviceCount")
	if n == Unknown32 {
		return nil
	}
	var list []Slice
	for i := range min(n, maxSlices) {
		var h [8]byte
		if g.call("nvmlDeviceGetMigDeviceHandleByIndex", []uint64{uint64(i)}, h[:]) != Success {
			continue // no slice has that number
		}
		m := gpu{g.lib, binary.LittleEndian.Uint64(h[:])}
		s := Slice{UUID: m.text("nvmlDeviceGetUUID"), Parent: FormatUUID(d.UUID)}
		s.GPUInstance, s.ComputeInstance = m.number("nvmlDeviceGetGpuInstanceId"), m.number("nvmlDeviceGetComputeInstanceId")
		_, s.Profile, _ = strings.Cut(m.text("nvmlDeviceGetName"), " MIG ")
		var memory [24]byte // nvmlMemory_t: total, free, used
		if m.fill("nvmlDeviceGetMemoryInfo", memory[:]) {
			s.Memory = binary.LittleEndian.Uint64(memory[:])
		}
		if s.UUID != "" {
			list = append(list, s)
		}
	}
	return list
}

package inventory

import "time"

// Reading is how the machine is: devices in the order of the vGPU, numbers of whole devices.
type Reading struct {
	CUDA    uint32
	Driver  string
	NVML    string
	Devices []Device
	Pairs   []Pair
	Links   []Link
	// Used is, for each device, what host processes use of it, by process id. Where the driver does
	// not tell, it is empty.
	Used []map[int]uint64
	// Faults since the reading before, and MIG slices, of a source that is watched.
	Faults []Fault
	Slices []Slice
	// Worked is, for each device, how long it has worked for host processes since the source began
	// to look, by process id, as far as the driver's samples tell. Sampled says whether they do:
	// not for MIG slices, nor for GPUs that are split into such. Both may be nil.
	Worked  []map[int]time.Duration
	Sampled []bool
}

// Source reads the machine.
type Source interface {
	Read() (*Reading, error)
}

// Owner is whose vGPU it is.
type Owner struct {
	Limit    uint64 // bytes of device memory; 0: none
	Used     uint64 // what its sessions use of all devices, by its own account; 0: not known
	Sessions []Session
}

// Session is a CUDA process of the owner's guest.
type Session struct {
	Worker int    // process id of its worker on this machine
	PID    uint32 // as the guest counts
	Name   string // the guest's program
	Use    []Use
}

// Use is device memory that a session has allocated.
type Use struct {
	UUID  [16]byte
	Bytes uint64
}

// AnswerFor is the machine as an owner sees it. What a session uses of a device is what the
// machine's driver says of its worker, with the contexts' own memory, or where it says nothing,
// what the session allocated.
func AnswerFor(r *Reading, o Owner) *Answer {
	a := &Answer{CUDA: r.CUDA, Driver: r.Driver, NVML: r.NVML, Pairs: r.Pairs, Links: r.Links}
	for i, d := range r.Devices {
		used := uint64(0)
		for _, s := range o.Sessions {
			n, listed := s.uses(r, i)
			if !listed {
				continue
			}
			p := Process{Device: uint32(i), Pid: s.PID, Used: n}
			setText(p.Name[:], s.Name)
			a.Processes = append(a.Processes, p)
			used += n
		}
		if d.MigCurrent != Unknown32 { // a vGPU is not divided, whatever its host does
			d.MigCurrent, d.MigPending, d.MaxMig = 0, 0, 0
		}
		if len(r.Devices) == 1 { // the account says nothing of which device it was
			used = max(used, o.Used)
		}
		a.Devices = append(a.Devices, limit(d, o.Limit, used))
	}
	return a
}

// uses says how much of device i a session uses, and whether at all.
func (s *Session) uses(r *Reading, i int) (uint64, bool) {
	own, listed := uint64(0), false
	for _, u := range s.Use {
		if u.UUID == r.Devices[i].UUID {
			own, listed = own+u.Bytes, true
		}
	}
	if i < len(r.Used) {
		if n, ok := r.Used[i][s.Worker]; ok {
			return max(n, own), true
		}
	}
	return own, listed
}

// limit fits the device's memory to its owner: a limit hides the rest of the device, and other
// owners' use is just not free.
func limit(d Device, most, used uint64) Device {
	if d.MemoryTotal == Unknown64 {
		return d
	}
	if most != 0 && most < d.MemoryTotal {
		d.MemoryTotal, d.MemoryReserved = most, 0
	}
	if d.MemoryReserved == Unknown64 {
		d.MemoryReserved = 0
	}
	d.MemoryUsed = min(used, d.MemoryTotal-min(d.MemoryReserved, d.MemoryTotal))
	free := d.MemoryTotal - d.MemoryReserved - d.MemoryUsed
	if most == 0 && d.MemoryFree != Unknown64 {
		free = min(free, d.MemoryFree)
	}
	d.MemoryFree = free
	return d
}

// Package verbstest is an RDMA fabric in one process: ports, queue pairs and registered memory as a
// reliable connection knows them, with the faults that a real one has. Work is done by a goroutine
// for each queue pair, so that it is under way while who posted it goes on, as with an adapter.
package verbstest

import (
	"fmt"
	"net/netip"
	"sync"

	"causeway/remote/verbs"
)

// Fabric connects its adapters.
type Fabric struct {
	mu      sync.Mutex
	changed sync.Cond // of mu: work was posted, or a queue ended
	last    uint32
	queues  map[uint32]*queue
	regions map[uint32]*memory
	cut     bool
	held    bool
	stuck   *Adapter // whose work does not begin; nil: none
	refuses string
	pins    int       // bytes that an adapter may have registered, 0: any
	flaps   int       // of how many work requests one fails; 0: none
	works   int       // that were done
	moved   [3]uint64 // bytes, by verbs.Op
	by      map[*Adapter][3]uint64
	reached map[*Adapter][3]uint64 // of them, those of memory that the other end may read and write
	ports   map[*Adapter]*faults
}

// New makes a fabric without adapters.
func New() *Fabric {
	f := &Fabric{queues: map[uint32]*queue{}, regions: map[uint32]*memory{}, by: map[*Adapter][3]uint64{}, reached: map[*Adapter][3]uint64{}, ports: map[*Adapter]*faults{}}
	f.changed.L = &f.mu
	return f
}

// Cut has nothing reach anybody any more: work ends with verbs.RetryExceeded.
func (f *Fabric) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = true
}

// Hold has nothing arrive until it is called with false.
func (f *Fabric) Hold(held bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = held
	f.changed.Broadcast()
}

// Stick has nothing that a port sends begin, until it is called with nil.
func (f *Fabric) Stick(a *Adapter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stuck = a
	f.changed.Broadcast()
}

// Break has every queue pair fail with a status.
func (f *Fabric) Break(s verbs.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.queues {
		q.failLocked(verbs.Completion{Status: s})
	}
}

// Forget takes back what peers may do with memory: its remote keys mean nothing any more.
func (f *Fabric) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.regions {
		m.may = 0
	}
}

// Refuse has whatever is asked of adapters fail, posts too; empty: it succeeds again.
func (f *Fabric) Refuse(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuses = why
}

// Flap has each so manyth work request fail, as if its connection were lost: by turns before it is
// done, and when it is and only word of that is lost. 0: none.
func (f *Fabric) Flap(each int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flaps = each
}

// Pin has each adapter register so many bytes at most, as a limit of locked memory does; 0: any.
func (f *Fabric) Pin(most int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pins = most
}

// Moved is how many bytes went by an operation.
func (f *Fabric) Moved(op verbs.Op) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.moved[op]
}

// Heal undoes Cut, Hold and Refuse, and the faults of single ports.
func (f *Fabric) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut, f.held, f.refuses = false, false, ""
	clear(f.ports)
	f.changed.Broadcast()
}

// Left is how many queue pairs and registrations there are.
func (f *Fabric) Left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queues) + len(f.regions)
}

func (f *Fabric) numberLocked() uint32 {
	f.last++
	return f.last
}

// Adapter is a port of the fabric.
type Adapter struct {
	f    *Fabric
	port verbs.Port
}

// Adapter makes a port that has an address on Ethernet.
func (f *Fabric) Adapter(name string, addr netip.Addr) *Adapter {
	return &Adapter{f, verbs.Port{
		Device: name, Number: 1, Link: verbs.Ethernet, MTU: 3,
		GIDs: []verbs.GID{{Index: 0, Addr: [16]byte{0xfe, 0x80, 15: 1}}, {Index: 1, Addr: addr.Unmap().As16(), RoCEv2: true}},
	}}
}

// InfiniBand makes a port that has an address on InfiniBand.
func (f *Fabric) InfiniBand(name string, lid uint16) *Adapter {
	return &Adapter{f, verbs.Port{Device: name, Number: 1, Link: verbs.InfiniBand, LID: lid, MTU: 5, GIDs: []verbs.GID{{Addr: [16]byte{0xfe, 0x80, 15: byte(lid)}}}}}
}

// In puts a port into a partition: it reaches those alone that reach that.
func (a *Adapter) In(p verbs.Partition) *Adapter {
	a.port.PKey, a.port.Partition = 1, p
	return a
}

// Port implements verbs.Adapter.
func (a *Adapter) Port() verbs.Port { return a.port }

type memory struct {
	a    *Adapter
	mem  []byte
	may  verbs.Access
	addr uint64
	key  uint32 // both
}

// Register implements verbs.Adapter.
func (a *Adapter) Register(mem []byte, may verbs.Access) (verbs.Memory, error) {
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	if a.f.refuses != "" {
		return nil, fmt.Errorf("register memory: %s", a.f.refuses)
	}
	pinned := len(mem)
	for _, m := range a.f.regions {
		if m.a == a {
			pinned += len(m.mem)
		}
	}
	if a.f.pins > 0 && pinned > a.f.pins {
		return nil, fmt.Errorf("register %d bytes: no more than %d are pinned", len(mem), a.f.pins)
	}
	key := a.f.numberLocked()
	m := &memory{a: a, mem: mem, may: may, addr: uint64(key) << 32, key: key}
	a.f.regions[key] = m
	return m, nil
}

// Address implements verbs.Memory.
func (m *memory) Address() uint64 { return m.addr }

// LocalKey implements verbs.Memory.
func (m *memory) LocalKey() uint32 { return m.key }

// RemoteKey implements verbs.Memory.
func (m *memory) RemoteKey() uint32 { return m.key }

// Close implements verbs.Memory.
func (m *memory) Close() error {
	m.a.f.mu.Lock()
	defer m.a.f.mu.Unlock()
	delete(m.a.f.regions, m.key)
	return nil
}

// at is what a key stands for at an address, if an adapter and an access may have it.
func (f *Fabric) atLocked(a *Adapter, key uint32, addr uint64, n uint32, may verbs.Access) ([]byte, bool) {
	m := f.regions[key]
	if m == nil || m.a != a || m.may&may != may || addr < m.addr {
		return nil, false
	}
	off := addr - m.addr
	if off > uint64(len(m.mem)) || uint64(n) > uint64(len(m.mem))-off {
		return nil, false
	}
	return m.mem[off:][:n], true
}

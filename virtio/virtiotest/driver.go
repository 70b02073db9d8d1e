// Package virtiotest is a guest's virtqueue driver, for tests and fuzzing of devices: it lays rings
// out in real (shared) memory and drives them as Linux does. Everything it writes can be
// overwritten by a hostile test through Memory.
package virtiotest

import (
	"encoding/binary"
	"fmt"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
)

var le = binary.LittleEndian

// Descriptor flags.
const (
	Next     = 1
	Write    = 2
	Indirect = 4
)

// Buffer is guest memory with its address.
type Buffer struct {
	GPA   uint64
	Bytes []byte
}

// Options of a Driver.
type Options struct {
	Indirect bool // put each chain in a table of its own
	EventIdx bool
}

// Driver is one virtqueue. It is not safe for concurrent use.
type Driver struct {
	Mem               *vhosttest.Memory
	Size              int
	Desc, Avail, Used uint64 // guest-physical
	Options

	free     []uint16 // heads of free descriptors
	chains   map[uint16][]uint16
	tables   map[uint16]Buffer // indirect tables by head, reused
	availIdx uint16
	usedIdx  uint16
	kicked   uint16 // available index at the last NeedKick
}

// NewDriver lays a ring of size entries out in m.
func NewDriver(m *vhosttest.Memory, size int, o Options) *Driver {
	d := &Driver{Mem: m, Size: size, Options: o, chains: map[uint16][]uint16{}, tables: map[uint16]Buffer{}}
	d.Desc, _ = m.Alloc(uint64(16*size), 16)
	d.Avail, _ = m.Alloc(uint64(6+2*size), 2)
	d.Used, _ = m.Alloc(uint64(6+8*size), 4)
	for i := size - 1; i >= 0; i-- {
		d.free = append(d.free, uint16(i))
	}
	return d
}

// Config is the ring as a vhostuser.Device would get it, without eventfds.
func (d *Driver) Config() vhostuser.QueueConfig {
	return vhostuser.QueueConfig{Size: d.Size, Desc: d.Desc, Avail: d.Avail, Used: d.Used, EventIdx: d.EventIdx,
		IndirectDesc: d.Indirect}
}

// Ring is the ring for a vhosttest.Frontend.
func (d *Driver) Ring() *vhosttest.Ring {
	return &vhosttest.Ring{Size: d.Size, Desc: d.Desc, Avail: d.Avail, Used: d.Used}
}

// Alloc reserves a page-aligned buffer.
func (d *Driver) Alloc(size int) Buffer {
	gpa, b := d.Mem.Alloc(uint64(size), 4096)
	return Buffer{gpa, b}
}

// PutDesc writes a descriptor into a table at gpa.
func (d *Driver) PutDesc(table uint64, i int, addr uint64, length uint32, flags, next uint16) {
	b := d.Mem.At(table+uint64(16*i), 16)
	le.PutUint64(b, addr)
	le.PutUint32(b[8:], length)
	le.PutUint16(b[12:], flags)
	le.PutUint16(b[14:], next)
}

// Add makes a chain available: first what the device reads, then what it writes. It returns the
// chain's head.
func (d *Driver) Add(readable, writable []Buffer) (uint16, error) {
	n := len(readable) + len(writable)
	need := n
	if d.Indirect {
		need = 1
	}
	if n == 0 || need > len(d.free) {
		return 0, fmt.Errorf("%d descriptors for a chain of %d", len(d.free), n)
	}
	ids := append([]uint16(nil), d.free[len(d.free)-need:]...)
	d.free = d.free[:len(d.free)-need]
	head := ids[0]
	table, slot := d.Desc, func(i int) int { return int(ids[i]) }
	if d.Indirect {
		t := d.tables[head]
		if len(t.Bytes) < 16*n {
			t.GPA, t.Bytes = d.Mem.Alloc(uint64(16*n), 16)
			d.tables[head] = t
		}
		d.PutDesc(d.Desc, int(head), t.GPA, uint32(16*n), Indirect, 0)
		table, slot = t.GPA, func(i int) int { return i }
	}
	for i := 0; i < n; i++ {
		var b Buffer
		var flags, next uint16
		if i < len(readable) {
			b = readable[i]
		} else {
			b, flags = writable[i-len(readable)], Write
		}
		if i+1 < n {
			flags, next = flags|Next, uint16(slot(i+1))
		}
		d.PutDesc(table, slot(i), b.GPA, uint32(len(b.Bytes)), flags, next)
	}
	d.chains[head] = ids
	d.Offer(head)
	return head, nil
}

// NeedKick says whether the device wants to hear of what was added since the last call.
func (d *Driver) NeedKick() bool {
	old := d.kicked
	d.kicked = d.availIdx
	if d.EventIdx {
		event := d.field(d.Used + 4 + uint64(8*d.Size)).load()
		return d.availIdx-event-1 < d.availIdx-old
	}
	return d.field(d.Used).load()&1 == 0
}

// Used is what the device gave back.
type Used struct {
	Head uint16
	ID   uint32
	Len  uint32
}

// Poll takes the next used entry, if there is one, and frees its descriptors.
func (d *Driver) Poll() (Used, bool) {
	if d.field(d.Used+2).load() == d.usedIdx {
		return Used{}, false
	}
	e := d.Mem.At(d.Used+4+8*uint64(int(d.usedIdx)%d.Size), 8)
	u := Used{ID: le.Uint32(e), Len: le.Uint32(e[4:])}
	u.Head = uint16(u.ID)
	d.usedIdx++
	d.free = append(d.free, d.chains[u.Head]...)
	delete(d.chains, u.Head)
	if d.EventIdx {
		d.SetUsedEvent(d.usedIdx)
	}
	return u, true
}

// UsedIdx is the device's used index.
func (d *Driver) UsedIdx() uint16 { return d.field(d.Used + 2).load() }

// AvailIdx is the next available index.
func (d *Driver) AvailIdx() uint16 { return d.availIdx }

// SetUsedEvent asks for an interrupt when the used index passes v.
func (d *Driver) SetUsedEvent(v uint16) { d.field(d.Avail + 4 + uint64(2*d.Size)).store(v) }

// SetAvailFlags writes avail.flags (1: no interrupts).
func (d *Driver) SetAvailFlags(v uint16) { d.field(d.Avail).store(v) }

// AvailEvent is the device's avail_event.
func (d *Driver) AvailEvent() uint16 { return d.field(d.Used + 4 + uint64(8*d.Size)).load() }

// UsedFlags is the device's used.flags (1: no kicks).
func (d *Driver) UsedFlags() uint16 { return d.field(d.Used).load() }

// Offer makes descriptor head available as it is.
func (d *Driver) Offer(head uint16) {
	d.field(d.Avail + 4 + 2*uint64(int(d.availIdx)%d.Size)).store(head)
	d.availIdx++
	d.SetAvailIdx(d.availIdx)
}

// SetAvailIdx publishes any index, for hostile tests.
func (d *Driver) SetAvailIdx(v uint16) {
	d.availIdx = v
	d.field(d.Avail + 2).store(v)
}

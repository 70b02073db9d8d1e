package virtio

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"causeway/vhostuser"
)

// Layout (virtio 1.2, 2.7.5 to 2.7.8), little-endian:
//
//	descriptor  addr u64, len u32, flags u16, next u16
//	avail       flags u16, idx u16, ring [size]u16, used_event u16
//	used        flags u16, idx u16, ring [size]{id u32, len u32}, avail_event u16
const (
	descSize = 16

	descNext     = 1
	descWrite    = 2
	descIndirect = 4

	availNoInterrupt = 1
	usedNoNotify     = 1
)

func descBytes(size int) uint64  { return uint64(size) * descSize }
func availBytes(size int) uint64 { return 6 + 2*uint64(size) }
func usedBytes(size int) uint64  { return 6 + 8*uint64(size) }

// shared16 is a 16-bit field of guest memory, reached through the aligned 32-bit word that holds
// it.
type shared16 struct {
	word  *uint32
	shift uint
}

func (s shared16) load() uint16 { return uint16(atomic.LoadUint32(s.word) >> s.shift) }

// store leaves the other half of the word, which may belong to somebody else, as it is. It is a
// full barrier.
func (s shared16) store(v uint16) {
	for {
		old := atomic.LoadUint32(s.word)
		if atomic.CompareAndSwapUint32(s.word, old, old&^(0xffff<<s.shift)|uint32(v)<<s.shift) {
			return
		}
	}
}

// ring is the three shared structures, mapped. Each lies in one region, which the ring pins.
type ring struct {
	size  int
	desc  []uint64 // two words a descriptor
	avail uintptr  // addresses of mapped memory, outside Go's heap
	used  uintptr

	regions [3]*vhostuser.Region
}

// mapRing translates the addresses of cfg and checks length and alignment.
func mapRing(mem *vhostuser.Memory, cfg vhostuser.QueueConfig) (*ring, error) {
	r := &ring{size: cfg.Size}
	v := mem.View()
	defer v.Release()
	parts := [3]struct {
		name      string
		gpa, size uint64
		align     uintptr
	}{
		{"descriptor table", cfg.Desc, descBytes(cfg.Size), 16},
		{"available ring", cfg.Avail, availBytes(cfg.Size), 2},
		{"used ring", cfg.Used, usedBytes(cfg.Size), 4},
	}
	var addr [3]unsafe.Pointer
	for i, p := range parts {
		b, err := v.Bytes(p.gpa, p.size)
		if err != nil {
			return nil, fmt.Errorf("%s at %#x: %w", p.name, p.gpa, err)
		}
		if uint64(len(b)) < p.size {
			return nil, fmt.Errorf("%s at %#x leaves its region: %w", p.name, p.gpa, vhostuser.ErrNotMapped)
		}
		addr[i] = unsafe.Pointer(unsafe.SliceData(b))
		if uintptr(addr[i])%p.align != 0 {
			return nil, fmt.Errorf("%s at %#x: not aligned to %d", p.name, p.gpa, p.align)
		}
	}
	for i, p := range parts {
		r.regions[i] = v.Region(p.gpa)
		r.regions[i].Pin()
	}
	r.desc = unsafe.Slice((*uint64)(addr[0]), 2*cfg.Size)
	r.avail, r.used = uintptr(addr[1]), uintptr(addr[2])
	return r, nil
}

func (r *ring) unmap() {
	for _, reg := range r.regions {
		reg.Unpin()
	}
	*r = ring{}
}

// at gives the 16-bit field at addr. The aligned word around it may reach two bytes past a ring's
// end, never past the page.
func at(addr uintptr) shared16 {
	return shared16{word: word(addr &^ 3), shift: uint(addr&2) * 8}
}

// word turns an address inside a pinned mapping into a pointer. The mapping is not Go memory, so
// that the garbage collector neither moves nor frees it.
func word(addr uintptr) *uint32 {
	return *(**uint32)(unsafe.Pointer(&addr))
}

func (r *ring) availFlags() shared16          { return at(r.avail) }
func (r *ring) availIdx() shared16            { return at(r.avail + 2) }
func (r *ring) availEntry(idx uint16) uint16  { return at(r.avail + 4 + 2*r.slot(idx)).load() }
func (r *ring) usedEvent() shared16           { return at(r.avail + 4 + 2*uintptr(r.size)) }
func (r *ring) availEvent() shared16          { return at(r.used + 4 + 8*uintptr(r.size)) }
func (r *ring) slot(idx uint16) uintptr       { return uintptr(idx) & uintptr(r.size-1) }
func (r *ring) usedIdx() uint16               { return at(r.used + 2).load() }
func (r *ring) usedOffset(idx uint16) uintptr { return 4 + 8*r.slot(idx) }

// putUsed writes an entry. It becomes visible to the driver with publish.
func (r *ring) putUsed(idx uint16, id, length uint32) {
	e := r.used + r.usedOffset(idx)
	atomic.StoreUint32(word(e), id)
	atomic.StoreUint32(word(e+4), length)
}

// publish stores used.flags and used.idx, both of which the device owns. It is a full barrier, as
// an exchange is under the race detector, too, whose stores only release.
func (r *ring) publish(flags, idx uint16) {
	atomic.SwapUint32(word(r.used), uint32(flags)|uint32(idx)<<16)
}

// descriptor is a private copy of one descriptor.
type descriptor struct {
	addr  uint64
	len   uint32
	flags uint16
	next  uint16
}

func unpack(addr, rest uint64) descriptor {
	return descriptor{addr: addr, len: uint32(rest), flags: uint16(rest >> 32), next: uint16(rest >> 48)}
}

// load reads descriptor i of the ring's table once. i is less than the size.
func (r *ring) load(i uint16) descriptor {
	return unpack(atomic.LoadUint64(&r.desc[2*int(i)]), atomic.LoadUint64(&r.desc[2*int(i)+1]))
}

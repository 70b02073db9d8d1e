package virtiotest

import (
	"sync/atomic"
	"unsafe"
)

// field16 is a 16-bit field of shared memory; see virtio.shared16.
type field16 struct {
	word  *uint32
	shift uint
}

func (d *Driver) field(gpa uint64) field16 {
	b := d.Mem.At(gpa&^3, 4)
	return field16{(*uint32)(unsafe.Pointer(unsafe.SliceData(b))), uint(gpa&2) * 8}
}

func (f field16) load() uint16 { return uint16(atomic.LoadUint32(f.word) >> f.shift) }

func (f field16) store(v uint16) {
	for {
		old := atomic.LoadUint32(f.word)
		if atomic.CompareAndSwapUint32(f.word, old, old&^(0xffff<<f.shift)|uint32(v)<<f.shift) {
			return
		}
	}
}

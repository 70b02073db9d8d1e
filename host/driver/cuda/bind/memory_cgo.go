package bind

/*
#include <stdlib.h>
*/
import "C"

import (
	"unsafe"

	"causeway/cuda"
)

// Address is an address that the GPU reaches, of which the driver knows the length, or takes none.
type Address struct {
	_ [0]*Address // so that none of the other types of this shape converts to it
	v uint64
}

// Value is the address as a guest and its kernels know it.
func (a Address) Value() uint64 { return a.v }

// IsZero reports whether it is none.
func (a Address) IsZero() bool { return a.v == 0 }

// HostAddress is an address in this process, of memory that the driver is told of.
type HostAddress struct {
	_ [0]*HostAddress
	v uint64
}

// Hint is an address that somebody asks for; the driver may give another.
type Hint uint64

// Mem is memory that the GPU reaches for this guest: addresses from at on.
type Mem struct {
	_        [0]*Mem
	at, size uint64
}

// Address is where it begins.
func (m Mem) Address() Address { return Address{v: m.at} }

// Size is its length in bytes.
func (m Mem) Size() uint64 { return m.size }

// Slice is size bytes of it from an offset on, false if it does not hold them.
func (m Mem) Slice(offset, size uint64) (Mem, bool) {
	at, n, ok := cut(m.at, m.size, offset, size)
	return Mem{at: at, size: n}, ok
}

// From is size bytes of it from an address on, false if it does not hold them.
func (m Mem) From(addr, size uint64) (Mem, bool) {
	if addr < m.at {
		return Mem{}, false
	}
	return m.Slice(addr-m.at, size)
}

// Host is memory of this process that the driver may read and write: C memory, or pages that a
// guest shares.
type Host struct {
	_        [0]*Host
	at, size uint64
}

// Size is its length in bytes.
func (h Host) Size() uint64 { return h.size }

// Address is where it begins.
func (h Host) Address() HostAddress { return HostAddress{v: h.at} }

// Slice is size bytes of it from an offset on, false if it does not hold them.
func (h Host) Slice(offset, size uint64) (Host, bool) {
	at, n, ok := cut(h.at, h.size, offset, size)
	return Host{at: at, size: n}, ok
}

// Holds reports whether all of another is of it.
func (h Host) Holds(o Host) bool {
	return o.at >= h.at && o.at-h.at <= h.size && o.size <= h.size-(o.at-h.at)
}

// Bytes is the memory itself.
func (h Host) Bytes() []byte { return unsafe.Slice((*byte)(pointerTo(h.at)), h.size) }

func cut(at, have, offset, size uint64) (uint64, uint64, bool) {
	if offset > have || size > have-offset {
		return 0, 0, false
	}
	return at + offset, size, true
}

// Mapped is a piece of a mapping outside Go's heap that the guest shares, false if the mapping does
// not hold it.
func Mapped(mapping []byte, offset, size uint64) (Host, bool) {
	if len(mapping) == 0 {
		return Host{}, false
	}
	return Host{at: uint64(uintptr(unsafe.Pointer(&mapping[0]))), size: uint64(len(mapping))}.Slice(offset, size)
}

// Buffer is C memory, for what the driver keeps an address of, or reads when it has returned.
type Buffer struct {
	p    unsafe.Pointer
	size int
}

// NewBuffer is zeroed memory, to be freed.
func NewBuffer(size int) Buffer { return Buffer{C.calloc(1, C.size_t(max(size, 1))), size} }

// BufferOf is a copy, to be freed.
func BufferOf(b []byte) Buffer {
	n := NewBuffer(len(b))
	copy(n.Bytes(), b)
	return n
}

// Bytes is its memory.
func (b Buffer) Bytes() []byte { return unsafe.Slice((*byte)(b.p), b.size) }

// Host is the whole of it.
func (b Buffer) Host() Host { return Host{at: b.addr(), size: uint64(b.size)} }

// IsZero reports whether it is none.
func (b Buffer) IsZero() bool { return b.p == nil }

// Free gives it back; none is nothing.
func (b Buffer) Free() { C.free(b.p) }

func (b Buffer) addr() uint64 { return uint64(uintptr(b.p)) }

// Registered is memory of this process that the GPU reaches too.
type Registered struct {
	host Host
	mem  Mem
}

const portableMapped = 1 | 2 // CU_MEMHOSTREGISTER_PORTABLE and DEVICEMAP, CU_MEMHOSTALLOC_ likewise

// Register has the GPU reach memory of this process.
func (d *Driver) Register(h Host) (Registered, cuda.Result) {
	if res := d.memHostRegister(h, portableMapped); res != cuda.Success {
		return Registered{}, res
	}
	at, res := d.memHostGetDevicePointer(h.Address(), 0)
	if res != cuda.Success {
		d.memHostUnregister(h.Address())
		return Registered{}, res
	}
	return Registered{h, Mem{at: at.v, size: h.size}}, cuda.Success
}

// Unregister ends it.
func (d *Driver) Unregister(r Registered) cuda.Result { return d.memHostUnregister(r.host.Address()) }

// AllocHost allocates memory of this process that the GPU reaches at the same address.
func (d *Driver) AllocHost(size uint64) (Registered, cuda.Result) {
	at, res := d.memHostAlloc(size, portableMapped)
	return Registered{Host{at: at.v, size: size}, Mem{at: at.v, size: size}}, res
}

// FreeHost gives back what AllocHost gave.
func (d *Driver) FreeHost(r Registered) cuda.Result { return d.memFreeHost(r.host.Address()) }

// IsZero reports whether it is none.
func (r Registered) IsZero() bool { return r.host.at == 0 }

// Host is the memory as this process has it.
func (r Registered) Host() Host { return r.host }

// Mem is the memory as the GPU reaches it.
func (r Registered) Mem() Mem { return r.mem }

// At is, for the GPU, size bytes at an address of this process, false if they are not of this
// memory.
func (r Registered) At(addr uintptr, size uint64) (Mem, bool) {
	if uint64(addr) < r.host.at {
		return Mem{}, false
	}
	return r.mem.Slice(uint64(addr)-r.host.at, size)
}

// Word is the 32-bit word at an offset, which this process and the GPU share; nil beyond the end.
func (r Registered) Word(offset uint64) *uint32 { return wordOf[uint32](r, offset) }

// Word64 is Word for 64 bits.
func (r Registered) Word64(offset uint64) *uint64 { return wordOf[uint64](r, offset) }

func wordOf[T uint32 | uint64](r Registered, offset uint64) (w *T) {
	if h, ok := r.host.Slice(offset, uint64(unsafe.Sizeof(*w))); ok {
		w = (*T)(pointerTo(h.at))
	}
	return w
}

// IsZero reports whether it is none.
func (m Mem) IsZero() bool { return m.at == 0 }

// Callback is a C function of ours that the driver calls.
type Callback struct {
	_ [0]*Callback
	v uint64
}

// CallbackAt is the C function at an address that cgo gave.
func CallbackAt(f unsafe.Pointer) Callback { return Callback{v: uint64(uintptr(f))} }

// HostAt is size bytes at an address of this process, false if they are not of this memory.
func (r Registered) HostAt(addr uintptr, size uint64) (Host, bool) {
	if uint64(addr) < r.host.at {
		return Host{}, false
	}
	return r.host.Slice(uint64(addr)-r.host.at, size)
}

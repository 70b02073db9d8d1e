package exec

import (
	"sync/atomic"
	"unsafe"

	"causeway/host/driver/soft/ptx"
)

// Atomic operations read, modify and write memory at once for every scope:
// global memory is shared by all workers and by the host. Shared memory belongs
// to the block's one goroutine and needs no hardware atomics.

// opAtom applies x.f3(old, b, c) at register a plus imm; d receives the old
// value unless it is negative. x.size is 2, 4 or 8.
func opAtom(w *warp, o *op) {
	if o.d >= 0 {
		w.mayspin()
	}
	for _, l := range w.act {
		i := l & 31
		var b, c uint64
		if o.b >= 0 {
			b = w.r[o.b][i]
		}
		if o.c >= 0 {
			c = w.r[o.c][i]
		}
		p := w.lanePtr(o, int(i), o.x.size, true)
		var old uint64
		if o.x.space == ptx.Shared {
			old = modifyPlain(p, o, b, c)
		} else {
			old = modify(p, o, b, c)
		}
		if o.d >= 0 {
			w.r[o.d][i] = old
		}
	}
}

func modifyPlain(p unsafe.Pointer, o *op, b, c uint64) uint64 {
	switch o.x.size {
	case 2:
		old := uint64(*(*uint16)(p))
		*(*uint16)(p) = uint16(o.x.f3(old, b, c))
		return old
	case 4:
		old := uint64(*(*uint32)(p))
		*(*uint32)(p) = uint32(o.x.f3(old, b, c))
		return old
	}
	old := *(*uint64)(p)
	*(*uint64)(p) = o.x.f3(old, b, c)
	return old
}

func modify(p unsafe.Pointer, o *op, b, c uint64) uint64 {
	switch o.x.size {
	case 2:
		return modify16(p, o, b, c)
	case 4:
		q := (*uint32)(p)
		for {
			old := atomic.LoadUint32(q)
			if atomic.CompareAndSwapUint32(q, old, uint32(o.x.f3(uint64(old), b, c))) {
				return uint64(old)
			}
		}
	}
	q := (*uint64)(p)
	for {
		old := atomic.LoadUint64(q)
		if atomic.CompareAndSwapUint64(q, old, o.x.f3(old, b, c)) {
			return old
		}
	}
}

// modify16 works on the aligned word around the halfword. Allocations are
// multiples of 4 bytes in memory even when their size is not.
func modify16(p unsafe.Pointer, o *op, b, c uint64) uint64 {
	low := uintptr(p) & 2
	q := (*uint32)(unsafe.Add(p, -int(low)))
	shift := low * 8
	for {
		word := atomic.LoadUint32(q)
		old := uint64(uint16(word >> shift))
		fresh := word&^(0xffff<<shift) | uint32(uint16(o.x.f3(old, b, c)))<<shift
		if atomic.CompareAndSwapUint32(q, word, fresh) {
			return old
		}
	}
}

// opAtomAdd32 is the common integer addition.
func opAtomAdd32(w *warp, o *op) {
	for _, l := range w.act {
		i := l & 31
		v := uint32(w.r[o.b][i])
		p := (*uint32)(w.lanePtr(o, int(i), 4, true))
		var old uint32
		if o.x.space == ptx.Shared {
			old = *p
			*p = old + v
		} else {
			old = atomic.AddUint32(p, v) - v
		}
		if o.d >= 0 {
			w.r[o.d][i] = uint64(old)
		}
	}
}

// opAtomAdd64 is opAtomAdd32 for 64 bits.
func opAtomAdd64(w *warp, o *op) {
	for _, l := range w.act {
		i := l & 31
		v := w.r[o.b][i]
		p := (*uint64)(w.lanePtr(o, int(i), 8, true))
		var old uint64
		if o.x.space == ptx.Shared {
			old = *p
			*p = old + v
		} else {
			old = atomic.AddUint64(p, v) - v
		}
		if o.d >= 0 {
			w.r[o.d][i] = old
		}
	}
}

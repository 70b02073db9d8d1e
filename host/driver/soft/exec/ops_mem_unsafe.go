package exec

import (
	"sync/atomic"
	"unsafe"
)

// opLdGlobal loads a T per lane from global or generic memory.
func opLdGlobal[T integer](w *warp, o *op) {
	var zero T
	size := uint64(unsafe.Sizeof(zero))
	d, a, off := &w.r[o.d], &w.r[o.a], o.imm
	lo, n, ptr := w.rng.lo, w.rng.size, w.rng.ptr
	for _, l := range w.act {
		i := l & 31
		addr := a[i] + off
		at := addr - lo
		if at >= n || n-at < size || at&(size-1) != 0 {
			d[i] = uint64(*(*T)(w.resolve(o, int(i), addr, size, false)))
			lo, n, ptr = w.rng.lo, w.rng.size, w.rng.ptr
			continue
		}
		d[i] = uint64(*(*T)(unsafe.Add(ptr, at)))
	}
}

// opStGlobal stores register b as a T per lane.
func opStGlobal[T integer](w *warp, o *op) {
	var zero T
	size := uint64(unsafe.Sizeof(zero))
	v, a, off := &w.r[o.b], &w.r[o.a], o.imm
	lo, n, ptr := w.rng.lo, w.rng.size, w.rng.ptr
	if !w.rng.writable {
		n = 0
	}
	for _, l := range w.act {
		i := l & 31
		addr := a[i] + off
		at := addr - lo
		if at >= n || n-at < size || at&(size-1) != 0 {
			*(*T)(w.resolve(o, int(i), addr, size, true)) = T(v[i])
			lo, n, ptr = w.rng.lo, w.rng.size, w.rng.ptr
			if !w.rng.writable {
				n = 0
			}
			continue
		}
		*(*T)(unsafe.Add(ptr, at)) = T(v[i])
	}
}

func opLdShared[T integer](w *warp, o *op) {
	var zero T
	size := uint64(unsafe.Sizeof(zero))
	d, a, off := &w.r[o.d], &w.r[o.a], uint32(o.imm)
	s := w.blk.shared
	n := uint64(len(s))
	ptr := unsafe.Pointer(unsafe.SliceData(s))
	for _, l := range w.act {
		i := l & 31
		at := uint64(uint32(a[i]) + off)
		if at+size > n || at&(size-1) != 0 {
			d[i] = uint64(*(*T)(w.sharedPtr(o, int(i), at, size, false)))
			continue
		}
		d[i] = uint64(*(*T)(unsafe.Add(ptr, at)))
	}
}

func opStShared[T integer](w *warp, o *op) {
	var zero T
	size := uint64(unsafe.Sizeof(zero))
	v, a, off := &w.r[o.b], &w.r[o.a], uint32(o.imm)
	s := w.blk.shared
	n := uint64(len(s))
	ptr := unsafe.Pointer(unsafe.SliceData(s))
	for _, l := range w.act {
		i := l & 31
		at := uint64(uint32(a[i]) + off)
		if at+size > n || at&(size-1) != 0 {
			*(*T)(w.sharedPtr(o, int(i), at, size, true)) = T(v[i])
			continue
		}
		*(*T)(unsafe.Add(ptr, at)) = T(v[i])
	}
}

// opLdLocal loads a T per lane from local memory, each from its own.
func opLdLocal[T integer](w *warp, o *op) {
	var zero T
	size := uint64(unsafe.Sizeof(zero))
	d, a, off := &w.r[o.d], &w.r[o.a], uint32(o.imm)
	top, ptr := w.fr.base+w.fr.code.frame, unsafe.Pointer(unsafe.SliceData(w.local))
	for _, l := range w.act {
		i := l & 31
		at := uint64(uint32(a[i]) + off)
		if at+size > top || at&(size-1) != 0 {
			w.localPtr(o, int(i), at, size, false)
		}
		d[i] = uint64(*(*T)(unsafe.Add(ptr, uint64(i)*w.localCap+at)))
	}
}

func opStLocal[T integer](w *warp, o *op) {
	var zero T
	size := uint64(unsafe.Sizeof(zero))
	v, a, off := &w.r[o.b], &w.r[o.a], uint32(o.imm)
	top, ptr := w.fr.base+w.fr.code.frame, unsafe.Pointer(unsafe.SliceData(w.local))
	for _, l := range w.act {
		i := l & 31
		at := uint64(uint32(a[i]) + off)
		if at+size > top || at&(size-1) != 0 {
			w.localPtr(o, int(i), at, size, true)
		}
		*(*T)(unsafe.Add(ptr, uint64(i)*w.localCap+at)) = T(v[i])
	}
}

// opLdAny loads a T in any space, with acquire order where the size allows.
func opLdAny[T integer](w *warp, o *op) {
	var zero T
	size := uint64(unsafe.Sizeof(zero))
	w.mayspin()
	d := &w.r[o.d]
	for _, l := range w.act {
		p := w.lanePtr(o, int(l), size, false)
		switch size {
		case 4:
			d[l&31] = uint64(T(atomic.LoadUint32((*uint32)(p))))
		case 8:
			d[l&31] = atomic.LoadUint64((*uint64)(p))
		default:
			d[l&31] = uint64(*(*T)(p))
		}
	}
}

// opStAny stores a T in any space, with release order where the size allows.
func opStAny[T integer](w *warp, o *op) {
	var zero T
	size := uint64(unsafe.Sizeof(zero))
	v := &w.r[o.b]
	for _, l := range w.act {
		p := w.lanePtr(o, int(l), size, true)
		switch size {
		case 4:
			atomic.StoreUint32((*uint32)(p), uint32(v[l&31]))
		case 8:
			atomic.StoreUint64((*uint64)(p), v[l&31])
		default:
			*(*T)(p) = T(v[l&31])
		}
	}
}

// opLdVec loads several T per lane into the registers in vec.
func opLdVec[T integer](w *warp, o *op) {
	var zero T
	size := unsafe.Sizeof(zero)
	total := uint64(size) * uint64(len(o.x.vec))
	for _, l := range w.act {
		p := w.lanePtr(o, int(l), total, false)
		for k, s := range o.x.vec {
			if s >= 0 {
				w.r[s][l&31] = uint64(*(*T)(unsafe.Add(p, uintptr(k)*size)))
			}
		}
	}
}

func opStVec[T integer](w *warp, o *op) {
	var zero T
	size := unsafe.Sizeof(zero)
	total := uint64(size) * uint64(len(o.x.vec))
	for _, l := range w.act {
		p := w.lanePtr(o, int(l), total, true)
		for k, s := range o.x.vec {
			*(*T)(unsafe.Add(p, uintptr(k)*size)) = T(w.r[s][l&31])
		}
	}
}

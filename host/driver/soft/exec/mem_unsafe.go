package exec

import (
	"sync/atomic"
	"unsafe"

	"causeway/host/driver/soft/ptx"
)

// Generic windows of memory that is no device allocation. They lie in the
// non-canonical half of the address range, 4 GiB apart.
const (
	sharedWindow = 0xffff_0001_0000_0000
	localWindow  = 0xffff_0002_0000_0000
	paramWindow  = 0xffff_0003_0000_0000
	gridWindow   = 0xffff_0005_0000_0000 // barrier state of a cooperative grid
	windowSize   = 1 << 32
)

type integer interface {
	uint8 | uint16 | uint32 | uint64 | int8 | int16 | int32 | int64
}

// memRange is checked memory: device addresses lo … lo+size-1 are at ptr.
type memRange struct {
	lo, size uint64
	ptr      unsafe.Pointer
	writable bool
}

func (w *warp) forgetRanges() {
	w.rng = memRange{}
	w.rngs = [4]memRange{}
}

func bytesRange(lo uint64, b []byte, writable bool) memRange {
	return memRange{lo: lo, size: uint64(len(b)), ptr: unsafe.Pointer(unsafe.SliceData(b)), writable: writable}
}

// resolve checks one lane's access to global or generic memory beyond the
// range seen last, and returns where the bytes are. It raises a fault if they
// are nowhere.
func (w *warp) resolve(o *op, lane int, addr, size uint64, write bool) unsafe.Pointer {
	if addr&(size-1) != 0 {
		w.faultAddress(MisalignedAddress, o, lane, o.x.space, addr, size, write)
	}
	if r := &w.rng; addr-r.lo < r.size && r.size-(addr-r.lo) >= size && (r.writable || !write) {
		return unsafe.Add(r.ptr, addr-r.lo)
	}
	for i := range w.rngs {
		r := &w.rngs[i]
		if off := addr - r.lo; off < r.size && r.size-off >= size && (r.writable || !write) {
			w.rng = *r
			return unsafe.Add(r.ptr, off)
		}
	}
	if addr-localWindow < windowSize {
		return w.localPtr(o, lane, addr-localWindow, size, write)
	}
	r, ok := w.blk.seen(addr)
	if !ok {
		r, ok = w.find(addr)
	}
	off := addr - r.lo
	if !ok || off >= r.size || r.size-off < size || write && !r.writable {
		w.faultAddress(IllegalAddress, o, lane, o.x.space, addr, size, write)
	}
	w.rng = r
	w.rngs[w.rngNext&3] = r
	w.rngNext++
	w.blk.remember(r)
	return unsafe.Add(r.ptr, off)
}

// seen finds a range that another warp of the block has asked for.
func (b *blockRun) seen(addr uint64) (memRange, bool) {
	for i := range b.ranges {
		if r := &b.ranges[i]; addr-r.lo < r.size {
			return *r, true
		}
	}
	return memRange{}, false
}

func (b *blockRun) remember(r memRange) {
	if _, ok := b.seen(r.lo); !ok {
		b.ranges[b.rangeNext%len(b.ranges)] = r
		b.rangeNext++
	}
}

// find asks the windows, then the address space.
func (w *warp) find(addr uint64) (memRange, bool) {
	switch {
	case addr-sharedWindow < windowSize:
		mem, off := w.blk.sharedOf(addr - sharedWindow)
		return bytesRange(addr-off, mem, true), mem != nil
	case addr-paramWindow < windowSize:
		return bytesRange(paramWindow, w.blk.launch.config.Params, false), true
	case addr-childWindow < windowSize:
		k := w.blk.launch.children.at(addr)
		if k == nil {
			return memRange{}, false
		}
		return bytesRange(addr-(addr-childWindow)%childStride, k.config.Params, !k.launched), true
	case addr-gridWindow < windowSize:
		return bytesRange(gridWindow, w.blk.launch.grid, true), true
	}
	base, size, writable, ok := w.blk.launch.config.Space.Find(addr)
	if !ok || base == 0 || addr < base || addr-base >= size {
		return memRange{}, false
	}
	return memRange{lo: base, size: size, ptr: devicePtr(base), writable: writable}, true
}

// devicePtr turns the address of a live allocation into a pointer: device
// memory is this process's memory, outside of the Go heap.
func devicePtr(addr uint64) unsafe.Pointer { return unsafe.Add(unsafe.Pointer(nil), addr) }

// localPtr checks an access to a thread's local memory.
func (w *warp) localPtr(o *op, lane int, addr, size uint64, write bool) unsafe.Pointer {
	top := w.fr.base + w.fr.code.frame
	if addr&(size-1) != 0 {
		w.faultAddress(MisalignedAddress, o, lane, ptx.LocalSpace, addr, size, write)
	}
	if addr >= top || top-addr < size {
		w.faultAddress(IllegalAddress, o, lane, ptx.LocalSpace, addr, size, write)
	}
	return unsafe.Pointer(&w.local[uint64(lane)*w.localCap+addr])
}

// sharedPtr checks an access to shared memory at its own address.
func (w *warp) sharedPtr(o *op, lane int, addr, size uint64, write bool) unsafe.Pointer {
	if addr&(size-1) != 0 {
		w.faultAddress(MisalignedAddress, o, lane, ptx.Shared, addr, size, write)
	}
	s, at := w.blk.sharedOf(addr)
	if n := uint64(len(s)); at >= n || n-at < size {
		w.faultAddress(IllegalAddress, o, lane, ptx.Shared, addr, size, write)
	}
	return unsafe.Pointer(&s[at])
}

// lanePtr is the access of one lane in o's space, at register a plus imm.
func (w *warp) lanePtr(o *op, lane int, size uint64, write bool) unsafe.Pointer {
	addr := w.r[o.a][lane&31] + o.imm
	switch o.x.space {
	case ptx.Shared:
		return w.sharedPtr(o, lane, uint64(uint32(addr)), size, write)
	case ptx.LocalSpace:
		return w.localPtr(o, lane, uint64(uint32(addr)), size, write)
	}
	return w.resolve(o, lane, addr, size, write)
}

// opCopy copies o.x.size bytes from register b to register a, as cp.async
// does; c, if not negative, holds how many of them to read, the rest is zero.
func opCopy(w *warp, o *op) {
	src := op{a: o.b, imm: o.x.srcOff, line: o.line, x: &opExtra{space: ptx.Global}}
	for _, l := range w.act {
		n := o.x.size
		if o.c >= 0 {
			n = min(n, uint64(uint32(w.r[o.c][l&31])))
		}
		to := unsafe.Slice((*byte)(w.lanePtr(o, int(l), o.x.size, true)), o.x.size)
		if n > 0 {
			copy(to, unsafe.Slice((*byte)(w.lanePtr(&src, int(l), o.x.size, false)), n))
		}
		clear(to[n:])
	}
}

// readMemory returns n bytes of generic memory for a lane, as a copy, or false.
func (w *warp) readMemory(lane int, addr, n uint64) ([]byte, bool) {
	if addr-localWindow < windowSize {
		at := addr - localWindow
		if top := w.fr.base + w.fr.code.frame; at > top || top-at < n {
			return nil, false
		}
		base := uint64(lane)*w.localCap + at
		return append([]byte(nil), w.local[base:base+n]...), true
	}
	r, ok := w.find(addr)
	if !ok || addr-r.lo >= r.size || r.size-(addr-r.lo) < n {
		return nil, false
	}
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Add(r.ptr, addr-r.lo)), n)...), true
}

// readString returns the NUL-terminated string at addr, at most max bytes, or
// what its allocation holds of it.
func (w *warp) readString(lane int, addr uint64, max uint64) (string, bool) {
	var mem []byte
	if addr-localWindow < windowSize {
		at := addr - localWindow
		top := w.fr.base + w.fr.code.frame
		if at >= top {
			return "", false
		}
		base := uint64(lane) * w.localCap
		mem = w.local[base+at : base+top]
	} else {
		r, ok := w.find(addr)
		if !ok || addr-r.lo >= r.size {
			return "", false
		}
		mem = unsafe.Slice((*byte)(unsafe.Add(r.ptr, addr-r.lo)), r.size-(addr-r.lo))
	}
	for i := range mem {
		if mem[i] == 0 || uint64(i) == max {
			return string(mem[:i]), true
		}
	}
	return string(mem), true
}

// opFence orders this thread's memory accesses before and after it.
func opFence(w *warp, _ *op) { atomic.AddUint32(&w.fence, 1) }

// storeWord writes 8 bytes for a builtin.
func (w *warp) storeWord(lane int, s *callSite, addr, v uint64) {
	o := op{line: s.line, x: &opExtra{}}
	*(*uint64)(w.resolve(&o, lane, addr, 8, true)) = v
}

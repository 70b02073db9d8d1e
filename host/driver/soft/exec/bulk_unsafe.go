package exec

import (
	"unsafe"

	"causeway/host/driver/soft/ptx"
)

// bulkUnit is what bulk copies' addresses and sizes are multiples of.
const bulkUnit = 16

// span is memory of any length for a lane. Like an access, it faults.
func (w *warp) span(o *op, lane int, space ptx.Space, addr, size uint64, write bool) []byte {
	if space == ptx.Shared {
		addr = uint64(uint32(addr))
	}
	if addr%bulkUnit != 0 || size%bulkUnit != 0 {
		w.faultAddress(MisalignedAddress, o, lane, space, addr, size, write)
	}
	if space == ptx.Shared {
		if s, at := w.blk.sharedOf(addr); at <= uint64(len(s)) && uint64(len(s))-at >= size {
			return s[at : at+size]
		}
	} else if r, ok := w.find(addr); ok && addr-r.lo < r.size && r.size-(addr-r.lo) >= size && (r.writable || !write) {
		return unsafe.Slice((*byte)(unsafe.Add(r.ptr, addr-r.lo)), size)
	}
	w.faultAddress(IllegalAddress, o, lane, space, addr, size, write)
	return nil
}

func opBulk(w *warp, o *op) {
	b := o.x.bulk
	for _, l := range w.act {
		lane := int(l & 31)
		size := uint64(uint32(w.r[b.size][lane]))
		if size == 0 {
			continue
		}
		from := w.span(o, lane, b.src.space, w.r[b.src.base][lane]+b.src.off, size, false)
		to, bar := w.r[o.a][lane]+o.imm, uint64(0)
		if b.barrier {
			bar = w.r[b.bar.base][lane] + b.bar.off
		}
		if b.mask < 0 {
			w.bulkTo(o, lane, to, bar, from)
			continue
		}
		for m := uint32(uint16(w.r[b.mask][lane])); m != 0; m &= m - 1 {
			// The same place in other blocks.
			block := uint64(firstLane(m)+1) << clusterShift
			w.bulkTo(o, lane, to%ownShared|block, bar%ownShared|block, from)
		}
	}
}

// bulkTo writes one copy and counts its bytes.
func (w *warp) bulkTo(o *op, lane int, addr, bar uint64, from []byte) {
	b := o.x.bulk
	to := w.span(o, lane, o.x.space, addr, uint64(len(from)), true)
	if b.reduce == nil {
		copy(to, from)
	} else {
		each := op{x: &opExtra{size: b.element, f3: func(old, v, _ uint64) uint64 { return b.reduce(old, v) }}}
		for i := uint64(0); i < uint64(len(from)); i += b.element {
			v := loadBits(unsafe.Pointer(&from[i]), b.element)
			if o.x.space == ptx.Shared {
				modifyPlain(unsafe.Pointer(&to[i]), &each, v, 0)
			} else {
				modify(unsafe.Pointer(&to[i]), &each, v, 0)
			}
		}
	}
	if b.barrier {
		p := (*uint64)(w.sharedPtr(o, lane, uint64(uint32(bar)), 8, true))
		*p = mbarComplete(*p, uint64(len(from)), 0)
	}
}

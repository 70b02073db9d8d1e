package exec

import (
	"unsafe"

	"causeway/host/driver/soft/ptx"
)

// fragmentAccess is a fragment's way to and from memory.
type fragmentAccess struct {
	*tile
	cols   int
	column bool // column-major in memory
}

// ptrAt is an access of one lane in o's space at addr.
func (w *warp) ptrAt(o *op, lane int, addr, size uint64, write bool) unsafe.Pointer {
	switch o.x.space {
	case ptx.Shared:
		return w.sharedPtr(o, lane, uint64(uint32(addr)), size, write)
	case ptx.LocalSpace:
		return w.localPtr(o, lane, uint64(uint32(addr)), size, write)
	}
	return w.resolve(o, lane, addr, size, write)
}

// place is the position in bits of an element from the fragment's address.
func (f *fragmentAccess) place(at int16, stride uint64) uint64 {
	row, col := uint64(int(at)/f.cols), uint64(int(at)%f.cols)
	if f.column {
		row, col = col, row
	}
	return (row*stride + col) * uint64(f.num.bits)
}

func opLdFragment(w *warp, o *op) {
	f := o.x.fragment
	per, bits := f.num.perRegister(), f.num.bits
	size := max(uint64(bits)/8, 1)
	for r, s := range f.slots {
		for _, l := range w.act {
			lane := int(l & 31)
			base, stride := w.r[o.a][lane]+o.imm, uint64(uint32(w.r[o.b][lane]))
			var v uint64
			for e := range per {
				at := f.place(f.at[(r*32+lane)*per+e], stride)
				one := loadBits(w.ptrAt(o, lane, base+at/8, size, false), size)
				v |= one >> (at % 8) & (^uint64(0) >> (64 - bits)) << (e * bits)
			}
			w.r[s][lane] = v
		}
	}
}

func opStFragment(w *warp, o *op) {
	f := o.x.fragment
	per, bits := f.num.perRegister(), f.num.bits
	size := max(uint64(bits)/8, 1)
	for r, s := range f.slots {
		for _, l := range w.act {
			lane := int(l & 31)
			base, stride := w.r[o.a][lane]+o.imm, uint64(uint32(w.r[o.b][lane]))
			for e := range per {
				at := f.place(f.at[(r*32+lane)*per+e], stride)
				storeBits(w.ptrAt(o, lane, base+at/8, size, true), size, w.r[s][lane]>>(e*bits))
			}
		}
	}
}

func loadBits(p unsafe.Pointer, size uint64) uint64 {
	switch size {
	case 1:
		return uint64(*(*uint8)(p))
	case 2:
		return uint64(*(*uint16)(p))
	case 4:
		return uint64(*(*uint32)(p))
	}
	return *(*uint64)(p)
}

func storeBits(p unsafe.Pointer, size, v uint64) {
	switch size {
	case 1:
		*(*uint8)(p) = uint8(v)
	case 2:
		*(*uint16)(p) = uint16(v)
	case 4:
		*(*uint32)(p) = uint32(v)
	default:
		*(*uint64)(p) = v
	}
}

// rows finds the eight rows of tile k, whose addresses lanes 8k to 8k+7 hold.
func (w *warp) rows(o *op, k int, write bool) (rows [8]*[8]uint16) {
	for i := range rows {
		lane := (8*k + i) & 31
		rows[i] = (*[8]uint16)(w.ptrAt(o, lane, w.r[o.a][lane]+o.imm, 16, write))
	}
	return rows
}

func opLdMatrix(w *warp, o *op) {
	var out [4]lanes // a destination may be the register of addresses
	for k := range o.x.vec {
		rows := w.rows(o, k, false)
		for lane := range 32 {
			row, col := lane/4, lane%4*2
			if o.b != 0 {
				out[k&3][lane] = uint64(rows[col][row]) | uint64(rows[col+1][row])<<16
			} else {
				out[k&3][lane] = uint64(rows[row][col]) | uint64(rows[row][col+1])<<16
			}
		}
	}
	for k, s := range o.x.vec {
		for _, l := range w.act {
			w.r[s][l&31] = out[k&3][l&31]
		}
	}
}

func opStMatrix(w *warp, o *op) {
	for k, s := range o.x.vec {
		rows := w.rows(o, k, true)
		for lane, v := range w.r[s] {
			row, col := lane/4, lane%4*2
			if o.b != 0 {
				rows[col][row], rows[col+1][row] = uint16(v), uint16(v>>16)
			} else {
				rows[row][col], rows[row][col+1] = uint16(v), uint16(v>>16)
			}
		}
	}
}

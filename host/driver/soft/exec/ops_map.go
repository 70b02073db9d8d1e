package exec

import "math/bits"

// The loops in this and the other ops files are the interpreter's inner loops.
// They take the lanes from w.act; "& 31" tells the compiler that no lane can be
// out of range.

// opMap1 applies x.f1 per lane.
func opMap1(w *warp, o *op) {
	d, a, f := &w.r[o.d], &w.r[o.a], o.x.f1
	for _, l := range w.act {
		d[l&31] = f(a[l&31])
	}
}

func opMap2(w *warp, o *op) {
	d, a, b, f := &w.r[o.d], &w.r[o.a], &w.r[o.b], o.x.f2
	for _, l := range w.act {
		d[l&31] = f(a[l&31], b[l&31])
	}
}

func opMap3(w *warp, o *op) {
	d, a, b, c, f := &w.r[o.d], &w.r[o.a], &w.r[o.b], &w.r[o.c], o.x.f3
	for _, l := range w.act {
		d[l&31] = f(a[l&31], b[l&31], c[l&31])
	}
}

// opTest sets predicate p where x.cmp holds.
func opTest(w *warp, o *op) {
	a, b, f := &w.r[o.a], &w.r[o.b], o.x.cmp
	var m uint32
	for _, l := range w.act {
		if f(a[l&31], b[l&31]) {
			m |= 1 << (l & 31)
		}
	}
	w.setPred(o.p, m)
}

// setPred writes the active lanes of a predicate.
func (w *warp) setPred(p int32, m uint32) {
	w.p[p] = w.p[p]&^w.mask | m&w.mask
}

func opPredNot(w *warp, o *op) { w.setPred(o.p, ^w.p[o.q]) }

func opPredSet(w *warp, o *op) { w.setPred(o.p, uint32(o.imm)) }

func opPredMov(w *warp, o *op) { w.setPred(o.p, w.p[o.q]) }

// opPredBin combines predicates q and a into p by the function in imm.
func opPredBin(w *warp, o *op) {
	x, y := w.p[o.q], w.p[o.a]
	switch boolOp(o.imm) {
	case boolAnd:
		x &= y
	case boolOr:
		x |= y
	case boolXor:
		x ^= y
	}
	w.setPred(o.p, x)
}

type boolOp uint8

const (
	boolNone boolOp = iota
	boolAnd
	boolOr
	boolXor
)

func opMov(w *warp, o *op) {
	d, a := &w.r[o.d], &w.r[o.a]
	if w.mask == fullMask {
		*d = *a
		return
	}
	for _, l := range w.act {
		d[l&31] = a[l&31]
	}
}

func opSelp(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	p := w.p[o.p]
	for _, l := range w.act {
		v := b[l&31]
		if p>>(l&31)&1 != 0 {
			v = a[l&31]
		}
		d[l&31] = v
	}
}

func opAdd(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = a[l&31] + b[l&31]
	}
}

func opSub(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = a[l&31] - b[l&31]
	}
}

func opMul(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = a[l&31] * b[l&31]
	}
}

func opMad(w *warp, o *op) {
	d, a, b, c := &w.r[o.d], &w.r[o.a], &w.r[o.b], &w.r[o.c]
	for _, l := range w.act {
		d[l&31] = a[l&31]*b[l&31] + c[l&31]
	}
}

func opAnd(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = a[l&31] & b[l&31]
	}
}

func opOr(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = a[l&31] | b[l&31]
	}
}

func opXor(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = a[l&31] ^ b[l&31]
	}
}

func opNot(w *warp, o *op) {
	d, a := &w.r[o.d], &w.r[o.a]
	for _, l := range w.act {
		d[l&31] = ^a[l&31]
	}
}

// opMulWide multiplies two T into twice the width.
func opMulWide[T integer](w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = uint64(T(a[l&31])) * uint64(T(b[l&31]))
	}
}

func opMadWide[T integer](w *warp, o *op) {
	d, a, b, c := &w.r[o.d], &w.r[o.a], &w.r[o.b], &w.r[o.c]
	for _, l := range w.act {
		d[l&31] = uint64(T(a[l&31]))*uint64(T(b[l&31])) + c[l&31]
	}
}

// opExtend reads a T and extends it to 64 bits: every widening or equal cvt
// between integers.
func opExtend[T integer](w *warp, o *op) {
	d, a := &w.r[o.d], &w.r[o.a]
	for _, l := range w.act {
		d[l&31] = uint64(T(a[l&31]))
	}
}

func opShl32(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = uint64(uint32(a[l&31]) << uint32(b[l&31]))
	}
}

func opShl64(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = a[l&31] << uint32(b[l&31])
	}
}

func opShr[T integer](w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = uint64(T(a[l&31]) >> uint32(b[l&31]))
	}
}

func opMin[T integer](w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = uint64(min(T(a[l&31]), T(b[l&31])))
	}
}

func opMax[T integer](w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = uint64(max(T(a[l&31]), T(b[l&31])))
	}
}

// opPack gathers the registers in vec, imm bits each, into d.
func opPack(w *warp, o *op) {
	width := uint(o.imm)
	mask := uint64(1)<<width - 1
	for _, l := range w.act {
		var v uint64
		for k, s := range o.x.vec {
			v |= (w.r[s][l&31] & mask) << (uint(k) * width)
		}
		w.r[o.d][l&31] = v
	}
}

// opUnpack is the reverse of opPack; sinks are -1.
func opUnpack(w *warp, o *op) {
	width := uint(o.imm)
	for _, l := range w.act {
		v := w.r[o.a][l&31]
		for k, s := range o.x.vec {
			if s >= 0 {
				w.r[s][l&31] = v >> (uint(k) * width)
			}
		}
	}
}

func firstLane(m uint32) int { return bits.TrailingZeros32(m) & 31 }

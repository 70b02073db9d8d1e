package exec

import (
	"math/bits"

	"causeway/host/driver/soft/ptx"
)

// lowerLogic lowers and, or, xor.
func lowerLogic(l *lowerer) error {
	t := l.typ()
	if t == ptx.Pred {
		return l.predLogic()
	}
	switch l.in.Op {
	case "and":
		return l.emit2(t, opAnd)
	case "or":
		return l.emit2(t, opOr)
	}
	return l.emit2(t, opXor)
}

func (l *lowerer) predLogic() error {
	if err := l.need(3); err != nil {
		return err
	}
	p, err := l.predDst(&l.in.Operands[0])
	if err != nil {
		return err
	}
	a, err := l.pred(&l.in.Operands[1])
	if err != nil {
		return err
	}
	b, err := l.pred(&l.in.Operands[2])
	kind := map[string]boolOp{"and": boolAnd, "or": boolOr, "xor": boolXor}[l.in.Op]
	l.emit(op{fn: opPredBin, p: p, q: a, a: b, imm: uint64(kind)})
	return err
}

func lowerNot(l *lowerer) error {
	if err := l.need(2); err != nil {
		return err
	}
	t := l.typ()
	if t == ptx.Pred {
		p, err := l.predDst(&l.in.Operands[0])
		if err != nil {
			return err
		}
		q, err := l.pred(&l.in.Operands[1])
		l.emit(op{fn: opPredNot, p: p, q: q})
		return err
	}
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	a, err := l.src(1, t)
	l.emit(op{fn: opNot, d: d, a: a})
	return err
}

func lowerCnot(l *lowerer) error {
	mask := ^uint64(0) >> (64 - l.typ().Bits())
	return l.map1(l.typ(), func(a uint64) uint64 {
		if a&mask == 0 {
			return 1
		}
		return 0
	})
}

// lowerShift lowers shl and shr; amounts beyond the width shift everything
// out.
func lowerShift(l *lowerer) error {
	t := l.typ()
	if err := l.need(3); err != nil {
		return err
	}
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	a, err := l.src(1, t)
	if err != nil {
		return err
	}
	b, err := l.src(2, ptx.U32)
	if err != nil {
		return err
	}
	fn := byInt[opFn](t, opShr[uint16], opShr[int16], opShr[uint32], opShr[int32], opShr[uint64], opShr[int64])
	if l.in.Op == "shl" {
		fn = byInt[opFn](t, opShl32, opShl32, opShl32, opShl32, opShl64, opShl64)
	}
	if fn == nil {
		return l.unsupported("%s", l.in)
	}
	l.emit(op{fn: fn, d: d, a: a, b: b})
	return nil
}

// lowerShf lowers the funnel shift of {b, a}.
func lowerShf(l *lowerer) error {
	amount := func(c uint64) uint64 { return c & 31 }
	if l.has("clamp") {
		amount = func(c uint64) uint64 { return uint64(min(uint32(c), 32)) }
	}
	left := l.has("l")
	return l.map3(ptx.B32, ptx.B32, ptx.U32, func(a, b, c uint64) uint64 {
		v := uint64(uint32(a)) | b<<32
		if left {
			return v << amount(c) >> 32
		}
		return v >> amount(c)
	})
}

// lop3Func evaluates the truth table of a three-input logic operation.
func lop3Func(table uint64) func(a, b, c uint64) uint64 {
	switch table & 0xff { // what compilers emit most
	case 0x80:
		return func(a, b, c uint64) uint64 { return a & b & c }
	case 0xfe:
		return func(a, b, c uint64) uint64 { return a | b | c }
	case 0x96:
		return func(a, b, c uint64) uint64 { return a ^ b ^ c }
	case 0xf8:
		return func(a, b, c uint64) uint64 { return a | b&c }
	case 0x6a:
		return func(a, b, c uint64) uint64 { return a&b ^ c }
	case 0x78:
		return func(a, b, c uint64) uint64 { return a ^ b&c }
	case 0xca:
		return func(a, b, c uint64) uint64 { return a&b | ^a&c }
	case 0xe8:
		return func(a, b, c uint64) uint64 { return a&b | a&c | b&c }
	case 0xea:
		return func(a, b, c uint64) uint64 { return a&b | c }
	}
	return func(a, b, c uint64) uint64 {
		var v uint64
		for i := range uint(8) {
			if table>>i&1 == 0 {
				continue
			}
			x, y, z := ^a, ^b, ^c
			if i&4 != 0 {
				x = a
			}
			if i&2 != 0 {
				y = b
			}
			if i&1 != 0 {
				z = c
			}
			v |= x & y & z
		}
		return v
	}
}

func lowerLop3(l *lowerer) error {
	if len(l.in.Operands) != 5 || l.in.Operands[4].Kind != ptx.OpImm || l.hasAny("or", "and") != "" {
		return l.unsupported("%s", l.in)
	}
	f := lop3Func(l.in.Operands[4].Imm)
	l.in.Operands = l.in.Operands[:4]
	return l.map3(ptx.B32, ptx.B32, ptx.B32, f)
}

// fieldMask is what instructions of a width heed of a field's position and
// length: the ISA says 8 bits, but the 64-bit ones take all.
func fieldMask(width uint64) uint64 {
	if width == 64 {
		return 0xffffffff
	}
	return 0xff
}

// lowerBfe extracts a bit field; bits beyond the width repeat the sign.
func lowerBfe(l *lowerer) error {
	t := l.typ()
	width := uint64(t.Bits())
	signed := t.Signed()
	heed := fieldMask(width)
	return l.map3(t, ptx.U32, ptx.U32, func(a, b, c uint64) uint64 {
		a <<= 64 - width
		pos, n := b&heed, c&heed
		if n == 0 {
			return 0
		}
		if !signed {
			v := a >> (64 - width) >> pos
			if n < 64 {
				v &= 1<<n - 1
			}
			return v
		}
		v := int64(a) >> (64 - width) // the value; above the width its sign
		v >>= min(pos, 63)
		if n < 64 {
			v = v << (64 - n) >> (64 - n)
		}
		return uint64(v)
	})
}

func lowerBfi(l *lowerer) error {
	if err := l.need(5); err != nil {
		return err
	}
	t := l.typ()
	width := uint64(t.Bits())
	var slots [5]int32
	var err error
	if slots[0], err = l.dst(0); err != nil {
		return err
	}
	for i, at := range [...]ptx.Type{0, t, t, ptx.U32, ptx.U32} {
		if i == 0 {
			continue
		}
		if slots[i], err = l.src(i, at); err != nil {
			return err
		}
	}
	l.emit(op{fn: opBfi, d: slots[0], a: slots[1], b: slots[2], c: slots[3], q: slots[4], imm: width})
	return nil
}

// opBfi inserts a into b at position c; the length is in register q.
func opBfi(w *warp, o *op) {
	d, a, b, pos, n := &w.r[o.d], &w.r[o.a], &w.r[o.b], &w.r[o.c], &w.r[o.q]
	heed := fieldMask(o.imm)
	for _, l := range w.act {
		i := l & 31
		at, num := pos[i]&heed, n[i]&heed
		mask := ^uint64(0)
		if num < 64 {
			mask = 1<<num - 1
		}
		mask = mask << at & (^uint64(0) >> (64 - o.imm))
		d[i] = b[i]&^mask | a[i]<<at&mask
	}
}

func lowerBfind(l *lowerer) error {
	t := l.typ()
	width := t.Bits()
	shiftAmt := l.has("shiftamt")
	return l.map1(t, func(a uint64) uint64 {
		a <<= 64 - width
		if t.Signed() && int64(a) < 0 {
			a = ^a >> (64 - width) << (64 - width)
		}
		if a == 0 {
			return 0xffffffff
		}
		n := width - 1 - bits.LeadingZeros64(a)
		if shiftAmt {
			n = width - 1 - n
		}
		return uint64(n)
	})
}

// lowerBits1 lowers popc, clz and brev.
func lowerBits1(l *lowerer) error {
	t := l.typ()
	width := t.Bits()
	if width != 32 && width != 64 {
		return l.unsupported("%s", l.in)
	}
	var f func(a uint64) uint64
	switch l.in.Op {
	case "popc":
		f = func(a uint64) uint64 { return uint64(bits.OnesCount64(a << (64 - width))) }
	case "clz":
		f = func(a uint64) uint64 { return uint64(min(bits.LeadingZeros64(a<<(64-width)), width)) }
	default:
		f = func(a uint64) uint64 { return reverse(a, width) }
		if width == 32 {
			f = func(a uint64) uint64 { return reverse(a&fullMask, 32) }
		}
	}
	return l.map1(t, f)
}

// findNth is fns: the n-th set bit of mask from base, upwards for n > 0.
func findNth(mask, base, offset uint64) uint64 {
	m, n, at := uint32(mask), int32(offset), int(uint32(base)&31)
	if n == 0 {
		if m>>at&1 != 0 {
			return uint64(at)
		}
		return fullMask
	}
	step := 1
	if n < 0 {
		step, n = -1, -n
	}
	for ; at >= 0 && at < 32; at += step {
		if m>>at&1 != 0 {
			if n--; n == 0 {
				return uint64(at)
			}
		}
	}
	return fullMask
}

func lowerFns(l *lowerer) error { return l.map3(ptx.B32, ptx.B32, ptx.S32, findNth) }

func lowerBmsk(l *lowerer) error {
	wrap := l.has("wrap")
	return l.map2(ptx.B32, ptx.B32, func(a, b uint64) uint64 {
		pos, n := uint64(uint32(a)), uint64(uint32(b))
		if wrap {
			pos, n = pos&31, n&31
		}
		if pos > 31 {
			return 0
		}
		return (1<<min(n, 32) - 1) << pos
	})
}

func lowerSzext(l *lowerer) error {
	t := l.typ()
	wrap := l.has("wrap")
	return l.map2(t, ptx.U32, func(a, b uint64) uint64 {
		n := uint64(uint32(b))
		if wrap {
			n &= 31
		}
		if n >= 32 {
			return a
		}
		if n == 0 {
			return 0
		}
		a <<= 64 - n
		if t.Signed() {
			return uint64(int64(a) >> (64 - n))
		}
		return a >> (64 - n)
	})
}

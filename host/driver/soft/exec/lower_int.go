package exec

import (
	"math/bits"

	"causeway/host/driver/soft/ptx"
)

// emit2 lowers "op d, a, b" with a loop of its own.
func (l *lowerer) emit2(t ptx.Type, fn opFn) error {
	if err := l.need(3); err != nil {
		return err
	}
	if fn == nil {
		return l.unsupported("%s", l.in)
	}
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	a, err := l.src(1, t)
	if err != nil {
		return err
	}
	b, err := l.src(2, t)
	l.emit(op{fn: fn, d: d, a: a, b: b})
	return err
}

func (l *lowerer) emit3(ta, tb, tc ptx.Type, o op) error {
	if err := l.need(4); err != nil {
		return err
	}
	var err error
	if o.d, err = l.dst(0); err != nil {
		return err
	}
	if o.a, err = l.src(1, ta); err != nil {
		return err
	}
	if o.b, err = l.src(2, tb); err != nil {
		return err
	}
	o.c, err = l.src(3, tc)
	l.emit(o)
	return err
}

func (l *lowerer) map1(t ptx.Type, f func(a uint64) uint64) error {
	if err := l.need(2); err != nil {
		return err
	}
	if f == nil {
		return l.unsupported("%s", l.in)
	}
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	a, err := l.src(1, t)
	l.emit(op{fn: opMap1, d: d, a: a, x: &opExtra{f1: f}})
	return err
}

func (l *lowerer) map2(ta, tb ptx.Type, f func(a, b uint64) uint64) error {
	if err := l.need(3); err != nil {
		return err
	}
	if f == nil {
		return l.unsupported("%s", l.in)
	}
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	a, err := l.src(1, ta)
	if err != nil {
		return err
	}
	b, err := l.src(2, tb)
	l.emit(op{fn: opMap2, d: d, a: a, b: b, x: &opExtra{f2: f}})
	return err
}

func (l *lowerer) map3(ta, tb, tc ptx.Type, f func(a, b, c uint64) uint64) error {
	if f == nil {
		return l.unsupported("%s", l.in)
	}
	return l.emit3(ta, tb, tc, op{fn: opMap3, x: &opExtra{f3: f}})
}

// byInt picks by integer type; untyped bits count as unsigned. The result is
// the zero F for other types.
func byInt[F any](t ptx.Type, u16, s16, u32, s32, u64, s64 F) F {
	var none F
	switch t {
	case ptx.U16, ptx.B16:
		return u16
	case ptx.S16:
		return s16
	case ptx.U32, ptx.B32:
		return u32
	case ptx.S32:
		return s32
	case ptx.U64, ptx.B64:
		return u64
	case ptx.S64:
		return s64
	}
	return none
}

func isInt(t ptx.Type) bool { return t >= ptx.B8 && t <= ptx.S64 && t != ptx.B128 }

// packed16 reports the .u16x2 and .s16x2 forms.
func (l *lowerer) packed16() string { return l.hasAny("u16x2", "s16x2") }

// halves applies f to both 16-bit halves.
func halves(f func(a, b uint64) uint64) func(a, b uint64) uint64 {
	return func(a, b uint64) uint64 {
		return f(a&0xffff, b&0xffff)&0xffff | f(a>>16&0xffff, b>>16&0xffff)&0xffff<<16
	}
}

// lowerAdd lowers add and sub of any type.
func lowerAdd(l *lowerer) error {
	t := l.typ()
	sub := l.in.Op == "sub"
	if l.packed16() != "" {
		return l.map2(ptx.B32, ptx.B32, halves(func(a, b uint64) uint64 {
			if sub {
				return a - b
			}
			return a + b
		}))
	}
	switch {
	case t.Float():
		return l.floatBin2(l.in.Op, t)
	case l.has("cc"):
		return lowerCarry(l)
	case l.has("sat"):
		return l.map2(t, t, func(a, b uint64) uint64 {
			v := int64(int32(a)) + int64(int32(b))
			if sub {
				v = int64(int32(a)) - int64(int32(b))
			}
			return uint64(min(max(v, -1<<31), 1<<31-1))
		})
	case !isInt(t):
		return l.unsupported("%s", l.in)
	case sub:
		return l.emit2(t, opSub)
	}
	return l.emit2(t, opAdd)
}

func mulHi(t ptx.Type) func(a, b uint64) uint64 {
	return byInt(t,
		func(a, b uint64) uint64 { return uint64(uint16(a)) * uint64(uint16(b)) >> 16 },
		func(a, b uint64) uint64 { return uint64(int64(int16(a)) * int64(int16(b)) >> 16) },
		func(a, b uint64) uint64 { return uint64(uint32(a)) * uint64(uint32(b)) >> 32 },
		func(a, b uint64) uint64 { return uint64(int64(int32(a)) * int64(int32(b)) >> 32) },
		func(a, b uint64) uint64 { hi, _ := bits.Mul64(a, b); return hi },
		func(a, b uint64) uint64 {
			hi, _ := bits.Mul64(a, b)
			if int64(a) < 0 {
				hi -= b
			}
			if int64(b) < 0 {
				hi -= a
			}
			return hi
		})
}

// lowerMul lowers mul and mad of any type.
func lowerMul(l *lowerer) error {
	t := l.typ()
	mad := l.in.Op == "mad"
	if t.Float() {
		if mad {
			return lowerFma(l)
		}
		return l.floatBin2("mul", t)
	}
	if !isInt(t) {
		return l.unsupported("%s", l.in)
	}
	if l.has("cc") {
		return lowerCarry(l)
	}
	switch {
	case l.has("wide"):
		wide := wider(t)
		if mad {
			fn := byInt(t, opMadWide[uint16], opMadWide[int16], opMadWide[uint32], opMadWide[int32], nil, nil)
			if fn == nil {
				return l.unsupported("%s", l.in)
			}
			return l.emit3(t, t, wide, op{fn: fn})
		}
		return l.emit2(t, byInt(t, opMulWide[uint16], opMulWide[int16], opMulWide[uint32], opMulWide[int32], nil, nil))
	case l.has("hi"):
		hi := mulHi(t)
		if hi == nil {
			return l.unsupported("%s", l.in)
		}
		if !mad {
			return l.map2(t, t, hi)
		}
		if l.has("sat") {
			return l.map3(t, t, t, func(a, b, c uint64) uint64 {
				v := int64(int32(hi(a, b))) + int64(int32(c))
				return uint64(min(max(v, -1<<31), 1<<31-1))
			})
		}
		return l.map3(t, t, t, func(a, b, c uint64) uint64 { return hi(a, b) + c })
	case mad:
		return l.emit3(t, t, t, op{fn: opMad})
	}
	return l.emit2(t, opMul)
}

func wider(t ptx.Type) ptx.Type {
	return byInt(t, ptx.U32, ptx.S32, ptx.U64, ptx.S64, ptx.NoType, ptx.NoType)
}

func lowerMul24(l *lowerer) error {
	t := l.typ()
	var cut func(v uint64) uint64
	switch t {
	case ptx.U32:
		cut = func(v uint64) uint64 { return v & 0xffffff }
	case ptx.S32:
		cut = func(v uint64) uint64 { return uint64(int64(int32(v)<<8) >> 8) }
	default:
		return l.unsupported("%s", l.in)
	}
	shift := 0
	if l.has("hi") {
		shift = 16
	}
	mul := func(a, b uint64) uint64 { return uint64(int64(cut(a)*cut(b)) >> shift) }
	if l.in.Op == "mul24" {
		return l.map2(t, t, mul)
	}
	if l.has("sat") {
		return l.map3(t, t, t, func(a, b, c uint64) uint64 {
			return uint64(min(max(int64(int32(mul(a, b)))+int64(int32(c)), -1<<31), 1<<31-1))
		})
	}
	return l.map3(t, t, t, func(a, b, c uint64) uint64 { return mul(a, b) + c })
}

// Division by zero and its remainder give all ones, as hardware does though the
// ISA leaves it open.
func divide[T integer](a, b uint64) uint64 {
	if T(b) == 0 {
		return ^uint64(0)
	}
	return uint64(T(a) / T(b))
}

func remainder[T integer](a, b uint64) uint64 {
	if T(b) == 0 {
		return ^uint64(0)
	}
	return uint64(T(a) % T(b))
}

func lowerDiv(l *lowerer) error {
	t := l.typ()
	if t.Float() {
		return l.floatBin2("div", t)
	}
	return l.map2(t, t, byInt(t, divide[uint16], divide[int16], divide[uint32], divide[int32], divide[uint64], divide[int64]))
}

func lowerRem(l *lowerer) error {
	t := l.typ()
	return l.map2(t, t, byInt(t, remainder[uint16], remainder[int16], remainder[uint32], remainder[int32], remainder[uint64], remainder[int64]))
}

func absolute[T integer](a uint64) uint64 {
	if v := T(a); v < 0 {
		return uint64(-v)
	}
	return a
}

// lowerUnary lowers abs and neg.
func lowerUnary(l *lowerer) error {
	t := l.typ()
	if t.Float() {
		return l.floatSign(t)
	}
	if l.in.Op == "neg" {
		return l.map1(t, byInt(t, negate, negate, negate, negate, negate, negate))
	}
	return l.map1(t, byInt(t, nil, absolute[int16], nil, absolute[int32], nil, absolute[int64]))
}

func negate(a uint64) uint64 { return -a }

func absDiff[T integer](a, b uint64) uint64 {
	x, y := T(a), T(b)
	if x < y {
		x, y = y, x
	}
	return uint64(x) - uint64(y)
}

func lowerSad(l *lowerer) error {
	t := l.typ()
	diff := byInt(t, absDiff[uint16], absDiff[int16], absDiff[uint32], absDiff[int32], absDiff[uint64], absDiff[int64])
	if diff == nil {
		return l.unsupported("%s", l.in)
	}
	return l.map3(t, t, t, func(a, b, c uint64) uint64 { return diff(a, b) + c })
}

// lowerDot lowers dp4a and dp2a: sums of byte products.
func lowerDot(l *lowerer) error {
	ts := l.types()
	if len(ts) != 2 {
		return l.unsupported("%s", l.in)
	}
	part := func(v uint64, width, i int, signed bool) int64 {
		v >>= i * width
		if signed {
			return int64(v<<(64-width)) >> (64 - width)
		}
		return int64(v & (1<<width - 1))
	}
	sa, sb := ts[0].Signed(), ts[1].Signed()
	n, width, base := 4, 8, 0
	if l.in.Op == "dp2a" {
		n, width = 2, 16
		if l.has("hi") {
			base = 2
		}
	}
	return l.map3(ptx.B32, ptx.B32, ptx.B32, func(a, b, c uint64) uint64 {
		sum := int64(uint32(c))
		for i := range n {
			sum += part(a, width, i, sa) * part(b, 8, base+i, sb)
		}
		return uint64(sum)
	})
}

package exec

import (
	"causeway/host/driver/soft/ptx"
)

// quiet is the bit that makes a float64 NaN quiet.
const quiet = 1 << 51

// quiet64 is v's bits, the result for operands a, b, c. A NaN is what hardware
// makes of the operands: the first that is one of b, c, a, quiet, or the
// default NaN.
func quiet64(v float64, a, b, c uint64) uint64 {
	if v == v {
		return bits64(v)
	}
	for _, x := range [...]uint64{b, c, a} {
		if f := f64(x); f != f {
			return x | quiet
		}
	}
	return 0xfff8000000000000
}

// flushBits replaces a subnormal of a type that .ftz concerns by a zero of its sign.
func flushBits(v uint64, t ptx.Type) uint64 {
	switch {
	case t == ptx.F32 && v&0x7f800000 == 0:
		return v & 0x80000000
	case t == ptx.F16 && v&0x7c00 == 0:
		return v & 0x8000
	}
	return v
}

// floatSign lowers abs and neg. They touch only the sign, but a NaN becomes
// the canonical one, of double precision a quiet one.
func (l *lowerer) floatSign(t ptx.Type) error {
	e, pair := unpacked(t)
	signBit := uint64(1) << (e.Bits() - 1)
	flip, clear := signBit, uint64(0)
	if l.in.Op == "abs" {
		flip, clear = 0, signBit
	}
	ftz := l.has("ftz")
	var one func(a uint64) uint64
	if e == ptx.F64 {
		one = func(a uint64) uint64 {
			if v := f64(a); v != v {
				return a | quiet
			}
			return a&^clear ^ flip
		}
		return l.map1(t, one)
	}
	nan := signBit - 1
	inf := map[ptx.Type]uint64{ptx.F32: 0x7f800000, ptx.F16: 0x7c00, ptx.BF16: 0x7f80}[e]
	one = func(a uint64) uint64 {
		if a&nan > inf {
			return nan
		}
		if ftz {
			a = flushBits(a, e)
		}
		return a&^clear ^ flip
	}
	if !pair {
		return l.map1(t, one)
	}
	return l.map1(t, func(a uint64) uint64 { return one(a&0xffff)&0xffff | one(a>>16&0xffff)&0xffff<<16 })
}

func lowerTestp(l *lowerer) error {
	if err := l.need(2); err != nil {
		return err
	}
	t := l.typ()
	p, err := l.predDst(&l.in.Operands[0])
	if err != nil {
		return err
	}
	a, err := l.src(1, t)
	if err != nil {
		return err
	}
	expBits, manBits := 8, 23
	if t == ptx.F64 {
		expBits, manBits = 11, 52
	}
	kind := l.hasAny("finite", "infinite", "number", "notanumber", "normal", "subnormal")
	l.emit(op{fn: opTest, p: p, a: a, b: a, x: &opExtra{cmp: func(v, _ uint64) bool {
		top := uint64(1)<<expBits - 1
		exp, man := v>>manBits&top, v&(1<<manBits-1)
		switch kind {
		case "finite":
			return exp != top
		case "infinite":
			return exp == top && man == 0
		case "number":
			return exp != top || man == 0
		case "notanumber":
			return exp == top && man != 0
		case "normal":
			// As hardware has it: zero is normal.
			return exp != top && exp != 0 || exp == 0 && man == 0
		}
		return exp == 0 && man != 0
	}}})
	return nil
}

func lowerCopysign(l *lowerer) error {
	t := l.typ()
	s := uint64(1) << (t.Bits() - 1)
	return l.map2(t, t, func(a, b uint64) uint64 { return b&^s | a&s })
}

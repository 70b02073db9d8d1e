package exec

import (
	"causeway/host/driver/soft/ptx"
)

// lowerCvt lowers cvt.mods.dtype.atype.
func lowerCvt(l *lowerer) error {
	ts := l.types()
	if l.has("pack") {
		return l.cvtPack(ts)
	}
	if l.has("tf32") {
		return l.cvtTF32(ts)
	}
	if l.hasAny("e4m3x2", "e5m2x2") != "" {
		return l.cvtByteFloats()
	}
	if len(ts) != 2 || len(l.in.Operands) < 2 {
		return l.unsupported("%s", l.in)
	}
	dt, at := ts[0], ts[1]
	if dt == ptx.F16x2 || dt == ptx.BF16x2 {
		return l.cvtPair(dt, at)
	}
	switch {
	case isInt(dt) && isInt(at):
		return l.cvtInt(dt, at)
	case isInt(dt):
		return l.map1(at, floatToInt(dt, at, l.intRounding(), l.has("ftz"), l.has("sat")))
	case isInt(at):
		return l.map1(at, intToFloat(dt, at, l.rounding(), l.has("sat")))
	}
	return l.map1(at, floatToFloat(dt, at, l.rounding(), l.intRounding(), l.hasAny("rni", "rzi", "rmi", "rpi") != "", l.has("ftz"), l.has("sat"), l.has("relu")))
}

func (l *lowerer) intRounding() rounding {
	switch l.hasAny("rni", "rzi", "rmi", "rpi", "rna") {
	case "rzi":
		return roundZero
	case "rmi":
		return roundDown
	case "rpi":
		return roundUp
	case "rna":
		return roundAway
	}
	return roundNearest
}

// extend reads v as t and extends it to 64 bits.
func extend(v uint64, t ptx.Type) uint64 {
	shift := 64 - t.Bits()
	if t.Signed() {
		return uint64(int64(v<<shift) >> shift)
	}
	return v << shift >> shift
}

func (l *lowerer) cvtInt(dt, at ptx.Type) error {
	if err := l.need(2); err != nil {
		return err
	}
	if l.has("sat") {
		lo, hi := intRange(dt)
		return l.map1(at, func(a uint64) uint64 {
			v := extend(a, at)
			if at.Signed() {
				return uint64(clampSigned(int64(v), lo, hi))
			}
			return min(v, hi)
		})
	}
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	a, err := l.src(1, at)
	if err != nil {
		return err
	}
	// The narrower type decides what survives; the destination's sign how it
	// is extended when it is the narrower, the source's otherwise.
	t := at
	if dt.Bits() <= at.Bits() {
		t = dt
	}
	l.emit(op{fn: bySize(t, opExtend[uint8], opExtend[int8], opExtend[uint16], opExtend[int16], opExtend[uint32], opExtend[int32], opMov), d: d, a: a})
	return nil
}

// intRange is the range of an integer type; lo as a signed number.
func intRange(t ptx.Type) (lo int64, hi uint64) {
	n := t.Bits()
	if t.Signed() {
		return -1 << (n - 1), 1<<(n-1) - 1
	}
	return 0, ^uint64(0) >> (64 - n)
}

func clampSigned(v, lo int64, hi uint64) int64 {
	if v < lo {
		return lo
	}
	if v > 0 && uint64(v) > hi {
		return int64(hi)
	}
	return v
}

func readFloat(t ptx.Type, ftz bool) func(uint64) float64 {
	if t == ptx.F64 {
		return f64
	}
	f, ok := formatOf(t, roundNearest, ftz, false)
	if !ok {
		return nil
	}
	return f.read
}

// floatToInt rounds to an integer and clamps. NaN gives 0, or the top bit
// alone when a 64-bit type takes part.
func floatToInt(dt, at ptx.Type, r rounding, ftz, _ bool) func(uint64) uint64 {
	read := readFloat(at, ftz)
	if read == nil {
		return nil
	}
	lo, hi := intRange(dt)
	flo, fhi := float64(lo), float64(hi) // fhi may round up to a power of two
	var nan uint64
	if at == ptx.F64 || dt.Bits() == 64 {
		nan = 1 << (dt.Bits() - 1)
	}
	return func(a uint64) uint64 {
		v := integral(read(a), r)
		switch {
		case v != v:
			return nan
		case v <= flo:
			return uint64(lo)
		case v >= fhi:
			return hi
		case v >= 1<<63:
			return uint64(v)
		}
		return uint64(int64(v))
	}
}

// intToFloat rounds once, from the exact integer.
func intToFloat(dt, at ptx.Type, r rounding, sat bool) func(uint64) uint64 {
	signed := at.Signed()
	if dt == ptx.F64 {
		return func(a uint64) uint64 {
			v := extend(a, at)
			var f float64
			order := 0 // sign of exact - f
			if signed {
				f = float64(int64(v))
				if f < 1<<63 {
					order = sign64(int64(v), int64(f))
				} else {
					order = -1
				}
			} else {
				f = float64(v)
				switch {
				case f >= 1<<64:
					order = -1
				case uint64(f) < v:
					order = 1
				case uint64(f) > v:
					order = -1
				}
			}
			return bits64(direct(f, r, order))
		}
	}
	f, ok := formatOf(dt, r, false, sat)
	if !ok {
		return nil
	}
	return func(a uint64) uint64 {
		v := extend(a, at)
		neg := signed && int64(v) < 0
		if neg {
			v = -v
		}
		x := float64(v) // rounded to odd: keep a sticky bit below the top 53
		if v >= 1<<53 {
			hi := v >> 11
			if v&(1<<11-1) != 0 {
				hi |= 1
			}
			x = float64(hi) * (1 << 11)
		}
		if neg {
			x = -x
		}
		return f.write(x)
	}
}

func sign64(a, b int64) int {
	switch {
	case a > b:
		return 1
	case a < b:
		return -1
	}
	return 0
}

// floatToFloat converts between formats, or rounds to an integral value.
func floatToFloat(dt, at ptx.Type, r, ri rounding, toInt, ftz, sat, relu bool) func(uint64) uint64 {
	read := readFloat(at, ftz && at == ptx.F32)
	if read == nil {
		return nil
	}
	write := func(v float64) uint64 {
		if sat {
			v = saturate(v)
		}
		if v != v {
			return 0x7fffffffffffffff
		}
		return bits64(v)
	}
	if dt != ptx.F64 {
		f, ok := formatOf(dt, r, ftz && dt == ptx.F32, sat)
		if !ok {
			return nil
		}
		write = f.write
	}
	nan := nanConversion(dt, at, ftz)
	if sat || relu {
		nan = nil
	}
	return func(a uint64) uint64 {
		v := read(a)
		if v != v && nan != nil {
			return nan(a)
		}
		if toInt {
			v = integral(v, ri)
		}
		if relu && !(v > 0) && v == v {
			v = 0
		}
		return write(v)
	}
}

// cvtPair packs two converted f32: d = {a in the upper half, b in the lower}.
func (l *lowerer) cvtPair(dt, at ptx.Type) error {
	e, _ := unpacked(dt)
	if at != ptx.F32 || len(l.in.Operands) != 3 {
		return l.unsupported("%s", l.in)
	}
	f := floatToFloat(e, at, l.rounding(), 0, false, l.has("ftz"), l.has("sat") || l.has("satfinite"), l.has("relu"))
	return l.map2(at, at, func(a, b uint64) uint64 { return f(a)&0xffff<<16 | f(b)&0xffff })
}

// cvtPack saturates two integers into one register, and shifts in a third.
func (l *lowerer) cvtPack(ts []ptx.Type) error {
	n := len(l.in.Operands)
	if len(ts) < 2 || ts[1] != ptx.S32 || n != 3 && n != 4 {
		return l.unsupported("%s", l.in)
	}
	lo, hi := intRange(ts[0])
	width := ts[0].Bits()
	pack := func(a, b uint64) uint64 {
		x, y := clampSigned(int64(int32(a)), lo, hi), clampSigned(int64(int32(b)), lo, hi)
		m := uint64(1)<<width - 1
		return uint64(x)&m<<width | uint64(y)&m
	}
	if n == 3 {
		return l.map2(ptx.S32, ptx.S32, pack)
	}
	return l.map3(ptx.S32, ptx.S32, ptx.B32, func(a, b, c uint64) uint64 {
		return c<<(2*width) | pack(a, b)
	})
}

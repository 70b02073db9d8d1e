package exec

import (
	"math"

	"causeway/host/driver/soft/ptx"
)

// nanConversion says how hardware converts a NaN's bits where it does not give
// the canonical one; nil if it does. Double precision keeps the payload.
func nanConversion(dt, at ptx.Type, ftz bool) func(uint64) uint64 {
	switch {
	case dt == ptx.F64 && at == ptx.F64:
		return func(a uint64) uint64 { return a | quiet }
	case dt == ptx.F64 && at == ptx.F32 && ftz:
		return func(uint64) uint64 { return 0x7fffffffe0000000 }
	case dt == ptx.F64 && at == ptx.F32:
		return func(a uint64) uint64 { return a>>31&1<<63 | 0x7ff<<52 | quiet | a&0x7fffff<<29 }
	case dt == ptx.F64 && at == ptx.F16:
		return func(a uint64) uint64 { return a>>15&1<<63 | 0x7ff<<52 | quiet | a&0x3ff<<42 }
	case dt == ptx.F32 && at == ptx.F64:
		return func(a uint64) uint64 { return a>>63<<31 | 0x7fc00000 | a>>29&0x7fffff }
	case dt == ptx.F16 && at == ptx.F64:
		return func(a uint64) uint64 { return a>>63<<15 | 0x7e00 | a>>42&0x3ff }
	case dt == ptx.F32 && at == ptx.BF16:
		return func(a uint64) uint64 { return a & 0xffff << 16 }
	}
	return nil
}

// cvtTF32 lowers cvt.tf32.f32: 10 bits of mantissa in the upper bits of a
// register.
func (l *lowerer) cvtTF32(ts []ptx.Type) error {
	if len(ts) != 1 || ts[0] != ptx.F32 {
		return l.unsupported("%s", l.in)
	}
	r := l.rounding()
	if l.has("rna") {
		r = roundAway
	}
	top := uint32(0xff) << 10
	relu := l.has("relu")
	if l.has("satfinite") {
		top--
	}
	return l.map1(ptx.F32, func(a uint64) uint64 { return toTF32(a, top, r, relu) })
}

func toTF32(a uint64, largest uint32, r rounding, relu bool) uint64 {
	v := float64(f32(a))
	switch {
	case v != v && r == roundAway: // cut like a number
		return a & 0xffffe000
	case v != v:
		return 0x7fffe000
	}
	if relu && !(v > 0) {
		return 0
	}
	m := min(roundMagnitude(v, 10, 8, 0xff<<10, r), largest)
	return uint64(m)<<13 | a&0x80000000
}

// byteFloat is a format of 8 bits.
type byteFloat struct {
	man, exp int
	top      uint32 // first encoding above the finite ones
}

var (
	e4m3 = byteFloat{3, 4, 0x7f} // has no infinity
	e5m2 = byteFloat{2, 5, 0x7c}
)

// write rounds to nearest; what is too large becomes the largest number.
func (f byteFloat) write(v float64, relu bool) uint64 {
	if v != v {
		return 0x7f
	}
	if relu && !(v > 0) {
		return 0
	}
	m := uint64(min(roundMagnitude(v, f.man, f.exp, f.top, roundNearest), f.top-1))
	if math.Signbit(v) {
		m |= 0x80
	}
	return m
}

// read widens the low byte of v; relu drops what is negative.
func (f byteFloat) read(v uint64, relu bool) float64 {
	m := uint32(v & 0x7f)
	var x float64
	switch {
	case f == e5m2:
		x = fromHalf(uint16(m << 8))
	case m == f.top:
		return math.NaN()
	case m>>f.man == 0:
		x = math.Ldexp(float64(m), 1-(1<<(f.exp-1)-1)-f.man)
	default:
		x = math.Ldexp(float64(m&(1<<f.man-1)|1<<f.man), int(m>>f.man)-(1<<(f.exp-1)-1)-f.man)
	}
	if v&0x80 != 0 {
		x = -x
	}
	if relu && !(x > 0) && x == x {
		x = 0
	}
	return x
}

// cvtByteFloats lowers conversions of pairs from and to e4m3 and e5m2.
func (l *lowerer) cvtByteFloats() error {
	mods := l.in.Mods
	if len(mods) < 2 {
		return l.unsupported("%s", l.in)
	}
	relu := l.has("relu")
	format := e4m3
	if l.has("e5m2x2") {
		format = e5m2
	}
	to, from := mods[len(mods)-2], mods[len(mods)-1]
	switch {
	case l.hasAny("rn") == "" || l.has("scaled::n2::ue8m0"):
	case from == "f32" && l.has("satfinite"):
		return l.map2(ptx.F32, ptx.F32, func(a, b uint64) uint64 {
			return format.write(float64(f32(a)), relu)<<8 | format.write(float64(f32(b)), relu)
		})
	case from == "f16x2" && l.has("satfinite"):
		return l.map1(ptx.B32, func(a uint64) uint64 {
			return format.write(fromHalf(uint16(a>>16)), relu)<<8 | format.write(fromHalf(uint16(a)), relu)
		})
	case to == "f16x2":
		return l.map1(ptx.B16, func(a uint64) uint64 {
			return uint64(toHalf(format.read(a>>8, relu)))<<16 | uint64(toHalf(format.read(a, relu)))
		})
	}
	return l.unsupported("%s", l.in)
}

package exec

import "math"

// fromHalf widens an IEEE binary16.
func fromHalf(h uint16) float64 {
	exp, man := int(h>>10&31), float64(h&0x3ff)
	var v float64
	switch exp {
	case 0:
		v = math.Ldexp(man, -24)
	case 31:
		v = math.Inf(1)
		if man != 0 {
			v = math.NaN()
		}
	default:
		v = math.Ldexp(man+1024, exp-25)
	}
	if h>>15 != 0 {
		v = math.Copysign(v, -1)
	}
	return v
}

func fromBfloat(h uint16) float64 { return float64(math.Float32frombits(uint32(h) << 16)) }

func toHalf(v float64) uint16   { return roundSmall(v, 10, 5, roundNearest) }
func toBfloat(v float64) uint16 { return roundSmall(v, 7, 8, roundNearest) }

// roundSmall rounds to a 16-bit format with man mantissa and exp exponent
// bits.
func roundSmall(v float64, man, exp int, r rounding) uint16 {
	s := uint16(0)
	if math.Signbit(v) {
		s = 0x8000
	}
	bias := 1<<(exp-1) - 1
	inf := uint16(1<<exp-1) << man
	if v != v {
		return 0x7fff
	}
	a := math.Abs(v)
	if math.IsInf(a, 0) {
		return s | inf
	}
	if a == 0 {
		return s
	}
	_, e := math.Frexp(a) // a = f·2^e, f in [0.5, 1)
	e = max(e-1, 1-bias)
	q := math.Ldexp(a, man-e) // integer part: mantissa with its hidden bit
	dir := r
	if s != 0 && r == roundDown {
		dir = roundUp
	} else if s != 0 && r == roundUp {
		dir = roundDown
	}
	n := uint32(integral(q, dir))
	// A carry out of the mantissa moves into the exponent by itself.
	var bits uint32
	if n >= 1<<man {
		bits = uint32(e+bias)<<man + (n - 1<<man)
	} else {
		bits = n
	}
	if bits >= uint32(inf) {
		if dir == roundZero || dir == roundDown {
			return s | (inf - 1)
		}
		return s | inf
	}
	return s | uint16(bits)
}

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
	if v != v {
		return 0x7fff
	}
	s := uint16(0)
	if math.Signbit(v) {
		s = 0x8000
	}
	return s | uint16(roundMagnitude(v, man, exp, (1<<exp-1)<<man, r))
}

// roundMagnitude rounds v, which is no NaN, to man mantissa and exp exponent
// bits and returns them without the sign. top is the first encoding above the
// finite ones; what is too large becomes top, or the one below where r says so.
func roundMagnitude(v float64, man, exp int, top uint32, r rounding) uint32 {
	bias := 1<<(exp-1) - 1
	dir := r
	if math.Signbit(v) {
		switch r {
		case roundDown:
			dir = roundUp
		case roundUp:
			dir = roundDown
		}
	}
	a := math.Abs(v)
	if math.IsInf(a, 0) {
		return top
	}
	if a == 0 {
		return 0
	}
	_, e := math.Frexp(a) // a = f·2^e, f in [0.5, 1)
	e = max(e-1, 1-bias)
	q := math.Ldexp(a, man-e) // integer part: mantissa with its hidden bit
	// A carry out of the mantissa moves into the exponent by itself.
	bits := uint64(integral(q, dir))
	if bits >= 1<<man {
		bits += uint64(e+bias-1) << man
	}
	if bits >= uint64(top) {
		if dir == roundZero || dir == roundDown {
			return top - 1
		}
		return top
	}
	return uint32(bits)
}

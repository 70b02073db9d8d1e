package exec

import (
	"math"
	"math/big"
)

// rounding is an IEEE rounding direction.
type rounding uint8

const (
	roundNearest rounding = iota // to nearest, ties to even
	roundZero
	roundDown
	roundUp
	roundAway // ties away from zero, cvt.rna only
)

// toOdd takes v, the nearest float64 of an exact value, and the sign of what is
// missing, and returns the exact value rounded to odd. Rounding that once more
// to a format of at most 51 bits gives the same as rounding the exact value,
// in every direction (Boldo and Melquiond 2008).
func toOdd(v, missing float64) float64 {
	b := math.Float64bits(v)
	if missing == 0 || missing != missing || b&1 != 0 || math.IsInf(v, 0) {
		return v
	}
	if v == 0 {
		return math.Copysign(math.SmallestNonzeroFloat64, missing)
	}
	if (missing > 0) == (v > 0) {
		return math.Float64frombits(b + 1)
	}
	return math.Float64frombits(b - 1)
}

// sumError is the exact a + b - fl(a + b) (Knuth).
func sumError(a, b, s float64) float64 {
	t := s - a
	return (a - (s - t)) + (b - t)
}

func addOdd(a, b float64) float64 {
	s := a + b
	return toOdd(s, sumError(a, b, s))
}

// fmaOdd32 is a*b + c rounded to odd, for float32 inputs: the product is exact.
func fmaOdd32(a, b, c float32) float64 { return addOdd(float64(a)*float64(b), float64(c)) }

func divOdd(a, b float64) float64 {
	q := a / b
	if q == 0 || math.IsInf(q, 0) || q != q || math.IsInf(b, 0) {
		return q
	}
	r := math.FMA(-q, b, a)
	if b < 0 {
		r = -r
	}
	return toOdd(q, r)
}

func sqrtOdd(a float64) float64 {
	q := math.Sqrt(a)
	if q == 0 || q != q || math.IsInf(q, 0) {
		return q
	}
	return toOdd(q, math.FMA(-q, q, a))
}

// round32 rounds an exact or odd-rounded v to float32.
func round32(v float64, r rounding) float32 {
	y := float32(v)
	x := float64(y)
	if r == roundNearest || x == v || v != v {
		return y
	}
	switch {
	case r == roundZero && math.Abs(x) > math.Abs(v):
		return math.Nextafter32(y, 0)
	case r == roundDown && x > v:
		return math.Nextafter32(y, float32(math.Inf(-1)))
	case r == roundUp && x < v:
		return math.Nextafter32(y, float32(math.Inf(1)))
	}
	return y
}

// fma32 is the correctly rounded float32 a*b + c. The sum in float64 is exact
// enough unless it lies halfway between two float32 or below their normal
// range; a sum of zero is exact.
func fma32(a, b, c float32) float32 {
	s := float64(a)*float64(b) + float64(c)
	v := math.Float64bits(s)
	if v&0x1fffffff == 0x10000000 || v>>52&0x7ff-1 < 1023-126-1 {
		return float32(fmaOdd32(a, b, c))
	}
	return float32(s)
}

// exact64 computes a*b + c in any direction, slowly; it serves the directed
// roundings of float64.
func exact64(a, b, c float64, r rounding) float64 {
	v := math.FMA(a, b, c)
	if r == roundNearest || math.IsInf(v, 0) && (math.IsInf(a, 0) || math.IsInf(b, 0) || math.IsInf(c, 0)) || v != v {
		return v
	}
	x := new(big.Float).SetPrec(4096)
	x.Mul(new(big.Float).SetFloat64(a), x.SetFloat64(b))
	x.Add(x, new(big.Float).SetPrec(4096).SetFloat64(c))
	if x.Sign() == 0 {
		if v == 0 && r == roundDown && (a*b != 0 || math.Signbit(a*b) != math.Signbit(c)) {
			return math.Copysign(0, -1)
		}
		return v
	}
	return direct(v, r, x.Cmp(fromFloat(v)))
}

// sum64 is a + b in any direction.
func sum64(a, b float64, r rounding) float64 {
	s := a + b
	if r == roundNearest || s == 0 || s != s || math.IsInf(s, 0) {
		return exact64(a, 1, b, r)
	}
	return direct(s, r, sign(sumError(a, b, s)))
}

func fromFloat(v float64) *big.Float {
	if math.IsInf(v, 0) {
		return new(big.Float).SetInf(v < 0)
	}
	return new(big.Float).SetFloat64(v)
}

// direct moves v, the nearest float64, to the neighbour that direction r asks
// for. order is the sign of exact - v.
func direct(v float64, r rounding, order int) float64 {
	switch {
	case order == 0:
		return v
	case r == roundDown && order < 0, r == roundZero && order < 0 && v > 0:
		return math.Nextafter(v, math.Inf(-1))
	case r == roundUp && order > 0, r == roundZero && order > 0 && v < 0:
		return math.Nextafter(v, math.Inf(1))
	}
	return v
}

func sign(v float64) int {
	switch {
	case v > 0:
		return 1
	case v < 0:
		return -1
	}
	return 0
}

func div64(a, b float64, r rounding) float64 {
	q := a / b
	if r == roundNearest || q != q || math.IsInf(a, 0) || math.IsInf(b, 0) || b == 0 || a == 0 {
		return q
	}
	if abs := math.Abs; abs(a) > 1e-250 && abs(q) > 1e-280 && abs(q) < 1e280 && abs(b) > 1e-250 {
		return direct(q, r, sign(math.FMA(-q, b, a))*sign(b)) // the remainder is exact
	}
	exact := new(big.Float).SetPrec(4096).Quo(new(big.Float).SetPrec(4096).SetFloat64(a), new(big.Float).SetPrec(4096).SetFloat64(b))
	return direct(q, r, exact.Cmp(fromFloat(q)))
}

func sqrt64(a float64, r rounding) float64 {
	q := math.Sqrt(a)
	if r == roundNearest || q != q || q == 0 || math.IsInf(q, 0) {
		return q
	}
	if a < 0x1p-900 { // keep the remainder from underflow
		return sqrt64(a*0x1p200, r) * 0x1p-100
	}
	return direct(q, r, sign(math.FMA(-q, q, a)))
}

// integral rounds to an integer in floating point.
func integral(v float64, r rounding) float64 {
	switch r {
	case roundZero:
		return math.Trunc(v)
	case roundDown:
		return math.Floor(v)
	case roundUp:
		return math.Ceil(v)
	case roundAway:
		return math.Round(v)
	}
	return math.RoundToEven(v)
}

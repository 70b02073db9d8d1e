package ptxgen

import "math/rand/v2"

// Patterns where arithmetic goes wrong first: zeros, ones, ends of ranges, subnormals, infinities,
// NaNs, halfway cases.
var patterns = map[byte][]uint64{
	'r': {0, 1, 2, 31, 32, 33, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffffe, 0x00010001, 0x3c003c00, 0x7fff8000},
	'd': {0, 1, 63, 64, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff, 0x0020000000000001},
	'f': {0, 0x80000000, 0x3f800000, 0xbf800000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
		0x7fc00000, 0x7f800001, 0xffc12345, 0x3f000000, 0x3fc00000, 0x40200000, 0x4b000001, 0x4f000000, 0x4effffff, 0xcf000000, 0x5f000000, 0x477fe000, 0x477ff000,
		0x33800000, 0x38800000, 0x3b800000, 0x43e00000, 0x43f00000},
	'e': {0, 1 << 63, 0x3ff0000000000000, 0xbff0000000000000, 1, 0x000fffffffffffff, 0x0010000000000000, 0x7fefffffffffffff, 0x7ff0000000000000,
		0xfff0000000000000, 0x7ff8000000000000, 0x7ff0000000000001, 0xfff8000000abcdef, 0x3fe0000000000000, 0x3ff8000000000000, 0x4004000000000000,
		0x41dfffffffc00000, 0x41e0000000000000, 0xc1e0000000000000, 0x43e0000000000000, 0x36a0000000000000, 0x3810000000000000, 0x47efffffe0000000, 0x47effffff0000000},
	'h': {0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x3c00, 0xbc00, 0x0001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0x3f80, 0xbf80,
		0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0x0080, 0x4900},
}

var widths = map[byte]int{'r': 32, 'd': 64, 'f': 32, 'e': 64, 'h': 16}

// awkward picks a value of a type: a pattern, a pattern's neighbour, a small number, or any bits.
func awkward(rng *rand.Rand, t byte) uint64 {
	mask := ^uint64(0) >> (64 - widths[t])
	known := patterns[t][rng.IntN(len(patterns[t]))]
	switch rng.IntN(6) {
	case 0, 1:
		return known
	case 2:
		return (known + uint64(rng.IntN(9)) - 4) & mask
	case 3:
		if t == 'f' { // exponents near one another, where rounding matters
			return uint64(rng.Uint32()&0x807fffff | uint32(118+rng.IntN(20))<<23)
		}
		if t == 'e' {
			return rng.Uint64()&0x800fffffffffffff | uint64(1013+rng.IntN(20))<<52
		}
		return uint64(rng.IntN(70))
	default:
		return rng.Uint64() & mask
	}
}

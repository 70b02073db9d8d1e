package exec_test

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"
)

// near allows a relative error, and any NaN for a NaN.
func near(got, want, rel float64) bool {
	if got == want || got != got && want != want {
		return true
	}
	return math.Abs(got-want) <= rel*math.Abs(want)
}

// floats returns pseudo-random arguments of many magnitudes, with special
// values first.
func floats(n int, special ...float64) []float64 {
	r := rand.New(rand.NewPCG(uint64(n), 7))
	v := append([]float64(nil), special...)
	for len(v) < n {
		v = append(v, float64(float32((r.Float64()-0.5)*math.Pow(10, float64(len(v)%6)-2))))
	}
	return v
}

func TestSinglePrecision(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "math")
	const n = 1024
	inf := math.Inf(1)
	xd := floats(n, 0, math.Copysign(0, -1), 1, -1, inf, -inf, math.NaN(), 1e-42, 3e38, 100000)
	yd := floats(n, 2, 3, inf, math.NaN(), 0, 1, 1, 1e-3, 10, 0.5)
	x, y := make([]float32, n), make([]float32, n)
	for i := range x {
		x[i], y[i] = float32(xd[i]), float32(yd[i]*1.5)
	}
	type fn struct {
		name string
		rel  float64
		f    func(a, b float64) float64
	}
	one := func(f func(float64) float64) func(a, b float64) float64 {
		return func(a, _ float64) float64 { return f(a) }
	}
	fns := []fn{
		{"sin", 3e-7, one(math.Sin)}, {"exp", 3e-7, one(math.Exp)}, {"log", 3e-7, one(math.Log)}, {"pow", 1e-6, math.Pow},
		{"sqrt", 0, one(math.Sqrt)}, {"div", 0, func(a, b float64) float64 { return a / b }}, {"tgamma", 2e-6, one(math.Gamma)},
		{"erf", 3e-7, one(math.Erf)}, {"fmod", 0, math.Mod}, {"rint", 0, one(math.RoundToEven)}, {"trunc", 0, one(math.Trunc)},
		{"add.rd", 2e-7, func(a, b float64) float64 { return a + b }}, {"mul.ru", 2e-7, func(a, b float64) float64 { return a * b }},
		{"div.rz", 2e-7, func(a, b float64) float64 { return a / b }}, {"fma.rz", 2e-7, func(a, b float64) float64 { return math.FMA(a, b, a) }},
		{"min", 0, func(a, b float64) float64 {
			switch {
			case a != a:
				return b
			case b != b:
				return a
			}
			return math.Min(a, b)
		}},
		{"sin.approx", 1e-5, one(math.Sin)}, {"exp.approx", 1e-5, one(math.Exp)}, {"tanh", 5e-7, one(math.Tanh)},
		{"rsqrt", 2e-7, one(func(a float64) float64 { return 1 / math.Sqrt(a) })},
	}
	o := put(a, make([]float32, n*len(fns)))
	a.run(t, m, "singles", n/128, 128, pack(put(a, x), put(a, y), o, int32(n)))
	got := get[float32](a, o, n*len(fns))
	for k, f := range fns {
		for i := range x {
			g, w := float64(got[k*n+i]), float64(float32(f.f(float64(x[i]), float64(y[i]))))
			if math.Abs(w) > math.MaxFloat32 || math.Abs(w) < 1e-37 || f.name == "exp.approx" && x[i] > 80 {
				continue // directed roundings and flushes differ from Go here
			}
			if !near(g, w, f.rel) {
				t.Errorf("%s(%v, %v) = %v, want %v", f.name, x[i], y[i], g, w)
				break
			}
		}
	}
	for i := range x { // directed rounding: the exact value is between result and neighbour
		sum, exact := float64(got[11*n+i]), float64(x[i])+float64(y[i])
		if sum > exact || exact >= float64(math.Nextafter32(float32(sum), float32(inf))) && !math.IsInf(sum, 0) && sum < math.MaxFloat32 {
			t.Errorf("add.rd(%v, %v) = %v", x[i], y[i], sum)
			break
		}
		product, exact := float64(got[12*n+i]), float64(x[i])*float64(y[i])
		if product < exact || float64(math.Nextafter32(float32(product), float32(-inf))) >= exact && !math.IsInf(product, 0) && exact != product {
			t.Errorf("mul.ru(%v, %v) = %v", x[i], y[i], product)
			break
		}
	}
}

func TestDoublePrecision(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "math")
	const n = 1024
	inf := math.Inf(1)
	x := floats(n, 0, math.Copysign(0, -1), 1, -1, inf, -inf, math.NaN(), 1e-300, 1.7e308, 1e10)
	y := floats(n, 2, 3, inf, math.NaN(), 0, 1, 1, 1e-3, 10, 0.5)
	for i := 12; i < n; i++ {
		x[i] *= 1.0000000001
		y[i] *= 1.3
	}
	fns := []struct {
		name string
		rel  float64
		f    func(a, b float64) float64
	}{
		{"sin", 1e-15, func(a, _ float64) float64 { return math.Sin(a) }}, {"exp", 1e-15, func(a, _ float64) float64 { return math.Exp(a) }},
		{"log", 1e-15, func(a, _ float64) float64 { return math.Log(a) }}, {"pow", 1e-14, math.Pow},
		{"sqrt", 0, func(a, _ float64) float64 { return math.Sqrt(a) }}, {"div", 0, func(a, b float64) float64 { return a / b }},
		{"fma", 0, func(a, b float64) float64 { return math.FMA(a, b, a) }}, {"add.rd", 3e-16, func(a, b float64) float64 { return a + b }},
		{"div.rz", 3e-16, func(a, b float64) float64 { return a / b }}, {"floor", 0, func(a, _ float64) float64 { return math.Floor(a) }},
		{"fmod", 0, math.Mod},
	}
	o := put(a, make([]float64, n*len(fns)))
	a.run(t, m, "doubles", n/128, 128, pack(put(a, x), put(a, y), o, int32(n)))
	got := get[float64](a, o, n*len(fns))
	for k, f := range fns {
		for i := range x {
			if w := f.f(x[i], y[i]); !near(got[k*n+i], w, f.rel) && !math.IsInf(w, 0) && math.Abs(w) > 1e-300 {
				t.Errorf("%s(%v, %v) = %v, want %v", f.name, x[i], y[i], got[k*n+i], w)
				break
			}
		}
	}
}

func TestIntegers(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "math")
	x := []int64{0, 1, -1, 7, -7, 1 << 31, -1 << 31, 1<<62 + 12345, -1<<62 - 999, 0x123456789abcdef0, 255, 65535, -128, 1000000007, 42, -42}
	y := []int64{1, -1, 3, -3, 10, 1 << 33, 7, 12345, -17, 64, 31, 100000, 0x7fffffff, -0x7fffffff, 2, 5}
	n := len(x)
	in := func(i int) (a, b int64, c, d int32, u, v uint32) {
		a, b = x[i], y[i]
		c, d = int32(a), int32(b)
		if d == 0 {
			d = 3
		}
		return a, b, c, d, uint32(a), uint32(d)
	}
	s64 := func(v uint64) int64 { return int64(v) }
	fns := []struct {
		name string
		f    func(a, b int64, c, d int32, u, v uint32) int64
	}{
		{"mul", func(a, b int64, c, d int32, u, v uint32) int64 { return a * b }},
		{"div", func(a, b int64, c, d int32, u, v uint32) int64 { return a / b }},
		{"rem", func(a, b int64, c, d int32, u, v uint32) int64 { return a % b }},
		{"sar", func(a, b int64, c, d int32, u, v uint32) int64 { return a >> (b & 63) }},
		{"shr", func(a, b int64, c, d int32, u, v uint32) int64 { return s64(uint64(a) >> (b & 63)) }},
		{"shl", func(a, b int64, c, d int32, u, v uint32) int64 { return a << (b & 63) }},
		{"mulhi", func(a, b int64, c, d int32, u, v uint32) int64 {
			hi, _ := bits.Mul64(uint64(a), uint64(b))
			return int64(hi) - a>>63&b - b>>63&a
		}},
		{"umulhi", func(a, b int64, c, d int32, u, v uint32) int64 {
			hi, _ := bits.Mul64(uint64(a), uint64(b))
			return int64(hi)
		}},
		{"div32", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(c/7 + c%d) }},
		{"udiv", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(u / v) }},
		{"urem", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(u % v) }},
		{"mulhi32", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(c) * int64(d) >> 32 }},
		{"umulhi32", func(a, b int64, c, d int32, u, v uint32) int64 { return s64(uint64(u) * uint64(v) >> 32) }},
		{"clz", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(bits.LeadingZeros32(u)) }},
		{"clzll", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(bits.LeadingZeros64(uint64(a))) }},
		{"popc", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(bits.OnesCount32(u)) }},
		{"popcll", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(bits.OnesCount64(uint64(a))) }},
		{"brev", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(bits.Reverse32(u)) }},
		{"brevll", func(a, b int64, c, d int32, u, v uint32) int64 { return s64(bits.Reverse64(uint64(a))) }},
		{"ffs", func(a, b int64, c, d int32, u, v uint32) int64 { return int64((bits.TrailingZeros32(u) + 1) % 33) }},
		{"ffsll", func(a, b int64, c, d int32, u, v uint32) int64 {
			return int64((bits.TrailingZeros64(uint64(a)) + 1) % 65)
		}},
		{"prmt", func(a, b int64, c, d int32, u, v uint32) int64 {
			return int64(uint32((uint64(v)<<32 | uint64(u)) >> 24))
		}},
		{"shf.l", func(a, b int64, c, d int32, u, v uint32) int64 {
			return int64(uint32((uint64(v)<<32 | uint64(u)) << (d & 31) >> 32))
		}},
		{"shf.rc", func(a, b int64, c, d int32, u, v uint32) int64 {
			return int64(uint32((uint64(v)<<32 | uint64(u)) >> min(d&63, 32)))
		}},
		{"sad", func(a, b int64, c, d int32, u, v uint32) int64 {
			return int64(uint32(max(c, d)) - uint32(min(c, d)) + u)
		}},
		{"min", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(min(c, d)) }},
		{"umax", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(max(u, v)) }},
		{"llabs", func(a, b int64, c, d int32, u, v uint32) int64 { return max(a, -a) }},
		{"mul24", func(a, b int64, c, d int32, u, v uint32) int64 { return int64((c << 8 >> 8) * (d << 8 >> 8)) }},
		{"s8", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(int8(a)) }},
		{"u16", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(uint16(a)) }},
		{"f32", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(float32(a)) }},
		{"f64", func(a, b int64, c, d int32, u, v uint32) int64 {
			f := float64(uint64(a))
			if f >= 1<<63 {
				return math.MaxInt64
			}
			return int64(f)
		}},
		{"rn", func(a, b int64, c, d int32, u, v uint32) int64 {
			return int64(math.RoundToEven(float64(float32(c>>8) * 1.5)))
		}},
		{"rd", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(math.Floor(float64(a) * 0.25)) }},
		{"dp4a", func(a, b int64, c, d int32, u, v uint32) int64 {
			s := c
			for i := range 4 {
				s += int32(int8(c>>(8*i))) * int32(int8(d>>(8*i)))
			}
			return int64(s)
		}},
		{"bits", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(int32(math.Float32bits(float32(c)))) }},
		{"ll2float_ru", func(a, b int64, c, d int32, u, v uint32) int64 {
			f := float32(a)
			if f < 1<<63 && int64(f) < a {
				f = math.Nextafter32(f, float32(math.Inf(1)))
			}
			return int64(f)
		}},
		{"s16", func(a, b int64, c, d int32, u, v uint32) int64 { return int64(int16(c) / 7) }},
	}
	o := put(a, make([]int64, n*len(fns)))
	a.run(t, m, "integers", 1, uint32(n), pack(put(a, x), put(a, y), o, int32(n)))
	got := get[int64](a, o, n*len(fns))
	for k, f := range fns {
		check(t, f.name, got[k*n:k*n+n], func(i int) int64 { return f.f(in(i)) })
	}
}

func TestHalfPrecision(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "math")
	x := []float32{0, 1, -2.5, 0.1, 1000, 65504, 70000, 1e-7, 3.14159, -0.333, 2049, 1e-5}
	h := []float32{0, 1, -2.5, 0.0999755859375, 1000, 65504, float32(math.Inf(1)), 1.1920928955078125e-07, 3.140625, -0.3330078125, 2048, 1.0013580322265625e-05}
	bf := []float32{0, 1, -2.5, 0.10009765625, 1000, 65536, 70144, 1.00117176771164e-07, 3.140625, -0.33203125, 2048, 1.0013580322265625e-05}
	n := len(x)
	o := put(a, make([]float32, n*12))
	a.run(t, m, "halves", 1, uint32(n), pack(put(a, x), o, int32(n)))
	got := get[float32](a, o, n*12)
	round := func(v float64) float32 { // to binary16, by a grid of multiples
		if math.Abs(v) >= 65520 {
			return float32(math.Copysign(math.Inf(1), v))
		}
		_, e := math.Frexp(v)
		unit := math.Ldexp(1, max(e, -13)-11)
		return float32(math.RoundToEven(v/unit) * unit)
	}
	eq := func(k int, want func(i int) float32) { t.Helper(); check(t, string(rune('a'+k)), got[k*n:k*n+n], want) }
	eq(0, func(i int) float32 { return round(float64(h[i]) + 1.5) })
	eq(1, func(i int) float32 { return round(float64(h[i]) * 1.5) })
	eq(3, func(i int) float32 { v := float64(h[i]); return round(v*v + float64(round(v+v))) })
	eq(4, func(int) float32 { return 1.5*1.5 + 3 })
	eq(8, func(i int) float32 { return float32(i) })
	eq(9, func(i int) float32 { return bf[i] })
}

package exec_test

import (
	"math"
	"testing"
)

func TestFloatInstructions(t *testing.T) {
	third32 := f(1.0 / 3)
	up := func(v float32) float32 { return math.Nextafter32(v, float32(inf)) }
	down := func(v float32) float32 { return math.Nextafter32(v, float32(-inf)) }
	tiny := float32(math.SmallestNonzeroFloat32)
	ulp := 1.0 / (1 << 24)
	runInstrs(t, []instr{
		c("add.f32 fo, f0, f1", f(3.5), f(1), f(2.5)), c("add.rn.f32 fo, f0, f1", f(1), f(1), f(ulp)), c("add.rp.f32 fo, f0, f1", up(1), f(1), f(1e-20)), c("add.rm.f32 fo, f0, f1", f(1), f(1), f(1e-20)), c("add.rz.f32 fo, f0, f1", f(-1), f(-1), f(-1e-20)), c("sub.rm.f32 fo, f0, f1", down(1), f(1), f(1e-20)), c("sub.rz.f32 fo, f0, f1", down(1), f(1), f(1e-20)),
		c("sub.rm.f32 fo, f0, f1", 0x80000000, f(1), f(1)), c("sub.rn.f32 fo, f0, f1", 0, f(1), f(1)), c("add.sat.f32 fo, f0, f1", f(1), f(1), f(2.5)), c("add.sat.f32 fo, f0, f1", 0, f(nan), f(2.5)), c("add.f32 fo, f0, f1", 0x7fffffff, f(inf), f(-inf)),
		c("add.ftz.f32 fo, f0, f1", 0, tiny, f(0)), c("add.f32 fo, f0, f1", tiny, tiny, f(0)), c("mul.ftz.f32 fo, f0, f1", 0x80000000, f(-1e-30), f(1e-10)), c("add.rz.f32 fo, f0, f1", f(math.MaxFloat32), f(math.MaxFloat32), f(math.MaxFloat32)),
		c("mul.f32 fo, f0, f1", f(3), f(1.5), f(2)), c("mul.rz.f32 fo, f0, f1", up(up(1)), up(1), up(1)), c("mul.rp.f32 fo, f0, f1", up(up(up(1))), up(1), up(1)), c("mul.rp.f32 fo, f0, f1", tiny, f(1e-30), f(1e-30)), c("mul.sat.f32 fo, f0, f1", 0, f(-1), f(2)),
		c("div.rn.f32 fo, f0, f1", third32, f(1), f(3)), c("div.rz.f32 fo, f0, f1", down(third32), f(1), f(3)), c("div.rp.f32 fo, f0, f1", third32, f(1), f(3)), c("div.rm.f32 fo, f0, f1", -third32, f(-1), f(3)), c("div.full.f32 fo, f0, f1", f(2.5), f(5), f(2)), c("div.approx.ftz.f32 fo, f0, f1", f(2.5), f(5), f(2)), c("div.rn.f32 fo, f0, f1", f(inf), f(1), f(0)),
		c("fma.rn.f32 fo, f0, f1, f2", f(7), f(2), f(3), f(1)), c("fma.rn.f32 fo, f0, f1, f2", f(math.FMA(1+2*ulp, 1+2*ulp, -1)), up(1), up(1), f(-1)), c("fma.rz.f32 fo, f0, f1, f2", down(3), f(1), f(3), f(-1e-20)), c("fma.rp.f32 fo, f0, f1, f2", up(3), f(1), f(3), f(1e-20)), c("mad.rn.f32 fo, f0, f1, f2", f(7), f(2), f(3), f(1)), c("fma.rn.sat.f32 fo, f0, f1, f2", f(1), f(2), f(3), f(1)), c("fma.rn.ftz.f32 fo, f0, f1, f2", 0, f(1e-30), f(1e-10), f(0)), c("fma.rn.f32 fo, f0, f1, f2", up(1), f(ulp), f(1.0000001), f(1)),
		c("abs.f32 fo, f0", f(2), f(-2)), c("neg.f32 fo, f0", f(2), f(-2)), c("neg.ftz.f32 fo, f0", 0x80000000, tiny), c("abs.f64 do, d0", 2.0, -2.0), c("neg.f64 do, d0", 2.0, -2.0),
		c("min.f32 fo, f0, f1", f(-2), f(-2), f(1)), c("min.f32 fo, f0, f1", f(1), f(nan), f(1)), c("min.NaN.f32 fo, f0, f1", 0x7fffffff, f(nan), f(1)), c("max.f32 fo, f0, f1", 0, f(0), 0x80000000), c("min.f32 fo, f0, f1", 0x80000000, f(0), 0x80000000), c("max.f64 do, d0, d1", 3.0, 3.0, -1.0), c("min.f64 do, d0, d1", -1.0, nan, -1.0), c("min.xorsign.abs.f32 fo, f0, f1", f(-1), f(-2), f(1)),
		c("rcp.rn.f32 fo, f0", third32, f(3)), c("rcp.approx.ftz.f32 fo, f0", f(0.25), f(4)), c("rcp.rn.f64 do, d0", 0.1, 10.0), c("rcp.rz.f32 fo, f0", down(third32), f(3)), c("sqrt.rn.f32 fo, f0", f(math.Sqrt2), f(2)), c("sqrt.rp.f32 fo, f0", f(3), f(9)), c("sqrt.approx.f32 fo, f0", f(3), f(9)), c("sqrt.rn.f64 do, d0", math.Sqrt2, 2.0), c("rsqrt.approx.f32 fo, f0", f(0.5), f(4)), c("rsqrt.approx.f64 do, d0", 0.5, 4.0), c("sqrt.rn.f32 fo, f0", 0x7fffffff, f(-1)), c("rsqrt.approx.ftz.f64 do, d0", 0.25, 16.0), c("rcp.approx.ftz.f64 do, d0", 0.25, 4.0),
		c("sin.approx.f32 fo, f0", 0, f(0)), c("cos.approx.f32 fo, f0", f(1), f(0)), c("lg2.approx.f32 fo, f0", f(3), f(8)), c("lg2.approx.f32 fo, f0", f(-inf), f(0)), c("ex2.approx.f32 fo, f0", f(8), f(3)), c("ex2.approx.ftz.f32 fo, f0", 0, f(-140)), c("tanh.approx.f32 fo, f0", f(1), f(50)),
		c("testp.finite.f32 po, f0", 0, f(inf)), c("testp.infinite.f64 po, d0", 1, inf), c("testp.number.f32 po, f0", 0, f(nan)), c("testp.notanumber.f64 po, d0", 1, nan), c("testp.normal.f32 po, f0", 0, tiny), c("testp.subnormal.f32 po, f0", 1, tiny),
		c("copysign.f32 fo, f0, f1", f(-3), f(-1), f(3)), c("copysign.f64 do, d0, d1", 3.0, 1.0, -3.0),
		c("add.f64 do, d0, d1", 3.5, 1.0, 2.5), c("add.rp.f64 do, d0, d1", math.Nextafter(1, 2), 1.0, 1e-30), c("sub.rz.f64 do, d0, d1", math.Nextafter(1, 0), 1.0, 1e-30), c("mul.rp.f64 do, d0, d1", 1+3*math.Ldexp(1, -52), math.Nextafter(1, 2), math.Nextafter(1, 2)), c("mul.rm.f64 do, d0, d1", 1+2*math.Ldexp(1, -52), math.Nextafter(1, 2), math.Nextafter(1, 2)), c("div.rn.f64 do, d0, d1", 1.0/3, 1.0, 3.0), c("div.rp.f64 do, d0, d1", math.Nextafter(1.0/3, 1), 1.0, 3.0), c("fma.rn.f64 do, d0, d1, d2", 7.0, 2.0, 3.0, 1.0), c("fma.rz.f64 do, d0, d1, d2", math.Nextafter(3, 0), 1.0, 3.0, -1e-30), c("mad.rn.f64 do, d0, d1, d2", 7.0, 2.0, 3.0, 1.0), c("sqrt.rm.f64 do, d0", math.Nextafter(math.Sqrt2, 0), 2.0), c("sub.f64 do, d0, d1", -1.5, 1.0, 2.5), c("mul.f64 do, d0, d1", 2.5, 1.0, 2.5),
	})
}

func TestHalfInstructions(t *testing.T) {
	const one, two, three, half, hInf, hNaN = 0x3c00, 0x4000, 0x4200, 0x3800, 0x7c00, 0x7fff
	const bOne, bTwo, bThree = 0x3f80, 0x4000, 0x4040
	runInstrs(t, []instr{
		c("add.f16 ho, h0, h1", three, one, two), c("sub.f16 ho, h0, h1", one, three, two), c("mul.f16 ho, h0, h1", one, half, two), c("add.sat.f16 ho, h0, h1", one, one, two), c("fma.rn.f16 ho, h0, h1, h2", three, one, one, two), c("fma.rn.relu.f16 ho, h0, h1, h2", 0, one, one, 0xc000),
		c("add.f16x2 ao, a0, a1", three<<16|one, one<<16|half, two<<16|half), c("fma.rn.f16x2 ao, a0, a1, a2", two<<16|three, one<<16|one, one<<16|two, one<<16|one), c("mul.f16x2 ao, a0, a1", two<<16|one, one<<16|half, two<<16|two), c("neg.f16 ho, h0", 0xbc00, one), c("abs.f16x2 ao, a0", one<<16|one, 0xbc003c00), c("neg.f16x2 ao, a0", 0x3c00bc00, 0xbc003c00),
		c("min.f16 ho, h0, h1", one, one, two), c("max.f16x2 ao, a0, a1", two<<16|two, one<<16|two, two<<16|one), c("max.NaN.f16 ho, h0, h1", hNaN, hNaN, one), c("min.f16 ho, h0, h1", one, hNaN, one), c("mul.f16 ho, h0, h1", hInf, 0x7bff, two), c("mul.f16 ho, h0, h1", 1, 1, 0x3c00),
		c("add.rn.bf16 ho, h0, h1", bThree, bOne, bTwo), c("fma.rn.bf16 ho, h0, h1, h2", bThree, bOne, bOne, bTwo), c("fma.rn.bf16x2 ao, a0, a1, a2", bThree<<16|bThree, bOne<<16|bOne, bOne<<16|bTwo, bTwo<<16|bOne), c("mul.rn.bf16x2 ao, a0, a1", bTwo<<16|bOne, bOne<<16|bOne, bTwo<<16|bOne), c("max.bf16 ho, h0, h1", bTwo, bOne, bTwo), c("neg.bf16 ho, h0", 0xbf80, bOne),
		c("ex2.approx.f16 ho, h0", two, one), c("tanh.approx.f16 ho, h0", 0, 0), c("tanh.approx.f16x2 ao, a0", 0, 0),
		c("setp.lt.f16 po, h0, h1", 1, one, two), c("setp.eq.f16x2 po|p3, a0, a1", 1, one<<16|two, one<<16|two), c("set.gt.u32.f16 ao, h0, h1", 0, one, two), c("setp.neu.bf16 po, h0, h1", 1, 0x7fc0, bOne),
	})
}

func TestComparisons(t *testing.T) {
	var cases []instr
	yes := func(v bool) uint64 { return bitsOf(v) }
	for _, x := range []struct {
		op      string
		ordered func(a, b float64) bool
		unord   bool
	}{
		{"eq", func(a, b float64) bool { return a == b }, false}, {"ne", func(a, b float64) bool { return a < b || a > b }, false}, {"lt", func(a, b float64) bool { return a < b }, false}, {"le", func(a, b float64) bool { return a <= b }, false}, {"gt", func(a, b float64) bool { return a > b }, false}, {"ge", func(a, b float64) bool { return a >= b }, false},
		{"equ", func(a, b float64) bool { return a == b }, true}, {"neu", func(a, b float64) bool { return a < b || a > b }, true}, {"ltu", func(a, b float64) bool { return a < b }, true}, {"leu", func(a, b float64) bool { return a <= b }, true}, {"gtu", func(a, b float64) bool { return a > b }, true}, {"geu", func(a, b float64) bool { return a >= b }, true},
		{"num", func(a, b float64) bool { return a == a && b == b }, false}, {"nan", func(a, b float64) bool { return false }, true},
	} {
		for _, v := range [][2]float64{{1, 2}, {2, 1}, {1, 1}, {nan, 1}, {1, nan}, {nan, nan}, {inf, 1}, {0, math.Copysign(0, -1)}} {
			a, b := v[0], v[1]
			want := x.ordered(a, b) || x.unord && (a != a || b != b)
			cases = append(cases, c("setp."+x.op+".f32 po, f0, f1", yes(want), f(a), f(b)), c("setp."+x.op+".f64 po, d0, d1", yes(want), a, b))
		}
	}
	for _, v := range [][2]int{{1, 2}, {2, 1}, {-1, 1}, {1, -1}, {-5, -5}} {
		a, b := v[0], v[1]
		for _, w := range []struct{ s, u, b, reg string }{{"s32", "u32", "b32", "a"}, {"s64", "u64", "b64", "A"}, {"s16", "u16", "b16", "h"}} {
			r := " po, " + w.reg + "0, " + w.reg + "1"
			mask := map[string]uint64{"a": 0xffffffff, "A": ^uint64(0), "h": 0xffff}[w.reg]
			x, y := uint64(a)&mask, uint64(b)&mask
			cases = append(cases, c("setp.lt."+w.s+r, yes(a < b), a, b), c("setp.le."+w.s+r, yes(a <= b), a, b), c("setp.gt."+w.s+r, yes(a > b), a, b), c("setp.ge."+w.s+r, yes(a >= b), a, b),
				c("setp.lt."+w.u+r, yes(x < y), a, b), c("setp.lo."+w.u+r, yes(x < y), a, b), c("setp.ls."+w.u+r, yes(x <= y), a, b), c("setp.hi."+w.u+r, yes(x > y), a, b), c("setp.hs."+w.u+r, yes(x >= y), a, b), c("setp.eq."+w.b+r, yes(x == y), a, b), c("setp.ne."+w.b+r, yes(x != y), a, b))
		}
	}
	cases = append(cases,
		c("setp.lt.and.s32 po, a0, a1, p2", 0, 1, 2, 0), c("setp.lt.or.s32 po, a0, a1, p2", 1, 3, 2, 1), c("setp.lt.xor.s32 po, a0, a1, p2", 0, 1, 2, 1), c("setp.lt.and.s32 po, a0, a1, !p2", 1, 1, 2, 0),
		c("setp.lt.s32 p3|po, a0, a1", 0, 1, 2), c("setp.lt.and.s32 p3|po, a0, a1, p2", 1, 2, 1, 1), c("setp.lt.or.s32 p3|po, a0, a1, p2", 1, 1, 2, 1), c("setp.eq.ftz.f32 po, f0, f1", 1, 1, f(0)),
		c("set.lt.u32.s32 ao, a0, a1", -1, 1, 2), c("set.lt.f32.s32 fo, a0, a1", f(1), 1, 2), c("set.ge.u32.f64 ao, d0, d1", 0, 1.0, 2.0), c("set.lt.and.u32.f32 ao, f0, f1, p2", 0, f(1), f(2), 0),
		c("@p0 mov.u32 ao, 5; @!p0 mov.u32 ao, 6", 5, 1), c("@p0 mov.u32 ao, 5; @!p0 mov.u32 ao, 6", 6, 0), c("mov.u32 ao, 1; setp.eq.s32 p3, a0, 5; @p3 bra L1; mov.u32 ao, 2; L1:", 1, 5), c("mov.u32 ao, 1; setp.eq.s32 p3, a0, 5; @!p3 bra.uni L1; mov.u32 ao, 2; L1:", 2, 5))
	runInstrs(t, cases)
}

func TestConversions(t *testing.T) {
	runInstrs(t, []instr{
		c("cvt.s32.s8 ao, a0", -1, 0xff), c("cvt.u32.u8 ao, a0", 0xff, 0x1ff), c("cvt.s64.s32 AO, a0", -1, 0xffffffff), c("cvt.u64.u32 AO, a0", 0xffffffff, -1), c("cvt.u16.u32 ho, a0", 0x5678, 0x12345678), c("cvt.s64.u32 AO, a0", 0xffffffff, -1), c("cvt.u8.u32 ao, a0", 0x78, 0x12345678), c("cvt.s8.s32 ao, a0", 0xfffffff8, 0xf8), c("cvt.u32.s16 ao, h0", 0xffffffff, 0xffff), c("cvt.s16.s64 ho, A0", 0xfffe, -2),
		c("cvt.sat.s8.s32 ao, a0", 127, 500), c("cvt.sat.u8.s32 ao, a0", 0, -5), c("cvt.sat.u16.u32 ho, a0", 0xffff, 100000), c("cvt.sat.s32.s64 ao, A0", 0x80000000, -1<<40), c("cvt.sat.s32.u32 ao, a0", 0x7fffffff, -1), c("cvt.sat.u32.s64 ao, A0", 0xffffffff, 1<<40),
		c("cvt.rzi.s32.f32 ao, f0", -1, f(-1.9)), c("cvt.rni.s32.f32 ao, f0", 2, f(2.5)), c("cvt.rmi.s32.f32 ao, f0", -2, f(-1.1)), c("cvt.rpi.s32.f32 ao, f0", 2, f(1.1)), c("cvt.rzi.u32.f32 ao, f0", 0, f(-5)), c("cvt.rzi.s32.f32 ao, f0", 0x7fffffff, f(1e20)), c("cvt.rzi.s32.f32 ao, f0", 0, f(nan)), c("cvt.rzi.s32.f64 ao, d0", 0x80000000, nan), c("cvt.rzi.s64.f32 AO, f0", -1<<63, f(nan)), c("cvt.rzi.u64.f64 AO, d0", uint64(1)<<63, math.Ldexp(1, 63)), c("cvt.rzi.u64.f64 AO, d0", -1, 1e30), c("cvt.rzi.s8.f32 ao, f0", 127, f(1000)), c("cvt.rzi.u8.f32 ao, f0", 255, f(1000)), c("cvt.rni.s64.f64 AO, d0", -3, -3.4), c("cvt.rzi.ftz.s32.f32 ao, f0", 0, 1),
		c("cvt.rn.f32.s32 fo, a0", f(-5), -5), c("cvt.rn.f32.u32 fo, a0", f(4294967296), 0xffffffff), c("cvt.rz.f32.u32 fo, a0", f(4294967040), 0xffffffff), c("cvt.rp.f32.s64 fo, A0", f(1<<40+1<<17), 1<<40+1), c("cvt.rn.f32.u64 fo, A0", f(math.Ldexp(1, 64)), -1), c("cvt.rn.f64.s64 do, A0", float64(1<<53), 1<<53+1), c("cvt.rp.f64.s64 do, A0", float64(1<<53+2), 1<<53+1), c("cvt.rn.f64.u64 do, A0", math.Ldexp(1, 64), -1), c("cvt.rz.f64.u64 do, A0", math.Ldexp(1, 64)-2048, -1), c("cvt.rn.f64.s32 do, a0", -7.0, -7), c("cvt.rn.f32.s8 fo, a0", f(-1), 0xff), c("cvt.rm.f32.s32 fo, a0", f(-16777218), -16777217), c("cvt.rn.f32.u16 fo, h0", f(65535), -1),
		c("cvt.f64.f32 do, f0", 1.5, f(1.5)), c("cvt.rn.f32.f64 fo, d0", f(0.1), 0.1), c("cvt.rz.f32.f64 fo, d0", math.Nextafter32(f(0.1), 0), 0.1), c("cvt.rp.f32.f64 fo, d0", f(0.1), 0.1), c("cvt.sat.f32.f32 fo, f0", f(1), f(5)), c("cvt.rni.f32.f32 fo, f0", f(2), f(2.5)), c("cvt.rmi.f64.f64 do, d0", -3.0, -2.5), c("cvt.rpi.f32.f32 fo, f0", f(-2), f(-2.5)), c("cvt.rzi.f64.f64 do, d0", 2.0, 2.9), c("cvt.ftz.f32.f32 fo, f0", 0, 1), c("cvt.rn.ftz.f32.f64 fo, d0", 0, 1e-40), c("cvt.rn.f32.f64 fo, d0", f(inf), 1e300), c("cvt.rz.f32.f64 fo, d0", f(math.MaxFloat32), 1e300),
		c("cvt.rn.f16.f32 ho, f0", 0x3e00, f(1.5)), c("cvt.f32.f16 fo, h0", f(1.5), 0x3e00), c("cvt.rn.f16.f64 ho, d0", 0x7c00, 1e10), c("cvt.rz.f16.f32 ho, f0", 0x7bff, f(1e10)), c("cvt.rn.f16.f32 ho, f0", 1, f(6e-8)), c("cvt.f32.f16 fo, h0", f(math.Ldexp(1, -24)), 1), c("cvt.rn.f16.s32 ho, a0", 0xc500, -5), c("cvt.rni.s32.f16 ao, h0", 2, 0x4100), c("cvt.rn.bf16.f32 ho, f0", 0x3fc0, f(1.5)), c("cvt.f32.bf16 fo, h0", f(1.5), 0x3fc0), c("cvt.rn.f16x2.f32 ao, f0, f1", 0x3c004000, f(1), f(2)), c("cvt.rn.bf16x2.f32 ao, f0, f1", 0x3f804000, f(1), f(2)), c("cvt.rn.relu.f16.f32 ho, f0", 0, f(-1)), c("cvt.f64.f16 do, h0", -2.0, 0xc000), c("cvt.f32.f16 fo, h0", 0x7fffffff, 0x7e00), c("cvt.f32.f16 fo, h0", f(-inf), 0xfc00),
		c("cvt.pack.sat.s16.s32 ao, a0, a1", 0x7fff8000, 100000, -100000), c("cvt.pack.sat.u8.s32.b32 ao, a0, a1, a2", 0x0000ff00|0xab<<16, 300, -1, 0xab),
	})
}

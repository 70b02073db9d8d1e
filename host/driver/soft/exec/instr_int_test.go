package exec_test

import "testing"

func TestIntegerInstructions(t *testing.T) {
	runInstrs(t, []instr{
		c("add.s32 ao, a0, a1", -1, 5, -6), c("add.u16 ho, h0, h1", 1, 0xffff, 2), c("add.s64 AO, A0, A1", 1<<40+1, 1<<40, 1),
		c("add.sat.s32 ao, a0, a1", 0x7fffffff, 0x7fffffff, 1), c("sub.sat.s32 ao, a0, a1", 0x80000000, -0x80000000, 1),
		c("add.u16x2 ao, a0, a1", 0x00010003, 0xffff0001, 0x00020002),
		c("sub.s32 ao, a0, 7", -2, 5), c("sub.u64 AO, A0, A1", -1, 1, 2),
		c("mul.lo.s32 ao, a0, a1", -30, 5, -6), c("mul.lo.u64 AO, A0, A1", 1<<50, 1<<25, 1<<25), c("mul.lo.s16 ho, h0, h1", 6, -2, -3),
		c("mul.hi.s32 ao, a0, a1", -1, -1, 5), c("mul.hi.u32 ao, a0, a1", 4, -1, 5), c("mul.hi.s64 AO, A0, A1", -1, -1, 5), c("mul.hi.u64 AO, A0, A1", 4, -1, 5),
		c("mul.hi.s16 ho, h0, h1", 0xfffe, -0x8000, 4), c("mul.hi.u16 ho, h0, h1", 2, 0x8000, 4),
		c("mul.wide.s32 AO, a0, a1", -10, -1, 10), c("mul.wide.u32 AO, a0, a1", 0xffffffff*10, 0xffffffff, 10),
		c("mul.wide.s16 ao, h0, h1", -10, -1, 10), c("mul.wide.u16 ao, h0, h1", 0xffff*10, 0xffff, 10),
		c("mad.lo.s32 ao, a0, a1, a2", 17, 5, 3, 2), c("mad.hi.u32 ao, a0, a1, a2", 7, -1, 5, 3), c("mad.wide.s32 AO, a0, a1, A2", 1<<40-15, -5, 3, 1<<40),
		c("mad.wide.u16 ao, h0, h1, a2", 100+0xffff*2, 0xffff, 2, 100), c("mad.hi.sat.s32 ao, a0, a1, a2", 0x7fffffff, 1<<30, 1<<30, 0x7fffffff),
		c("mul24.lo.u32 ao, a0, a1", 0xfffffe, 0xff7fffff, 2), c("mul24.hi.u32 ao, a0, a1", 0x100000, 0x100000, 0x10000), c("mul24.lo.s32 ao, a0, a1", -2, 0xffffff, 2),
		c("mad24.lo.s32 ao, a0, a1, a2", 8, -1, 2, 10),
		c("div.s32 ao, a0, a1", -3, -7, 2), c("div.u32 ao, a0, a1", 0x7ffffffc, -7, 2), c("div.s64 AO, A0, A1", -3, -7, 2), c("div.u16 ho, h0, h1", 0x7ffc, -7, 2), c("div.s16 ho, h0, h1", -3, -7, 2),
		c("div.s32 ao, a0, a1", 0x80000000, -0x80000000, -1), c("rem.s32 ao, a0, a1", -1, -7, 2), c("rem.u32 ao, a0, a1", 1, -7, 2), c("rem.s64 AO, A0, A1", -1, -7, 3),
		c("rem.u64 AO, A0, A1", 6, 27, 7), c("rem.s16 ho, h0, h1", -1, -7, 3),
		c("abs.s32 ao, a0", 5, -5), c("abs.s64 AO, A0", 5, -5), c("abs.s16 ho, h0", 5, -5), c("neg.s32 ao, a0", 5, -5), c("neg.s64 AO, A0", -5, 5),
		c("min.s32 ao, a0, a1", -1, -1, 1), c("min.u32 ao, a0, a1", 1, -1, 1), c("max.s64 AO, A0, A1", 1, -1, 1), c("max.u64 AO, A0, A1", -1, -1, 1), c("max.s16 ho, h0, h1", 1, -1, 1), c("min.u16 ho, h0, h1", 1, -1, 1),
		c("min.s16x2 ao, a0, a1", 0xffff0001, 0xffff0002, 0x00010001), c("max.u16x2 ao, a0, a1", 0xffff0002, 0xffff0002, 0x00010001),
		c("sad.s32 ao, a0, a1, a2", 12, -1, 1, 10), c("sad.u32 ao, a0, a1, a2", 8, -1, 1, 10), c("sad.u64 AO, A0, A1, A2", 14, 1, 5, 10),
		c("add.cc.u32 a3, a0, a1; addc.u32 ao, a2, 0", 8, -1, 1, 7), c("add.cc.u32 a3, a0, a1; addc.u32 ao, a2, 0", 7, 1, 1, 7),
		c("sub.cc.u32 a3, a0, a1; subc.u32 ao, a2, 0", 6, 1, 2, 7), c("sub.cc.s64 A3, A0, A1; subc.s64 AO, A2, 0", 7, 2, 1, 7),
		c("add.cc.u64 A3, A0, A1; addc.cc.u64 A4, A3, A0; addc.u64 AO, 0, 0", 1, -1, 1),
		c("mad.lo.cc.u32 a3, a0, a1, a2; madc.hi.u32 ao, a0, a1, 5", 6, 1, -1, 1), c("mad.hi.cc.u32 a3, a0, a1, a2; addc.u32 ao, 0, 0", 1, -1, 2, -1),
		c("dp4a.s32.s32 ao, a0, a1, a2", 100-1+2*3+4*-5, 0x00ff0204, 0x000103fb, 100), c("dp4a.u32.u32 ao, a0, a1, a2", 255*2+1, 0xff, 2, 1), c("dp4a.u32.s32 ao, a0, a1, a2", -255, 0xff, 0xff, 0),
		c("dp2a.lo.s32.s32 ao, a0, a1, a2", -1000*2+3*-4+7, 0x0003fc18, 0x0000fc02, 7), c("dp2a.hi.u32.u32 ao, a0, a1, a2", 2*5+1*6, 0x00010002, 0x06050000, 0),
	})
}

func TestBitInstructions(t *testing.T) {
	runInstrs(t, []instr{
		c("and.b32 ao, a0, a1", 8, 12, 10), c("or.b64 AO, A0, A1", 14, 12, 10), c("xor.b16 ho, h0, h1", 6, 12, 10), c("not.b32 ao, a0", -1, 0), c("not.b64 AO, A0", -2, 1),
		c("cnot.b32 ao, a0", 1, 0), c("cnot.b32 ao, a0", 0, 9), c("cnot.b32 ao, a0", 1, 1<<40),
		c("and.pred po, p0, p1", 0, 1, 0), c("or.pred po, p0, p1", 1, 1, 0), c("xor.pred po, p0, p1", 1, 1, 0), c("not.pred po, p0", 1, 0), c("mov.pred po, p0", 1, 3), c("and.pred po, p0, !p1", 1, 1, 0),
		c("shl.b32 ao, a0, a1", 0x50, 5, 4), c("shl.b32 ao, a0, a1", 0, 5, 32), c("shl.b64 AO, A0, a1", 5<<40, 5, 40), c("shl.b64 AO, A0, a1", 0, 5, 64), c("shl.b16 ho, h0, a1", 0xfff0, 0xffff, 4),
		c("shr.u32 ao, a0, a1", 0x0fffffff, -1, 4), c("shr.s32 ao, a0, a1", -1, -2, 4), c("shr.s32 ao, a0, a1", -1, -2, 99), c("shr.u32 ao, a0, a1", 0, -2, 32), c("shr.s64 AO, A0, a1", -1, -2, 70),
		c("shr.u64 AO, A0, a1", 1, 1<<40, 40), c("shr.s16 ho, h0, a1", 0xfff8, 0x8000, 12), c("shr.b32 ao, a0, a1", 1, 1<<31, 31), c("shr.u16 ho, h0, a1", 8, 0x8000, 12),
		c("shf.l.wrap.b32 ao, a0, a1, a2", 0x2345678f, 0xf0000000, 0x12345678, 36), c("shf.r.wrap.b32 ao, a0, a1, a2", 0x81234567, 0x12345678, 8, 4), c("shf.l.clamp.b32 ao, a0, a1, a2", 0xabc, 0xabc, 5, 40), c("shf.r.clamp.b32 ao, a0, a1, a2", 5, 0xabc, 5, 40),
		c("lop3.b32 ao, a0, a1, a2, 0x80", 0x80, 0xf0, 0xcc, 0xaa), c("lop3.b32 ao, a0, a1, a2, 0x96", 0xf0^0xcc^0xaa, 0xf0, 0xcc, 0xaa), c("lop3.b32 ao, a0, a1, a2, 0x1b", 0xffffff1b, 0xf0, 0xcc, 0xaa), c("lop3.b32 ao, a0, a1, a2, 0xe4", 0xe4, 0xf0, 0xcc, 0xaa), c("lop3.b32 ao, a0, a1, a2, 0xca", 0xca, 0xf0, 0xcc, 0xaa),
		c("bfe.u32 ao, a0, a1, a2", 0x56, 0x12345678, 8, 8), c("bfe.s32 ao, a0, a1, a2", -1, 0x0000f000, 12, 4), c("bfe.s32 ao, a0, a1, a2", -1, -0x80000000, 40, 4), c("bfe.u32 ao, a0, a1, a2", 0, -1, 3, 0), c("bfe.u32 ao, a0, a1, a2", 0x0fffffff, -1, 4, 60), c("bfe.u64 AO, A0, a1, a2", 0xff, 0xff<<40, 40, 20), c("bfe.s64 AO, A0, a1, a2", -1, -1, 10, 64), c("bfe.s64 AO, A0, a1, a2", -1, 0xff<<40, 40, 8),
		c("bfi.b32 ao, a0, a1, 8, 4", 0xfffff5ff, 5, -1), c("bfi.b64 AO, A0, A1, 32, 32", 0x5_00000007, 5, 7), c("bfi.b32 ao, a0, a1, 8, 0", -1, 5, -1), c("bfi.b32 ao, a0, a1, 40, 4", 3, 5, 3), c("bfi.b32 ao, a0, a1, a2, 40", 0x5f, 5, 0xf, 4),
		c("bfind.u32 ao, a0", 4, 0x1f), c("bfind.u32 ao, a0", -1, 0), c("bfind.s32 ao, a0", 3, -9), c("bfind.s32 ao, a0", -1, -1), c("bfind.u64 ao, A0", 40, 1<<40), c("bfind.shiftamt.u32 ao, a0", 27, 0x1f), c("bfind.s64 ao, A0", 62, -1<<63),
		c("brev.b32 ao, a0", 0x80000000, 1), c("brev.b64 AO, A0", -1<<63, 1), c("clz.b32 ao, a0", 31, 1), c("clz.b32 ao, a0", 32, 1<<40), c("clz.b64 ao, A0", 23, 1<<40), c("popc.b32 ao, a0", 32, -1), c("popc.b64 ao, A0", 64, -1),
		c("fns.b32 ao, a0, 0, 2", 5, 0x28), c("fns.b32 ao, a0, 3, 0", 3, 0x28), c("fns.b32 ao, a0, 4, -1", 3, 0x28), c("fns.b32 ao, a0, 0, 3", -1, 0x28),
		c("bmsk.clamp.b32 ao, a0, a1", 0xf0, 4, 4), c("bmsk.wrap.b32 ao, a0, a1", 0xf0, 36, 4), c("szext.clamp.s32 ao, a0, a1", -1, 0xf, 4), c("szext.clamp.u32 ao, a0, a1", 0xf, 0xff, 4),
		c("prmt.b32 ao, a0, a1, 0x5410", 0xbbaa2211, 0x44332211, 0xddccbbaa), c("prmt.b32 ao, a0, a1, 0x8888", 0, 0x44332211, 0), c("prmt.b32 ao, a0, a1, 0xfb00", 0xff00_1111, 0x44332211, -0x80000000),
		c("prmt.b32.f4e ao, a0, a1, 1", 0xaa443322, 0x44332211, 0xddccbbaa), c("prmt.b32.rc16 ao, a0, a1, 1", 0x44334433, 0x44332211, 0),
		c("vabsdiff4.u32.u32.u32 ao, a0, a1, a2", 0x01020304, 0x05050505, 0x06070801, 0), c("vadd2.s32.s32.s32.sat ao, a0, a1, a2", 0x7fff0003, 0x7fff0001, 0x00010002, 0),
		c("vavrg4.u32.u32.u32 ao, a0, a1, a2", 0x02030405, 0x01020304, 0x03040506, 0), c("vmax4.s32.s32.s32 ao, a0, a1, a2", 0x01020304, 0x01fe0304, 0xff02fdfc, 0), c("vsub4.u32.u32.u32.add ao, a0, a1, a2", 10+1+1+1+1, 0x02030405, 0x01020304, 10),
		c("vset4.u32.u32.lt ao, a0, a1, a2", 0x01000001, 0x01020304, 0x02020305, 0),
	})
}

func TestMoves(t *testing.T) {
	runInstrs(t, []instr{
		c("mov.u32 ao, 42", 42), c("mov.u64 AO, 0xFFFFFFFFFFFFFFFF", -1), c("mov.b32 fo, a0", f(1.5), f(1.5)), c("mov.f32 fo, 0f3FC00000", f(1.5)), c("mov.f64 do, 0d3FF8000000000000", 1.5), c("mov.f64 do, 2.5e-1", 0.25), c("mov.f32 fo, -1.5", f(-1.5)),
		c("mov.u32 ao, 0b1011", 11), c("mov.u32 ao, 017", 15), c("mov.u32 ao, 10U", 10), c("mov.s32 ao, -5", -5), c("mov.u32 ao, WARP_SZ", 32),
		c("mov.b64 AO, {a0, a1}", 0x2_00000001, 1, 2), c("mov.b64 {a3, ao}, A0", 7, 7<<32), c("mov.b64 {ao, _}, A0", 9, 7<<32|9), c("mov.b32 ao, {h0, h1}", 0x20001, 1, 2), c("mov.b32 {h3, ho}, a0", 2, 0x20001), c("mov.b64 AO, {h0, h1, h2, h0}", 0x0001_0003_0002_0001, 1, 2, 3),
		c("{ .reg .b8 q<4>; mov.b32 {q0, q1, q2, q3}, a0; cvt.u32.u8 ao, q2; }", 0x33, 0x44332211),
		c("selp.b32 ao, a0, a1, p2", 5, 5, 6, 1), c("selp.f64 do, d0, d1, p2", 6.5, 5.5, 6.5, 0), c("selp.b32 ao, a0, a1, !p2", 6, 5, 6, 1), c("slct.u32.s32 ao, a0, a1, a2", 5, 5, 6, 0), c("slct.u32.s32 ao, a0, a1, a2", 6, 5, 6, -1), c("slct.b64.f32 AO, A0, A1, f2", 6, 5, 6, f(-0.5)), c("slct.b64.f32 AO, A0, A1, f2", 6, 5, 6, f(nan)),
		c("mov.u32 ao, %ntid.x", 1), c("mov.u32 ao, %laneid", 0), c("mov.u32 ao, %lanemask_ge", -1), c("mov.u32 ao, %nctaid.z", 1), c("mov.u32 ao, %nwarpid", 1), c("mov.u32 ao, %lanemask_lt", 0),
		c("mov.u64 A3, %clock64; mov.u64 A4, %globaltimer; mov.u32 ao, 1", 1), c("activemask.b32 ao", 1),
		c("mov.u64 A3, sh; cvta.shared.u64 A4, A3; isspacep.shared po, A4", 1), c("mov.u64 A3, sh; cvta.shared.u64 A4, A3; isspacep.global po, A4", 0), c("mov.u64 A3, loc; cvta.local.u64 A4, A3; isspacep.local po, A4", 1), c("isspacep.global po, in", 1),
		c("mov.u64 A3, sh; cvta.shared.u64 A4, A3; cvta.to.shared.u64 AO, A4", 0),
	})
}

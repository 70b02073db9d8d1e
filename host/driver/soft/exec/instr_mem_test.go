package exec_test

import "testing"

func TestMemoryInstructions(t *testing.T) {
	runInstrs(t, []instr{
		c("ld.global.u8 ao, [mem+7]", 0x88), c("ld.global.s8 ao, [mem+7]", 0xffffff88), c("ld.global.u16 ao, [mem+6]", 0x8807), c("ld.global.s16 ao, [mem+6]", 0xffff8807), c("ld.global.u32 ao, [mem+4]", 0x88070605), c("ld.global.s32 AO, [mem+4]", -0x77f8f9fb), c("ld.global.u64 AO, [mem]", uint64(0x8807060504030201)),
		c("ld.global.nc.L2::128B.v2.u16 {h3, ho}, [mem+4]", 0x8807), c("ld.global.v4.u8 {h3, h4, h5, ho}, [mem]", 4), c("ld.global.v2.u64 {A3, AO}, [mem]", 0xa09), c("ld.global.v2.u32 {_, ao}, [mem]", 0x88070605),
		c("ld.const.f32 fo, [con+4]", f(2.5)), c("mov.u64 A3, con; ld.const.f32 fo, [A3]", f(1.5)), c("ld.param.u32 ao, [blob+4]", 0x8899aabb), c("ld.param.s8 ao, [blob+7]", 0xffffff88), c("ld.param.v2.u16 {h3, ho}, [blob]", 0x1122), c("mov.b64 A3, blob; ld.param.u16 ao, [A3+2]", 0x1122),
		c("mov.b64 A3, blob; cvta.param.u64 A4, A3; ld.u32 ao, [A4+4]", 0x8899aabb),
		c("st.shared.u32 [sh+8], a0; ld.shared.u16 ao, [sh+10]", 0x1234, 0x12345678), c("st.shared.v2.b32 [sh], {a0, a1}; ld.shared.b64 AO, [sh]", 0x2_00000001, 1, 2), c("mov.u32 a3, sh; st.shared.b8 [a3+3], a0; ld.shared.u32 ao, [a3]", 0xff000000, 0x1ff),
		c("st.local.u64 [loc+8], A0; ld.local.u64 AO, [loc+8]", 77, 77), c("mov.u64 A3, loc; cvta.local.u64 A4, A3; st.u32 [A4+4], a0; ld.local.u32 ao, [loc+4]", 78, 78), c("mov.u64 A3, loc; st.local.v4.b32 [A3], {a0, a1, a2, a0}; ld.local.v2.b32 {a3, ao}, [A3+8]", 1, 1, 2, 3),
		c("mov.u64 A3, sh; cvta.shared.u64 A4, A3; st.u16 [A4], h0; ld.shared.u16 ao, [sh]", 0x5678, 0x12345678),
		c("st.volatile.shared.u32 [sh], a0; ld.volatile.shared.u32 ao, [sh]", 5, 5), c("st.release.gpu.global.u64 [mem+8], A0; ld.acquire.gpu.global.u64 AO, [mem+8]", 6, 6), c("st.relaxed.sys.global.u8 [mem], a0; ld.relaxed.sys.global.u8 ao, [mem]", 7, 7), c("st.weak.global.u32 [mem], a0; ld.global.u32 ao, [mem]", 8, 8),
		c("membar.gl; fence.sc.cta; fence.acq_rel.gpu; fence.proxy.async; prefetch.global.L2 [mem]; mov.u32 ao, 3", 3),
		c("mbarrier.init.shared.b64 [sh], 2; mbarrier.arrive.shared.b64 A3, [sh]; mbarrier.test_wait.shared.b64 po, [sh], A3", 0), c("mbarrier.init.shared.b64 [sh], 2; mbarrier.arrive.shared.b64 A3, [sh]; mbarrier.arrive.shared.b64 _, [sh]; mbarrier.test_wait.shared.b64 po, [sh], A3", 1),
		c("mbarrier.init.shared.b64 [sh], 5; mbarrier.arrive.noComplete.shared.b64 A3, [sh], 3; mbarrier.pending_count.b64 ao, A3", 5), c("mbarrier.init.shared.b64 [sh], 1; mbarrier.arrive_drop.shared.b64 A3, [sh]; mbarrier.try_wait.parity.shared.b64 po, [sh], 0; mbarrier.inval.shared.b64 [sh]", 1), c("mbarrier.init.shared.b64 [sh], 1; mbarrier.test_wait.parity.shared.b64 po, [sh], 0", 0),
		c("cp.async.ca.shared.global [sh+4], [mem+4], 4; cp.async.commit_group; cp.async.wait_group 0; ld.shared.u32 ao, [sh+4]", 0x88070605), c("cp.async.cg.shared.global [sh], [mem], 16, 4; cp.async.wait_all; ld.shared.u64 AO, [sh]", 0x04030201),
	})
}

func TestAtomicInstructions(t *testing.T) {
	var cases []instr
	for _, space := range []string{"global", "shared"} {
		at := map[string]string{"global": "[mem+16]", "shared": "[sh+16]"}[space]
		for _, x := range []struct {
			op, typ, reg       string
			start, v, w, after any
		}{
			{"add", "u32", "a", 5, 7, 0, 12}, {"add", "s32", "a", 5, -7, 0, -2}, {"add", "u64", "A", 1 << 40, 1, 0, 1<<40 + 1}, {"add", "f32", "f", f(1.5), f(2), 0, f(3.5)}, {"add", "f64", "d", 1.5, 2.0, 0, 3.5},
			{"add.noftz", "f16x2", "a", 0x3c003c00, 0x40003c00, 0, 0x42004000}, {"add.noftz", "f16", "h", 0x3c00, 0x4000, 0, 0x4200}, {"add.noftz", "bf16x2", "a", 0x3f803f80, 0x40003f80, 0, 0x40404000},
			{"min", "s32", "a", 5, -7, 0, -7}, {"min", "u32", "a", 5, -7, 0, 5}, {"max", "s64", "A", 5, -7, 0, 5}, {"max", "u64", "A", 5, -7, 0, -7}, {"and", "b32", "a", 12, 10, 0, 8}, {"or", "b64", "A", 12, 10, 0, 14}, {"xor", "b32", "a", 12, 10, 0, 6},
			{"exch", "b32", "a", 5, 7, 0, 7}, {"exch", "b64", "A", 5, 7, 0, 7}, {"cas", "b32", "a", 5, 5, 9, 9}, {"cas", "b32", "a", 5, 6, 9, 5}, {"cas", "b64", "A", -1, -1, 9, 9}, {"cas", "b16", "h", 5, 5, 9, 9},
			{"inc", "u32", "a", 5, 7, 0, 6}, {"inc", "u32", "a", 7, 7, 0, 0}, {"dec", "u32", "a", 5, 7, 0, 4}, {"dec", "u32", "a", 0, 7, 0, 7}, {"dec", "u32", "a", 9, 7, 0, 7},
		} {
			width := map[string]string{"a": "b32", "A": "b64", "f": "f32", "d": "f64", "h": "b16"}[x.reg]
			third := ""
			if x.op == "cas" {
				third = ", " + x.reg + "2"
			}
			op := "atom.gpu." + space + "." + x.op + "." + x.typ
			prepare := "st." + space + "." + width + " " + at + ", " + x.reg + "0; "
			cases = append(cases,
				c(prepare+op+" "+x.reg+"O_, "+at+", "+x.reg+"1"+third+"; ld."+space+"."+width+" "+x.reg+"o, "+at, x.after, x.start, x.v, x.w),
				c(prepare+op+" "+x.reg+"o, "+at+", "+x.reg+"1"+third, x.start, x.start, x.v, x.w))
			if x.op != "exch" && x.op != "cas" {
				cases = append(cases, c(prepare+"red.relaxed.gpu."+space+"."+x.op+"."+x.typ+" "+at+", "+x.reg+"1; ld."+space+"."+width+" "+x.reg+"o, "+at, x.after, x.start, x.v))
			}
		}
	}
	for i := range cases {
		// The harness's names: AO for A, and a scratch register for unused results.
		cases[i].text = replaceAll(cases[i].text, "Ao,", "AO,", "AO_", "A8", "aO_", "a8", "fO_", "f8", "dO_", "d8", "hO_", "h8")
	}
	runInstrs(t, cases)
}

package soft

// testPTX is written by hand: tests need no compiler.
const testPTX = `.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 counter = 7;
.visible .const .align 4 .u32 fixed = 5;
.global .align 1 .b8 greeting[4] = {104, 105, 10, 0};
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.visible .entry vadd(.param .u64 c, .param .u64 a, .param .u64 b)
{
	.reg .b32 %r<8>; .reg .b64 %d<8>;
	ld.param.u64 %d1, [c]; ld.param.u64 %d2, [a]; ld.param.u64 %d3, [b];
	mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
	mad.lo.s32 %r4, %r1, %r2, %r3;
	mul.wide.u32 %d4, %r4, 4;
	add.s64 %d2, %d2, %d4; add.s64 %d3, %d3, %d4; add.s64 %d1, %d1, %d4;
	ld.global.u32 %r5, [%d2]; ld.global.u32 %r6, [%d3];
	add.u32 %r7, %r5, %r6;
	st.global.u32 [%d1], %r7;
	ret;
}
.visible .entry bump()
{
	.reg .b32 %r<4>; .reg .b64 %d<2>;
	mov.u64 %d1, counter; ld.const.u32 %r1, [fixed];
	atom.global.add.u32 %r2, [%d1], %r1;
	ret;
}
.visible .entry store(.param .u64 p)
{
	.reg .b64 %d<2>; .reg .b32 %r<2>;
	ld.param.u64 %d1, [p]; mov.u32 %r1, 1;
	st.global.u32 [%d1], %r1;
	ret;
}
.visible .entry forever()
{
LOOP:
	bra LOOP;
}
.visible .entry trap() { trap; ret; }
.visible .entry hello()
{
	.param .b64 f; .param .b64 a; .param .b32 r;
	.reg .b64 %d<3>; .reg .b32 %r<2>;
	mov.u64 %d1, greeting; cvta.global.u64 %d1, %d1; mov.u64 %d2, 0;
	st.param.b64 [f], %d1; st.param.b64 [a], %d2;
	call.uni (r), vprintf, (f, a);
	ret;
}
.visible .entry bounded() .maxntid 64, 1, 1
{
	.shared .align 4 .b8 tile[8192];
	.reg .b32 %r<2>;
	mov.u32 %r1, %tid.x; st.shared.u32 [tile], %r1;
	ret;
}
.visible .entry lacking()
{
	.reg .b32 %r<3>;
	wgmma.fence.sync.aligned;
	ret;
}
`

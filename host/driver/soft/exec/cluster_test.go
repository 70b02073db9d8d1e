package exec_test

import (
	"errors"
	"testing"

	"causeway/host/driver/soft/exec"
)

const clusterKernels = `.version 9.0
.target sm_90
.address_size 64
.extern .func (.param .b64 r) __cudaCDP2GetParameterBufferV2 (.param .b64 f, .param .align 4 .b8 g[12], .param .align 4 .b8 b[12], .param .b32 s);
.extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2 (.param .b64 b, .param .b64 s);

// Each thread reads its number in the next block's memory.
.visible .entry ring(.param .u64 out)
{
	.reg .b32 %r<12>; .reg .b64 %rd<4>;
	.shared .align 4 .b32 box[64];
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, %cluster_nctarank; mov.u32 %r4, %ctaid.x;
	mov.u32 %r5, box; mad.lo.u32 %r5, %r1, 4, %r5;
	mad.lo.u32 %r6, %r4, 100, %r1;
	st.shared.u32 [%r5], %r6;
	barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
	add.u32 %r7, %r2, 1; rem.u32 %r7, %r7, %r3;
	mapa.shared::cluster.u32 %r8, %r5, %r7;
	ld.shared::cluster.u32 %r9, [%r8];
	getctarank.shared::cluster.u32 %r10, %r8;
	mad.lo.u32 %r9, %r10, 10000, %r9;
	mad.lo.u32 %r11, %r4, 64, %r1;
	mad.wide.u32 %rd2, %r11, 4, %rd1;
	st.global.u32 [%rd2], %r9;
	barrier.cluster.arrive; barrier.cluster.wait;
	ret;
}
// A block that is not in the cluster.
.visible .entry outside(.param .u64 out)
{
	.reg .b32 %r<4>;
	.shared .align 4 .b32 box[1];
	mov.u32 %r1, box; mapa.shared::cluster.u32 %r2, %r1, 7; ld.shared::cluster.u32 %r3, [%r2];
	ret;
}
// Half of the blocks never arrive, and never end.
.visible .entry stuck(.param .u64 out)
{
	.reg .b32 %r<4>; .reg .pred %p<2>;
	mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 0;
	@%p1 bra OTHER;
	barrier.cluster.arrive; barrier.cluster.wait;
	ret;
OTHER:
	bar.sync 1, 64;
	ret;
}
// Counts itself and launches itself again.
.visible .entry again(.param .u64 out)
{
	.reg .b32 %r<4>; .reg .b64 %rd<6>; .reg .pred %p<2>;
	ld.param.u64 %rd1, [out];
	atom.global.add.u32 %r1, [%rd1], 1;
	mov.u64 %rd2, again;
	{
	.param .b64 f; .param .align 4 .b8 g[12]; .param .align 4 .b8 b[12]; .param .b32 s; .param .b64 r;
	st.param.b64 [f], %rd2;
	st.param.b32 [g], 1; st.param.b32 [g+4], 1; st.param.b32 [g+8], 1;
	st.param.b32 [b], 1; st.param.b32 [b+4], 1; st.param.b32 [b+8], 1;
	st.param.b32 [s], 0;
	call.uni (r), __cudaCDP2GetParameterBufferV2, (f, g, b, s);
	ld.param.b64 %rd3, [r];
	}
	setp.eq.u64 %p1, %rd3, 0;
	@%p1 bra END;
	st.u64 [%rd3], %rd1;
	{
	.param .b64 b; .param .b64 s; .param .b32 r;
	st.param.b64 [b], %rd3; st.param.b64 [s], 4;
	call.uni (r), __cudaCDP2LaunchDeviceV2, (b, s);
	ld.param.b32 %r2, [r];
	}
END:
	ret;
}
`

func TestClusters(t *testing.T) {
	a := newArena(t)
	m := a.load(t, clusterKernels)
	out := put(a, make([]uint32, 8*64))
	c := exec.Config{Grid: [3]uint32{8}, Block: [3]uint32{64}, Cluster: [3]uint32{4, 1, 1}, Params: pack(out)}
	if err := a.launch(t, m, "ring", c); err != nil {
		t.Fatal(err)
	}
	check(t, "ring", get[uint32](a, out, 8*64), func(i int) uint32 {
		block, thread := i/64, i%64
		next := (block%4 + 1) % 4
		return uint32((block/4*4+next)*100 + thread + next*10000)
	})
	var f *exec.Fault
	if err := a.launch(t, m, "outside", c); !errors.As(err, &f) || f.Kind != exec.IllegalAddress {
		t.Errorf("memory of a block that is not there: %v", err)
	}
	c.Block[0] = 32
	if err := a.launch(t, m, "stuck", c); !errors.As(err, &f) || f.Kind != exec.Deadlock {
		t.Errorf("blocks that wait for ever: %v", err)
	}
	c.Grid[0] = 6
	var bad *exec.ConfigError
	if err := a.launch(t, m, "ring", c); !errors.As(err, &bad) {
		t.Errorf("half a cluster: %v", err)
	}
}

// A kernel that launches itself for ever comes to the depth that hardware has.
func TestLaunchDepth(t *testing.T) {
	a := newArena(t)
	m := a.load(t, clusterKernels)
	out := put(a, make([]uint32, 1))
	if err := a.launch(t, m, "again", exec.Config{Params: pack(out)}); err != nil {
		t.Fatal(err)
	}
	if n := get[uint32](a, out, 1)[0]; n != 25 {
		t.Errorf("%d launches, want 25", n)
	}
}

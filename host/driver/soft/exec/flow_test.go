package exec_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"causeway/host/driver/soft/exec"
	"causeway/host/driver/soft/ptx"
)

// flow wraps a body that computes r from i, the thread's number, for every
// thread, and stores it.
func flow(body string) string {
	return `.version 8.4
.target sm_90
.address_size 64
.global .u32 cell;
.func (.param .b32 r) square(.param .b32 x)
{
	.reg .b32 a; .reg .pred p;
	ld.param.b32 a, [x];
	setp.gt.s32 p, a, 1000;
	@p exit;
	mul.lo.s32 a, a, a;
	st.param.b32 [r], a;
	@!p ret;
	trap;
}
.visible .entry k(.param .u64 out)
{
	.reg .b32 i, r, a<9>; .reg .b64 d<9>; .reg .pred p<9>; .shared .b32 sh[128]; .param .b32 arg; .param .b32 res;
	mov.u32 i, %tid.x;
	mov.u32 r, 0;
` + body + `
END:
	ld.param.u64 d8, [out];
	mad.wide.u32 d8, i, 4, d8;
	st.global.u32 [d8], r;
	ret;
}`
}

func TestFlow(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       func(i uint32) uint32
	}{
		{"indexed branch", `and.b32 a1, i, 3; T: .branchtargets A, B, C, A; brx.idx a1, T; trap;
			A: add.u32 r, r, 10; bra J; B: add.u32 r, r, 20; C: add.u32 r, r, 300; J: add.u32 r, r, 1;`,
			func(i uint32) uint32 { return [...]uint32{11, 321, 301, 11}[i&3] }},
		{"irreducible loop", `and.b32 a1, i, 1; setp.eq.s32 p1, a1, 0; mov.u32 a2, 0; @p1 bra Y;
			X: add.u32 r, r, 1; Y: add.u32 r, r, 100; add.u32 a2, a2, 1; setp.lt.u32 p2, a2, i; @p2 bra X;`,
			func(i uint32) uint32 { return 100*max(i, 1) + max(i, 1) - 1 + i&1 }},
		{"guarded call and exit below it", `setp.lt.u32 p1, i, 40; st.param.b32 [arg], i; @p1 call (res), square, (arg); @p1 ld.param.b32 r, [res];`,
			func(i uint32) uint32 {
				if i < 40 {
					return i * i
				}
				return 0
			}},
		{"exit in a call", `mov.u32 r, 7; add.u32 a1, i, 990; st.param.b32 [arg], a1; call (res), square, (arg); ld.param.b32 r, [res];`,
			func(i uint32) uint32 {
				if i+990 > 1000 {
					return 0
				}
				return (i + 990) * (i + 990)
			}},
		{"lanes meet at a shuffle", `and.b32 a1, i, 7; setp.lt.u32 p1, a1, 4; @p1 bra FAR; add.u32 a2, i, 100; bra MEET; FAR: add.u32 a2, i, 200; nanosleep.u32 20;
			MEET: shfl.sync.bfly.b32 r, a2, 4, 31, -1;`,
			func(i uint32) uint32 {
				if i&7 < 4 {
					return i ^ 4 + 100
				}
				return i ^ 4 + 200
			}},
		{"meeting at different instructions", `and.b32 a1, i, 1; setp.eq.u32 p1, a1, 0; @p1 bra EVEN; bar.warp.sync -1; mov.u32 r, 1; bra J2; EVEN: bar.warp.sync -1; mov.u32 r, 2; J2: bar.warp.sync -1;`,
			func(i uint32) uint32 { return 2 - i&1 }},
		{"groups of lanes", `and.b32 a1, i, 16; shl.b32 a2, 0xffff, a1; setp.eq.u32 p1, a1, 0; @p1 bra LOW; redux.sync.max.u32 r, i, a2; bra J3; LOW: redux.sync.add.u32 r, i, a2; J3:`,
			func(i uint32) uint32 {
				if i&16 != 0 {
					return i | 15
				}
				return (i&^31)*16 + 120
			}},
		{"leader", `elect.sync a1|p1, 0xffffffff; selp.b32 r, 5, 6, p1; add.u32 r, r, a1;`,
			func(i uint32) uint32 {
				if i&31 == 0 {
					return 5
				}
				return 6
			}},
		{"old warp operations", `setp.eq.u32 p1, i, 3; vote.any.pred p2, p1; vote.ballot.b32 a1, p1; shfl.idx.b32 a2, i, 2, 31; selp.b32 r, 1000, 0, p2; add.u32 r, r, a1; add.u32 r, r, a2; setp.ge.u32 p3, i, 0; vote.uni.pred p4, p3; @p4 add.u32 r, r, 5000;`,
			func(i uint32) uint32 {
				if i < 32 {
					return 1000 + 8 + 2 + 5000
				}
				return i&^31 + 2 + 5000
			}},
		{"named barriers", `setp.lt.u32 p1, i, 32; @p1 bra CONSUME; mov.u32 a1, sh; mad.lo.u32 a1, i, 4, a1; st.shared.u32 [a1], i; bar.arrive 3, 96; bra J4;
			CONSUME: bar.sync 3, 96; mov.u32 a1, sh; mad.lo.u32 a1, i, 4, a1; ld.shared.u32 r, [a1+128]; J4: barrier.sync.aligned 0;`,
			func(i uint32) uint32 {
				if i < 32 {
					return i + 32
				}
				return 0
			}},
		{"cluster of one block", `mov.u32 a1, sh; mad.lo.u32 a1, i, 4, a1; st.shared.u32 [a1], i; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; xor.b32 a2, i, 32; setp.lt.u32 p1, a2, 96; @!p1 bra J5; mov.u32 a1, sh; mad.lo.u32 a1, a2, 4, a1; ld.shared.u32 r, [a1]; J5:`,
			func(i uint32) uint32 {
				if i^32 < 96 {
					return i ^ 32
				}
				return 0
			}},
		{"reductions over lanes", `redux.sync.and.b32 a1, i, -1; redux.sync.or.b32 a2, i, -1; redux.sync.xor.b32 a3, i, -1; neg.s32 a4, i; redux.sync.min.s32 a5, a4, -1; add.u32 r, a1, a2; add.u32 r, r, a3; sub.u32 r, r, a5;`,
			func(i uint32) uint32 { return i&^31 + (i | 31) + 0 + (i | 31) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newArena(t)
			m := a.load(t, flow(c.body))
			o := put(a, make([]uint32, 96))
			a.run(t, m, "k", 1, 96, pack(o))
			check(t, "r", get[uint32](a, o, 96), func(i int) uint32 { return c.want(uint32(i)) })
		})
	}
}

func TestFlowFaults(t *testing.T) {
	for _, c := range []struct {
		body string
		kind exec.FaultKind
	}{
		{"trap;", exec.Trap},
		{"setp.eq.u32 p1, i, 70; @p1 brkpt;", exec.Trap},
		{"bar.sync 16;", exec.IllegalInstruction},
		{"T: .branchtargets END, END; brx.idx i, T;", exec.InvalidPC},
		{"mov.u64 d1, 12345; P: .callprototype _ (); call d1, P;", exec.InvalidPC},
		{"setp.lt.u32 p1, i, 5; @p1 bra LONELY; bar.sync 1; bra END; LONELY: bar.sync 2;", exec.Deadlock},
		{"bar.sync 1, 128;", exec.Deadlock},
		{"ld.shared.u32 r, [sh+4096];", exec.IllegalAddress},
		{"ld.shared.u32 r, [sh+2];", exec.MisalignedAddress},
		{"mov.u64 d1, 65536; ld.local.u32 r, [d1+1024];", exec.IllegalAddress},
		{"mov.u64 d1, 4; cvta.local.u64 d1, d1; st.u64 [d1], d1;", exec.MisalignedAddress},
		{"mov.u64 d1, k; st.global.u32 [d1], i;", exec.IllegalAddress},
	} {
		a := newArena(t)
		m := a.load(t, flow(c.body))
		err := a.launch(t, m, "k", exec.Config{Block: [3]uint32{96}, Params: pack(put(a, make([]uint32, 96)))})
		var f *exec.Fault
		if !errors.As(err, &f) || f.Kind != c.kind {
			t.Errorf("%s: error %v, want %v", c.body, err, c.kind)
			continue
		}
		if s := err.Error(); !strings.Contains(s, c.kind.String()) || !strings.Contains(s, "thread") {
			t.Errorf("%s: message %q", c.body, s)
		}
	}
}

func TestLargeLaunchMemory(t *testing.T) {
	a := newArena(t)
	m := a.load(t, flow(".local .b8 big[400000]; mov.u64 d1, big; st.local.u32 [d1], i; bar.sync 0;"))
	c := exec.Config{Block: [3]uint32{1024}, Params: pack(put(a, make([]uint32, 1024))), Grid: [3]uint32{100}, Cooperative: true, Cores: 1}
	var f *exec.Fault
	if err := a.launch(t, m, "k", c); !errors.As(err, &f) || f.Kind != exec.StackOverflow {
		t.Errorf("error %v", err)
	}
}

// TestManyRegisters has more registers alive than any cache holds, and blocks
// beyond what liveness looks at.
func TestManyRegisters(t *testing.T) {
	var b strings.Builder
	const n = 3000
	fmt.Fprintf(&b, ".reg .b32 q<%d>;\n", n)
	for i := range n {
		fmt.Fprintf(&b, "add.u32 q%d, i, %d;\n", i, i)
	}
	for i := range n {
		fmt.Fprintf(&b, "add.u32 r, r, q%d;\n", i)
	}
	a := newArena(t)
	m := a.load(t, flow(b.String()))
	o := put(a, make([]uint32, 64))
	a.run(t, m, "k", 1, 64, pack(o))
	check(t, "sum", get[uint32](a, o, 64), func(i int) uint32 { return uint32(n*i + n*(n-1)/2) })
	if k, _ := m.Kernel("k"); k.Attributes().Registers != 255 {
		t.Errorf("%d registers", k.Attributes().Registers)
	}
}

func TestLoadErrors(t *testing.T) {
	a := newArena(t)
	for src, want := range map[string]string{
		".global .u64 x = nowhere;":                 "unknown symbol nowhere",
		".func f() { ret; }\n.func f() { ret; }":    "defined twice",
		".global .align 8 .b8 huge[1099511627776];": "no memory",
	} {
		m, err := ptx.Parse([]byte(".version 8.0\n.target sm_75\n.address_size 64\n" + src))
		if err != nil {
			t.Fatal(err)
		}
		_, err = exec.Load(m, func(name string, size, align uint64, space ptx.Space) (uint64, []byte, error) {
			if size > 1<<30 {
				return 0, nil, errors.New("no memory")
			}
			return a.variable(name, size, align, space)
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", src, err, want)
		}
	}
}

func TestUnsupportedReasons(t *testing.T) {
	for body, want := range map[string]string{
		"call nowhere;":                          "unsupported: call of something that is no function: nowhere",
		"mov.u64 d1, nowhere;":                   "unresolved symbol nowhere",
		"mov.u32 r, %unknown;":                   "special register %unknown",
		"add.s32 r, i;":                          "add.s32 with 2 operands",
		"bra nowhere;":                           "no label",
		"ld.global.u32 r, [d1], d2, d3, d4;st.q": "st.q",
		"ld.param.u32 r, [sh];":                  "which is no parameter",
		"st.const.u32 [d1], r;":                  "st.const.u32",
		"cp.async.bulk.global.shared::cta.cp_mask.bulk_group [d1], [sh], 16, r;": "cp.async.bulk.global",
		"atom.global.add.v2.u32 {a1,a2}, [d1], {a1,a2};":                         "atom.global.add.v2.u32",
		"wmma.load.a.sync.aligned.row.m16n16k16.f16 {a1}, [d1];":                 "wmma.load.a",
	} {
		src := flow(body)
		if strings.HasSuffix(body, "st.q") {
			src = flow(body + " [d1], r;")
		}
		a := newArena(t)
		m := a.load(t, src)
		k, _ := m.Kernel("k")
		var u *exec.UnsupportedError
		if err := k.Unsupported(); !errors.As(err, &u) || !strings.Contains(err.Error(), want) || u.Function != "k" || u.Line == 0 {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

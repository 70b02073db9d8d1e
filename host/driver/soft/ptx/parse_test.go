package ptx

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const head = ".version 8.4\n.target sm_90a, debug\n.address_size 64\n"

func mustParse(tb testing.TB, src string) *Module {
	tb.Helper()
	m, err := Parse([]byte(src))
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func TestHeader(t *testing.T) {
	m := mustParse(t, "// comment\n/* more\n */ "+head+"\x00garbage after the end")
	if m.Version != (Version{8, 4}) || m.SM != 90 || m.Target != "sm_90a" || m.AddressSize != 64 {
		t.Errorf("%+v", m)
	}
	if m := mustParse(t, ".version 7.10\n.target sm_75\n"); m.Version != (Version{7, 10}) || m.AddressSize != 64 {
		t.Errorf("%+v", m)
	}
}

func TestVariables(t *testing.T) {
	m := mustParse(t, head+`.visible .global .align 4 .u32 a[2][3] = {{1, 2}, {0x10, -1, 5}};
.const .f32 b[] = {1.5, 0f40000000, -2};
.global .b8 c[] = "hi";
.global .u64 d[3] = {e, generic(a)+8, 0};
.extern .shared .align 16 .b8 e[];
.global .v4 .f32 g;
.weak .global .attribute(.managed) .s64 h = -7, i;
.global .b8 j[2] = {0xFF(a), 0xFF00(a+1)};
.const .b32 k = (3 + 4) * 2 - ~0;`)
	var got []string
	for _, v := range m.Vars {
		s := fmt.Sprintf("%s %s %s×%d align %d size %d dims %v link %d", v.Name, v.Space, v.Type, v.Vec, v.Align, v.Size, v.Dims, v.Linkage)
		for _, e := range v.Init {
			switch e.Kind {
			case InitInt:
				s += fmt.Sprintf(" [%d]=%d", e.Index, int64(e.Value))
			case InitFloat:
				s += fmt.Sprintf(" [%d]=%g", e.Index, math.Float64frombits(e.Value))
			default:
				s += fmt.Sprintf(" [%d]=%s+%d %v %#x", e.Index, e.Symbol, e.Value, e.Generic, e.Mask)
			}
		}
		got = append(got, s)
	}
	want := `a global u32×1 align 4 size 24 dims [2 3] link 1 [0]=1 [1]=2 [3]=16 [4]=-1 [5]=5
b const f32×1 align 4 size 12 dims [3] link 0 [0]=1.5 [1]=2 [2]=-2
c global b8×1 align 1 size 2 dims [2] link 0 [0]=104 [1]=105
d global u64×1 align 8 size 24 dims [3] link 0 [0]=e+0 false 0x0 [1]=a+8 true 0x0 [2]=0
e shared b8×1 align 16 size 0 dims [0] link 2
g global f32×4 align 16 size 16 dims [] link 0
h global s64×1 align 8 size 8 dims [] link 3 [0]=-7
i global s64×1 align 8 size 8 dims [] link 3
j global b8×1 align 1 size 2 dims [2] link 0 [0]=a+0 false 0xff [1]=a+1 false 0xff00
k const b32×1 align 4 size 4 dims [] link 0 [0]=15`
	if !m.Vars[6].Managed || m.Vars[5].Managed {
		t.Error("managed attribute lost or invented")
	}
	if s := strings.Join(got, "\n"); s != want {
		t.Errorf("got\n%s\nwant\n%s", s, want)
	}
}

func TestFunction(t *testing.T) {
	m := mustParse(t, head+`.func (.param .b32 r) callee(.param .b64 x, .param .align 8 .b8 y[24]);
.visible .entry k(.param .u64 .ptr .global .align 4 p, .param .f32 q)
.maxntid 128, 2
.minnctapersm 2
{
	.reg .b32 %r<10>;
	.reg .pred %p, %q<3>;
	.local .align 16 .b8 depot[32];
	.loc 1 2 3, function_name $L__info, inlined_at 1 2 3
	.pragma "nounroll";
$L0: @!%q1 bra.uni $L1;
	ld.global.v2.u32 {%r1, _}, [%r2+-8];
	{
		.reg .b32 %r1;
		.param .b64 param0;
		st.param.b64 [param0+0], %r1;
		call.uni (param0), callee, (param0, 5), proto;
	}
	mov.f32 %r3, 0f3f800000; mov.u32 %r4, %tid.x; setp.lt.f64 %q1|%p, %r1, -1.5e3;
	brx.idx %r1, table;
table: .branchtargets $L0, $L1;
proto: .callprototype (.param .b32 _) _ (.param .b64 _, .param .b64 _);
$L1: ret;
}`)
	f := m.Funcs[1]
	if m.Funcs[0].Defined || !f.Kernel || f.MaxNTID != [3]uint32{128, 2, 1} || f.MinCTA != 2 || f.Params[0].Size != 8 || !f.Params[0].Pointer || f.Params[0].Align != 8 || m.Funcs[0].Params[1].Size != 24 {
		t.Errorf("%+v", f)
	}
	var ops []string
	for i := range f.Body {
		in := &f.Body[i]
		s := in.String()
		for _, o := range in.Operands {
			s += " " + show(f, &o)
		}
		ops = append(ops, s)
	}
	want := `bra.uni L8
ld.global.v2.u32 {%r1 _} [%r2]-8
st.param.b64 [param0]+0 %r1
call.uni (param0) callee (param0 5) proto
mov.f32 f0x3f800000 %r3
mov.u32 %r4 %tid.x
setp.lt.f64 %q1|%p %r1 -1500
brx.idx %r1 table
ret`
	want = strings.Replace(want, "f0x3f800000 %r3", "%r3 f0x3f800000", 1)
	if s := strings.Join(ops, "\n"); s != want {
		t.Errorf("got\n%s\nwant\n%s", s, want)
	}
	if g := f.Body[0]; !g.GuardNot || f.Regs[g.Guard].Name != "%q1" {
		t.Errorf("guard %+v", g)
	}
	if a, b := f.Body[1].Operands[0].Elems[0].Reg, f.Body[2].Operands[1].Reg; a == b {
		t.Error("the inner %r1 is the outer one")
	}
	if len(f.Tables["table"]) != 2 || len(f.Protos["proto"].Params) != 2 || f.Labels["$L1"] != 8 {
		t.Errorf("tables %v, prototypes %v, labels %v", f.Tables, f.Protos, f.Labels)
	}
}

func show(f *Func, o *Operand) string {
	list := func(open, shut string) string {
		var s []string
		for i := range o.Elems {
			s = append(s, show(f, &o.Elems[i]))
		}
		return open + strings.Join(s, " ") + shut
	}
	switch o.Kind {
	case OpReg:
		return f.Regs[o.Reg].Name
	case OpImm:
		return fmt.Sprint(int64(o.Imm))
	case OpFloat:
		return fmt.Sprint(math.Float64frombits(o.Imm))
	case OpFloat32:
		return fmt.Sprintf("f%#x", o.Imm)
	case OpLabel:
		return fmt.Sprintf("L%d", o.Imm)
	case OpAddr:
		return list("[", "]") + fmt.Sprintf("%+d", int64(o.Imm))
	case OpVector:
		return list("{", "}")
	case OpList:
		return list("(", ")")
	case OpPair:
		return show(f, &o.Elems[0]) + "|" + show(f, &o.Elems[1])
	case OpSink:
		return "_"
	}
	return o.Name
}

func TestErrors(t *testing.T) {
	body := func(s string) string { return head + ".entry k() {\n.reg .b32 r; .reg .pred p;\n" + s + "\n}" }
	for _, c := range []struct {
		src  string
		line int
		msg  string
	}{
		{"", 1, "expected .version"},
		{".version x", 1, "expected a version"},
		{".version 8.0\n.target foo", 2, "no sm_"},
		{".version 8.0\n.target sm_xx", 2, "unknown target"},
		{".version 8.0\n", 2, "no .target"},
		{head + ".address_size 32", 4, "address size"},
		{head + ".global .b32 x[0];", 4, "no elements"},
		{head + ".global .b32 x[1099511627776][1099511627776];", 4, "2^47"},
		{head + ".global .b32 x[2] = {1,2,3};", 4, "too many initialisers"},
		{head + ".global .align 3 .b32 x;", 4, "power of two"},
		{head + ".shared .b32 x = 1;", 4, "initialiser"},
		{head + ".global .b32 x;\n.global .b32 x;", 6, "twice"},
		{head + ".global .q32 x;", 4, "unknown type"},
		{head + ".entry k() {", 4, "without end"},
		{head + ".entry k() .frob {", 4, "unknown directive"},
		{head + ".section .debug {", 4, "without end"},
		{body("add.s32 r, r r;"), 6, "expected"},
		{body("@r bra L;"), 6, "not a predicate"},
		{body("L: L: ret;"), 6, "twice"},
		{body("add.s32 " + strings.Repeat("{", 100)), 6, "nested"},
		{body("add.s32 " + strings.Repeat("!", 1000) + "r;"), 6, "nested"},
		{body("mov.u32 r, " + strings.Repeat("-", 1000) + "1;"), 6, "nested"},
		{body(strings.Repeat("{", 1000)), 6, "nested"},
		{body("mov.u32 r, 99999999999999999999;"), 6, "expected"},
		{body("mov.u32 r, r.x;"), 6, "vector registers"},
		{body(".reg .v2 .b32 q;"), 6, "vector registers"},
	} {
		_, err := Parse([]byte(c.src))
		var e *Error
		if !errors.As(err, &e) || e.Line < c.line-1 || e.Line > c.line+1 || !strings.Contains(e.Msg, c.msg) {
			t.Errorf("%.80q: error %v, want line %d, %q", c.src, err, c.line, c.msg)
		}
	}
}

// TestCompilerOutput parses what nvcc made of the sources of package exec.
func TestCompilerOutput(t *testing.T) {
	files, err := filepath.Glob("../exec/testdata/*.ptx")
	if err != nil || len(files) == 0 {
		t.Fatal("no compiler output", err)
	}
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := Parse(src); err != nil || len(m.Funcs) == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	src, err := os.ReadFile("../exec/testdata/math.ptx")
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		if _, err := Parse(src); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head + ".visible .entry k(.param .u64 p) { .reg .b64 %rd<3>; ld.param.u64 %rd1, [p]; @!%p bra L; L: ret; }"))
	f.Add([]byte(head + ".global .align 8 .u64 a[2][2] = {{1, generic(b)+4}, {0xFF(c)}};\n.const .f32 z = 1.5e3;"))
	f.Add([]byte(head + ".func (.param .b32 r) f(.param .b64 x) { { .param .b64 q; call (q), f, (q); } t: .branchtargets A, B; }"))
	f.Fuzz(func(t *testing.T, src []byte) {
		m, err := Parse(src)
		if err == nil && (m == nil || m.Target == "") {
			t.Error("no module and no error")
		}
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Line < 1) {
			t.Errorf("error %v", err)
		}
	})
}

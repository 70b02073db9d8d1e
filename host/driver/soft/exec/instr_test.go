package exec_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"causeway/host/driver/soft/exec"
)

// instr is one instruction's case. The text reads inputs as A0… (64 bits),
// a0… (32), h0… (16), f0…, d0… (floating) or p0… (not zero), and writes one of
// AO, ao, ho, fo, do, po. want is compared in the output's width.
type instr struct {
	text string
	in   [3]uint64
	want uint64
}

// i takes up to three integers or floating values as raw bits: float32 and
// float64 by their Go type.
func bitsOf(v any) uint64 {
	switch v := v.(type) {
	case int:
		return uint64(v)
	case uint64:
		return v
	case float32:
		return uint64(math.Float32bits(v))
	case float64:
		return math.Float64bits(v)
	case bool:
		if v {
			return 1
		}
		return 0
	}
	panic(fmt.Sprintf("%T", v))
}

// c makes a case: the text, the expected value, the inputs.
func c(text string, want any, in ...any) instr {
	x := instr{text: text, want: bitsOf(want)}
	for k, v := range in {
		x.in[k] = bitsOf(v)
	}
	return x
}

func f(v float64) float32 { return float32(v) }

var inf, nan = math.Inf(1), math.NaN()

// kernel wraps the text.
func (x *instr) kernel() (src string, width int) {
	store, out := "", 0
	for _, o := range []struct {
		name, store string
		width       int
	}{{"AO", "st.global.b64 [out], AO;", 64}, {"ao", "st.global.b32 [out], ao;", 32}, {"ho", "st.global.b16 [out], ho;", 16},
		{"fo", "st.global.f32 [out], fo;", 32}, {"do", "st.global.f64 [out], do;", 64},
		{"po", "selp.b32 ao, 1, 0, po;\n st.global.b32 [out], ao;", 32}} {
		for _, word := range strings.FieldsFunc(x.text, func(r rune) bool {
			return !strings.ContainsRune("_%$.", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
		}) {
			if word == o.name {
				store, out = o.store, o.width
			}
		}
	}
	var b strings.Builder
	b.WriteString(".version 8.4\n.target sm_90\n.address_size 64\n.global .align 8 .b8 mem[64] = {1,2,3,4,5,6,7,0x88,9,10};\n.const .f32 con[2] = {1.5, 0f40200000};\n" +
		".visible .entry k(.param .u64 po_, .param .u64 pi_, .param .align 4 .b8 blob[8])\n{\n.reg .b64 in, out, A<9>, AO; .reg .b32 a<9>, ao; .reg .b16 h<9>, ho; .reg .f32 f<9>, fo; .reg .f64 d<9>, do; .reg .pred p<9>, po;\n" +
		".shared .align 8 .b8 sh[64]; .local .align 8 .b8 loc[64];\nld.param.u64 out, [po_]; ld.param.u64 in, [pi_];\n")
	for k := range 3 {
		fmt.Fprintf(&b, "ld.global.b64 A%d, [in+%d]; cvt.u32.u64 a%d, A%d; cvt.u16.u64 h%d, A%d; mov.b32 f%d, a%d; mov.b64 d%d, A%d; setp.ne.s64 p%d, A%d, 0;\n", k, 8*k, k, k, k, k, k, k, k, k, k, k)
	}
	text := x.text
	if !strings.HasPrefix(text, "{") && !strings.HasSuffix(text, ":") {
		text += ";"
	}
	fmt.Fprintf(&b, "%s\n%s\nret;\n}\n", text, store)
	return b.String(), out
}

// runInstrs executes each case in one thread.
func runInstrs(t *testing.T, cases []instr) {
	t.Helper()
	a := newArena(t)
	for n, x := range cases {
		src, width := x.kernel()
		if dir := os.Getenv("PTX_DUMP"); dir != "" { // to check the cases with an assembler
			_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s_%d.ptx", t.Name(), n)), []byte(src), 0o644)
		}
		m := a.load(t, src)
		out, in := put(a, []uint64{0}), put(a, x.in[:])
		if err := a.launch(t, m, "k", exec.Config{Params: pack(out, in, [2]uint32{0x11223344, 0x8899aabb})}); err != nil {
			t.Errorf("%s: %v", x.text, err)
			continue
		}
		mask := ^uint64(0) >> (64 - width)
		if got := get[uint64](a, out, 1)[0] & mask; got != x.want&mask {
			t.Errorf("%s of %#x = %#x, want %#x", x.text, x.in, got, x.want&mask)
		}
	}
}

// TestRegisterParameters calls in the style of old compilers, with parameters
// in registers.
func TestRegisterParameters(t *testing.T) {
	a := newArena(t)
	m := a.load(t, `.version 3.0
.target sm_30
.address_size 64
.func (.reg .u32 sum, .reg .u64 wide) add3(.reg .u32 x, .reg .u32 unused, .reg .u32 y, .param .u32 z)
{
	.reg .u32 t<4>;
	ld.param.u32 t1, [z];
	add.u32 sum, x, y;
	add.u32 sum, sum, t1;
	mul.wide.u32 wide, sum, 2;
	mov.u32 t2, 99;
	add.u32 t3, t2, t2;
	ret;
}
.visible .entry k(.param .u64 p)
{
	.reg .u32 r<9>; .reg .u64 d<3>; .param .u32 q;
	mov.u32 r1, %tid.x;
	mov.u32 r5, 1000;
	st.param.u32 [q], r5;
	call (r2, d1), add3, (r1, 5, 7, q);
	ld.param.u64 d2, [p];
	mad.wide.u32 d2, r1, 8, d2;
	cvt.u64.u32 d0, r2;
	add.u64 d1, d1, d0;
	st.global.u64 [d2], d1;
	ret;
}`)
	o := put(a, make([]uint64, 40))
	a.run(t, m, "k", 1, 40, pack(o))
	check(t, "sum", get[uint64](a, o, 40), func(i int) uint64 { return uint64(3 * (i + 1007)) })
}

func TestUnsupportedIsNamed(t *testing.T) {
	a := newArena(t)
	m := a.load(t, `.version 8.0
.target sm_90
.address_size 64
.visible .entry good() { ret; }
.func helper() { sured.b.add.2d.u32.trap [t, {x,y}], c; ret; }
.visible .entry bad() {
	call helper;
	ret;
}
.visible .entry worse() { frobnicate.sync.b32 a, b; ret; }`)
	a.run(t, m, "good", 1, 1, nil)
	for name, want := range map[string]string{"bad": "sured.b.add.2d.u32.trap", "worse": "frobnicate.sync.b32"} {
		err := a.launch(t, m, name, exec.Config{})
		var u *exec.UnsupportedError
		if !errors.As(err, &u) || u.What != want || u.Line == 0 {
			t.Errorf("%s: error %v, want %s named", name, err, want)
		}
	}
}

func replaceAll(s string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(s) }

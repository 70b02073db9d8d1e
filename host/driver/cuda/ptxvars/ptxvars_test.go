package ptxvars

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

const text = `.version 9.0
.target sm_90
.address_size 64
.global .attribute(.managed) .align 4 .u32 x = 5;
.visible .global .attribute(.managed) .align 8 .b8 arr[12] = {1, 2, 0xff};
.global .attribute(.managed) .align 8 .f64 d = 0d3FF0000000000000;
.global .align 8 .u64 p = generic(x);
.visible .entry k()
{
	ld.global.u32 	%r1, [x];
	@%p1 st.global.u32 	[arr+4], %r2; // x
	mov.u64 	%rd2, arr;
	mov.u32 	%x, %tid.x;
	ret;
}
`

func TestMove(t *testing.T) {
	vars, size, err := Find(text)
	if err != nil || len(vars) != 3 || size != 288 {
		t.Fatalf("%v, %d bytes, %v", vars, size, err)
	}
	for i, want := range []Var{
		{"x", 256, 4, []byte{5, 0, 0, 0}},
		{"arr", 264, 12, []byte{1, 2, 0xff}},
		{"d", 280, 8, []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f}},
	} {
		v := vars[i]
		if v.Name != want.Name || v.Offset != want.Offset || v.Size != want.Size || !bytes.Equal(v.Init, want.Init) {
			t.Errorf("variable %d: %+v, want %+v", i, v, want)
		}
	}
	out, err := Move(text, vars, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		".global .align 8 .u64 p = 1256;",
		"{ .reg .b64 %causeway_managed; mov.b64 %causeway_managed, 1256; ld.global.u32 \t%r1, [%causeway_managed]; }",
		"mov.b64 %causeway_managed, 1264; @%p1 st.global.u32 \t[%causeway_managed+4], %r2; }// x",
		"mov.u64 \t%rd2, 1264;",
		"mov.u32 \t%x, %tid.x;",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if strings.Contains(out, "managed)") {
		t.Errorf("declarations are left in\n%s", out)
	}
}

func TestFindRefuses(t *testing.T) {
	for _, bad := range []string{
		".extern .global .attribute(.managed) .align 4 .u32 x;",
		".global .attribute(.managed) .align 4 .u32 x[];",
		".global .attribute(.managed) .align 3 .u32 x;",
		".global .attribute(.managed) .align 4 .u32 x = y;",
		".global .attribute(.managed) .align 4 .u32 x = {1, 2};",
		".global .attribute(.managed) .align 4 .b8 x[4000000000];",
		".global .attribute(.managed) .v2 .u32 x;",
	} {
		if vars, _, err := Find(bad); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v, %v", bad, vars, err)
		}
	}
	if vars, size, err := Find("no variables"); err != nil || size != 0 || len(vars) != 0 {
		t.Errorf("no variables: %v, %d, %v", vars, size, err)
	}
}

func FuzzMove(f *testing.F) {
	f.Add(text)
	f.Fuzz(func(t *testing.T, s string) {
		vars, size, err := Find(s)
		if err != nil {
			return
		}
		for _, v := range vars {
			if v.Offset+v.Size > size || uint64(len(v.Init)) > v.Size {
				t.Fatalf("%+v of %d bytes", v, size)
			}
		}
		if len(vars) < 100 && size < 1<<20 {
			_, _ = Move(s, vars, 1<<40)
		}
	})
}

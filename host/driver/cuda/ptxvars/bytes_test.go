package ptxvars

import (
	"errors"
	"testing"
)

// TestBytes: what a driver makes for managed variables is counted also where they are declared as
// no compiler would.
func TestBytes(t *testing.T) {
	const head = ".version 7.0\n.target sm_80\n.address_size 64\n.global .b8 y[4096];\n"
	const kernel = "\n.visible .entry k(.param .u64 p){ .reg .u64 %q<3>; mov.u64 %q1, x; ret; }\n"
	for text, want := range map[string]uint64{
		"": 0,
		".global .attribute(.managed) .align 4 .u32 x = 5;":                                        4,
		".visible .global .attribute(.managed) .align 8 .b8 x[68719476736];":                       64 << 30,
		".global .attribute /* x */ (\n// y\n.managed ) .align 8 .b8 x [ 0x1000000000 ];":          64 << 30,
		".global .attribute(.managed).align 16.v4.f32 x[1000][1000];":                              16e6,
		".global .align 8 .attribute(.managed) .f64 x[] = {0d0, 0d0, 0d0};":                        24,
		".global .attribute(.managed, .unified(0x1, 0x2)) .b32 x;":                                 4,
		".global .attribute(.managed) .b8 x[3];\n.weak .global .attribute(.managed) .b64 z[2][2];": 35,
		".global .b8 z[4] = {1, 2, 3, 4}; .global .attribute(.managed) .b8 x;":                     1,
	} {
		for _, order := range []string{head + text + kernel, head + kernel + text} {
			if got, err := Bytes(order); err != nil || got != want {
				t.Errorf("%s\n%d bytes, %v; want %d", order, got, err, want)
			}
		}
	}
	for _, text := range []string{
		".global .attribute(.managed) .b8 x[1 << 40];",
		".global .attribute(.managed) .b8 x[4], z[1000000];",
		".global .attribute(.managed) .b8 x[18446744073709551615][2];",
		".global .attribute(.managed) .b8 x[18446744073709551615]; .global .attribute(.managed) .b8 z[1];",
		".global .attribute(.managed) x[4];",
		".pragma \"a\\\" ; /* \"; .global .attribute(.managed) .b8 x[4]; //*/",
		"// .managed",
		".func f() { .global .attribute(.managed) .b8 x[4]; ret; }",
	} {
		if got, err := Bytes(head + text + kernel); !errors.Is(err, ErrHidden) {
			t.Errorf("%s\n%d bytes, %v", text, got, err)
		}
	}
}

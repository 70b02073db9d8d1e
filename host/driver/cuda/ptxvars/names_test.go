package ptxvars

import (
	"errors"
	"slices"
	"testing"
)

func TestNames(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
		err  error
	}{
		"nothing": {"", nil, nil},
		"header":  {".version 8.0\n.target sm_90\n.address_size 64\n.visible .global .align 4 .u32 count;", []string{"count"}, nil},
		"kinds": {`.version 8.0
.target sm_90, debug
.address_size 64
// .global .u32 not_this;
/* .const .u32 nor; { this */
.visible .const .align 16 .b8 table[64] = {1, 2, 3};
.global .align 8 .v4 .f32 quad;
.global .u64 pointer = generic(table);
.extern .global .u32 elsewhere;
.global .attribute(.managed) .align 4 .u32 both;
.global .texref picture;
.shared .align 4 .b8 scratch[128];
.global .align 1 .b8 $str[4] = {37, 100, 10, 0};
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.visible .entry k(.param .u64 p)
{
	.reg .b64 %rd<3>;
	ld.global.u32 %r1, [count]; // }
	ld.const.u32 %r2, [table];
	{ .reg .u32 x; }
}
.weak .global .f64 last[2][3];
`, []string{"table", "quad", "pointer", "$str", "last"}, nil},
		"text in a directive": {".section .debug { .b8 1 }\n.file 1 \"a;{.global .u32 x;\"\n.global .u32 y;", []string{"y"}, nil},
		"in a function":       {".entry k() { .reg .u32 a; .global .u32 hidden; ret; }", nil, ErrHidden},
		"two at once":         {".global .u32 a, b;", nil, ErrHidden},
		"no end":              {".entry k() { ret;", nil, ErrHidden},
	} {
		got, err := Names(c.text)
		if !errors.Is(err, c.err) || c.err == nil && !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v, want %q, %v", name, got, err, c.want, c.err)
		}
	}
}

// FuzzNames: any text is read to its end.
func FuzzNames(f *testing.F) {
	for _, s := range []string{".global .u32 x;", ".entry k() { }", "/*", "\"", ".global .b8 a[3] = { 1, { 2", ".const"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		names, err := Names(text)
		for _, n := range names {
			if n == "" {
				t.Errorf("a variable without a name, %v", err)
			}
		}
	})
}

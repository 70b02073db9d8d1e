package exec

import (
	"encoding/binary"
	"math"
	"testing"
)

func TestFormatPrintf(t *testing.T) {
	strs := map[uint64]string{1: "one", 2: ""}
	str := func(a uint64) (string, bool) { s, ok := strs[a]; return s, ok }
	for _, c := range []struct {
		format string
		args   []any
		want   string
	}{
		{"plain", nil, "plain"}, {"%%|%d", []any{int32(-5)}, "%|-5"}, {"%i %u", []any{int32(-1), int32(-1)}, "-1 4294967295"},
		{"%ld %lld %lu %zu %jd", []any{int64(-5), int64(1 << 40), int64(-1), int64(7), int64(8)}, "-5 1099511627776 18446744073709551615 7 8"},
		{"%hd %hhd %hu %hhx", []any{int32(70000), int32(300), int32(70000), int32(0x1ff)}, "4464 44 4464 ff"},
		{"%x %X %#x %#X %o %#o %#x", []any{int32(255), int32(255), int32(255), int32(255), int32(8), int32(8), int32(0)}, "ff FF 0xff 0XFF 10 010 0"},
		{"[%5d][%-5d][%05d][%+d][% d][%5.3d][%.0d]", []any{int32(42), int32(42), int32(42), int32(42), int32(42), int32(42), int32(0)}, "[   42][42   ][00042][+42][ 42][  042][]"},
		{"[%08d][%+08d][%-08d][%#08x]", []any{int32(-42), int32(42), int32(42), int32(255)}, "[-0000042][+0000042][42      ][0x0000ff]"},
		{"[%*d][%-*d][%.*f]", []any{int32(5), int32(1), int32(4), int32(2), int32(1), 2.55}, "[    1][2   ][2.5]"}, {"[%*d]", []any{int32(-4), int32(1)}, "[1   ]"},
		{"%c%c|%3c", []any{int32('a'), int32('b'), int32('c')}, "ab|  c"}, {"[%s][%5s][%-5s][%.2s][%s][%s]", []any{int64(1), int64(1), int64(1), int64(1), int64(0), int64(9)}, "[one][  one][one  ][on][(null)][(bad address)]"},
		{"%f %.2f %10.3f %-8.1f| %+f %05.1f", []any{1.5, 3.14159, 2.71828, 1.25, 1.0, 2.5}, "1.500000 3.14      2.718 1.2     | +1.000000 002.5"},
		{"%e %.2e %E %g %g %G %g", []any{12345.678, 0.00012345, 1e10, 0.0001, 1e20, 1e-10, 100000.0}, "1.234568e+04 1.23e-04 1.000000E+10 0.0001 1e+20 1E-10 100000"}, {"%g %#g %.3g %g", []any{1e6, 1.5, 1234567.0, 123456789.0}, "1e+06 1.50000 1.23e+06 1.23457e+08"},
		{"%f %F %e %5f", []any{math.Inf(1), math.Inf(-1), math.NaN(), math.Inf(1)}, "inf -INF nan   inf"}, {"%a %A", []any{1.0, 10.5}, "0x1p+0 0X1.5P+3"},
		{"%p %p", []any{int64(0x1234), int64(0)}, "0x1234 (nil)"}, {"%d %lld %d %f", []any{int32(1), int64(2), int32(3), 4.0}, "1 2 3 4.000000"},
		{"%q %", nil, "%q %"}, {"%5", nil, "%5"}, {"%d %d", []any{int32(1)}, "1 0"}, {"%99999d", []any{int32(1)}, ""},
	} {
		var b []byte
		for _, v := range c.args {
			for len(b)%binary.Size(v) != 0 {
				b = append(b, 0)
			}
			b, _ = binary.Append(b, binary.LittleEndian, v)
		}
		got := string(FormatPrintf(c.format, b, str))
		if c.format == "%99999d" {
			if len(got) != maxField {
				t.Errorf("width is not bounded: %d bytes", len(got))
			}
			continue
		}
		if got != c.want {
			t.Errorf("%q of %v = %q, want %q", c.format, c.args, got, c.want)
		}
		if n, size := printfArgs(c.format); n != len(c.args) && c.format != "%d %d" || size != uint64(len(b)) && c.format != "%d %d" {
			t.Errorf("%q takes %d arguments in %d bytes, want %d in %d", c.format, n, size, len(c.args), len(b))
		}
	}
}

func FuzzFormatPrintf(f *testing.F) {
	f.Add("%d %s %*.*f %%", []byte{1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, format string, args []byte) {
		if len(format) > 1000 {
			return
		}
		_, size := printfArgs(format)
		if out := FormatPrintf(format, args, func(uint64) (string, bool) { return "text", true }); len(out) > len(format)*(2*maxField+400) {
			t.Errorf("%d bytes from a format of %d", len(out), len(format))
		}
		if size > 16*uint64(len(format)) {
			t.Errorf("arguments of %d bytes from a format of %d", size, len(format))
		}
	})
}

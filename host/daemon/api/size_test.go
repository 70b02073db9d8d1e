package api

import (
	"math"
	"testing"
)

func TestSize(t *testing.T) {
	for in, want := range map[string]uint64{
		"1": 1, "512MiB": 512 << 20, "4G": 4 << 30, "4 gb": 4 << 30, "16GiB": 16 << 30, "2T": 2 << 40, "1073741824": 1 << 30, "3K": 3072,
		"18446744073709551615": math.MaxUint64,
	} {
		got, err := ParseSize(in)
		if err != nil || got != want {
			t.Errorf("%q: %d %v, want %d", in, got, err, want)
		}
		if back, err := ParseSize(FormatSize(got)); err != nil || back != got {
			t.Errorf("%d: written as %q, read as %d, %v", got, FormatSize(got), back, err)
		}
	}
	for _, in := range []string{"", "0", "-1", "4XiB", "GiB", "1.5G", "18446744073709551616", "17179869184G", "4G4", "0x10"} {
		if n, err := ParseSize(in); err == nil {
			t.Errorf("%q is %d", in, n)
		}
	}
}

package limit

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

var units = []struct {
	name  string
	shift uint
}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}}

var shifts = map[string]uint{
	"B": 0, "K": 10, "KIB": 10, "KB": 10, "M": 20, "MIB": 20, "MB": 20, "G": 30, "GIB": 30, "GB": 30, "T": 40, "TIB": 40, "TB": 40,
}

// ParseSize reads a size such as 512MiB, 4G or 1048576B. K, M, G and T are powers of 1024, with or
// without B or iB. A number without a unit is refused, for people mean different ones by it, and so
// is 0.
func ParseSize(s string) (uint64, error) {
	text := strings.TrimSpace(s)
	digits := strings.TrimRight(text, "KMGTiBkmgtb ")
	unit := strings.ToUpper(text[len(digits):])
	n, err := strconv.ParseUint(digits, 10, 64)
	if err == nil && n > 0 && unit == "" {
		return 0, wrong("%q has no unit: write %dGiB, %dMiB, or %dB if bytes are meant", s, n, n, n)
	}
	shift, ok := shifts[strings.TrimSpace(unit)]
	if err != nil || !ok || n > math.MaxUint64>>shift || n == 0 {
		return 0, wrong("%q is no size: write it as 512MiB or 4GiB", s)
	}
	return n << shift, nil
}

// FormatSize is the inverse of ParseSize, exactly: 16GiB, or bytes as in 1025B.
func FormatSize(n uint64) string {
	for _, u := range units {
		if n > 0 && n%(1<<u.shift) == 0 {
			return fmt.Sprintf("%d%s", n>>u.shift, u.name)
		}
	}
	return strconv.FormatUint(n, 10) + "B"
}

// human is a size for a sentence: 1.5 GiB.
func human(n uint64) string {
	for _, u := range units {
		if n >= 1<<u.shift {
			text := strconv.FormatFloat(float64(n)/float64(uint64(1)<<u.shift), 'f', 1, 64)
			return strings.TrimSuffix(text, ".0") + " " + u.name
		}
	}
	return fmt.Sprintf("%d B", n)
}

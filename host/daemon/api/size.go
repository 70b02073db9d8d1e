package api

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

// ParseSize reads a size such as 512MiB, 4G or 1073741824. K, M, G and T are powers of 1024, with or without B or iB. 0 is no size.
func ParseSize(s string) (uint64, error) {
	digits := strings.TrimRight(s, "KMGTiBkmgtb ")
	unit := strings.ToUpper(strings.TrimSpace(s[len(digits):]))
	shift, ok := map[string]uint{
		"": 0, "B": 0, "K": 10, "KIB": 10, "KB": 10, "M": 20, "MIB": 20, "MB": 20, "G": 30, "GIB": 30, "GB": 30, "T": 40, "TIB": 40, "TB": 40,
	}[unit]
	n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 64)
	if err != nil || !ok || n > math.MaxUint64>>shift || n == 0 {
		return 0, fmt.Errorf("%q is no size; write it as 512MiB or 4GiB", s)
	}
	return n << shift, nil
}

// FormatSize is the inverse of ParseSize, exactly: 16GiB, or plain bytes.
func FormatSize(n uint64) string {
	for _, u := range units {
		if n > 0 && n%(1<<u.shift) == 0 {
			return fmt.Sprintf("%d%s", n>>u.shift, u.name)
		}
	}
	return strconv.FormatUint(n, 10)
}

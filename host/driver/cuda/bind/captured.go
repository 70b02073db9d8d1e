package bind

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"causeway/cuda"
)

// CapturedRect is Rect for work that a capture takes up. That may name addresses of nothing:
// programs capture what they never launch (cuDNN does), and a launch finds out as a kernel would.
// What must not be there is memory of this process that it reads or writes itself.
func (s *Space) CapturedRect(addr, pitch, width, element, height uint64) (Rect, cuda.Result) {
	row, span, ok := rows(pitch, width, element, height)
	if !ok || addr+span < addr {
		return Rect{}, cuda.ErrorInvalidValue
	}
	used, err := inUse(addr, addr+span)
	if err != nil || used {
		return Rect{}, cuda.ErrorInvalidValue
	}
	return Rect{Mem{at: addr, size: span}, pitch, row, height}, cuda.Success
}

// inUse reports whether this process may read or write any of the addresses from low up to high.
func inUse(low, high uint64) (bool, error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return false, fmt.Errorf("addresses of this process: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var from, to uint64
		var mode string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &mode); err != nil {
			return false, fmt.Errorf("addresses of this process: %w", err)
		}
		if from < high && to > low && strings.ContainsAny(mode, "rw") {
			return true, nil
		}
	}
	return false, lines.Err()
}

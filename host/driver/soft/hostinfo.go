package soft

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// hostMemory is the memory this process may use, in bytes: the machine's, or its cgroup's if that
// is less.
func hostMemory() uint64 {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 1 << 30
	}
	total := uint64(si.Totalram) * uint64(si.Unit)
	if b, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 {
			total = min(total, n)
		}
	}
	return total
}

// lastLevelCache is the size of the largest cache of CPU 0 in bytes, 0 if the kernel does not say.
func lastLevelCache() int32 {
	var best uint64
	for i := range 8 {
		b, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu0/cache/index%d/size", i))
		if err != nil {
			break
		}
		text, unit := strings.TrimSpace(string(b)), uint64(1)
		if t, ok := strings.CutSuffix(text, "K"); ok {
			text, unit = t, 1<<10
		} else if t, ok := strings.CutSuffix(text, "M"); ok {
			text, unit = t, 1<<20
		}
		if n, err := strconv.ParseUint(text, 10, 32); err == nil {
			best = max(best, n*unit)
		}
	}
	return int32(min(best, 1<<31-1))
}

// hostUUID names software GPU n of this machine, the same at every start.
func hostUUID(n int) [16]byte {
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil || len(bytes.TrimSpace(id)) == 0 {
		name, _ := os.Hostname()
		id = []byte(name)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "causeway software GPU %d of %s", n, bytes.TrimSpace(id)))
	return [16]byte(sum[:16])
}

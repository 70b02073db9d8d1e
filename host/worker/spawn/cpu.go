package spawn

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// tick is the unit of /proc/PID/stat: USER_HZ is 100 on all of Linux's architectures that matter
// (proc(5)).
const tick = 10 * time.Millisecond

// cpuTime reads a process's CPU time, of all its threads; 0 if it is gone.
func cpuTime(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	return parseCPU(b)
}

// parseCPU reads utime and stime, fields 14 and 15: the name in field 2 may hold anything, its end
// is the last parenthesis.
func parseCPU(stat []byte) time.Duration {
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 13 {
		return 0
	}
	user, err1 := strconv.ParseUint(string(f[11]), 10, 48)
	system, err2 := strconv.ParseUint(string(f[12]), 10, 48)
	if err1 != nil || err2 != nil {
		return 0
	}
	return time.Duration(user+system) * tick
}

package device

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
)

// crowded reports whether the host is short of CPU: threads that want to run get less than half of
// the time.
func crowded() bool {
	b, err := os.ReadFile("/proc/loadavg")
	return err == nil && runnable(b) > 2*runtime.NumCPU()
}

// runnable is how many other threads want to run, by /proc/loadavg: "0.20 0.18 0.12 1/80 11206"
// (proc_loadavg(5)), which counts the one that reads it; 0 if it does not say.
func runnable(loadavg []byte) int {
	f := bytes.Fields(loadavg)
	if len(f) < 4 {
		return 0
	}
	now, _, _ := bytes.Cut(f[3], []byte("/"))
	n, _ := strconv.Atoi(string(now))
	return max(n-1, 0)
}

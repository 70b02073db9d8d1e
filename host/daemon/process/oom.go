package process

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// KilledForMemory reports whether the kernel's log says that the kernel killed a process for lack
// of memory, the host's or its control group's, since a time. scope is the kernel's word for whose
// memory it was. A log that may not be read says nothing, nor does one that numbers processes
// otherwise than this one does: in a PID namespace (a container) pid may be somebody else's there.
func KilledForMemory(pid int, since time.Time) (scope string, killed bool) {
	if !kernelsPIDs() {
		return "", false
	}
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return "", false
	}
	// The log's clock is not quite that one.
	from := time.Duration(now.Nano()) - time.Since(since) - time.Second
	buf := make([]byte, 8<<10) // longer than any record
	for range mostRecords {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
			// Records were overwritten before they were read.
			continue
		case err != nil || n <= 0: // EAGAIN: that was all
			return scope, killed
		}
		if s, ok := memoryKill(string(buf[:n]), pid, from); ok {
			scope, killed = s, true
		}
	}
	return scope, killed
}

// kernelsPIDs reports whether this process sees the PIDs that the kernel's log has, those of the
// first namespace.
func kernelsPIDs() bool {
	const first = "pid:[4026531836]" // PROC_PID_INIT_INO, include/linux/proc_ns.h
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && ns == first
}

// mostRecords bounds what is read of a log that grows.
const mostRecords = 1 << 17

// memoryKill reads one record, "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,...];TEXT" and lines of keys
// (Documentation/ABI/testing/dev-kmsg). Only the kernel's own count, not what root writes there:
// their facility is 0.
func memoryKill(record string, pid int, from time.Duration) (scope string, ok bool) {
	head, text, found := strings.Cut(record, ";")
	fields := strings.SplitN(head, ",", 4)
	if !found || len(fields) < 4 {
		return "", false
	}
	priority, err1 := strconv.ParseUint(fields[0], 10, 32)
	at, err2 := strconv.ParseInt(fields[2], 10, 64)
	if err1 != nil || err2 != nil || priority>>3 != 0 || at < from.Microseconds() {
		return "", false
	}
	text, _, _ = strings.Cut(text, "\n")
	// mm/oom_kill.c: "Out of memory: Killed process 77 (name) ..." or "Memory cgroup out of memory:
	// Killed process 77 (name) ..."
	reason, rest, found := strings.Cut(text, ": Killed process ")
	number, _, _ := strings.Cut(rest, " ")
	if !found || number != strconv.Itoa(pid) || !strings.Contains(strings.ToLower(reason), "out of memory") {
		return "", false
	}
	if strings.Contains(reason, "cgroup") {
		return "its control group's", true
	}
	return "the host's", true
}

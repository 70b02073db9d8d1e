package sandbox

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// install applies a filter to all threads, present and future, for good. The process has
// no_new_privs afterwards. Kernels before 5.16 would also take speculative stores from it, which
// costs all its code some per cent: it runs no foreign machine code, so they shall not.
func install(code []bpf.RawInstruction, flags uintptr) (int, error) {
	runtime.LockOSThread() // no_new_privs is a thread's; the filter then brings it to the others
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, fmt.Errorf("no_new_privs: %w", err)
	}
	filter := make([]unix.SockFilter, len(code))
	for i, c := range code {
		filter[i] = unix.SockFilter{Code: c.Op, Jt: c.Jt, Jf: c.Jf, K: c.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW|flags, uintptr(unsafe.Pointer(&prog)))
	switch {
	case errno != 0:
		return -1, fmt.Errorf("seccomp: %w", errno)
	case r != 0 && flags&unix.SECCOMP_FILTER_FLAG_NEW_LISTENER == 0:
		return -1, fmt.Errorf("seccomp: thread %d cannot have the filter", r)
	}
	return int(r), nil
}

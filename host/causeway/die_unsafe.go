package main

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dieBy ends this process by a signal, as a shell expects of a wrapper. The Go runtime has handlers
// of its own, which would turn SIGSEGV into a panic: the kernel's default action is restored first
// (rt_sigaction(2); struct of handler, flags, restorer, mask).
func dieBy(s syscall.Signal) {
	runtime.LockOSThread()
	var act [4]uintptr
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
	var set unix.Sigset_t
	set.Val[(s-1)/64] |= 1 << ((s - 1) % 64)
	_ = unix.PthreadSigmask(unix.SIG_UNBLOCK, &set, nil)
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), s)
}

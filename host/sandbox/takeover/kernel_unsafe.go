package takeover

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func iovec(b []byte) (v unix.Iovec) {
	v.Base = &b[0]
	v.SetLen(len(b))
	return v
}

// call makes a system call with plain arguments.
func call(name string, nr uintptr, args ...uintptr) func() error {
	var a [6]uintptr
	copy(a[:], args)
	return func() error {
		_, _, e := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		return errno(name, e)
	}
}

// opens is call for calls that return a descriptor.
func opens(name string, nr uintptr, args ...uintptr) func() error {
	var a [6]uintptr
	copy(a[:], args)
	return func() error {
		fd, _, e := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		return closed(int(fd), errno(name, e))
	}
}

// onThread runs f on a thread that ends with it.
func onThread(f func() error) func() error {
	return func() error {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked
			done <- f()
		}()
		return <-done
	}
}

func seize(pid int) error {
	return onThread(func() error {
		_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0)
		return errno("ptrace", e) // the tracee goes on when the tracer's thread ends
	})()
}

// fork makes a child that exits at once: it shares nothing, and makes no call of Go's.
func fork() error {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return errno("clone", e)
	}
	if pid == 0 {
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	_, err := unix.Wait4(int(pid), nil, 0, nil)
	return err
}

var (
	slash  = []byte("/\x00")
	nobody = []byte("/nonexistent\x00")
	zone   [2]int32 // struct timezone: UTC, as the kernel starts
	attr   [128]byte
	handle [136]byte
	params [120]byte
)

func at(b *byte) uintptr { return uintptr(unsafe.Pointer(b)) }

// kernel is what changes the machine, or opens the kernel's large interfaces.
func kernel() []Attempt {
	attr[4] = 128 // perf_event_attr.size
	handle[0] = 128
	const bad = ^uintptr(0)
	again := []syscall.Errno{unix.EINVAL, unix.EBADF, unix.EFAULT, unix.ENOENT, unix.ENOEXEC, unix.ENOTTY, unix.ESTALE, unix.ENODEV, unix.ENOTBLK, unix.EOPNOTSUPP, unix.EOVERFLOW}
	return []Attempt{
		{Name: "mount: a file system", Do: onThread(func() error {
			// In a mount namespace of the thread's own, where it may.
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return err
			}
			return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		})},
		{Name: "mount: fsopen", Do: func() error {
			b := []byte("tmpfs\x00")
			fd, _, e := unix.Syscall(unix.SYS_FSOPEN, at(&b[0]), 0, 0)
			return closed(int(fd), errno("fsopen", e))
		}},
		{Name: "user namespace: a new one", Do: onThread(func() error { return unix.Unshare(unix.CLONE_NEWUSER) }), Through: []syscall.Errno{unix.EINVAL}},
		{Name: "chroot", Do: onThread(func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			return unix.Chroot("/usr")
		})},
		{Name: "user: root", Do: onThread(call("setresuid", unix.SYS_SETRESUID, 0, 0, 0))},
		{Name: "group: root", Do: onThread(call("setresgid", unix.SYS_SETRESGID, 0, 0, 0))},
		{Name: "core dumps", Always: true, Do: func() error {
			var old unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_CORE, &old); err != nil {
				return err
			}
			err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1 << 30, Max: 1 << 30})
			if err == nil {
				_ = unix.Setrlimit(unix.RLIMIT_CORE, &old)
			}
			return err
		}},
		{Name: "io_uring", Do: opens("io_uring_setup", unix.SYS_IO_URING_SETUP, 1, at(&params[0]))},
		{Name: "bpf", Do: call("bpf", unix.SYS_BPF, 0, at(&attr[0]), 128), Through: again},
		{Name: "perf_event_open", Do: opens("perf_event_open", unix.SYS_PERF_EVENT_OPEN, at(&attr[0]), 0, bad, bad, 0), Through: again},
		{Name: "userfaultfd", Do: opens("userfaultfd", unix.SYS_USERFAULTFD, 0)},
		{Name: "keyctl", Do: call("keyctl", unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, bad-2, 0)},
		{Name: "open by handle", Do: opens("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, bad-99, at(&handle[0]), 0), Through: again},
		{Name: "module: load", Do: call("finit_module", unix.SYS_FINIT_MODULE, bad, at(&slash[0]), 0), Through: again},
		{Name: "kexec", Do: call("kexec_load", unix.SYS_KEXEC_LOAD, 0, 99, 0, 0), Through: again},
		{Name: "swap", Do: call("swapon", unix.SYS_SWAPON, at(&nobody[0]), 0), Through: again},
		{Name: "clock", Do: call("settimeofday", unix.SYS_SETTIMEOFDAY, 0, uintptr(unsafe.Pointer(&zone)))},
		{Name: "accounting", Do: call("acct", unix.SYS_ACCT, at(&nobody[0])), Through: again},
		{Name: "kernel log", Do: call("syslog", unix.SYS_SYSLOG, 10, 0, 0)},
		{Name: "host name", Do: call("sethostname", unix.SYS_SETHOSTNAME, at(&slash[0]), bad), Through: again},
		{Name: "SysV shared memory", Do: call("shmctl", unix.SYS_SHMCTL, 0, 14 /* SHM_INFO */, at(&params[0]))},
		{Name: "terminal: type into it", Do: call("ioctl", unix.SYS_IOCTL, 2, unix.TIOCSTI, at(&slash[0])), Through: again},
		// What the filter sees is the number, whatever the descriptor is for.
		{Name: "ioctl: a request within a request", Do: call("ioctl", unix.SYS_IOCTL, 2, 0xc01046d3 /* NV_ESC_IOCTL_XFER_CMD */, 0), Through: again},
		{Name: "ioctl: another process's memory, by the GPU's tools", Do: call("ioctl", unix.SYS_IOCTL, 2, 62 /* UVM_TOOLS_READ_PROCESS_MEMORY */, 0), Through: again},
		{Name: "personality", Do: onThread(call("personality", unix.SYS_PERSONALITY, 0))},
	}
}

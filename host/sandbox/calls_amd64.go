package sandbox

import "golang.org/x/sys/unix"

// System calls are chosen by an allow-list where the whole program is ours (the software GPU) and
// in mode strict: what a kernel adds later is denied unseen. A real driver changes with each
// release and makes calls that nobody lists, so mode on denies by name there, and everything above
// lastKnown. Both lists are here; audit logs what is in neither.

const (
	nativeArch = unix.AUDIT_ARCH_X86_64
	// x32Bit marks calls of the x32 ABI, which would slip past a filter that compares numbers.
	x32Bit = 0x40000000
	// lastKnown is the highest number that was looked at (Linux 6.17, file_setattr).
	lastKnown = 469
)

// allowed: what Go's runtime, libc, the session and a CUDA driver need. Files are Landlock's
// business.
var allowed = []uint32{
	// memory
	unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MREMAP, unix.SYS_MADVISE, unix.SYS_MSYNC, unix.SYS_MINCORE, unix.SYS_BRK,
	unix.SYS_MLOCK, unix.SYS_MLOCK2, unix.SYS_MUNLOCK, unix.SYS_MLOCKALL, unix.SYS_MUNLOCKALL, unix.SYS_MEMFD_CREATE, unix.SYS_MEMBARRIER,
	unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY, unix.SYS_GET_MEMPOLICY, unix.SYS_MOVE_PAGES, unix.SYS_PKEY_ALLOC, unix.SYS_PKEY_FREE, unix.SYS_PKEY_MPROTECT,
	// threads, and waiting
	unix.SYS_FUTEX, unix.SYS_FUTEX_WAITV, unix.SYS_SET_ROBUST_LIST, unix.SYS_GET_ROBUST_LIST, unix.SYS_SET_TID_ADDRESS, unix.SYS_RSEQ, unix.SYS_ARCH_PRCTL,
	unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_GETPARAM, unix.SYS_SCHED_GETSCHEDULER,
	unix.SYS_SCHED_GET_PRIORITY_MAX, unix.SYS_SCHED_GET_PRIORITY_MIN, unix.SYS_SCHED_GETATTR, unix.SYS_GETPRIORITY, unix.SYS_GETCPU,
	unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_GETTIMEOFDAY, unix.SYS_TIME,
	unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_GETTIME, unix.SYS_TIMER_GETOVERRUN, unix.SYS_TIMER_DELETE,
	unix.SYS_SETITIMER, unix.SYS_GETITIMER, unix.SYS_ALARM, unix.SYS_PAUSE, unix.SYS_TIMERFD_CREATE, unix.SYS_TIMERFD_SETTIME, unix.SYS_TIMERFD_GETTIME,
	unix.SYS_POLL, unix.SYS_PPOLL, unix.SYS_SELECT, unix.SYS_PSELECT6, unix.SYS_EPOLL_CREATE, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL,
	unix.SYS_EPOLL_WAIT, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2, unix.SYS_EVENTFD, unix.SYS_EVENTFD2, unix.SYS_WAIT4, unix.SYS_WAITID,
	unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_RESTART_SYSCALL,
	// signals of its own; sending them is in judged
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_RT_SIGPENDING, unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_RT_SIGSUSPEND,
	unix.SYS_SIGALTSTACK, unix.SYS_SIGNALFD, unix.SYS_SIGNALFD4,
	// who and where it is
	unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETPPID, unix.SYS_GETPGRP, unix.SYS_GETPGID, unix.SYS_GETSID, unix.SYS_GETUID, unix.SYS_GETEUID,
	unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETRESUID, unix.SYS_GETRESGID, unix.SYS_GETGROUPS, unix.SYS_CAPGET, unix.SYS_UNAME, unix.SYS_SYSINFO,
	unix.SYS_GETRUSAGE, unix.SYS_GETRLIMIT, unix.SYS_TIMES, unix.SYS_GETRANDOM, unix.SYS_UMASK,
	// files
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_PREADV, unix.SYS_PWRITEV,
	unix.SYS_PREADV2, unix.SYS_PWRITEV2, unix.SYS_LSEEK, unix.SYS_OPEN, unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_CLOSE, unix.SYS_CLOSE_RANGE,
	unix.SYS_STAT, unix.SYS_FSTAT, unix.SYS_LSTAT, unix.SYS_NEWFSTATAT, unix.SYS_STATX, unix.SYS_STATFS, unix.SYS_FSTATFS, unix.SYS_ACCESS,
	unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_READLINK, unix.SYS_READLINKAT, unix.SYS_GETDENTS, unix.SYS_GETDENTS64, unix.SYS_GETCWD,
	unix.SYS_DUP, unix.SYS_DUP2, unix.SYS_DUP3, unix.SYS_FCNTL, unix.SYS_FLOCK, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_FADVISE64,
	unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SENDFILE, unix.SYS_SPLICE, unix.SYS_COPY_FILE_RANGE, unix.SYS_PIPE, unix.SYS_PIPE2,
	unix.SYS_UNLINK, unix.SYS_UNLINKAT, unix.SYS_MKDIR, unix.SYS_MKDIRAT, unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_FCHMOD,
	unix.SYS_CACHESTAT,
	// the sockets that it was given, and pairs of its own; socket itself is in judged
	unix.SYS_SENDMSG, unix.SYS_RECVMSG, unix.SYS_SENDMMSG, unix.SYS_RECVMMSG, unix.SYS_SENDTO, unix.SYS_RECVFROM, unix.SYS_SHUTDOWN,
	unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME,
}

// denied by name where the rest is let through.
var denied = []uint32{
	// other processes
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_KCMP, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_GETFD,
	unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_TKILL, unix.SYS_PROCESS_MADVISE, unix.SYS_PROCESS_MRELEASE, unix.SYS_MIGRATE_PAGES, unix.SYS_SETPGID,
	unix.SYS_SETSID, unix.SYS_IOPRIO_SET,
	// mounts and namespaces
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG,
	unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_STATMOUNT, unix.SYS_LISTMOUNT, 467 /* open_tree_attr */, unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT, unix.SYS_FANOTIFY_MARK,
	// the kernel's large interfaces
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_SECCOMP, unix.SYS_IO_SETUP, unix.SYS_IO_SUBMIT, unix.SYS_VMSPLICE, unix.SYS_TEE,
	unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS_USTAT, unix.SYS__SYSCTL, unix.SYS_REMAP_FILE_PAGES, unix.SYS_MEMFD_SECRET, unix.SYS_MAP_SHADOW_STACK,
	unix.SYS_LOOKUP_DCOOKIE, unix.SYS_VSERVER, unix.SYS_NFSSERVCTL,
	// System V and POSIX IPC
	unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL, unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL, unix.SYS_SEMGET, unix.SYS_SEMOP,
	unix.SYS_SEMCTL, unix.SYS_SEMTIMEDOP, unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK,
	// the machine
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_REBOOT, unix.SYS_SWAPON,
	unix.SYS_SWAPOFF, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
	unix.SYS_ACCT, unix.SYS_SYSLOG, unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_VHANGUP, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
	// who it is
	unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID, unix.SYS_SETGROUPS, unix.SYS_SETFSUID,
	unix.SYS_SETFSGID, unix.SYS_CAPSET,
	// nodes, owners and links
	unix.SYS_MKNOD, unix.SYS_MKNODAT, unix.SYS_CHOWN, unix.SYS_FCHOWN, unix.SYS_LCHOWN, unix.SYS_FCHOWNAT, unix.SYS_LINK, unix.SYS_LINKAT,
}

// programs are denied once a guest is there (Seal).
var programs = []uint32{unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_FORK, unix.SYS_VFORK}

// paths name files by their first or second argument: audit compares them with the rules.
var paths = map[uint32]pathCall{
	unix.SYS_OPEN:   {path: 0, flags: 1},
	unix.SYS_OPENAT: {path: 1, flags: 2},
	unix.SYS_CREAT:  {path: 0, flags: -1},
}

// pathCall says which arguments are path and flags; -1: it always writes.
type pathCall struct{ path, flags int }

// handling are the calls of a process that maps, reads and writes what it has descriptors of, waits
// for it, and is given more over sockets that it has; and those of Go's runtime.
var handling = []uint32{
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_RECVFROM, unix.SYS_SENDTO, unix.SYS_SHUTDOWN,
	unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_FSTAT, unix.SYS_FCNTL, unix.SYS_CLOSE,
	unix.SYS_POLL, unix.SYS_PPOLL, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_WAIT, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2, unix.SYS_PIPE2,
	unix.SYS_PIDFD_OPEN, // to wait for a process
	unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_BRK, unix.SYS_MINCORE,
	unix.SYS_FUTEX, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP,
	unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY, unix.SYS_GETRANDOM, unix.SYS_MEMBARRIER, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_RESTART_SYSCALL,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_GETPID, unix.SYS_GETTID,
}

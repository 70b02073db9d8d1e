package sandbox

import (
	"os"

	"golang.org/x/sys/unix"
)

// namespaceFlags are those of clone and unshare that make namespaces.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// Controls of processes that prctl(2) may set or read. Not among them: tracers, the memory layout,
// secure bits, capabilities, seccomp.
var prctls = []uint32{
	unix.PR_SET_PDEATHSIG, unix.PR_GET_PDEATHSIG, unix.PR_GET_DUMPABLE, unix.PR_SET_DUMPABLE, unix.PR_SET_NAME, unix.PR_GET_NAME, unix.PR_GET_SECCOMP,
	unix.PR_CAPBSET_READ, unix.PR_SET_TIMERSLACK, unix.PR_GET_TIMERSLACK, unix.PR_SET_NO_NEW_PRIVS, unix.PR_GET_NO_NEW_PRIVS,
	unix.PR_SET_THP_DISABLE, unix.PR_GET_THP_DISABLE, unix.PR_GET_SPECULATION_CTRL, unix.PR_SET_VMA,
}

// notPrctls are those that are denied where the rest is let through.
var notPrctls = []uint32{
	unix.PR_SET_PTRACER, unix.PR_SET_MM, unix.PR_SET_SECCOMP, unix.PR_SET_SECUREBITS, unix.PR_CAPBSET_DROP, unix.PR_CAP_AMBIENT, unix.PR_SET_CHILD_SUBREAPER,
	unix.PR_SET_SYSCALL_USER_DISPATCH, unix.PR_SET_IO_FLUSHER, unix.PR_SCHED_CORE, unix.PR_SET_TSC, unix.PR_SET_MEMORY_MERGE,
}

// terminalIoctls type into, or take over, a terminal that a worker's standard error may be.
var terminalIoctls = []uint32{unix.TIOCSTI, unix.TIOCLINUX, unix.TIOCSCTTY, unix.TIOCCONS, unix.TIOCSETD}

// judged are calls that depend on an argument, for process pid.
func judged(p *Policy, pid int) map[uint32][]check {
	self := uint32(pid)
	m := map[uint32][]check{
		unix.SYS_IOCTL:             p.ioctlChecks(),
		unix.SYS_PRCTL:             {only(0, prctls...)},
		unix.SYS_KILL:              {only(0, self)},
		unix.SYS_TGKILL:            {only(0, self)},
		unix.SYS_RT_SIGQUEUEINFO:   {only(0, self)},
		unix.SYS_RT_TGSIGQUEUEINFO: {only(0, self)},
		unix.SYS_PERSONALITY:       {only(0, 0xffffffff)}, // asks only
		unix.SYS_PRLIMIT64:         {only(0, 0, self)},
		unix.SYS_CLONE:             {{arg: 0, mask: namespaceFlags, values: []uint32{0}, match: verdictAllow, other: verdictDeny}},
		unix.SYS_SOCKETPAIR:        {only(0, unix.AF_UNIX)},
	}
	if p.Real {
		// libcuda binds an abstract socket for each process, by which others ask it for memory that
		// it shares.
		m[unix.SYS_SOCKET] = []check{only(0, unix.AF_UNIX)}
	}
	if !p.tight() {
		m[unix.SYS_PRCTL] = []check{never(0, notPrctls...)}
	}
	return m
}

// base is the filter of Enter.
func base(p *Policy) *program {
	f := &program{verdicts: map[uint32]uint32{}, checks: judged(p, os.Getpid()), rest: verdictDeny, beyond: verdictAbsent}
	if !p.tight() {
		f.rest = verdictAllow
	}
	f.set(verdictAllow, allowed...)
	f.set(verdictDeny, denied...)
	f.set(verdictAllow, unix.SYS_EXECVE, unix.SYS_SECCOMP) // until Seal
	f.set(verdictDeny, unix.SYS_EXECVEAT)
	f.set(verdictAllow, unix.SYS_SETRLIMIT)
	// Arguments in memory cannot be judged: libc falls back to clone.
	f.set(verdictAbsent, unix.SYS_CLONE3)
	sockets := []uint32{unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4}
	switch {
	case !p.Real:
		f.set(verdictDeny, append(sockets, unix.SYS_SOCKET, unix.SYS_CONNECT)...)
	default:
		f.set(verdictAllow, append(sockets, unix.SYS_CONNECT)...)
	}
	return f
}

// sealed is the filter of Seal: no programs, and no processes beside threads.
func sealed() *program {
	f := &program{verdicts: map[uint32]uint32{}, rest: verdictAllow, beyond: verdictAllow, checks: map[uint32][]check{
		unix.SYS_CLONE: {{arg: 0, mask: unix.CLONE_THREAD, values: []uint32{0}, match: verdictDeny, other: verdictAllow}},
	}}
	f.set(verdictDeny, programs...)
	f.set(verdictDeny, unix.SYS_SECCOMP)
	return f
}

// workshop are denied calls that a parent of workers needs to make them: it joins namespaces, and
// its children become others.
var workshop = []uint32{
	unix.SYS_SETNS, unix.SYS_SECCOMP, unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID, unix.SYS_SETGROUPS,
	unix.SYS_CAPSET, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_TKILL, unix.SYS_SETPGID, unix.SYS_SETSID, unix.SYS_CHOWN, unix.SYS_FCHOWN,
	unix.SYS_FCHOWNAT, unix.SYS_LINK, unix.SYS_LINKAT,
}

// parent is the filter of Confine. Workers inherit it.
func parent(network bool) *program {
	families := []uint32{unix.AF_UNIX}
	if network {
		families = append(families, unix.AF_INET, unix.AF_INET6)
	}
	f := &program{verdicts: map[uint32]uint32{}, rest: verdictAllow, beyond: verdictAbsent, checks: map[uint32][]check{
		unix.SYS_IOCTL:   {never(1, terminalIoctls...)},
		unix.SYS_SOCKET:  {only(0, families...)},
		unix.SYS_UNSHARE: {only(0, unix.CLONE_FS)},
	}}
	f.set(verdictDeny, denied...)
	f.set(verdictAllow, workshop...)
	if os.Geteuid() == 0 { // else workers are made in user namespaces
		f.checks[unix.SYS_CLONE] = []check{{arg: 0, mask: namespaceFlags, values: []uint32{0}, match: verdictAllow, other: verdictDeny}}
		f.set(verdictAbsent, unix.SYS_CLONE3)
	}
	return f
}

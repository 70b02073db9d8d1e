package sandbox

import (
	"os"

	"golang.org/x/sys/unix"
)

// descriptors is the filter of OnlyDescriptors, for process pid.
func descriptors(pid int) *program {
	// Arguments in memory cannot be judged: libc falls back to clone.
	f := &program{verdicts: map[uint32]uint32{unix.SYS_CLONE3: verdictAbsent}, rest: verdictDeny, beyond: verdictAbsent, checks: map[uint32][]check{
		unix.SYS_CLONE:    {{arg: 0, mask: unix.CLONE_THREAD, values: []uint32{0}, match: verdictDeny, other: verdictAllow}},
		unix.SYS_TGKILL:   {only(0, uint32(pid))},
		unix.SYS_MMAP:     {noCode},
		unix.SYS_MPROTECT: {noCode},
	}}
	f.set(verdictAllow, handling...)
	return f
}

// noCode lets memory be had that nobody can execute.
var noCode = check{arg: 2, mask: unix.PROT_EXEC, values: []uint32{unix.PROT_EXEC}, match: verdictDeny, other: verdictAllow}

// OnlyDescriptors leaves this process the descriptors that it has and those that it is given, and
// nothing else of the system: no paths, sockets, programs or other processes, and no code but its
// own. For good, and on all threads.
func OnlyDescriptors() error { return filterCalls(descriptors(os.Getpid())) }

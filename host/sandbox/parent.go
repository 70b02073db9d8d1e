package sandbox

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// parentKeeps are the capabilities by which root starts workers: it joins their namespaces, becomes
// another user, ends them, raises their limits, and removes its sockets from folders of others.
var parentKeeps = []uint{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SETPCAP, unix.CAP_KILL, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_CHOWN, unix.CAP_SYS_RESOURCE}

// Confine takes from this process, which is to start workers, what it does not need for that: most
// capabilities, sockets but Unix ones, and the system calls that no worker may make, less those by
// which workers are made. network leaves it sockets of IP, for a parent that connects its workers
// to a GPU server. Call it when its Spaces are made. What cannot be taken is logged; mode strict
// fails.
func Confine(mode Mode, network bool, log *slog.Logger) error {
	if mode != On && mode != Strict {
		return nil
	}
	r := new(Report)
	r.note("system calls", filterCalls(parent(network)))
	if os.Geteuid() == 0 {
		r.note("capabilities", keepCapabilities(parentKeeps))
	}
	if len(r.Lacks) == 0 {
		return nil
	}
	if mode == Strict {
		return fmt.Errorf("--sandbox strict: this process cannot be confined: %v", r.Lacks)
	}
	log.Warn("sandbox: this process is not confined as it could be", "lacks", r.Lacks)
	return nil
}

// keepCapabilities gives up all others on all threads, and so that no program that is executed gets
// them back.
func keepCapabilities(keep []uint) error {
	var mask uint64
	for _, c := range keep {
		mask |= 1 << c
	}
	for c := uint(0); c <= unix.CAP_LAST_CAP; c++ {
		if mask&(1<<c) == 0 {
			// EINVAL: a kernel that knows fewer.
			if _, _, e := psx.Syscall3(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0); e != 0 && !errors.Is(e, unix.EINVAL) {
				return fmt.Errorf("capability %d: %w", c, e)
			}
		}
	}
	return limitCapabilities(mask)
}

package sandbox

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Limits of a worker. Sessions hold descriptors for each region and each allocation that they
// share; a driver starts some dozens of threads, and in a container all workers may count as one
// user.
const (
	maxFiles   = 65536
	maxThreads = 32768
)

// nobody is the user of workers where a container knows none of the range from Policy.UIDBase.
const nobody = 65534

// Enter gives up what the policy denies: user, limits, files, system calls. Mode strict fails if a
// layer is missing. Call it before the process has read anything from others. log, which is used
// on, gets what mode audit finds.
func Enter(p *Policy, log *slog.Logger) (*Report, error) {
	r := new(Report)
	if p == nil || p.Mode == Off {
		return r, nil
	}
	if p.Mode == Audit || p.ioctlsWatched() {
		beAuditor(p, log)
	}
	if p.Mode == Audit {
		return r, audit(everything(p), "/proc/self/mem")
	}
	r.note("no core dumps", harden(p))
	if p.UIDBase != 0 && os.Getuid() == 0 {
		err := become(p)
		if err != nil { // it stays who it is; what root can do beyond files goes at least
			err = errors.Join(err, limitCapabilities(0))
			p.Fenced = false // the parent's rules count on another user
		}
		r.note("own user", err)
	} else {
		r.note("no capabilities", noCapabilities())
	}
	if p.Fenced {
		r.note("files", partly())
	} else {
		pin("/proc/self")
		r.note("files", restrictFiles(p, "/proc/self"))
	}
	if p.ioctlsWatched() {
		// Requests are numbers.
		r.note("audit of requests to the driver", audit(p.watch(), os.DevNull))
	}
	r.note("system calls", filterCalls(base(p)))
	if p.Mode == Strict && len(r.Lacks) > 0 {
		return r, fmt.Errorf("sandbox is not complete, and --sandbox strict asks for all of it: %v", r.Lacks)
	}
	return r, nil
}

// Seal denies new programs and processes, when the process needs none any more.
func Seal(p *Policy) error {
	if !p.Enforces() {
		return nil
	}
	if err := filterCalls(sealed()); err != nil && p.Mode == Strict {
		return err
	}
	return nil
}

func filterCalls(p *program) error {
	code, err := p.assemble()
	if err != nil {
		return fmt.Errorf("seccomp filter: %w", err)
	}
	_, err = install(code, 0)
	return err
}

// pin keeps a folder's entry in the kernel's cache for as long as this process lives: Landlock
// knows files by inode, and /proc makes a new one when it has forgotten the old.
func pin(dir string) {
	// Kept across a cold start; without it the folder may be out of reach one day.
	_, _ = unix.Open(dir, unix.O_PATH, 0)
}

// harden sets limits and takes the process from debuggers' sight.
func harden(p *Policy) error {
	var errs []error
	limit := func(what int, n uint64) {
		var now unix.Rlimit
		if err := unix.Getrlimit(what, &now); err != nil {
			errs = append(errs, err)
			return
		}
		n = min(n, now.Max)
		// syscall's, which knows that Go raised the number of files.
		if err := syscall.Setrlimit(what, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
			errs = append(errs, err)
		}
	}
	if os.Getuid() == 0 { // a driver may lock what a guest has it register; best effort
		_ = syscall.Setrlimit(unix.RLIMIT_MEMLOCK, &syscall.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	}
	limit(unix.RLIMIT_CORE, 0)
	limit(unix.RLIMIT_NOFILE, maxFiles)
	limit(unix.RLIMIT_MSGQUEUE, 0)
	limit(unix.RLIMIT_RTPRIO, 0)
	if p.UIDBase != 0 { // counted by user: the others must not count
		limit(unix.RLIMIT_NPROC, maxThreads)
	}
	errs = append(errs, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	return errors.Join(errs...)
}

// become gives all threads a user that no other living process is, or only workers of the same
// virtual GPU are, which takes the capabilities too.
func become(p *Policy) error {
	id := int(p.User)
	if id == 0 {
		id = int(p.UIDBase) + os.Getpid()
	}
	err := switchTo(id, p.Groups)
	if errors.Is(err, unix.EINVAL) { // not mapped in this container's user namespace
		if err = switchTo(nobody, p.Groups); err == nil {
			err = fmt.Errorf("user %d is unknown in this container: workers share user %d", id, nobody)
		}
	}
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

func switchTo(id int, groups []int) error {
	// syscall's calls act on all threads, unix's too where they are the same; order: what needs the
	// capability first.
	if err := syscall.Setgroups(groups); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := syscall.Setresgid(id, id, id); err != nil {
		return fmt.Errorf("setresgid %d: %w", id, err)
	}
	if err := syscall.Setresuid(id, id, id); err != nil {
		return fmt.Errorf("setresuid %d: %w", id, err)
	}
	return noCapabilities()
}

// noCapabilities fails if the process has any.
func noCapabilities() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return err
	}
	if data[0].Effective|data[0].Permitted|data[1].Effective|data[1].Permitted != 0 {
		return errors.New("the process keeps capabilities")
	}
	return nil
}

package sandbox

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Audit enforces nothing. Calls that strict would judge stop and ask the worker's auditor, a
// process of its own, which lets them go on and then writes down the ones that strict would deny.
// What users and namespaces would deny does not show.
//
// No thread of the worker could answer: one that asks may hold what the answer takes, as a lock of
// the loader that libc wants for new threads, or the processor of Go's scheduler; and none is left
// when a cold start executes the program anew, while the new image's loader asks already. The
// auditor lives until the kernel knows of nobody any more who could ask. If it dies first, such
// calls fail with ENOSYS: only it holds the listener.

const (
	// auditorEnv marks an auditor; its value is the worker's process id.
	auditorEnv = "CAUSEWAY_SANDBOX_AUDITOR"
	// The auditor's descriptors: a socket to the worker, where workers have their link, and the
	// worker's memory.
	auditorSocket = 3
	auditorMemory = 4
	// auditorPatience is for the auditor's start.
	auditorPatience = 30 * time.Second
)

// auditorOmits are variables that are not for an auditor: it leaves no profile.
var auditorOmits = []string{"CAUSEWAY_PROFILE", "CAUSEWAY_TRACE"}

// beAuditor does not return if this process is an auditor, which is this program again, started as
// a worker.
func beAuditor(p *Policy, log *slog.Logger) {
	worker, ok := os.LookupEnv(auditorEnv)
	if !ok {
		return
	}
	if err := serveAudit(p, worker, log); err != nil {
		log.Error("sandbox: audit ends", "error", err)
		os.Exit(1)
	}
	os.Exit(0) // it is no worker, and must not become one
}

// everything is the filter of mode audit.
func everything(p *Policy) *program {
	f := base(p)
	f.merge(sealed())
	f.notifying()
	return f
}

// audit has an auditor watch this process, which asks it what f says. memory is what of this
// process's memory the auditor may read: files that calls name are there.
func audit(f *program, memory string) error {
	code, err := f.assemble()
	if err != nil {
		return fmt.Errorf("seccomp filter: %w", err)
	}
	conn, err := startAuditor(memory)
	if err != nil {
		return fmt.Errorf("sandbox auditor: %w", err)
	}
	defer unix.Close(conn)
	listener, err := install(code, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH)
	if err != nil {
		return err
	}
	defer unix.Close(listener)
	// From here to the auditor's first answer nothing can be opened.
	if err := unix.Sendmsg(conn, []byte{1}, unix.UnixRights(listener), nil, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("sandbox auditor: listener: %w", err)
	}
	return nil
}

// startAuditor starts this process's auditor and waits until it is ready. The caller sends it the
// listener over conn, or closes conn, which ends it.
func startAuditor(memoryFile string) (conn int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socketpair: %w", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(pair[0])
		}
	}()
	theirs := os.NewFile(uintptr(pair[1]), "auditor")
	defer theirs.Close()
	// Opened here: later the worker is not dumpable, and who traces may be restricted to ancestors.
	memory, err := os.Open(memoryFile)
	if err != nil {
		return -1, err
	}
	defer memory.Close()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = "causeway-auditor"
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(auditorOmits, name)
	}), fmt.Sprintf("%s=%d", auditorEnv, os.Getpid()))
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{theirs, memory}
	if err := cmd.Start(); err != nil {
		return -1, err
	}
	go func() { _ = cmd.Wait() }() // ends before this process only if it fails, and then says so
	// Yama lets it open the memory of the image that a cold start brings; other kernels do not know
	// the call.
	_ = unix.Prctl(unix.PR_SET_PTRACER, uintptr(cmd.Process.Pid), 0, 0, 0)
	_ = theirs.Close()
	return pair[0], awaitByte(pair[0])
}

// awaitByte waits for the auditor's word that it is ready.
func awaitByte(conn int) error {
	limit := unix.NsecToTimeval(int64(auditorPatience))
	if err := unix.SetsockoptTimeval(conn, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return err
	}
	for {
		switch n, err := unix.Read(conn, make([]byte, 1)); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("is not ready: %w", err)
		case n == 0:
			return errors.New("ended before it was ready")
		default:
			return nil
		}
	}
}

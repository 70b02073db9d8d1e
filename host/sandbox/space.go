package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Space is what the workers of one virtual GPU start in: their policy, and with root, namespaces
// that they share. Its methods may be called from any goroutine.
type Space struct {
	policy Policy
	log    *slog.Logger

	mu     sync.Mutex
	ns     []namespace // with root; kept by descriptors
	flags  uintptr     // clone flags, without root
	proc   bool        // /proc of the namespaces shows no other users' processes
	shm    bool        // /dev/shm of the namespaces is their own
	fence  *os.File    // ruleset that workers inherit, made by the first Fork; only with proc
	closed bool
}

// namespace is one that workers join.
type namespace struct {
	kind int
	file *os.File
}

// New returns a space for workers with a policy; nil for mode off. It says what this host lacks, or
// refuses it in mode strict.
func New(p Policy, log *slog.Logger) (*Space, error) {
	if p.Mode == Off {
		return nil, nil
	}
	s := &Space{policy: p, log: log}
	if held, why, err := p.ioctlsHeld(); err != nil {
		return nil, fmt.Errorf("--sandbox %s, --ioctls %s: %w", p.Mode, cmp.Or(p.Ioctls, IoctlsAuto), err)
	} else if !held {
		log.Info("sandbox: requests to the GPU's driver are not held to a list", "driver", p.Driver, "reason", why)
	}
	if p.Mode == Audit {
		log.Warn("sandbox: auditing, nothing is enforced")
		return s, nil
	}
	lacks := hostLacks()
	if err := canBecome(p.UIDBase); err != nil {
		lacks = append(lacks, "users of their own: "+err.Error())
	}
	if err := s.make(); err != nil {
		lacks = append(lacks, "namespaces: "+strings.ReplaceAll(err.Error(), "\n", ", "))
	}
	if len(lacks) == 0 {
		return s, nil
	}
	s.policy.Told = true
	if p.Mode == Strict {
		s.Close()
		return nil, fmt.Errorf("--sandbox strict: this host lacks %s", strings.Join(lacks, "; "))
	}
	log.Warn("sandbox: workers do without what this host lacks", "lacks", strings.Join(lacks, "; "))
	return s, nil
}

// hostLacks names the layers that this kernel has not.
func hostLacks() []string {
	var lacks []string
	if runtime.GOARCH != "amd64" {
		lacks = append(lacks, "a list of system calls for "+runtime.GOARCH)
	}
	switch abi := landlockABI(); {
	case abi == 0:
		lacks = append(lacks, "Landlock: "+errNoLandlock.Error())
	case abi < landlockWanted:
		lacks = append(lacks, fmt.Sprintf("Landlock version %d (has %d): %v", landlockWanted, abi, errPartly))
	}
	if _, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err != nil {
		lacks = append(lacks, "seccomp: "+err.Error())
	}
	return lacks
}

// canBecome reports why root could not start workers as users from base on.
func canBecome(base uint32) error {
	if base == 0 || os.Geteuid() != 0 {
		return nil
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return err
	}
	const needs = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	if data[0].Effective&needs != needs {
		return errors.New("no capability to change users")
	}
	for _, file := range []string{"/proc/self/uid_map", "/proc/self/gid_map"} {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !mapped(string(b), base) {
			return fmt.Errorf("users from %d on are unknown in this container", base)
		}
	}
	return nil
}

// mostPID is the highest process id that Linux gives out.
const mostPID = 1 << 22

// mapped reads lines of first id inside, first id outside, count (user_namespaces(7)).
func mapped(table string, base uint32) bool {
	for line := range strings.Lines(table) {
		var in, out, n uint64
		if _, err := fmt.Sscan(line, &in, &out, &n); err == nil && uint64(base) >= in && uint64(base)+mostPID <= in+n {
			return true
		}
	}
	return false
}

// make makes the namespaces, or finds out that they cannot be had. The space works either way.
func (s *Space) make() error {
	if os.Geteuid() != 0 {
		s.policy.UIDBase = 0
		s.flags = unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
		return nil // tried by the first worker
	}
	if s.policy.sharing() && s.policy.UIDBase != 0 {
		s.policy.User = s.policy.UIDBase + uint32(os.Getpid()) // no worker is this process
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- s.unshare()
	}()
	return <-done
}

// unshare makes the namespaces on this thread and keeps descriptors of them.
func (s *Space) unshare() error {
	kinds := []struct {
		kind int
		name string
	}{{unix.CLONE_NEWNET, "net"}, {unix.CLONE_NEWIPC, "ipc"}, {unix.CLONE_NEWUTS, "uts"}, {unix.CLONE_NEWNS, "mnt"}}
	var errs []error
	for _, k := range kinds {
		err := unix.Unshare(k.kind)
		if err == nil && k.kind == unix.CLONE_NEWNS {
			err = s.mounts()
		}
		var f *os.File
		if err == nil {
			f, err = os.Open("/proc/thread-self/ns/" + k.name)
		}
		if err != nil {
			s.shm = s.shm && k.kind != unix.CLONE_NEWNS // nobody joins it
			errs = append(errs, fmt.Errorf("%s: %w", k.name, err))
			continue
		}
		s.ns = append(s.ns, namespace{k.kind, f})
		if k.kind == unix.CLONE_NEWNET {
			s.policy.Network = s.policy.sharing()
		}
	}
	return errors.Join(errs...)
}

// Close lets go of the namespaces, which live as long as workers are in them. No worker starts
// after it.
func (s *Space) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, n := range s.ns {
		_ = n.file.Close()
	}
	if s.fence != nil {
		_ = s.fence.Close()
	}
	s.ns, s.fence = nil, nil
}

// Fork starts cmd as a worker in the space. It changes the calling thread for good: call it on a
// goroutine that is locked to its thread and ends without unlocking it. A nil space starts cmd as
// it is.
func (s *Space) Fork(cmd *exec.Cmd) error {
	if s == nil {
		return cmd.Start()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("sandbox is closed")
	}
	if s.policy.Mode == Audit {
		return s.start(cmd)
	}
	if len(s.ns) > 0 && cmd.Path != "/proc/self/exe" {
		// The program may lie where workers see nothing.
		f, err := os.Open(cmd.Path)
		if err != nil {
			return err
		}
		defer f.Close()
		cmd.Path = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	}
	if err := s.join(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if err := s.restrict(cmd.Path); err != nil {
		return err
	}
	return s.start(cmd)
}

// start starts cmd with its policy.
func (s *Space) start(cmd *exec.Cmd) error {
	kv, err := s.policy.encode()
	if err != nil {
		return err
	}
	if s.cached() {
		cmd.Env = withCache(cmd.Env)
	}
	cmd.Env = append(cmd.Env, kv)
	if s.flags == 0 {
		return cmd.Start()
	}
	return s.startInUserNamespace(cmd)
}

// restrict restricts files on this thread, whose child inherits it: a process that runs would have
// to stop all its threads for that, which takes milliseconds. Where /proc shows others, the worker
// does so, when its own folder there is known.
func (s *Space) restrict(program string) error {
	if !s.proc || landlockABI() == 0 {
		return nil
	}
	if s.fence == nil {
		set, err := ruleset(&s.policy, append(s.policy.rules("/proc"), rule{program, read | execute}))
		if err != nil {
			return err
		}
		s.fence, s.policy.Fenced = os.NewFile(uintptr(set), "ruleset"), true
	}
	if err := ll.LandlockRestrictSelf(int(s.fence.Fd()), 0); err != nil {
		return fmt.Errorf("landlock_restrict_self: %w", err)
	}
	return nil
}

// join puts the thread into the namespaces, and takes the capabilities that the worker will not
// need to become another user.
func (s *Space) join() error {
	if len(s.ns) > 0 {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			// Else the thread's folders are the process's.
			return fmt.Errorf("unshare: %w", err)
		}
	}
	for _, n := range s.ns {
		if err := unix.Setns(int(n.file.Fd()), n.kind); err != nil {
			return fmt.Errorf("setns: %w", err)
		}
	}
	if s.policy.UIDBase != 0 {
		for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
			if c != unix.CAP_SETUID && c != unix.CAP_SETGID && c != unix.CAP_SYS_RESOURCE {
				// One that the kernel does not know is none to take.
				_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
			}
		}
	}
	return nil
}

// startInUserNamespace starts cmd as the same user, in namespaces of its own. A host that forbids
// those is found out once.
func (s *Space) startInUserNamespace(cmd *exec.Cmd) error {
	attr := *cmd.SysProcAttr
	cmd.SysProcAttr.Cloneflags |= s.flags
	uid, gid := os.Geteuid(), os.Getegid()
	cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
	cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
	err := cmd.Start()
	if err == nil || s.policy.Mode == Strict {
		return err
	}
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EACCES) {
		return err
	}
	s.log.Warn("sandbox: no user namespaces for workers: the other layers hold", "error", err)
	s.flags = 0
	again := exec.Command(cmd.Path)
	again.Args, again.Env, again.Stdin, again.Stdout, again.Stderr, again.ExtraFiles = cmd.Args, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles
	again.SysProcAttr = &attr
	*cmd = *again //nolint:govet // a command that did not start holds nothing
	return cmd.Start()
}

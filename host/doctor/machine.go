package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/doctor/kvm"
	"causeway/host/schedule"
	"causeway/remote/mtls"
	"causeway/remote/sys"
)

// Machine is a host as checks see it. Tests make up their own.
type Machine struct {
	FS fs.FS // the root file system: paths without the first slash
	// Run runs a program and returns what it printed. The error is exec.ErrNotFound if there is
	// none.
	Run func(ctx context.Context, name string, args ...string) (string, error)
	// Open tries to open a device for reading and writing.
	Open     func(path string) error
	KVM      func(context.Context) error      // runs a guest of a few instructions
	Memfd    func() error                     // makes and seals one
	Landlock func() (version int, err error)  // of the kernel's Landlock
	Space    func(path string) (Space, error) // of the file system that holds path
	// Scheduler asks the scheduler of a socket for a sign of life.
	Scheduler func(ctx context.Context, socket string) error
	Config    func() error // reads causewayd's configuration
	// Identity is who this host is to others by the configuration; nil: it has to do with none.
	Identity interface {
		Standing() (mtls.Standing, error)
	}
	Daemon  *api.Client
	Program []string // this program: runs children that may load drivers
	Version string   // of this program
	UID     int
	// Serves: the configuration says of this host that it gives GPUs to others, and nothing else
	// that has to do with them.
	Serves bool
	// ReachWorker: the configuration permits GPUs whose kernels address all of a worker's memory.
	ReachWorker bool
	RunDir      string
	StateDir    string
	LogDir      string
}

// Space of a file system.
type Space struct {
	Free, Total   uint64 // bytes
	Inodes, Nodes uint64 // free, in all
}

// Real is the host that this process runs on. RunDir, StateDir, LogDir, Config, Daemon and Version
// are left to the caller.
func Real() *Machine {
	return &Machine{
		FS: os.DirFS("/"), Run: run, Open: open, KVM: kvm.Probe, Memfd: memfd, Landlock: landlock, Space: space, Scheduler: scheduling,
		Program: []string{"/proc/self/exe"}, UID: os.Getuid(),
	}
}

func scheduling(ctx context.Context, socket string) error {
	_, err := schedule.ReadStatus(ctx, socket)
	return err
}

func run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.WaitDelay = time.Second
	b, err := cmd.CombinedOutput()
	if errors.Is(err, fs.ErrNotExist) {
		err = exec.ErrNotFound
	}
	return string(b), err
}

func open(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func memfd() error {
	fd, err := sys.NewMemory("causeway-doctor", 4096, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func landlock() (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func space(path string) (Space, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return Space{}, err
	}
	return Space{s.Bavail * uint64(s.Bsize), s.Blocks * uint64(s.Bsize), s.Ffree, s.Files}, nil
}

// text reads a small file; ok says whether it is there.
func (m *Machine) text(path string) (string, bool) {
	b, err := fs.ReadFile(m.FS, strings.TrimPrefix(path, "/"))
	return strings.TrimSpace(string(b)), err == nil
}

func (m *Machine) stat(path string) (fs.FileInfo, error) {
	return fs.Stat(m.FS, strings.TrimPrefix(path, "/"))
}

func (m *Machine) glob(pattern string) []string {
	found, _ := fs.Glob(m.FS, strings.TrimPrefix(pattern, "/")) // patterns are ours
	for i := range found {
		found[i] = "/" + found[i]
	}
	return found
}

func (m *Machine) exists(path string) bool {
	_, err := m.stat(path)
	return err == nil
}

package takeover

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func (t *Target) files() []Attempt {
	var all []Attempt
	for _, f := range append([]string{"/etc/shadow"}, t.Files...) {
		all = append(all, Attempt{Name: "read: " + short(f), Do: func() error {
			fd, err := unix.Open(f, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			return closed(fd, err)
		}})
	}
	for _, d := range []string{"/root", "/etc"} {
		all = append(all, Attempt{Name: "list: " + d, Do: func() error {
			_, err := os.ReadDir(d)
			return err
		}})
	}
	for _, d := range append([]string{"/", "/tmp", "/var/tmp", "/dev/shm", "/usr", "/run", "/dev"}, t.Folders...) {
		all = append(all, Attempt{Name: "create: in " + short(d), Do: func() error {
			f := filepath.Join(d, fmt.Sprintf(".causeway-takeover-%d", os.Getpid()))
			fd, err := unix.Open(f, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
			if err == nil {
				_ = unix.Unlink(f)
			}
			return closed(fd, err)
		}})
	}
	for _, f := range append([]string{"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", fmt.Sprintf("/proc/%d/oom_score_adj", t.Parent)}, t.Files...) {
		all = append(all, Attempt{Name: "write: " + short(f), Do: func() error {
			fd, err := unix.Open(f, unix.O_WRONLY|unix.O_CLOEXEC, 0)
			return closed(fd, err)
		}})
	}
	for _, f := range t.Files {
		all = append(all, Attempt{Name: "link: " + short(f), Do: func() error {
			err := unix.Link(f, f+".link")
			if err == nil {
				_ = unix.Unlink(f + ".link")
			}
			return err
		}})
	}
	for _, n := range append([]string{"/dev/mem", "/dev/kvm"}, t.Nodes...) {
		all = append(all, Attempt{Name: "open node: " + short(n), Do: func() error {
			fd, err := unix.Open(n, unix.O_RDWR|unix.O_CLOEXEC, 0)
			return closed(fd, err)
		}, Through: []unix.Errno{unix.ENXIO, unix.ENODEV}})
	}
	all = append(all, Attempt{Name: "make a device node", Do: func() error {
		n := filepath.Join(os.TempDir(), fmt.Sprintf(".causeway-node-%d", os.Getpid()))
		err := unix.Mknod(n, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1)))
		if err == nil {
			_ = unix.Unlink(n)
		}
		return err
	}})
	return all
}

// short keeps the table readable: temporary folders have long names.
func short(path string) string {
	if rel, err := filepath.Rel(os.TempDir(), path); err == nil && filepath.IsLocal(rel) && rel != "." {
		return ".../" + filepath.Base(path)
	}
	return path
}

package sandbox

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// hidden are folders that are empty for workers, unless something that they may read lies there.
var hidden = []string{"/run", "/tmp", "/var", "/home", "/root", "/srv", "/mnt", "/media", "/boot"}

// sharedSize bounds /dev/shm of one virtual GPU's workers, in bytes. Its pages count for the
// control group of the worker that wrote them: the virtual GPU's, if it has one.
const sharedSize = 64 << 20

// mounts furnishes the mount namespace of this thread: nothing reaches the host, whose unmounting
// still reaches it; folders with others' things are empty, /dev/shm is its own, and /proc shows no
// other users' processes.
func (s *Space) mounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("mounts of its own: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, dir := range hidden {
		if s.reads(dir) {
			continue
		}
		if st, err := os.Lstat(dir); err != nil || !st.IsDir() {
			continue
		}
		if err := unix.Mount("empty", dir, "tmpfs", flags|unix.MS_RDONLY, "size=4k,mode=555"); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	if st, err := os.Lstat("/dev/shm"); err == nil && st.IsDir() {
		if err := unix.Mount("shm", "/dev/shm", "tmpfs", flags, fmt.Sprintf("size=%d,mode=1777", sharedSize)); err != nil {
			return fmt.Errorf("/dev/shm: %w", err)
		}
		s.shm = true
	}
	if hides, err := hiddenBelowProc(); err != nil || hides {
		return err
	}
	// Best effort: a container may forbid it.
	s.proc = unix.Mount("proc", "/proc", "proc", flags, "hidepid=invisible") == nil
	return nil
}

// hiddenBelowProc reports whether something is mounted over the driver's part of /proc, as
// container tools do to hide GPUs: a fresh /proc would show them.
func hiddenBelowProc() (bool, error) {
	b, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return false, fmt.Errorf("mounts: %w", err)
	}
	return strings.Contains(string(b), " /proc/driver"), nil
}

// reads reports whether the policy grants something in a folder.
func (s *Space) reads(dir string) bool {
	for _, list := range [][]string{s.policy.Read, s.policy.Write, s.policy.Nodes} {
		for _, p := range list {
			if p == dir || strings.HasPrefix(p, dir+"/") {
				return true
			}
		}
	}
	return false
}

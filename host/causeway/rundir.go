package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// runPrefix begins the name of run's temporary folders; the process id follows.
const runPrefix = "causeway-run-"

// runFolder is where a run has its sockets. Only this user reaches it. Its owner holds a lock on
// the folder itself, which the kernel gives back however the owner ends: so the next run tells a
// folder that is in use from one that a killed run has left.
type runFolder struct {
	path string
	lock *os.File
}

// newRunFolder makes a folder, after taking away those of runs that were killed.
func newRunFolder() (*runFolder, error) {
	parent := os.TempDir()
	removeStale(parent)
	for try := 0; ; try++ {
		path, err := os.MkdirTemp(parent, fmt.Sprintf("%s%d-", runPrefix, os.Getpid()))
		if err != nil {
			return nil, fmt.Errorf("temporary folder for the session's socket: %w", err)
		}
		lock, err := lockFolder(path)
		if err == nil && unchanged(path, lock) {
			return &runFolder{path, lock}, nil
		}
		if lock != nil {
			_ = lock.Close()
		}
		// A run in another process namespace may have taken it for a stale one before it was
		// locked.
		if try == 2 {
			return nil, fmt.Errorf("lock the temporary folder %s: %w", path, err)
		}
	}
}

// Close removes the folder. It may be called again.
func (f *runFolder) Close() {
	_ = os.RemoveAll(f.path)
	_ = f.lock.Close()
}

// lockFolder opens a folder and takes its lock, if nobody else has it.
func lockFolder(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// unchanged says whether path still names an open folder.
func unchanged(path string, f *os.File) bool {
	now, err := os.Lstat(path)
	if err != nil {
		return false
	}
	was, err := f.Stat()
	return err == nil && os.SameFile(now, was)
}

// removeStale removes this user's folders whose runs were killed: nobody has the lock, and nobody
// the process id in the name. What cannot be removed stays for the next.
func removeStale(parent string) {
	// The pattern is well formed unless parent is not: then nothing is found.
	found, _ := filepath.Glob(filepath.Join(parent, runPrefix+"*-*"))
	for _, path := range found {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), runPrefix), "-")
		n, err := strconv.Atoi(pid)
		if err != nil || n <= 0 || !errors.Is(unix.Kill(n, 0), unix.ESRCH) || !ownFolder(path) {
			continue
		}
		lock, err := lockFolder(path)
		if err != nil {
			continue
		}
		_ = os.RemoveAll(path)
		_ = lock.Close()
	}
}

// ownFolder: temporary folders are everybody's, and root must not remove what others named so.
func ownFolder(path string) bool {
	st, err := os.Lstat(path)
	if err != nil || st.Mode().Type() != fs.ModeDir {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Geteuid()
}

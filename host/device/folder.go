package device

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrPlanted says that another user could have chosen what a name stands for.
var ErrPlanted = errors.New("another user could have put it there")

// mostLinks bounds how many links a path may lead through, as Linux does.
const mostLinks = 40

// walk is the way to a folder, one name after the other.
type walk struct {
	at   int    // the folder reached, opened with O_PATH
	path string // of it, for errors
	safe bool   // nobody but root and this user can change where any name so far leads
	mine bool   // the same of the names in the folder reached, links excepted
	rest []string
	left int // links that may still be followed
}

// openFolder opens a folder, and makes it and those on the way where they are missing. Links are
// followed only where nobody but root and this user could have put them. safe: the same is true of
// the whole way.
func openFolder(dir string) (f *os.File, safe bool, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, false, err
	}
	w := &walk{at: -1, safe: true, left: mostLinks, rest: names(dir)}
	defer func() { _ = unix.Close(w.at) }()
	if err := w.reach(unix.AT_FDCWD, "/", "/"); err != nil {
		return nil, false, err
	}
	for len(w.rest) > 0 {
		if err := w.step(); err != nil {
			return nil, false, err
		}
	}
	fd, err := unix.Openat(w.at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false, &os.PathError{Op: "open", Path: w.path, Err: err}
	}
	return os.NewFile(uintptr(fd), w.path), w.safe && w.mine, nil
}

// names splits a clean path. A name may be "..", where a link leads up.
func names(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// reach makes a folder, which is no link, the one that was reached.
func (w *walk) reach(in int, name, path string) error {
	fd, err := unix.Openat(in, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if w.at >= 0 {
		_ = unix.Close(w.at)
	}
	const others, sticky = 0o022, unix.S_ISVTX
	w.at, w.path = fd, path
	w.safe = w.safe && ours(st.Uid)
	w.mine = ours(st.Uid) && (st.Mode&others == 0 || st.Mode&sticky != 0)
	return nil
}

// ours says whether something of a user's is root's or this process's own.
func ours(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// step goes one name further.
func (w *walk) step() error {
	name := w.rest[0]
	path := filepath.Join(w.path, name)
	var st unix.Stat_t
	err := unix.Fstatat(w.at, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		err = w.make(name)
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return w.follow(name, path, &st)
	}
	if err != nil {
		return &os.PathError{Op: "look for", Path: path, Err: err}
	}
	w.rest = w.rest[1:]
	w.safe = w.safe && w.mine
	return w.reach(w.at, name, path)
}

// make makes a folder that others can only pass through, whatever the umask.
func (w *walk) make(name string) error {
	if err := unix.Mkdirat(w.at, name, 0o711); err != nil {
		return err
	}
	fd, err := unix.Openat(w.at, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fchmod(fd, 0o711)
}

// follow goes on where a link leads.
func (w *walk) follow(name, path string, st *unix.Stat_t) error {
	if !w.mine || !ours(st.Uid) {
		return fmt.Errorf("%s is a link, and %s can be changed by others: %w", path, w.path, ErrPlanted)
	}
	if w.left--; w.left < 0 {
		return &os.PathError{Op: "follow", Path: path, Err: unix.ELOOP}
	}
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(w.at, name, target)
	if err != nil {
		return &os.PathError{Op: "readlink", Path: path, Err: err}
	}
	to := string(target[:n])
	w.rest = append(names(to), w.rest[1:]...)
	if filepath.IsAbs(to) {
		return w.reach(unix.AT_FDCWD, "/", "/")
	}
	return nil
}

// throughDescriptor is a path that leads to what a descriptor stands for, and to nothing else.
func throughDescriptor(fd uintptr) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

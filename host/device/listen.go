package device

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"causeway/vhostuser"
)

// Owner may open a socket besides root.
type Owner struct{ UID, GID int }

// ErrOwner says that a system has no such user or group.
var ErrOwner = errors.New("no such owner")

// ParseOwner reads USER or USER:GROUP, names or numbers. Without a group it is the user's own.
func ParseOwner(s string) (Owner, error) {
	name, group, hasGroup := strings.Cut(s, ":")
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			if uid, err := strconv.ParseUint(name, 10, 31); err == nil && hasGroup {
				u = &user.User{Uid: strconv.FormatUint(uid, 10)}
			} else {
				return Owner{}, fmt.Errorf("%w: user %q", ErrOwner, name)
			}
		}
	}
	gid := u.Gid
	if hasGroup {
		g, err := user.LookupGroup(group)
		if err != nil {
			if _, err := strconv.ParseUint(group, 10, 31); err != nil {
				return Owner{}, fmt.Errorf("%w: group %q", ErrOwner, group)
			}
			g = &user.Group{Gid: group}
		}
		gid = g.Gid
	}
	o := Owner{}
	if o.UID, err = strconv.Atoi(u.Uid); err == nil {
		o.GID, err = strconv.Atoi(gid)
	}
	if err != nil {
		return Owner{}, fmt.Errorf("%w: %q: %w", ErrOwner, s, err)
	}
	return o, nil
}

// mostPath is how long the path of a Unix socket may be.
const mostPath = 107

// Listen opens a listening socket, in a folder that is made if need be and that others can only
// pass through. A socket that nobody serves any more is replaced; of two that do this at once one
// fails. mode is the socket's; o, if not nil, its owner. The socket goes with the listener. Links
// in folders that another user may change are refused: whoever planted one would choose where root
// makes a socket, and what it gives away.
func Listen(path string, mode os.FileMode, o *Owner) (*net.UnixListener, error) {
	return listenAs(path, mode, o, vhostuser.Listen)
}

// listenAs is Listen by a function that makes the socket.
func listenAs(path string, mode os.FileMode, o *Owner, make func(path string) (*net.UnixListener, error)) (*net.UnixListener, error) {
	if len(path) > mostPath {
		return nil, fmt.Errorf("socket %s: its path has %d bytes, more than the %d that Linux allows", path, len(path), mostPath)
	}
	dir, name := filepath.Split(path)
	d, safe, err := openFolder(dir)
	if err != nil {
		return nil, fmt.Errorf("folder of the socket: %w", err)
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		_ = d.Close()
		return nil, fmt.Errorf("lock the socket's folder: %w", err)
	}
	if !safe {
		// Only the descriptor still means this folder by the time that the kernel looks for it. The
		// name that /proc/net/unix then shows is this one; where nobody can change the way it is
		// the path, which causewayd and doctor look for.
		path = filepath.Join(throughDescriptor(d.Fd()), name)
	}
	ln, err := make(path)
	if err != nil {
		_ = d.Close()
		return nil, err
	}
	ln.SetUnlinkOnClose(true)
	if err := give(d, name, mode, o); err != nil {
		_ = ln.Close()
		_ = d.Close()
		return nil, fmt.Errorf("owner of the socket: %w", err)
	}
	if safe {
		return ln, d.Close() // unlocks
	}
	err = unix.Flock(int(d.Fd()), unix.LOCK_UN)
	// Close of the listener finds the socket through it
	runtime.AddCleanup(ln, func(d *os.File) { _ = d.Close() }, d)
	return ln, err
}

// give sets the mode and the owner of the socket that was just made in a folder, and of nothing
// that took its place.
func give(d *os.File, name string, mode os.FileMode, o *Owner) error {
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || st.Nlink != 1 || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s was replaced: %w", name, ErrPlanted)
	}
	if err := os.Chmod(throughDescriptor(uintptr(fd)), mode); err != nil {
		return err
	}
	if o == nil {
		return nil
	}
	return unix.Fchownat(fd, "", o.UID, o.GID, unix.AT_EMPTY_PATH)
}

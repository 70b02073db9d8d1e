package device

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
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

// Listen opens a listening socket, in a folder that is made if need be and that others can only pass through. A socket that
// nobody serves any more is replaced; of two that do this at once one fails. mode is the socket's; o, if not nil, its owner.
// The socket goes with the listener.
func Listen(path string, mode os.FileMode, o *Owner) (*net.UnixListener, error) {
	if len(path) > mostPath {
		return nil, fmt.Errorf("socket %s: its path has %d bytes, more than the %d that Linux allows", path, len(path), mostPath)
	}
	dir := filepath.Dir(path)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(dir, 0o711); err == nil {
			err = os.Chmod(dir, 0o711) // whatever the umask
		}
		if err != nil {
			return nil, fmt.Errorf("folder of the socket: %w", err)
		}
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("folder of the socket: %w", err)
	}
	defer d.Close() // unlocks
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock the socket's folder: %w", err)
	}
	ln, err := vhostuser.Listen(path)
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(true)
	err = os.Chmod(path, mode)
	if err == nil && o != nil {
		err = os.Chown(path, o.UID, o.GID)
	}
	if err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("owner of the socket: %w", err)
	}
	return ln, nil
}

package process

import (
	"bufio"
	"errors"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Listening reports whether somebody takes connections at a Unix socket's path. It looks at
// /proc/net/unix first, since a connection to a vhost-user socket would be taken for a VM's.
func Listening(path string) bool {
	if _, err := os.Lstat(path); err != nil {
		return false
	}
	if listed(path) {
		return true
	}
	// A server in another network namespace is not listed.
	c, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT)
	}
	_ = c.Close()
	return true
}

// listed looks for a listening socket in /proc/net/unix: the flags have __SO_ACCEPTCON
// (include/uapi/linux/net.h).
func listed(path string) bool {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return false
	}
	defer f.Close()
	const acceptCon, flags, name = "00010000", 3, 7
	for s := bufio.NewScanner(f); s.Scan(); {
		w := strings.SplitN(s.Text(), " ", name+1)
		if len(w) > name && w[flags] == acceptCon && strings.TrimSpace(w[name]) == path {
			return true
		}
	}
	return false
}

package sys

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Peer asks the kernel who is at the other end of a connection: the process and user that made it,
// as they were then (SO_PEERCRED of unix(7)).
func Peer(c *net.UnixConn) (unix.Ucred, error) {
	var cred *unix.Ucred
	err := ask(c, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err != nil {
		return unix.Ucred{}, err
	}
	return *cred, nil
}

// PeerGroups are the supplementary groups that process had then (SO_PEERGROUPS).
func PeerGroups(c *net.UnixConn) (list []uint32, err error) {
	err = ask(c, func(fd int) (err error) {
		list, err = peerGroups(fd)
		return err
	})
	return list, err
}

// ask has the descriptor of a connection asked.
func ask(c *net.UnixConn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	var failed error
	if err == nil {
		err = raw.Control(func(fd uintptr) { failed = f(int(fd)) })
	}
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("who is at the other end of the socket: %w", err)
	}
	return nil
}

// Trusted says why somebody is neither root nor the user of this process; nil: they are.
func Trusted(who unix.Ucred) error {
	if own := os.Geteuid(); who.Uid != 0 && int(who.Uid) != own {
		return fmt.Errorf("user %d, process %d: only root and user %d may", who.Uid, who.Pid, own)
	}
	return nil
}

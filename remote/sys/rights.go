package sys

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// MaxRights is how many descriptors one packet can carry: SCM_MAX_FD of Linux.
const MaxRights = 253

// ErrTruncated says that a packet, or the descriptors beside it, did not fit where it was received.
var ErrTruncated = errors.New("packet is too long")

// Rights returns the descriptors in control messages (SCM_RIGHTS of unix(7)). They are the
// caller's, and close-on-exec if they were received so, as package net does.
func Rights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("control message: %w", err)
	}
	var files []int
	for i := range msgs {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			CloseAll(files)
			return nil, fmt.Errorf("descriptors: %w", err)
		}
		files = append(files, fds...)
	}
	return files, nil
}

// RightsRoom is the room that n descriptors take in control messages, in bytes.
func RightsRoom(n int) int { return unix.CmsgSpace(4 * n) }

// CloseAll closes descriptors that were received or duplicated: there is nothing that closing them
// could fail to write.
func CloseAll(files []int) {
	for _, fd := range files {
		_ = unix.Close(fd)
	}
}

// SendPacket sends b and duplicates of files as one packet of a SOCK_SEQPACKET connection.
func SendPacket(c *net.UnixConn, b []byte, files []int) error {
	var oob []byte
	if len(files) > 0 {
		oob = unix.UnixRights(files...)
	}
	_, _, err := c.WriteMsgUnix(b, oob, nil)
	return err
}

// ReceivePacket reads a packet into buf, and its control messages into oob. The descriptors are the
// caller's. io.EOF: the other side is gone, whether or not it had read everything.
func ReceivePacket(c *net.UnixConn, buf, oob []byte) ([]byte, []int, error) {
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		if errors.Is(err, unix.ECONNRESET) {
			err = io.EOF
		}
		return nil, nil, err
	}
	files, err := Rights(oob[:oobn])
	switch {
	case err != nil:
		return nil, nil, err
	case n == 0 && len(files) == 0:
		return nil, nil, io.EOF
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		CloseAll(files)
		return nil, nil, ErrTruncated
	}
	return buf[:n:n], files, nil
}

// UnixConn is the connection of a descriptor, which it takes over also when it fails.
func UnixConn(fd int, name string) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s is not a unix socket", name), c.Close())
	}
	return uc, nil
}

// PacketPair is a connection of packets: an end for this process, and a file for another to
// inherit.
func PacketPair(name string) (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, os.NewSyscallError("socketpair", err))
	}
	theirs = os.NewFile(uintptr(fds[1]), name)
	if ours, err = UnixConn(fds[0], name); err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return ours, theirs, nil
}

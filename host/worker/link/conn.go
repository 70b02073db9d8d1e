package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

// Conn is one end of a link: it sends Out and receives In.
type Conn[Out, In Message] struct {
	uc       *net.UnixConn
	out      table[Out]
	in       table[In]
	mu       sync.Mutex // orders writers
	buf, oob []byte     // the reader's
}

// The two ends.
type (
	ParentEnd = Conn[ToWorker, ToParent]
	WorkerEnd = Conn[ToParent, ToWorker]
)

// Pair makes a link: one end for this process, and a file for the child to inherit.
func Pair() (*ParentEnd, *os.File, error) {
	uc, file, err := sys.PacketPair("link")
	if err != nil {
		return nil, nil, err
	}
	return &ParentEnd{uc: uc, out: toWorker, in: toParent}, file, nil
}

// NewWorkerEnd takes over a worker's descriptor of its link.
func NewWorkerEnd(fd int) (*WorkerEnd, error) {
	uc, err := sys.UnixConn(fd, "link")
	if err != nil {
		return nil, err
	}
	return &WorkerEnd{uc: uc, out: toParent, in: toWorker}, nil
}

// Send sends m. Its descriptors stay open.
func (c *Conn[Out, In]) Send(m Out) error {
	b, files, err := encode(c.out, m)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := sys.SendPacket(c.uc, b, files); err != nil {
		return fmt.Errorf("link: %w", err)
	}
	return nil
}

// Receive returns the next message; io.EOF when the other side is gone, ErrMessage for a packet
// that is none for this end.
func (c *Conn[Out, In]) Receive() (Received[In], error) {
	if c.buf == nil {
		c.buf, c.oob = make([]byte, maxPacket+1), make([]byte, sys.RightsRoom(sys.MaxRights))
	}
	b, files, err := sys.ReceivePacket(c.uc, c.buf, c.oob)
	switch {
	case errors.Is(err, io.EOF):
		return Received[In]{}, io.EOF
	case err != nil:
		return Received[In]{}, fmt.Errorf("link: %w", err)
	}
	return decode(c.in, b, files)
}

// Gone reports whether the other side is, while whoever receives does something else: what it said
// last may wait to be received.
func (c *Conn[Out, In]) Gone() bool {
	raw, err := c.uc.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		at := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(at, 0)
		gone = err == nil && n > 0 && at[0].Revents&(unix.POLLRDHUP|unix.POLLHUP) != 0
	})
	return gone || err != nil
}

// Close ends the link.
func (c *Conn[Out, In]) Close() error { return c.uc.Close() }

// File returns a duplicate of the descriptor.
func (c *Conn[Out, In]) File() (*os.File, error) { return c.uc.File() }

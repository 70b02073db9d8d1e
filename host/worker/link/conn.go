package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

// ErrDeaf says that the other side does not read what it is sent. Nothing more is.
var ErrDeaf = errors.New("the other side of the link does not read")

// hearing is how long a worker may read nothing of what waits for it. Sockets keep some 200 KB, so
// one that is busy for longer is not noticed, unless it is told much.
const hearing = 10 * time.Second

// Conn is one end of a link: it sends Out and receives In.
type Conn[Out, In Message] struct {
	uc       *net.UnixConn
	out      table[Out]
	in       table[In]
	hearing  time.Duration // bounds Send; 0: a parent is waited for
	mu       sync.Mutex    // orders writers, and guards deaf
	deaf     bool
	buf, oob []byte // the reader's
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
	return &ParentEnd{uc: uc, out: toWorker, in: toParent, hearing: hearing}, file, nil
}

// NewWorkerEnd takes over a worker's descriptor of its link.
func NewWorkerEnd(fd int) (*WorkerEnd, error) {
	uc, err := sys.UnixConn(fd, "link")
	if err != nil {
		return nil, err
	}
	return &WorkerEnd{uc: uc, out: toParent, in: toWorker}, nil
}

// Send sends m. Its descriptors stay open. A parent waits for a while only, then it is ErrDeaf.
func (c *Conn[Out, In]) Send(m Out) error {
	b, files, err := encode(c.out, m)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deaf {
		return ErrDeaf
	}
	if c.hearing > 0 {
		_ = c.uc.SetWriteDeadline(time.Now().Add(c.hearing))
	}
	if err := sys.SendPacket(c.uc, b, files); err != nil {
		if c.deaf = errors.Is(err, os.ErrDeadlineExceeded); c.deaf {
			return ErrDeaf
		}
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

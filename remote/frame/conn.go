package frame

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Stream is what frames go over: a connection, or what outlives several (package resume).
type Stream interface {
	io.ReadWriteCloser
	SetReadDeadline(t time.Time) error
}

// Filler is a Stream that has room for what it sends: frames' bytes need not be anywhere else
// before.
type Filler interface {
	// Fill writes a frame, whose payload fill puts there piece by piece, from its beginning on,
	// while other frames wait. If fill fails the frame is not sent.
	Fill(h Header, fill func(p []byte, at int) error) error
}

// Away is the Backlog of a branch that has no connection: what it is given waits for the next one.
const Away = ^uint64(0)

// Branch is one more stream of a session, beside its first, for what is much.
type Branch interface {
	Stream
	Filler
	// Backlog is how many bytes of it wait to be sent, or are being sent; Away while it has no
	// connection.
	Backlog() uint64
	// Ready waits until it has a connection. An error says that it has ended, or that the context
	// has.
	Ready(ctx context.Context) error
}

// Awaker is a Branch that says whether who reads it sleeps in the kernel (remote.Awake), and so who
// answers by it should.
type Awaker interface{ Awake() bool }

// Awake is Awaker's of a branch; one that does not say is not.
func Awake(b Branch) bool {
	a, ok := b.(Awaker)
	return ok && a.Awake()
}

// Branching is a session's first stream, which can have branches. They end with it.
type Branching interface {
	Stream
	// Branch begins n, at the client's end. With an error there are fewer.
	Branch(n int) ([]Branch, error)
	// TakeBranches lets the client begin up to most, at the server's end. begun hears of each,
	// once, on a goroutine of its own.
	TakeBranches(most int, begun func(n int, b Branch))
}

// How much of each direction a Buffered connection gathers, in bytes: a chunk of a copy with what
// TLS adds leaves as one.
const (
	bufferedIn  = 128 << 10
	bufferedOut = 160 << 10
)

// Buffered is a connection below TLS: what TLS writes as a record each, while Cork holds, leaves
// with one system call, and what came is read with one.
type Buffered struct {
	net.Conn
	in   *bufio.Reader
	from io.Reader   // the reader's; nil: the connection, where it sleeps until something is there
	eof  atomic.Bool // the connection has ended

	mu     sync.Mutex
	corked bool
	out    []byte
}

// NewBuffered takes over a connection.
func NewBuffered(c net.Conn) *Buffered {
	b := &Buffered{Conn: c}
	b.in = bufio.NewReaderSize(incoming{b}, bufferedIn)
	return b
}

// incoming is what comes over the connection itself.
type incoming struct{ *Buffered }

func (i incoming) Read(p []byte) (int, error) {
	if i.from != nil {
		return i.from.Read(p)
	}
	return i.Conn.Read(p)
}

// Read implements net.Conn.
func (b *Buffered) Read(p []byte) (int, error) {
	n, err := b.in.Read(p)
	if errors.Is(err, io.EOF) {
		b.eof.Store(true)
	}
	return n, err
}

// Write implements net.Conn. While Cork holds, bytes are kept until there are many, or Flush.
func (b *Buffered) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.corked {
		return b.Conn.Write(p)
	}
	b.out = append(b.out, p...)
	if len(b.out) < bufferedOut {
		return len(p), nil
	}
	return len(p), b.flushLocked()
}

// Cork has bytes kept until Flush.
func (b *Buffered) Cork() {
	b.mu.Lock()
	b.corked = true
	b.mu.Unlock()
}

// Flush sends what is kept, and ends Cork.
func (b *Buffered) Flush() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.corked = false
	return b.flushLocked()
}

func (b *Buffered) flushLocked() error {
	if len(b.out) == 0 {
		return nil
	}
	_, err := b.Conn.Write(b.out)
	b.out = b.out[:0]
	return err
}

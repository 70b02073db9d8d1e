package tcp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/shm"
	"causeway/remote/sys"
)

// Carrier implements remote.Carrier.
type Carrier struct {
	conn   frame.Stream
	in     *bufio.Reader
	mirror []byte // region 0
	ring   *ring
	bell   *shm.Bell
	mem    *memory
	tail   uint64 // of the ring; the receiver's

	writeMu sync.Mutex
	out     *bufio.Writer
	scratch []byte
	wide    wide
	moves   moves

	errMu sync.Mutex
	err   error
	done  chan struct{}
	wg    sync.WaitGroup
}

var _ remote.Carrier = (*Carrier)(nil)

// helloLimit bounds the handshake of a connection that says nothing.
const helloLimit = 10 * time.Second

// Accept receives the guest's HELLO on a connection, which it takes over. The caller answers by
// Welcome.
func Accept(conn frame.Stream) (*Carrier, error) {
	c, err := newCarrier(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	_ = conn.SetReadDeadline(time.Now().Add(helloLimit))
	if err := c.hello(); err != nil {
		_ = c.Welcome(uint32(unix.EPROTO), err.Error())
		return nil, errors.Join(fmt.Errorf("handshake: %w", err), conn.Close(), c.release())
	}
	_ = conn.SetReadDeadline(time.Time{})
	c.wg.Go(c.routineReceive)
	return c, nil
}

func newCarrier(conn frame.Stream) (*Carrier, error) {
	mirror, err := unix.Mmap(-1, 0, int(remote.Region0Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("mirror of region 0: %w", err)
	}
	c := &Carrier{
		conn: conn, mirror: mirror, done: make(chan struct{}),
		in: bufio.NewReaderSize(conn, 64<<10), out: bufio.NewWriterSize(conn, 64<<10),
	}
	c.mem = newMemory(c)
	c.moves.init()
	err = c.ringAt(0)
	if err == nil {
		c.bell, err = selfBell()
	}
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(mirror))
	}
	return c, nil
}

// ringAt has the ring begin at a position.
func (c *Carrier) ringAt(head uint64) error {
	inner, err := shm.NewRing(c.mirror, head)
	if err != nil {
		return err
	}
	inner.Publish(head)
	c.ring, c.tail = &ring{Ring: inner, c: c, told: head}, head
	c.ring.head.Store(head)
	c.ring.tail.Store(head)
	return nil
}

// selfBell is a doorbell that only Ring rings: slots are woken by the guest's own net thread.
func selfBell() (*shm.Bell, error) {
	fd, err := sys.NewEvent()
	if err != nil {
		return nil, err
	}
	return shm.NewBell(fd, func(uint32) {})
}

func (c *Carrier) hello() error {
	h, err := frame.ReadHeader(c.in)
	if err != nil {
		return err
	}
	if !begins(h.Kind) || h.Len < remote.HelloSize || h.Len > remote.HelloSize+remote.MaxText {
		return remote.Violation("frame %d of %d bytes is no hello", h.Kind, h.Len)
	}
	m, err := c.readHello(h)
	switch {
	case err != nil:
		return err
	case m.Version != remote.ProtocolVersion:
		return remote.Violation("guest library speaks protocol version %d, this host %d: use the library that came with it", m.Version, remote.ProtocolVersion)
	case m.Type != remote.MsgHello || m.Region != 0 || m.Size != remote.Region0Size:
		return remote.Violation("hello for region %d of %#x bytes", m.Region, m.Size)
	}
	switch h.Kind {
	case frame.Arrive:
		err = c.arrives(h.Arg)
	case frame.Ahead, frame.Rehearse:
		err = c.comesAhead(h)
	}
	if err != nil {
		return err
	}
	return c.mem.declare(0, remote.Declared{VA: m.Va, Size: m.Size})
}

// begins reports whether a frame of a kind may be a connection's first.
func begins(k frame.Kind) bool {
	return k == frame.Hello || k == frame.Arrive || k == frame.Ahead || k == frame.Rehearse
}

func (c *Carrier) readHello(h frame.Header) (remote.Hello, error) {
	b := make([]byte, h.Len)
	if _, err := io.ReadFull(c.in, b); err != nil {
		return remote.Hello{}, err
	}
	m, _, err := remote.ParseHello(b)
	return m, err
}

// routineReceive follows the connection to its end.
func (c *Carrier) routineReceive() {
	c.failed(c.receive())
	_ = c.conn.Close() // whoever sends fails now
	c.mem.fail(remote.ErrClosed)
	c.moves.end()
	close(c.done)
}

// failed notes why the session ends, the first time.
func (c *Carrier) failed(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) {
		return
	}
	c.errMu.Lock()
	defer c.errMu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

func (c *Carrier) receive() error {
	for {
		h, err := frame.ReadHeader(c.in)
		if err != nil {
			return err
		}
		if err := c.frame(h); err != nil {
			return err
		}
	}
}

// frame follows one frame of the guest.
func (c *Carrier) frame(h frame.Header) error {
	switch h.Kind {
	case frame.Ring:
		return c.ringFrame(h)
	case frame.Data:
		return c.mem.data(h, c.in, trunk)
	case frame.Region:
		if h.Len != remote.HelloSize {
			return remote.Violation("REGION frame of %d bytes", h.Len)
		}
		m, err := c.readHello(h)
		if err != nil {
			return err
		}
		if m.Type != remote.MsgRegion || m.Region == 0 || uint64(m.Region) != h.Arg {
			return remote.Violation("REGION frame for region %d with message %d", m.Region, m.Type)
		}
		return c.mem.declare(m.Region, remote.Declared{VA: m.Va, Size: m.Size})
	case frame.RegionEnd:
		if h.Len != 0 || h.Arg == 0 {
			return remote.Violation("REGION_END frame of %d bytes for region %d", h.Len, h.Arg)
		}
		return c.mem.end(h.Arg)
	case frame.Grant:
		return c.grantFrame(h, c.in)
	case frame.Recall:
		return c.recallFrame(h)
	case frame.Leave:
		return c.leaveFrame(h)
	case frame.Arrive:
		return c.arriveFrame(h)
	case frame.Ahead, frame.Rehearse:
		return c.aheadFrame(h)
	case frame.More:
		return c.moreFrame(h)
	case frame.Stay:
		return c.stayFrame(h)
	case frame.State:
		return c.stateFrame(h)
	}
	return remote.Violation("frame of type %d", h.Kind)
}

// ringFrame appends records to the mirror.
func (c *Carrier) ringFrame(h frame.Header) error {
	if c.moves.still() {
		return remote.Violation("RING frame of a session that stands still")
	}
	free := remote.RingSize - (c.tail - c.ring.Consumed())
	if h.Arg != c.tail || h.Len == 0 || h.Len%8 != 0 || uint64(h.Len) > free {
		return remote.Violation("RING frame of %d bytes at %d, where %d bytes fit at %d", h.Len, h.Arg, free, c.tail)
	}
	bytes := c.mirror[remote.RingOffset : remote.RingOffset+remote.RingSize]
	for n := uint64(h.Len); n > 0; {
		pos := c.tail % remote.RingSize
		part := bytes[pos:min(pos+n, remote.RingSize)]
		if _, err := io.ReadFull(c.in, part); err != nil {
			return err
		}
		c.tail += uint64(len(part))
		n -= uint64(len(part))
	}
	if c.ring.publish(c.tail) {
		c.bell.Ring()
	}
	return nil
}

// send writes one frame whose payload is a then b, and flushes.
func (c *Carrier) send(h frame.Header, a, b []byte) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if err := c.putLocked(h, a, b); err != nil {
		return err
	}
	return c.out.Flush()
}

// flush sends what was put.
func (c *Carrier) flush() error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	return c.out.Flush()
}

// put is send of a frame that nobody looks for before another comes behind it.
func (c *Carrier) put(h frame.Header, a, b []byte) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	return c.putLocked(h, a, b)
}

func (c *Carrier) putLocked(h frame.Header, a, b []byte) error {
	h.Len = uint32(len(a) + len(b))
	c.scratch = h.Append(c.wide.behind(c.scratch[:0], h.Kind))
	_, err := c.out.Write(c.scratch)
	if err == nil {
		_, err = c.out.Write(a)
	}
	if err == nil {
		_, err = c.out.Write(b)
	}
	return err
}

// Ring implements remote.Carrier.
func (c *Carrier) Ring() remote.Ring { return c.ring }

// Memory implements remote.Carrier.
func (c *Carrier) Memory() remote.GuestMemory { return c.mem }

// Doorbell implements remote.Carrier.
func (c *Carrier) Doorbell() remote.Doorbell { return c.bell }

// Welcome implements remote.Carrier.
func (c *Carrier) Welcome(status uint32, text string) error {
	return c.send(frame.Header{Kind: frame.Welcome}, remote.FormatHello(remote.Hello{Type: remote.MsgWelcome, Status: status, Flags: frame.Rounds | frame.Rehearses, Size: uint64(c.wide.most)}, text), nil)
}

// Done implements remote.Carrier.
func (c *Carrier) Done() <-chan struct{} { return c.done }

// Err implements remote.Carrier.
func (c *Carrier) Err() error {
	c.errMu.Lock()
	defer c.errMu.Unlock()
	return c.err
}

// Close implements remote.Carrier.
func (c *Carrier) Close() error {
	err := c.conn.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // the receiver was first
	}
	c.wide.close()
	if a := c.moves.arrival; a != nil {
		_ = a.CloseWithError(remote.ErrClosed) // the receiver waits for nobody
	}
	c.wg.Wait()
	return errors.Join(err, c.release())
}

func (c *Carrier) release() error {
	return errors.Join(c.bell.Close(), unix.Munmap(c.mirror))
}

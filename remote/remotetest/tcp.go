package remotetest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"causeway/remote"
)

// tcpCarrier implements Carrier by the frames of guest/libcuda/session/tcp_frames.h: the guest end
// of remote/tcp, written from that description alone.
type tcpCarrier struct {
	conn net.Conn
	in   *bufio.Reader
	mem  []byte // region 0
	gone chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex // sending, and regions
	pushed  uint64
	regions map[uint32][]byte
}

// Frame types.
const (
	tcpHello, tcpWelcome, tcpRegion, tcpRegionEnd = 1, 2, 3, 4
	tcpRing, tcpHead, tcpSlot, tcpWord            = 5, 6, 7, 8
	tcpControl, tcpRead, tcpData, tcpWrite        = 9, 10, 11, 12
)

// Frame is an encoded frame.
func Frame(kind, flags uint16, arg uint64, payload []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint16(b, kind)
	b = binary.LittleEndian.AppendUint16(b, flags)
	b = binary.LittleEndian.AppendUint64(b, arg)
	return append(b, payload...)
}

// ConnectTCP shakes hands on a connection to a worker, which it takes over.
func ConnectTCP(conn net.Conn) (*Guest, error) {
	c := &tcpCarrier{conn: conn, in: bufio.NewReader(conn), mem: make([]byte, remote.Region0Size+4096),
		gone: make(chan struct{}), regions: map[uint32][]byte{}}
	off := -Address(c.mem) & 4095
	c.mem = c.mem[off:][:remote.Region0Size]
	Prepare(c.mem)
	g := New(c.mem, c)
	// So that each publication comes to Ring.
	g.Word32(remote.ControlPageWorkerStateOffset).Store(remote.WorkerSleeping)
	h := remote.Hello{Type: remote.MsgHello, Va: Address(c.mem), Size: remote.Region0Size, Pid: uint32(os.Getpid())}
	if _, err := conn.Write(Frame(tcpHello, 0, 0, remote.FormatHello(h, ""))); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	_ = conn.SetReadDeadline(time.Now().Add(Limit))
	kind, _, payload, err := c.frame()
	if err == nil && kind != tcpWelcome {
		err = fmt.Errorf("frame %d is no welcome", kind)
	}
	if err == nil {
		var text string
		if h, text, err = remote.ParseHello(payload); err == nil && h.Status != 0 {
			err = fmt.Errorf("%w: %s", ErrRefused, text)
		}
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	_ = conn.SetReadDeadline(time.Time{})
	c.wg.Go(func() {
		var err error
		for err == nil {
			err = c.serve(g)
		}
		close(c.gone)
		g.WakeAll()
	})
	return g, nil
}

func (c *tcpCarrier) frame() (kind uint16, arg uint64, payload []byte, err error) {
	var h [16]byte
	if _, err := io.ReadFull(c.in, h[:]); err != nil {
		return 0, 0, nil, err
	}
	payload = make([]byte, binary.LittleEndian.Uint32(h[:]))
	_, err = io.ReadFull(c.in, payload)
	return binary.LittleEndian.Uint16(h[4:]), binary.LittleEndian.Uint64(h[8:]), payload, err
}

// serve follows one frame of the host.
func (c *tcpCarrier) serve(g *Guest) error {
	kind, arg, p, err := c.frame()
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	switch kind {
	case tcpHead:
		g.freed(arg)
	case tcpWord:
		g.Word32(uintptr(remote.WordsOffset) + uintptr(uint32(arg))*4).Store(uint32(arg >> 32))
	case tcpControl:
		if uint32(arg) != remote.ControlPageWorkerStateOffset {
			g.Word32(uintptr(uint32(arg))).Store(uint32(arg >> 32))
		}
	case tcpSlot:
		if arg >= uint64(remote.SlotCount) {
			return fmt.Errorf("reply in slot %d", arg)
		}
		c.mu.Lock()
		g.answer(uint32(arg), le.Uint32(p), le.Uint32(p[4:]), le.Uint32(p[12:]), p[16:])
		c.mu.Unlock()
	case tcpRead, tcpWrite:
		c.mu.Lock()
		defer c.mu.Unlock()
		mem, off, size := c.regions[le.Uint32(p)], le.Uint64(p[8:]), le.Uint64(p[16:])
		if le.Uint32(p) == 0 && kind == tcpRead {
			mem = c.mem
		}
		switch {
		case off > uint64(len(mem)) || size > uint64(len(mem))-off:
			_, err = c.conn.Write(Frame(tcpData, 1, arg, nil))
		case kind == tcpWrite:
			copy(mem[off:], p[24:])
		default:
			for size > 0 && err == nil {
				n := min(size, 100_000)
				_, err = c.conn.Write(Frame(tcpData, 0, arg, mem[off:off+n]))
				off, size = off+n, size-n
			}
		}
	default:
		return fmt.Errorf("frame of type %d", kind)
	}
	return err
}

// Ring implements Carrier: it pushes what was published.
func (c *tcpCarrier) Ring() {
	c.mu.Lock()
	defer c.mu.Unlock()
	tail := binary.LittleEndian.Uint64(c.mem[remote.ControlPageTailOffset:])
	tail = min(tail, c.pushed+remote.RingSize+8) // of a test that breaks the rules
	var b []byte
	for pos := c.pushed; pos < tail; {
		at := pos % remote.RingSize
		n := min(tail-pos, remote.RingSize-at)
		b = append(b, c.mem[remote.RingOffset+at:][:n]...)
		pos += n
	}
	_, _ = c.conn.Write(Frame(tcpRing, 0, c.pushed, b))
	c.pushed = tail
}

// Sleep implements Carrier.
func (c *tcpCarrier) Sleep(_ uint32, word *atomic.Uint32) { futexWait(word) }

// Gone implements Carrier.
func (c *tcpCarrier) Gone() <-chan struct{} { return c.gone }

// AddRegion implements Carrier.
func (c *tcpCarrier) AddRegion(id uint32, size int) ([]byte, uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mem := make([]byte, size)
	c.regions[id] = mem
	h := remote.Hello{Type: remote.MsgRegion, Region: id, Va: Address(mem), Size: uint64(size)}
	_, err := c.conn.Write(Frame(tcpRegion, 0, uint64(id), remote.FormatHello(h, "")))
	return mem, Address(mem), err
}

// EndRegion implements Carrier.
func (c *tcpCarrier) EndRegion(id uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.regions, id)
	_, err := c.conn.Write(Frame(tcpRegionEnd, 0, uint64(id), nil))
	return err
}

// Close implements Carrier.
func (c *tcpCarrier) Close() error {
	err := c.conn.Close()
	c.wg.Wait()
	return err
}

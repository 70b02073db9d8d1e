package workertest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/remote"
)

// Limit bounds every wait.
const Limit = 10 * time.Second

// Errors of a guest.
var (
	ErrGone    = errors.New("host ended the session")
	ErrSilent  = errors.New("no reply in time")
	ErrRefused = errors.New("host refused the session")
)

// Guest is the guest end of one session over a unix socket.
type Guest struct {
	Mem  []byte // region 0
	conn *net.UnixConn
	bell int
	gone chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex // ring
	tail    uint64
	seq     [remote.SlotCount]uint32
	enc     wire.Encoder
	buf     []byte
	blob    uint32
	region  uint32
	regions map[uint32][]byte

	// Ctx and Thread go into every record.
	Ctx, Thread uint32
}

// Dial connects to a session socket and shakes hands.
func Dial(path string) (*Guest, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return Connect(c)
}

// Pair returns both ends of a session socket: the guest's, and the host's.
func Pair() (guest, host *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	conns := [2]*net.UnixConn{}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			return nil, nil, err
		}
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1], nil
}

// Connect shakes hands on a connection, which it takes over.
func Connect(conn *net.UnixConn) (*Guest, error) {
	g := &Guest{conn: conn, gone: make(chan struct{}), regions: map[uint32][]byte{}, Thread: 1}
	g.enc.Blob = g.sendBlob
	if err := g.hello(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	g.wg.Go(func() {
		defer close(g.gone)
		var b [1]byte
		_, _ = conn.Read(b[:]) // the host sends nothing more: this is the end
	})
	return g, nil
}

func (g *Guest) hello() error {
	fd, mem, err := memfd(int(remote.Region0Size))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	g.Mem = mem
	g.initControl()
	if g.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	h := remote.Hello{Type: remote.MsgHello, Va: g.address(mem), Size: remote.Region0Size, Pid: uint32(os.Getpid())}
	if _, _, err := g.conn.WriteMsgUnix(remote.FormatHello(h, ""), unix.UnixRights(fd, g.bell), nil); err != nil {
		return err
	}
	_ = g.conn.SetReadDeadline(time.Now().Add(Limit))
	b := make([]byte, 4096)
	n, err := g.conn.Read(b)
	if err != nil {
		return fmt.Errorf("welcome: %w", err)
	}
	_ = g.conn.SetReadDeadline(time.Time{})
	h, text, err := remote.ParseHello(b[:n])
	if err != nil {
		return err
	}
	if h.Type != remote.MsgWelcome || h.Status != 0 {
		return fmt.Errorf("%w: %s (%w)", ErrRefused, text, unix.Errno(h.Status))
	}
	return nil
}

func memfd(size int) (int, []byte, error) {
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, err
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return -1, nil, errors.Join(err, unix.Close(fd))
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return -1, nil, errors.Join(err, unix.Close(fd))
	}
	return fd, mem, nil
}

// Init is the first call of a session.
func (g *Guest) Init() (*wire.SessionInitReply, error) {
	var r wire.SessionInitReply
	a := &wire.SessionInitArgs{Version: remote.ProtocolVersion, Pid: uint32(os.Getpid()), Exe: []byte("test")}
	if res, err := g.Call(0, a, &r); err != nil || res != cuda.Success {
		return nil, fmt.Errorf("SessionInit: %v, %w", res, err)
	}
	return &r, nil
}

// Send appends an asynchronous request.
func (g *Guest) Send(a wire.Args) error {
	rec, err := g.encode(a, wire.Header{Ctx: g.Ctx, Thread: g.Thread})
	if err != nil {
		return err
	}
	return g.Append(rec)
}

// Call makes a request in a slot and waits for its reply, which it decodes into r unless that is nil.
func (g *Guest) Call(slot uint32, a wire.Args, r wire.Reply) (cuda.Result, error) {
	seq, err := g.Begin(slot, a)
	if err != nil {
		return 0, err
	}
	return g.Finish(slot, seq, r)
}

// Begin makes a request in a slot.
func (g *Guest) Begin(slot uint32, a wire.Args) (seq uint32, err error) {
	g.mu.Lock()
	g.seq[slot]++
	seq = g.seq[slot]
	g.mu.Unlock()
	rec, err := g.encode(a, wire.Header{Flags: remote.RecordReply, Slot: slot, Seq: seq, Ctx: g.Ctx, Thread: g.Thread})
	if err != nil {
		return 0, err
	}
	return seq, g.Append(rec)
}

func (g *Guest) encode(a wire.Args, h wire.Header) ([]byte, error) {
	return g.enc.Record(nil, h, a)
}

// Finish waits for the reply to Begin.
func (g *Guest) Finish(slot, seq uint32, r wire.Reply) (cuda.Result, error) {
	if err := g.await(slot, seq); err != nil {
		return 0, err
	}
	res, payload, total := g.reply(slot)
	for uint32(len(payload)) < total {
		a := &wire.ReplyMoreArgs{Offset: uint32(len(payload))}
		seq, err := g.Begin(slot, a)
		if err != nil {
			return 0, err
		}
		if err := g.await(slot, seq); err != nil {
			return 0, err
		}
		moreRes, part, _ := g.reply(slot)
		var more wire.ReplyMoreReply
		if err := wire.DecodeReply(part, &more); err != nil || moreRes != cuda.Success || len(more.Part) == 0 {
			return 0, fmt.Errorf("rest of a reply: %v, %w", moreRes, err)
		}
		payload = append(payload, more.Part...)
	}
	if r == nil || res != cuda.Success {
		return res, nil
	}
	return res, wire.DecodeReply(payload, r)
}

// Append puts a record into the ring as it is, and rings the doorbell if the worker sleeps. The record's size must be a
// multiple of 8.
func (g *Guest) Append(rec []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	size := uint64(len(rec))
	if size > remote.RingSize {
		return fmt.Errorf("record of %d bytes", size)
	}
	pad := uint64(0)
	if left := remote.RingSize - g.tail%remote.RingSize; left < size {
		pad = left
	}
	if err := g.awaitSpace(pad + size); err != nil {
		return err
	}
	if pad > 0 {
		g.putSkip(pad)
		g.tail += pad
	}
	copy(g.Mem[remote.RingOffset+g.tail%remote.RingSize:], rec)
	g.Publish(g.tail + size)
	return nil
}

// sendBlob sends bytes ahead.
func (g *Guest) sendBlob(p []byte) (uint32, error) {
	g.blob++
	id, total := g.blob, uint64(len(p))
	for len(p) > 0 {
		part := p[:min(len(p), 60<<10)]
		p = p[len(part):]
		rec, err := wire.AppendRecord(nil, wire.Header{Thread: g.Thread}, &wire.BlobAppendArgs{Blob: id, Total: total, Part: part})
		if err != nil {
			return 0, err
		}
		if err := g.Append(rec); err != nil {
			return 0, err
		}
	}
	return id, nil
}

// AddRegion declares and adds a region.
func (g *Guest) AddRegion(slot, kind uint32, size int) (id uint32, mem []byte, res cuda.Result, err error) {
	fd, mem, err := memfd(size)
	if err != nil {
		return 0, nil, 0, err
	}
	defer unix.Close(fd)
	g.region++
	id = g.region
	g.regions[id] = mem
	h := remote.Hello{Type: remote.MsgRegion, Region: id, Va: g.address(mem), Size: uint64(size)}
	if _, _, err := g.conn.WriteMsgUnix(remote.FormatHello(h, ""), unix.UnixRights(fd), nil); err != nil {
		return 0, nil, 0, err
	}
	var r wire.RegionAddReply
	res, err = g.Call(slot, &wire.RegionAddArgs{Region: id, Kind: kind, Va: g.address(mem), Size: uint64(size)}, &r)
	return id, mem, res, err
}

// DropRegion undoes AddRegion.
func (g *Guest) DropRegion(slot, id uint32) (cuda.Result, error) {
	res, err := g.Call(slot, &wire.RegionDropArgs{Region: id}, nil)
	if err != nil || res != cuda.Success {
		return res, err
	}
	_, err = g.conn.Write(remote.FormatHello(remote.Hello{Type: remote.MsgRegionEnd, Region: id}, ""))
	mem := g.regions[id]
	delete(g.regions, id)
	return res, errors.Join(err, unix.Munmap(mem))
}

// Gone is closed when the host ended the session.
func (g *Guest) Gone() <-chan struct{} { return g.gone }

// Close ends the session.
func (g *Guest) Close() error {
	_ = g.conn.CloseRead()
	err := g.conn.Close()
	g.wg.Wait()
	for _, m := range g.regions {
		err = errors.Join(err, unix.Munmap(m))
	}
	return errors.Join(err, unix.Close(g.bell), unix.Munmap(g.Mem))
}

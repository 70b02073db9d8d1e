package remotetest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/sys"
)

// DialUnix connects to a session socket and shakes hands.
func DialUnix(path string) (*Guest, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return ConnectUnix(c, 0)
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

// PairFile is Pair with the host's end as a file, as a worker is handed it.
func PairFile() (guest *net.UnixConn, host *os.File, err error) {
	guest, conn, err := Pair()
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	if host, err = conn.File(); err != nil {
		_ = guest.Close()
		return nil, nil, err
	}
	return guest, host, nil
}

// ConnectUnix shakes hands on a connection, which it takes over. env is what the guest says of its
// environment (remote.Env...).
func ConnectUnix(conn *net.UnixConn, env uint32) (*Guest, error) {
	c := &unixCarrier{conn: conn, gone: make(chan struct{}), regions: map[uint32][]byte{}}
	if err := c.hello(env); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	g := New(c.regions[0], c)
	c.wg.Go(func() {
		var b [1]byte
		_, _ = conn.Read(b[:]) // the host sends nothing more: this is the end
		close(c.gone)
		g.WakeAll()
	})
	return g, nil
}

// unixCarrier implements Carrier over a SOCK_SEQPACKET connection.
type unixCarrier struct {
	conn    *net.UnixConn
	bell    int
	gone    chan struct{}
	wg      sync.WaitGroup
	regions map[uint32][]byte
}

func (g *unixCarrier) hello(env uint32) error {
	fd, mem, err := Memfd(int(remote.Region0Size))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	g.regions[0] = mem
	Prepare(mem)
	if g.bell, err = sys.NewEvent(); err != nil {
		return err
	}
	h := remote.Hello{Type: remote.MsgHello, Va: Address(mem), Size: remote.Region0Size, Pid: uint32(os.Getpid()), Flags: env}
	if _, _, err := g.conn.WriteMsgUnix(remote.FormatHello(h, ""), unix.UnixRights(fd, g.bell), nil); err != nil && !errors.Is(err, unix.EPIPE) {
		return err
	}
	_ = g.conn.SetReadDeadline(time.Now().Add(Limit))
	b := make([]byte, 4096)
	n, err := g.conn.Read(b)
	if errors.Is(err, unix.ECONNRESET) { // refused without having been heard
		n, err = g.conn.Read(b)
	}
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

// Memfd makes memory that other processes can map.
func Memfd(size int) (int, []byte, error) {
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

// Ring implements Carrier.
func (g *unixCarrier) Ring() {
	sys.Signal(g.bell)
}

// Sleep implements Carrier.
func (g *unixCarrier) Sleep(_ uint32, word *atomic.Uint32) { futexWait(word) }

// Gone implements Carrier.
func (g *unixCarrier) Gone() <-chan struct{} { return g.gone }

// AddRegion implements Carrier.
func (g *unixCarrier) AddRegion(id uint32, size int) ([]byte, uint64, error) {
	fd, mem, err := Memfd(size)
	if err != nil {
		return nil, 0, err
	}
	defer unix.Close(fd)
	g.regions[id] = mem
	h := remote.Hello{Type: remote.MsgRegion, Region: id, Va: Address(mem), Size: uint64(size)}
	_, _, err = g.conn.WriteMsgUnix(remote.FormatHello(h, ""), unix.UnixRights(fd), nil)
	return mem, Address(mem), err
}

// EndRegion implements Carrier.
func (g *unixCarrier) EndRegion(id uint32) error {
	_, err := g.conn.Write(remote.FormatHello(remote.Hello{Type: remote.MsgRegionEnd, Region: id}, ""))
	mem := g.regions[id]
	delete(g.regions, id)
	return errors.Join(err, unix.Munmap(mem))
}

// Close implements Carrier.
func (g *unixCarrier) Close() error {
	_ = g.conn.CloseRead()
	err := g.conn.Close()
	g.wg.Wait()
	for _, m := range g.regions {
		err = errors.Join(err, unix.Munmap(m))
	}
	return errors.Join(err, unix.Close(g.bell))
}

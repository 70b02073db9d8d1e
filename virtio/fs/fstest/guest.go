// Package fstest is a guest with a virtio-fs mount, for tests of control files: a front end, guest
// memory, queues and a FUSE client that speaks as the Linux kernel does. Everything runs in this
// process, over a real unix socket.
package fstest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
	"causeway/virtio/virtiotest"
)

// Options of Boot. Zero values take the defaults.
type Options struct {
	Memory    uint64 // guest RAM, default 64 MiB
	Queues    int    // request queues, default 1; the device needs as many
	QueueSize int    // default 1024
	Logger    *slog.Logger
}

// Guest is a booted guest.
type Guest struct {
	Mem   *vhosttest.Memory
	Front *vhosttest.Frontend
	Init  fuse.InitOut // the device's answer

	opts   Options
	queues []*queue
	unique uint64
	mu     sync.Mutex // guards unique
	server *server
	direct *direct // nil: requests travel by queues and eventfds
}

// server is the device's side, if Boot started it.
type server struct {
	cancel context.CancelFunc
	done   chan error
}

// ErrBadReply says that the device broke the protocol (what Linux answers with EIO and an abort of
// the mount).
var ErrBadReply = errors.New("malformed FUSE reply")

// Boot serves dev, which was built on mem, on a socket in dir, and boots a guest on it.
func Boot(dir string, mem *vhostuser.Memory, dev vhostuser.Device, o Options) (*Guest, error) {
	ln, err := vhostuser.Listen(filepath.Join(dir, "vhost.sock"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	srv := vhostuser.NewServer(mem, dev, vhostuser.Options{Logger: o.Logger})
	s := &server{cancel, make(chan error, 1)}
	go func(ln *net.UnixListener) { s.done <- srv.Serve(ctx, ln) }(ln)
	g, err := Connect(ln.Addr().String(), o)
	if err != nil {
		cancel()
		<-s.done
		return nil, err
	}
	g.server = s
	return g, nil
}

// Connect boots a guest on the device at a socket, and mounts.
func Connect(socket string, o Options) (*Guest, error) {
	if o.Memory == 0 {
		o.Memory = 64 << 20
	}
	if o.Queues == 0 {
		o.Queues = 1
	}
	if o.QueueSize == 0 {
		o.QueueSize = 1024
	}
	mem, err := vhosttest.NewMemory(0x4000_0000, o.Memory)
	if err != nil {
		return nil, err
	}
	f, err := vhosttest.Dial(socket)
	if err != nil {
		mem.Close()
		return nil, err
	}
	g := &Guest{Mem: mem, Front: f, opts: o}
	if err := g.start(); err != nil {
		f.Close()
		mem.Close()
		return nil, err
	}
	return g, nil
}

func (g *Guest) start() error {
	if err := errors.Join(g.Front.Handshake(), g.Front.AddMemory(g.Mem)); err != nil {
		return err
	}
	for i := 0; i <= g.opts.Queues; i++ {
		g.queues = append(g.queues, &queue{index: i, drv: virtiotest.NewDriver(g.Mem, g.opts.QueueSize,
			virtiotest.Options{Indirect: true, EventIdx: true}), waiting: map[uint16]*Call{}})
	}
	if err := g.StartRings(); err != nil {
		return err
	}
	return g.Mount()
}

// StartRings starts all rings, at boot or after StopRings.
func (g *Guest) StartRings() error {
	for i, q := range g.queues {
		if q.ring == nil {
			q.ring = q.drv.Ring()
		}
		if err := g.Front.StartRing(g.Mem, i, q.ring, q.base); err != nil {
			return err
		}
		q.stop, q.done = make(chan struct{}), make(chan struct{})
		go q.routineCompletions()
	}
	return nil
}

// StopRings stops all rings as QEMU does on suspend, migration and power-off. Pending requests
// complete meanwhile.
func (g *Guest) StopRings() error {
	for i, q := range g.queues {
		base, err := g.Front.StopRing(i)
		if err != nil {
			return err
		}
		q.halt()
		q.base = base
	}
	return nil
}

// Mount sends INIT.
func (g *Guest) Mount() error {
	in := fuse.InitIn{Major: 7, Minor: 41, MaxReadAhead: 1 << 17, Flags: ^uint32(0)}
	p, errno, err := g.Do(opInit, 0, structBytes(&in)[40:], 64)
	if err != nil || errno != 0 {
		return errors.Join(err, fmt.Errorf("INIT: %w", errno))
	}
	if len(p) != len(structBytes(&g.Init)) {
		return fmt.Errorf("INIT reply has %d bytes: %w", len(p), ErrBadReply)
	}
	copy(structBytes(&g.Init), p)
	return nil
}

// Kill disconnects as a killed QEMU does, and ends a server that Boot started. It returns the
// server's error.
func (g *Guest) Kill() error {
	g.Front.Sock.Close()
	for _, q := range g.queues {
		q.halt()
	}
	g.Front.Close()
	var err error
	if g.server != nil {
		g.server.cancel()
		err = <-g.server.done
	}
	g.Mem.Close()
	return err
}

// Unmount sends DESTROY.
func (g *Guest) Unmount() error {
	_, errno, err := g.Do(opDestroy, 0, nil, 0)
	if errno != 0 {
		err = errors.Join(err, errno)
	}
	return err
}

// Do sends a request on the first request queue and waits for the answer's payload, of at most room
// bytes.
func (g *Guest) Do(op uint32, nodeID uint64, body []byte, room int) ([]byte, syscall.Errno, error) {
	c, err := g.Submit(Request{Op: op, Node: nodeID, Body: body, Room: room})
	if err != nil {
		return nil, 0, err
	}
	return c.Wait(time.Minute)
}

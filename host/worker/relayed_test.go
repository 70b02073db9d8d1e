package worker_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/soft/softtest"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/host/worker/workertest"
	"causeway/remote"
	"causeway/remote/mtls"
)

// gpuServer starts workers for connections of a lease, as a server's causewayd and device process
// do.
type gpuServer struct {
	ln      *net.TCPListener
	lease   remote.LeaseID
	keys    mtls.Pinned
	workers chan *spawn.Process
	done    chan struct{} // no more workers are started
	memory  atomic.Uint64 // limit of a session's, 0: none
	stays   atomic.Bool   // its sessions may not go to another server, nor come from one
	ready   atomic.Bool   // the last one that began may have a worker that waited
	soft    atomic.Bool   // they have the software GPU, whose memory can be read while they run
	differs atomic.Bool   // they have one on which memory of one size comes out elsewhere
}

// softGPU is what workers are told.
const softGPU = "soft"

// newServer has a lease, and the configuration of workers that pass on to it.
func newServer(t testing.TB) (*gpuServer, link.Config) {
	t.Helper()
	server, client, err := mtls.NewPinnedPair()
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &gpuServer{ln: ln.(*net.TCPListener), lease: remote.NewLeaseID(), keys: server, workers: make(chan *spawn.Process, 8), done: make(chan struct{})}
	go s.routineAccept(t)
	t.Cleanup(func() { _ = ln.Close(); <-s.done })
	cfg := unixConfig
	cfg.GPU = "none here"
	cfg.Relay = &link.Relay{Server: "gpu1", Addresses: []string{"127.0.0.1:1", ln.Addr().String()}, Lease: s.lease, Identity: client}
	return s, cfg
}

// newSoftServer is newServer of one that has the software GPU.
func newSoftServer(t testing.TB) (*gpuServer, link.Config) {
	t.Helper()
	s, cfg := newServer(t)
	s.soft.Store(true)
	return s, cfg
}

func (s *gpuServer) routineAccept(t testing.TB) {
	defer close(s.done)
	sessions := map[remote.SessionID]*spawn.Process{}
	for {
		c, err := s.ln.AcceptTCP()
		if err != nil {
			return
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		p, err := remote.ReadPreface(c)
		if err != nil || p.Lease != s.lease {
			t.Errorf("preface %+v, %v", p, err)
		}
		f, err := c.File()
		if err != nil {
			t.Error(err)
			return
		}
		if p.Again {
			if w := sessions[p.Session]; w == nil || w.Send(link.Reconnected{Connection: link.FileOf(int(f.Fd()))}) != nil {
				_, _ = io.WriteString(c, remote.Gone)
			}
			_, _ = f.Close(), c.Close()
			continue
		}
		cfg := s.config()
		cfg.Carrier, cfg.TLS, cfg.MemoryLimit = link.CarrierTCP, &s.keys, s.memory.Load()
		cfg.Migratable = !s.stays.Load()
		s.ready.Store(p.Ready)
		w, err := s.worker(cfg, p.Ready, int(f.Fd()))
		_, _ = f.Close(), c.Close()
		if err != nil {
			t.Error(err)
			return
		}
		sessions[p.Session] = w
		s.workers <- w
	}
}

func (s *gpuServer) config() link.Config {
	cfg := unixConfig
	if s.soft.Load() {
		cfg.GPU = softGPU
	}
	if s.differs.Load() {
		cfg.GPU = softtest.DifferentGPU
	}
	return cfg
}

// worker is one for a session: one that got ready before, if that will do.
func (s *gpuServer) worker(cfg link.Config, ready bool, conn int) (*spawn.Process, error) {
	if !ready {
		return spawner().Start(cfg, nil, conn)
	}
	w, err := spawner().Warm(s.config())
	if err == nil {
		cfg.Spare = true
		err = w.Configure(cfg, nil, conn)
	}
	return w, err
}

// ended awaits a worker's end, which may be an error.
func ended(t testing.TB, p *spawn.Process) error {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		p.Kill()
		t.Fatal("worker process goes on")
	}
	err := p.Err()
	_ = p.Close()
	return err
}

// endsWell ends a program, and with it its processes, without an error.
func endsWell(t testing.TB, g *workertest.Guest, processes ...*spawn.Process) {
	t.Helper()
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	for _, p := range processes {
		if err := ended(t, p); err != nil {
			t.Error(err)
		}
	}
}

// program begins one with a relay, and waits for the worker that it has on the server.
func (s *gpuServer) program(t testing.TB, cfg link.Config) (p *spawn.Process, g *workertest.Guest, w *spawn.Process) {
	t.Helper()
	p, g, err := startProcess(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case w = <-s.workers:
	case <-time.After(time.Minute):
		t.Fatal("the server starts no worker")
	}
	if _, err := g.Init(); err != nil {
		t.Fatal(err)
	}
	return p, g, w
}

// TestRelayProcess: a program's calls, copies and output go through a process without a GPU to one
// with, on a lease's keys; both end with the program.
func TestRelayProcess(t *testing.T) {
	s, cfg := newServer(t)
	p, g, w := s.program(t, cfg)
	call(t, g, cuda.Success, &wire.PrimaryCtxRetainArgs{Ctx: 16}, nil)
	g.Ctx = 16
	var m wire.MemAllocReply
	call(t, g, cuda.Success, &wire.MemAllocArgs{Size: 8 << 20}, &m)
	region, mem, res, err := g.AddRegion(0, wire.RegionStaging, 8<<20)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	for i := range mem[:4<<20] {
		mem[i] = byte(i * 7 >> 3)
	}
	for _, a := range []wire.Args{
		&wire.MemcpyStagedArgs{Region: region, Size: 4 << 20, Device: m.Ptr, Word: 5, Value: 7},
		&wire.MemcpyStagedArgs{Direction: 1, Region: region, Offset: 4 << 20, Size: 4 << 20, Device: m.Ptr, Word: 6, Value: 8},
		&wire.LaunchArgs{Func: 9, Params: []byte("said there")},
	} {
		if err := g.Send(a); err != nil {
			t.Fatal(err)
		}
	}
	call(t, g, cuda.Success, &wire.CtxSynchronizeArgs{}, nil)
	if g.Word(5) != 7 || g.Word(6) != 8 || !bytes.Equal(mem[:4<<20], mem[4<<20:]) {
		t.Errorf("words %d and %d, or other bytes", g.Word(5), g.Word(6))
	}
	var text wire.ConsoleReadReply
	call(t, g, cuda.Success, &wire.ConsoleReadArgs{}, &text)
	if string(text.Text) != "said there" {
		t.Errorf("console holds %q", text.Text)
	}
	// Nothing else can be had of it: no place to move to, and no driver.
	if probed, err := p.Probe(t.Context(), link.Probe{}); err != nil || probed.Errno != unix.EOPNOTSUPP || !strings.Contains(probed.Text, "GPU server") {
		t.Errorf("%+v, %v", probed, err)
	}
	endsWell(t, g, p, w)
}

// TestRelayProcessReset: a program goes on when what lies between its relay and the server resets
// its connection, time and again.
func TestRelayProcessReset(t *testing.T) {
	s, cfg := newServer(t)
	between, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	passed := make(chan *net.TCPConn, 64)
	go func() {
		for {
			near, err := between.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", s.ln.Addr().String())
			if err != nil {
				_ = near.Close()
				continue
			}
			go func() { _, _ = io.Copy(near, far); _ = near.Close() }()
			go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
			passed <- near.(*net.TCPConn)
		}
	}()
	defer between.Close()
	cfg.Relay.Addresses = []string{between.Addr().String()}
	p, g, w := s.program(t, cfg)
	call(t, g, cuda.Success, &wire.PrimaryCtxRetainArgs{Ctx: 16}, nil)
	g.Ctx = 16
	for range 5 {
		c := <-passed // there is another for each that is reset
		_ = c.SetLinger(0)
		_ = c.Close()
		for range 10 {
			call(t, g, cuda.Success, &wire.CtxSynchronizeArgs{}, nil)
		}
	}
	endsWell(t, g, p, w)
}

// TestRelayProcessResetEarly: a program begins although its first connections are reset before it
// has: when they are made, in the first words of TLS, and where it shows its certificate. What had
// begun of them at the server ends.
func TestRelayProcessResetEarly(t *testing.T) {
	const resets = 2
	for _, after := range []int64{0, 60, 700, 1800} { // bytes from the program's relay
		s, cfg := newServer(t)
		between, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var pass sync.WaitGroup
		pass.Go(func() {
			for n := 0; ; n++ {
				near, err := between.Accept()
				if err != nil {
					return
				}
				if n < resets {
					pass.Go(func() { cutAfter(near.(*net.TCPConn), s.ln.Addr().String(), after) })
					continue
				}
				far, err := net.Dial("tcp", s.ln.Addr().String())
				if err != nil {
					_ = near.Close()
					continue
				}
				pass.Go(func() { _, _ = io.Copy(near, far); _ = near.Close() })
				pass.Go(func() { _, _ = io.Copy(far, near); _ = far.Close() })
			}
		})
		cfg.Relay.Addresses = []string{between.Addr().String()}
		p, g, err := startProcess(t, cfg)
		if err != nil {
			t.Fatal(after, err)
		}
		if _, err := g.Init(); err != nil {
			t.Fatal(after, err)
		}
		if err := errors.Join(g.Close(), ended(t, p), between.Close()); err != nil {
			t.Error(after, err)
		}
		pass.Wait()
		_ = s.ln.Close()
		<-s.done
		close(s.workers)
		var whole int
		for w := range s.workers {
			if ended(t, w) == nil {
				whole++
			}
		}
		if whole != 1 {
			t.Errorf("%d bytes: %d sessions ended well, want the one", after, whole)
		}
	}
}

// cutAfter passes so many bytes on to an address, and what comes back, and resets both connections.
func cutAfter(near *net.TCPConn, to string, after int64) {
	defer near.Close()
	_ = near.SetLinger(0)
	if after == 0 {
		return
	}
	c, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	far := c.(*net.TCPConn)
	defer far.Close()
	_ = far.SetLinger(0)
	go func() { _, _ = io.Copy(near, far); _ = near.Close() }() // what ends there has ended
	_, _ = io.CopyN(far, near, after)
}

// TestRelayProcessLost: a program whose server's worker, or whose relay, is killed notices, and
// nothing is left at either end.
func TestRelayProcessLost(t *testing.T) {
	for _, first := range []string{"server", "relay"} {
		s, cfg := newServer(t)
		p, g, w := s.program(t, cfg)
		victim := w
		if first == "relay" {
			victim = p
		}
		if err := unix.Kill(victim.PID(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {
		case <-g.Gone():
		case <-time.After(time.Minute):
			t.Fatal("the program does not notice")
		}
		if first == "server" && g.State() != remote.WorkerDead {
			t.Errorf("the program sees state %d", g.State())
		}
		_, _ = ended(t, p), ended(t, w)
		_ = g.Close()
	}
}

// TestRelayProcessRefused: a program hears why its GPU server does not take it, by name.
func TestRelayProcessRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*link.Config)
		says   string
	}{
		"nobody there": {func(c *link.Config) { c.Relay.Addresses = []string{"127.0.0.1:1", "127.0.0.2:1"} }, "gpu server 127.0.0.1:1: connection refused\ngpu server 127.0.0.2:1: connection refused"},
		"no address":   {func(c *link.Config) { c.Relay.Addresses = nil }, "no address of the GPU server is known"},
		"another key": {func(c *link.Config) {
			other, err := mtls.NewPinned()
			if err != nil {
				t.Fatal(err)
			}
			other.Peer = c.Relay.Identity.Peer
			c.Relay.Identity = other
		}, "gpu server gpu1: "},
		"another server": {func(c *link.Config) { c.Relay.Identity.Peer[0] ^= 1 }, "gpu server gpu1: TLS: "},
		"no key":         {func(c *link.Config) { c.Relay.Identity.Key = nil }, "no usable certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			s, cfg := newServer(t)
			c.change(&cfg)
			p, _, err := startProcess(t, cfg)
			if !errors.Is(err, workertest.ErrRefused) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the program hears %v, not %q", err, c.says)
			}
			if err := ended(t, p); err == nil {
				t.Error("the relay says nothing of it")
			}
			_ = s.ln.Close()
			<-s.done
			close(s.workers)
			for w := range s.workers {
				_ = ended(t, w)
			}
		})
	}
}

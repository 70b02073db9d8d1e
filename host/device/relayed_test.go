package device_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/remote"
	"causeway/remote/mtls"
	"causeway/vhostuser"
	"causeway/virtio/fs/fstest"
)

// relayServer is a GPU server for devices of a test: it starts a worker for each session of the
// lease.
type relayServer struct {
	relay   *link.Relay // for who has the lease
	ln      net.Listener
	keys    mtls.Pinned
	mu      sync.Mutex
	workers map[remote.SessionID]*spawn.Process
	files   []*os.File // its connections, for cut
	again   int        // connections over which sessions went on
	over    chan struct{}
	gpu     string // of its workers
	rdma    string
	moves   bool // its sessions go to other servers, and come from them
	base    uint64
}

func newRelayServer(t *testing.T) *relayServer {
	t.Helper()
	server, client, err := mtls.NewPinnedPair()
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &relayServer{
		relay: &link.Relay{Server: "gpu1", Addresses: []string{ln.Addr().String()}, Lease: remote.NewLeaseID(), Identity: client},
		ln:    ln, keys: server, workers: map[remote.SessionID]*spawn.Process{}, over: make(chan struct{}), gpu: "test",
	}
	go func() {
		defer close(s.over)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if err := s.take(c.(*net.TCPConn)); err != nil {
				t.Error(err)
			}
		}
	}()
	return s
}

// endsFirst has the server end before the devices that are there already, which look for processes
// that are left.
func (s *relayServer) endsFirst(t *testing.T) {
	t.Cleanup(func() {
		_ = s.ln.Close()
		await(t, "the server does not end", s.over)
		for _, f := range s.files {
			_ = f.Close()
		}
		for _, w := range s.workers {
			w.Stop(5 * time.Second) // it has ended with its program
		}
	})
}

// take gives a connection to its session's worker.
func (s *relayServer) take(c *net.TCPConn) error {
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	p, err := remote.ReadPreface(c)
	if err != nil || p.Lease != s.relay.Lease {
		return fmt.Errorf("preface %+v, %w", p, err)
	}
	f, err := c.File()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files = append(s.files, f)
	if !p.Again {
		s.workers[p.Session], err = s.serve(c, p.Session)
		return err
	}
	s.again++
	w := s.workers[p.Session]
	if w == nil || w.Send(link.Reconnected{Connection: link.FileOf(int(f.Fd()))}) != nil {
		_, _ = io.WriteString(c, remote.Gone)
	}
	return nil
}

// connections are those over which sessions went on.
func (s *relayServer) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.again
}

// relayBranches are how many connections for copies a session has once it copies.
const relayBranches = 2

// options are a device's whose GPU is the server's: its workers pass on, over lent memory of the
// VM.
func (s *relayServer) options(o *device.Options) {
	relay := *s.relay
	o.Worker.GPU, o.Worker.Relay, o.Worker.Branches = "none here", &relay, relayBranches
}

// bootRelayed is boot of a device whose GPU is a server's.
func bootRelayed(t *testing.T) *vm {
	t.Helper()
	s := newRelayServer(t)
	v := bootWith(t, func(o *device.Options) { s.options(o); lapses(o) })
	s.endsFirst(t)
	return v
}

// serve starts a worker with a GPU for a connection. It ends with the connection.
func (s *relayServer) serve(c *net.TCPConn, id remote.SessionID) (*spawn.Process, error) {
	f, err := c.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w := &spawn.Spawner{Command: []string{"/proc/self/exe"}, Env: append(os.Environ(), workerEnv+"=1", promptly)}
	return w.Start(link.Config{Carrier: link.CarrierTCP, GPU: s.gpu, TLS: &s.keys, Session: id, Branches: relayBranches, RDMA: s.rdma, Migratable: s.moves, Base: s.base}, nil, int(f.Fd()))
}

// TestRelayed: a VM's program on a server's GPU copies and calls by memory that it lends, is
// parked when it stops, goes on when it is continued, and ends; the VM's next program does the same
// on the same lease.
func TestRelayed(t *testing.T) {
	v := bootRelayed(t)
	p, g := start(t, v)
	if s := v.device.Status().Sessions; len(s) != 1 || s[0].Carrier != "TCP with TLS" {
		t.Errorf("what carries the session: %+v", s)
	}
	if n := v.device.Status().Host; n == 0 {
		t.Error("what is kept to be sent again is in no budget")
	}
	const size = 1 << 20
	var m wire.MemAllocReply
	must(t, g, &wire.MemAllocArgs{Size: size}, &m)
	id, mem, res, err := g.AddRegion(0, wire.RegionStaging, size)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	for i := range mem {
		mem[i] = byte(i >> 12) // a page of each value: the order of pages counts
	}
	want := bytes.Clone(mem)
	for direction := range uint32(2) {
		if err := g.Send(&wire.MemcpyStagedArgs{Direction: direction, Region: id, Size: size, Device: m.Ptr, Word: 1, Value: direction + 1}); err != nil {
			t.Fatal(err)
		}
		must(t, g, &wire.SessionFenceArgs{}, nil)
		if direction == 0 {
			clear(mem)
		}
	}
	if g.Word(1) != 2 || !bytes.Equal(mem, want) {
		t.Error("bytes changed on their way")
	}
	for range 2 {
		p.stop(true)
		eventually(t, "READs of a program that stopped are pending", func() bool { return p.pending() == 0 })
		// What is appended while parked waits.
		seq, err := g.Begin(0, &wire.MemcpyDtoHArgs{Src: m.Ptr + 8192, Size: 4})
		if err != nil {
			t.Fatal(err)
		}
		p.stop(false)
		var r wire.MemcpyDtoHReply
		if res, err := g.Finish(0, seq, &r); err != nil || res != cuda.Success || !bytes.Equal(r.Dst, want[8192:8196]) {
			t.Fatalf("%v, %v, %x", res, err, r.Dst)
		}
	}
	if res, err := g.DropRegion(0, id); err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	must(t, g, &wire.CtxSynchronizeArgs{}, nil)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	_, other := start(t, v) // the VM has another program on the same lease
	must(t, other, &wire.CtxSynchronizeArgs{}, nil)
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

// TestRelayedMoves: programs on a server's GPU go with their VM to another device and back, by
// reconnecting; calls that wait are answered there, copies that are under way go on, and the worker
// at the server stays. A VM that does not arrive goes on where it was.
func TestRelayedMoves(t *testing.T) {
	server := newRelayServer(t)
	v, other := bootWith(t, server.options), bootWith(t, server.options)
	server.endsFirst(t)
	if err := other.Kill(); err != nil {
		t.Fatal(err)
	}
	other.Guest = nil
	_, g := start(t, v)
	const size = 8 << 20
	var m wire.MemAllocReply
	must(t, g, &wire.MemAllocArgs{Size: size}, &m)
	id, mem, res, err := g.AddRegion(0, wire.RegionStaging, size)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	if err := v.StopRings(); err != nil {
		t.Fatal(err)
	}
	asked := make(chan error, 1)
	go func() {
		<-v.device.Departs()
		v.device.SetHandover(api.Handover{Why: "nobody awaits it"})
		asked <- nil
	}()
	if _, err := v.Save(); !errors.Is(err, fstest.ErrRefused) {
		t.Errorf("saved although no other host may take over the lease: %v", err)
	}
	await(t, "nobody hears that it leaves", asked)
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
	v.device.SetHandover(api.Handover{Host: "hostb"})
	other.device.SetHandover(api.Handover{Host: "hosta"})
	rnd := rand.New(rand.NewPCG(1, 2))
	word := uint32(0)
	eventually(t, "there are connections for copies", func() bool {
		must(t, g, &wire.SessionFenceArgs{}, nil)
		if err := g.Send(&wire.MemcpyStagedArgs{Region: id, Size: size, Device: m.Ptr, Word: 2, Value: 1}); err != nil {
			t.Fatal(err)
		}
		return server.connections() == relayBranches
	})
	for round, to := range []string{other.socket, v.socket, ""} {
		for i := range mem {
			mem[i] = byte(rnd.Uint32())
		}
		want := bytes.Clone(mem)
		word++
		if err := g.Send(&wire.MemcpyStagedArgs{Region: id, Size: size, Device: m.Ptr, Word: 1, Value: word}); err != nil {
			t.Fatal(err)
		}
		seq, err := g.Begin(0, &wire.MemcpyDtoHArgs{Src: m.Ptr + size - 8, Size: 8})
		if err != nil {
			t.Fatal(err)
		}
		before := server.connections()
		state := save(t, v)
		t.Logf("round %d: %d bytes", round, len(state))
		if to == "" {
			if err := v.StartRings(); err != nil {
				t.Fatal(err)
			}
		} else {
			arrive(t, v, to, state)
		}
		var r wire.MemcpyDtoHReply
		if res, err := g.Finish(0, seq, &r); err != nil || res != cuda.Success || !bytes.Equal(r.Dst, want[size-8:]) {
			t.Fatalf("round %d: a call that waited: %v, %v, %x", round, res, err, r.Dst)
		}
		clear(mem)
		word++
		if err := g.Send(&wire.MemcpyStagedArgs{Direction: 1, Region: id, Size: size, Device: m.Ptr, Word: 1, Value: word}); err != nil {
			t.Fatal(err)
		}
		must(t, g, &wire.SessionFenceArgs{}, nil)
		if g.Word(1) != word || !bytes.Equal(mem, want) {
			t.Fatalf("round %d: bytes changed on their way", round)
		}
		eventually(t, "all connections are made again", func() bool { return server.connections()-before == 1+relayBranches })
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if len(server.workers) != 1 {
		t.Errorf("%d workers at the server", len(server.workers))
	}
}

// TestHanding: when QEMU begins to send a VM the state of its programs waits until another host may
// take the lease over, or it is said why none may, which is what whoever waits for such hears, too.
func TestHanding(t *testing.T) {
	server := newRelayServer(t)
	v := bootWith(t, server.options)
	server.endsFirst(t)
	_, g := start(t, v)
	c := control(t, v, func() {})
	begins := func(f uint64) {
		t.Helper()
		if err := v.Front.SetFeatures(f); err != nil {
			t.Fatal(err)
		}
	}
	var departs api.Departs
	begins(vhostuser.Features)
	if err := c.Do(context(), http.MethodGet, "/v1/departs", nil, &departs); err != nil || !departs.Departs {
		t.Fatal(departs, err)
	}
	if st := v.device.Status(); !st.Runs || !st.Migrating || st.Heir != "" {
		t.Errorf("%+v", st)
	}
	answered := time.AfterFunc(200*time.Millisecond, func() {
		v.device.SetHandover(api.Handover{}) // one was asked in vain
		v.device.SetHandover(api.Handover{Host: "hostb"})
	})
	defer answered.Stop()
	began := time.Now()
	save(t, v)
	t.Logf("saved after %v", time.Since(began))
	if st := v.device.Status(); st.Runs || st.Heir != "hostb" {
		t.Errorf("%+v", st)
	}
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
	begins(vhostuser.Features &^ vhostuser.FeatureLogAll)
	begins(vhostuser.Features)
	// After the migration before, and this one has begun meanwhile.
	v.device.SetHandover(api.Handover{})
	if err := v.device.Handed(); !errors.Is(err, device.ErrHanding) {
		t.Errorf("%v, and it is not known yet", err)
	}
	v.device.SetHandover(api.Handover{Host: "hostb"})
	if err := v.device.Handed(); err != nil {
		t.Error(err)
	}
	begins(vhostuser.Features &^ vhostuser.FeatureLogAll)
	v.device.SetHandover(api.Handover{})
	if err := v.device.Handed(); err == nil || errors.Is(err, device.ErrHanding) {
		t.Errorf("%v, and no migration is under way", err)
	}
	must(t, g, &wire.CtxSynchronizeArgs{}, nil)

	begins(vhostuser.Features)
	v.device.SetHandover(api.Handover{Why: "hostb awaits no VM"})
	if s, err := c.Stays(context(), 0); err != nil || !strings.Contains(s.Why, "hostb awaits no VM") || !strings.Contains(s.Why, "gpu1") {
		t.Errorf("%+v, %v", s, err)
	}
	if err := v.StopRings(); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Save(); !errors.Is(err, fstest.ErrRefused) {
		t.Errorf("saved: %v", err)
	}
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
	must(t, g, &wire.CtxSynchronizeArgs{}, nil)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

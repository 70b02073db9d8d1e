package ibv_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/remotetest"
	"causeway/remote/remotetest/guestend"
	"causeway/remote/sys"
	"causeway/remote/verbs"
	"causeway/remote/verbs/ibv"
	"causeway/remote/verbs/verbstest"
)

// open opens this machine's RDMA devices. Only scripts/rdma.sh's guest has one that these tests may
// use; it says which.
func open(t *testing.T) *ibv.Devices {
	t.Helper()
	name := os.Getenv("RDMA_DEVICE")
	if name == "" {
		t.Skip("RDMA_DEVICE names no device: scripts/test.sh rdma runs this in a VM that has one")
	}
	ds, err := ibv.Open(name, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Busy, if anything is left of its queue pairs and memory. What a session's end has found
		// on its way, as a connection beside the session's own, has a moment to go.
		err := ds.Close()
		for end := time.Now().Add(remotetest.Limit); errors.Is(err, unix.EBUSY) && time.Now().Before(end); err = ds.Close() {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			t.Error(err)
		}
	})
	return ds
}

// address is one that the device's port has.
func address(t *testing.T) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(os.Getenv("RDMA_ADDRESS"))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// pair is both ends of a TCP connection between that address and itself.
func pair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	near, far, err := remotetest.PairTCPAt(address(t).String())
	if err != nil {
		t.Fatal(err)
	}
	return near, far
}

// TestConformance: what every carrier must do, over a real libibverbs.
func TestConformance(t *testing.T) {
	ds := open(t)
	remotetest.Conformance(t, func() (remotetest.Ends, error) {
		near, far := pair(t)
		a := ds.Adapters()[0]
		return remotetest.RelayedVerbs(near, far, a, a)
	})
}

// TestMoves: a session goes from host to host by real queue pairs and memory, and over TLS where a
// host has none.
func TestMoves(t *testing.T) {
	p := remotetest.Ports{Adapters: []verbs.Adapter{open(t).Adapters()[0]}, Pairs: 1}
	m, err := remotetest.NewMover(address(t).String(), p, p, p, remotetest.Ports{})
	if err != nil {
		t.Fatal(err)
	}
	remotetest.CheckMoves(t, m, 6, func() bool { return true })
}

// TestConformanceOfGuest: the guest library's own end does it, too, with libibverbs at both ends.
func TestConformanceOfGuest(t *testing.T) {
	const beside = "./guestend.so"
	ds := open(t)
	if _, err := os.Stat(beside); err != nil {
		t.Skip("scripts/verbs.sh --own has the library beside this program")
	}
	l, err := guestend.Load(beside)
	if err != nil {
		t.Fatal(err)
	}
	remotetest.Conformance(t, func() (remotetest.Ends, error) {
		return l.RDMA(ds.Adapters()[0], address(t).String(), "")
	})
}

// TestWrongKey: who writes by a key that means nothing is told so, and the other end's queue pair
// fails.
func TestWrongKey(t *testing.T) {
	a := open(t).Adapters()[0]
	near, far := pair(t)
	defer near.Close()
	p, c, err := verbstest.Against(near, far, a, a, address(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Write(64, p.Offer.Window.Key^0x5a5a00, 64); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Failed(); got != verbs.RemoteAccess || err != nil {
		t.Errorf("the end that writes: %v, %v", got, err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, verbs.Flushed) && !errors.Is(err, verbs.RemoteAccess) {
		// Adapters differ in what they tell it.
		t.Errorf("the other: %v", err)
	}
	if err := errors.Join(c.Close(), p.Close()); err != nil {
		t.Error(err)
	}
}

// TestHostileImmediate: bytes that cannot be are noticed over a real library, too.
func TestHostileImmediate(t *testing.T) {
	a := open(t).Adapters()[0]
	near, far := pair(t)
	defer near.Close()
	p, c, err := verbstest.Against(near, far, a, a, address(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Write(0, p.Offer.Window.Key, verbs.MostWindow+1); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, remote.ErrProtocol) {
		t.Error(err)
	}
	if err := errors.Join(c.Close(), p.Close()); err != nil {
		t.Error(err)
	}
}

// upgraded is one end of a connection that goes on over RDMA.
func upgraded(t *testing.T, c net.Conn, a verbs.Adapter, client bool) net.Conn {
	t.Helper()
	up, err := verbs.Upgrade(context.Background(), c, []verbs.Adapter{a}, "", client)
	if err != nil {
		t.Fatal(err)
	}
	return up
}

// echoes is set in the environment of a process that is TestProcesses's other end.
const echoes = "CAUSEWAY_RDMA_ECHO"

// TestEcho is that process: it sends back what comes on descriptor 3.
func TestEcho(t *testing.T) {
	if os.Getenv(echoes) == "" {
		t.Skip("it is the other end of TestProcesses, and nothing alone")
	}
	ds := open(t)
	base, err := net.FileConn(os.NewFile(3, "connection"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := base.Write([]byte{ready}); err != nil {
		t.Fatal(err)
	}
	c := upgraded(t, base, ds.Adapters()[0], false)
	if _, err := io.Copy(struct{ io.Writer }{c}, c); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// ready is what that process says when it runs: in an emulated guest that takes longer than two
// ends have to agree.
const ready = 'R'

// echo starts it, and waits until it runs.
func echo(t *testing.T) (net.Conn, *exec.Cmd) {
	t.Helper()
	near, far := pair(t)
	f, err := far.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	_ = far.Close()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestEcho$")
	cmd.Env, cmd.ExtraFiles, cmd.Stderr = append(os.Environ(), echoes+"=1"), []*os.File{f}, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	var said [1]byte
	if _, err := io.ReadFull(near, said[:]); err != nil || said[0] != ready {
		t.Fatalf("the other process says %q, %v", said, err)
	}
	return near, cmd
}

// TestProcesses: two processes, of which the other ends in order, or is killed.
func TestProcesses(t *testing.T) {
	ds := open(t)
	for _, kill := range []bool{false, true} {
		base, cmd := echo(t)
		c := upgraded(t, base, ds.Adapters()[0], true)
		t.Logf("over %v", c)
		sent := make([]byte, 3<<20)
		for i := range sent {
			sent[i] = byte(i * i >> 7)
		}
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write(sent)
			wrote <- err
		}()
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("other bytes came back, or %v", err)
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
		if kill {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(got); err == nil {
				t.Error("a process that is gone still sends")
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); (err != nil) != kill {
			t.Errorf("the other process: %v", err)
		}
	}
}

// reachable is both ends of a connection, and memory of the near one that the far one reaches: of a
// memory file, as a guest's is.
func reachable(t *testing.T, size int) (near, far *verbs.Conn, mem []byte, g frame.Granted, revoke func()) {
	t.Helper()
	a := open(t).Adapters()[0]
	nearBase, farBase := pair(t)
	other := make(chan net.Conn, 1)
	go func() { other <- upgraded(t, farBase, a, false) }()
	near = upgraded(t, nearBase, a, true).(*verbs.Conn)
	far = (<-other).(*verbs.Conn)
	fd, mem, err := sys.NewPage("reached", size, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	t.Cleanup(func() { sys.UnmapPage(mem) })
	g, revoke, err = near.Grant(mem)
	if err != nil {
		t.Fatal(err)
	}
	return near, far, mem, g, revoke
}

// closed closes both ends at once.
func closed(t *testing.T, near, far net.Conn) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- far.Close() }()
	if err := errors.Join(near.Close(), <-done); err != nil {
		t.Error(err)
	}
}

// TestReach: memory of the other end, by RDMA READ and WRITE, until it is taken back: then whoever
// uses it is told remote access error, and both ends fail.
func TestReach(t *testing.T) {
	const size = 1 << 20
	near, far, mem, g, revoke := reachable(t, size)
	p, got := make([]byte, size-3000), make([]byte, size-3000)
	for i := range p {
		p[i] = byte(i * i >> 9)
	}
	if err := errors.Join(far.Store(p, g, 2000), far.Fetch(got, g, 2000)); err != nil || !bytes.Equal(p, got) || !bytes.Equal(mem[2000:][:len(p)], p) {
		t.Errorf("other bytes, or %v", err)
	}
	if mem[1999] != 0 || mem[size-1000] != 0 {
		t.Error("bytes beside were written")
	}
	revoke()
	clear(mem)
	var err error
	for err == nil {
		err = far.Store(p, g, 0)
	}
	if !errors.Is(err, verbs.RemoteAccess) || !bytes.Equal(mem, make([]byte, size)) {
		t.Errorf("what was taken back: %v", err)
	}
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, verbs.ErrQueue) {
		t.Errorf("the end whose memory it was: %v", err)
	}
	closed(t, near, far)
}

// TestReachBeside: no byte beyond is read.
func TestReachBeside(t *testing.T) {
	near, far, _, g, revoke := reachable(t, 8192)
	g.Size++
	if err := far.Fetch(make([]byte, 2), g, 8191); !errors.Is(err, verbs.RemoteAccess) {
		t.Error(err)
	}
	revoke()
	closed(t, near, far)
}

// TestLinkDown: when nothing arrives any more the connection fails, and says that.
func TestLinkDown(t *testing.T) {
	a := open(t).Adapters()[0]
	near, far := pair(t)
	other := make(chan net.Conn, 1)
	go func() { other <- upgraded(t, far, a, false) }()
	c := upgraded(t, near, a, true)
	o := <-other
	const nic = "ve0" // images/rdma-up
	link := func(state string) {
		if out, err := exec.Command("/usr/bin/ip", "link", "set", nic, state).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	link("down")
	defer link("up")
	if _, err := c.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, verbs.ErrQueue) {
		t.Error(err)
	} else {
		t.Log(err)
	}
	if err := errors.Join(c.Close(), o.Close()); err != nil {
		t.Error(err)
	}
}

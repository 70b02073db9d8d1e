package device_test

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/remote"
	"causeway/virtio/fs/fstest"
)

// cut ends the connections that the server was given so far, in the middle.
func (s *relayServer) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.files {
		_ = unix.Shutdown(int(f.Fd()), unix.SHUT_RDWR)
	}
}

// kill ends its workers.
func (s *relayServer) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.workers {
		w.Kill()
	}
}

// departing is a VM with a program on a GPU server, and the device to which it is to move.
type departing struct {
	server      *relayServer
	here, there *vm // here's guest is the VM, wherever it is
}

func (d *departing) killRelay(t *testing.T, v *vm) {
	t.Helper()
	st := v.device.Status().Sessions
	if len(st) != 1 || unix.Kill(st[0].Worker, unix.SIGKILL) != nil {
		t.Errorf("no relay to kill: %+v", st)
	}
}

// TestRelayedFaults: whoever is killed or cut off while a VM with a program on a GPU server moves,
// at each step by name: the program goes on at one end, with what it has, or gets errors; the VM
// goes on, and its next program runs.
func TestRelayedFaults(t *testing.T) {
	const (
		here    = "here"
		there   = "there"
		nowhere = "there, with errors"
	)
	cut := func(_ *testing.T, d *departing) { d.server.cut() }
	for _, c := range []struct {
		name                    string
		running, saved, arrived func(*testing.T, *departing)
		state                   func([]byte) []byte
		want                    string
	}{
		{name: "the connection is cut before the VM stands", running: func(t *testing.T, d *departing) {
			d.server.cut()
			eventually(t, "there is no other connection", func() bool { return d.server.connections() == 1 })
		}, want: there},
		{name: "the connection is cut when the state is out", saved: cut, want: there},
		{name: "the relay here is killed when the state is out", saved: func(t *testing.T, d *departing) { d.killRelay(t, d.here) }, want: there},
		{name: "the connection is cut and the state cut short", saved: cut, state: func(b []byte) []byte { return b[:len(b)*3/4] }, want: here},
		{name: "the lease there is another", saved: func(t *testing.T, d *departing) {
			to := *d.server.relay
			to.Lease = remote.NewLeaseID()
			if err := d.there.device.SetRelay(to); err != nil {
				t.Error(err)
			}
		}, want: here},
		{name: "the relay there is killed before the VM runs", arrived: func(t *testing.T, d *departing) { d.killRelay(t, d.there) }, want: nowhere},
		{name: "the server's worker is killed when the state is out", saved: func(_ *testing.T, d *departing) { d.server.kill() }, want: nowhere},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := newRelayServer(t)
			d := &departing{server: server, here: bootWith(t, server.options), there: bootWith(t, server.options)}
			server.endsFirst(t)
			if err := d.there.Kill(); err != nil {
				t.Fatal(err)
			}
			d.there.Guest = nil
			d.here.device.SetHandover(api.Handover{Host: "hostb"})
			p, g := start(t, d.here)
			var m wire.MemAllocReply
			must(t, g, &wire.MemAllocArgs{Size: 1 << 20}, &m)
			want := []byte("what it has")
			if err := g.Send(&wire.MemcpyHtoDArgs{Dst: m.Ptr, Src: want}); err != nil {
				t.Fatal(err)
			}
			step := func(f func(*testing.T, *departing)) {
				if f != nil {
					f(t, d)
				}
			}
			step(c.running)
			state := bytes.Clone(save(t, d.here))
			step(c.saved)
			if c.state != nil {
				state = c.state(state)
			}
			left, err := d.here.Move(d.there.socket, state)
			if moved := err == nil; moved != (c.want != here) || !moved && !errors.Is(err, fstest.ErrRefused) {
				t.Fatalf("moved: %v", err)
			}
			if err == nil {
				left.Close()
				step(c.arrived)
			} else {
				nothingIn(t, d.there)
			}
			if err := d.here.StartRings(); err != nil {
				t.Fatal(err)
			}
			if c.want == nowhere {
				// By its control page, or, if the session was lost before its pages were lent
				// again, when it asks.
				if res, err := g.Call(0, &wire.CtxSynchronizeArgs{}, nil); err == nil {
					t.Errorf("the program is not told: %v", res)
				}
				p.halt()
				_ = p.file.Close()
			} else {
				var r wire.MemcpyDtoHReply
				if must(t, g, &wire.MemcpyDtoHArgs{Src: m.Ptr, Size: uint32(len(want))}, &r); !bytes.Equal(r.Dst, want) {
					t.Errorf("it has %q", r.Dst)
				}
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			}
			if c.want != here {
				nothingIn(t, d.here)
			}
			_, next := start(t, d.here)
			must(t, next, &wire.CtxSynchronizeArgs{}, nil)
			if err := next.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

package daemon_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon"
	"causeway/host/daemon/config"
	"causeway/host/daemon/daemontest"
	"causeway/host/daemon/lease"
	"causeway/remote/mtls"
)

// serving is what a causewayd that is to be killed while it serves needs beside its folder: the
// value of killedServes.
type serving struct {
	Listen  string     // for other hosts
	Files   mtls.Files // its certificate
	Servers []string   // GPU servers
}

// serveUntilKilled is causewayd as it runs on a host.
func serveUntilKilled(o daemon.Options, as string) error {
	var s serving
	if err := json.Unmarshal([]byte(as), &s); err != nil {
		return err
	}
	m := &o.Config.Migration
	m.Listen, m.CA, m.Certificate, m.Key = s.Listen, s.Files.CA, s.Files.Certificate, s.Files.Key
	o.Config.Remote.Servers = s.Servers
	return daemon.Main(context.Background(), o, func() (config.Config, error) { return o.Config, nil })
}

// mortal is a causewayd of its own process, in the place of a host's that does not run.
type mortal struct {
	h    *host
	cmd  *exec.Cmd
	c    *api.Client
	ends chan error
}

// mortal starts one, which is killed behind a step: "": by the test.
func (h *host) mortal(at string, s serving) *mortal {
	h.t.Helper()
	as, err := json.Marshal(s)
	if err != nil {
		h.t.Fatal(err)
	}
	m := &mortal{h: h, cmd: exec.Command(os.Args[0]), c: api.NewClient(api.Socket(h.cfg.RunDir)), ends: make(chan error, 1)}
	m.cmd.Env = append(os.Environ(), killedAt+"="+at, killedBelow+"="+h.cfg.RunDir, killedServes+"="+string(as))
	m.cmd.Stderr = io.MultiWriter(h.log, testWriter{h.t})
	if err := m.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(m.c.Close)
	h.t.Cleanup(func() { _ = m.cmd.Process.Kill() })
	go func() { m.ends <- m.cmd.Wait() }()
	until(h.t, "it serves", func() bool {
		v, err := m.c.Version(h.t.Context())
		return err == nil && v.PID == m.cmd.Process.Pid
	})
	return m
}

// killed waits until it has been.
func (m *mortal) killed() {
	m.h.t.Helper()
	var exit *exec.ExitError
	if err := ended(m.h.t, m.ends); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		m.h.t.Fatalf("%v, want it killed", err)
	}
}

// freePort is an address at which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// TestHostsKilled: causewayd at the host to which a VM may come is killed behind each step of that.
// What was made for the VM is gone when the next one has looked, unless it is somebody's by now,
// and memory can be brought again.
func TestHostsKilled(t *testing.T) {
	for _, c := range []struct {
		name, at string
		before   func(h *host, c *api.Client) // causewayd is killed
		stays    bool
	}{
		{name: "its intent", at: "the intent is written"},
		{name: "its process", at: "the process is started"},
		{name: "its record", at: "the record names the process"},
		{name: "its beginning", at: "the process may begin"},
		{name: "its answer", at: "the process has answered"},
		{name: "it is ready", at: "the record says that it is ready"},
		{name: "memory comes", at: "memory comes ahead of the VM"},
		{name: "some has come"},
		{name: "a QEMU waits for the VM", before: func(h *host, _ *api.Client) { h.tell(one, api.Status{Connected: true}) }, stays: true},
		{name: "its hook has asked for it", before: func(h *host, c *api.Client) {
			until(h.t, "it is there already", func() bool {
				v, err := c.Ensure(h.t.Context(), one.Wish())
				return err == nil && !v.Created
			})
		}, stays: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			a, b := hostFiles(t, dir, "hosta"), hostFiles(t, dir, "hostb")
			h := newHost(t, daemontest.Soft(1<<30))
			s := serving{Listen: freePort(t), Files: b}
			m := h.mortal(c.at, s)
			far, err := api.NewHostClient(s.Listen, clientOf(a))
			if err != nil {
				t.Fatal(err)
			}
			defer far.Close()
			until(t, "other hosts are served", func() bool { return far.Do(t.Context(), http.MethodGet, "/v1/host", nil, nil) == nil })
			stream, err := far.PreCopy(t.Context(), one.Wish(), false)
			if c.at == "" {
				if err != nil {
					t.Fatal(err)
				}
				hears5(t, stream)
				if c.before != nil {
					c.before(h, m.c)
				}
				_ = m.cmd.Process.Kill()
			}
			m.killed()
			if err == nil {
				if _, err := io.ReadAll(stream); err == nil { // EOF or a reset
					t.Log("the stream has ended in order")
				}
				_ = stream.Close()
			}
			h.start()
			call := h.awaitsHosts(b)
			known := func() int {
				list, err := h.c.VGPUs(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return len(list)
			}
			want := 0
			if c.stays {
				want = 1
			}
			until(t, fmt.Sprintf("%d vGPUs are left", want), func() bool { return known() == want && len(h.devices()) == want })
			gpus, err := h.c.GPUs(t.Context())
			if err != nil || len(gpus) != 1 || (gpus[0].Promised == 0) == c.stays {
				t.Errorf("promised: %+v, %v", gpus, err)
			}
			if c.stays {
				h.stop() // nor does the one behind that end it
				h.start()
				call = h.awaitsHosts(b)
			}
			stream, err = call(a).PreCopy(t.Context(), one.Wish(), false)
			if err != nil {
				t.Fatal(err)
			}
			hears5(t, stream)
			_ = stream.Close()
			until(t, "it is as before", func() bool { return known() == want && len(h.devices()) == want })
			if c.stays {
				if err := h.c.Release(t.Context(), one.VM, one.Name, false); err != nil {
					t.Error(err)
				}
			}
			if left := h.below(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// clientOf is how a host with such files calls another.
func clientOf(f mtls.Files) func(string) (*tls.Config, error) {
	return func(host string) (*tls.Config, error) { return f.Client(api.HostProtocol, host) }
}

// hears5 has a fake device process say what it is told.
func hears5(t *testing.T, s io.ReadWriter) {
	t.Helper()
	heard := make([]byte, 5)
	if _, err := s.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, heard); err != nil || string(heard) != "hello" {
		t.Fatalf("%q, %v", heard, err)
	}
}

// TestHandOverKilled: causewayd of a VM whose GPU is on a server is killed behind each step of the
// lease's hand-over. When the next one has looked no other host can take the lease over, unless the
// device process gives out what it takes, and what was made there is gone; then it can be handed
// over again, and nothing is left at the end.
func TestHandOverKilled(t *testing.T) {
	const handed = "the device process gives out what the other host needs"
	for _, at := range []string{"the server lets another host take the lease over", "the other host is ready", handed} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			m := newMoving(t)
			m.is(m.here, false, true, program1)
			m.here.stop()
			d := m.here.mortal(at, serving{Files: m.here.files(), Servers: m.here.cfg.Remote.Servers})
			if err := d.c.HandOver(t.Context(), &m.v.Spec, api.Handover{Host: m.at}); err == nil {
				t.Error("it was handed over")
			}
			d.killed()
			m.here.start()
			if at == handed {
				until(t, "its device process says so", func() bool { return m.heirIs("hostb") })
				m.handsOver(api.Handover{}) // `causeway migrate` has begun it, and ends it
			}
			heir := func() string {
				f, err := lease.Read(far.LeasePath(m.server.cfg.RunDir))
				if err != nil {
					t.Fatal(err)
				}
				return f.Heir
			}
			nobody := func() bool {
				list, err := m.next.c.VGPUs(t.Context())
				return err == nil && len(list) == 0 && heir() == ""
			}
			until(t, "the lease is this host's alone", nobody)
			if u := m.here.vgpu(one).Upstream; u.Lost || !m.has("hosta") || m.heirIs("hostb") {
				t.Errorf("%+v", u)
			}
			m.handsOver(api.Handover{Host: m.at})
			m.is(m.here, false, false, program1)
			m.is(m.next, false, true, program1)
			until(t, "it is taken over", func() bool { return m.has("hostb") })
			for _, h := range []*host{m.here, m.next} {
				if err := h.c.Release(t.Context(), "vm1", "gpu0", false); err != nil {
					t.Error(err)
				}
			}
			until(t, "the server has promised nothing", func() bool { gpus, err := m.server.c.GPUs(t.Context()); return err == nil && gpus[0].Promised == 0 })
		})
	}
}

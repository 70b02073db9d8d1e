package daemon_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
	"causeway/host/limit"
	"causeway/remote"
	"causeway/remote/mtls"
)

// clock is one that a test turns on.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Now()} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// knownAs gives a host its identity.
func (h *host) knownAs(f mtls.Files) *host {
	h.cfg.Migration.CA, h.cfg.Migration.Certificate, h.cfg.Migration.Key = f.CA, f.Certificate, f.Key
	return h
}

// files are those of its identity.
func (h *host) files() mtls.Files {
	return mtls.Files{CA: h.cfg.Migration.CA, Certificate: h.cfg.Migration.Certificate, Key: h.cfg.Migration.Key}
}

// serves has causewayd be a GPU server, at h.address, which stays the same when it is started anew.
func (h *host) serves() *host {
	h.t.Helper()
	at := h.address
	if at == "" {
		at = "127.0.0.1:0"
	}
	ln, err := net.Listen("tcp", at)
	// Meanwhile the kernel may have given the port to a connection of another test's, for as long
	// as that lasts.
	for end := time.Now().Add(time.Minute); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); ln, err = net.Listen("tcp", at) {
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.address = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.d.ServeRemote(ctx, ln.(*net.TCPListener)) }()
	end := h.end
	h.end = func() error {
		cancel()
		if err := ended(h.t, done); err != nil {
			h.t.Error(err)
		}
		return end()
	}
	return h
}

// caller is a client of a GPU server that has a host's files.
func caller(t *testing.T, server *host, f mtls.Files) *api.Client {
	t.Helper()
	c, err := api.NewServerClient(server.address, func(host string) (*tls.Config, error) { return f.Client(api.RemoteProtocol, host) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// ask has a GPU server lease a vGPU.
func ask(t *testing.T, c *api.Client, w api.LeaseWish) (l api.Lease, err error) {
	t.Helper()
	keys, err := mtls.NewPinned()
	if err != nil {
		t.Fatal(err)
	}
	if w.Key, err = keys.Hash(); err != nil {
		t.Fatal(err)
	}
	if w.Protocol == 0 {
		w.Protocol = remote.ProtocolVersion
	}
	return l, c.Do(t.Context(), http.MethodPost, "/v1/leases", w, &l)
}

// program connects as a program of a lease does, and hears the lease's device process.
func program(t *testing.T, server *host, id remote.LeaseID) net.Conn {
	t.Helper()
	return programAs(t, server, remote.Preface{Lease: id, Session: remote.NewSessionID()})
}

func programAs(t *testing.T, server *host, p remote.Preface) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", server.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Write(append(p.Encode(), "hello"...)); err != nil {
		t.Fatal(err)
	}
	return c
}

// hears wants what a fake device process says.
func hears(t *testing.T, c net.Conn) {
	t.Helper()
	b := make([]byte, len(daemontest.Heard)+len("hello"))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != daemontest.Heard+"hello" {
		t.Fatalf("%q, %v", b, err)
	}
}

// gone wants the other end of a connection to be closed.
func gone(t *testing.T, what string, c net.Conn) {
	t.Helper()
	if n, err := io.Copy(io.Discard, c); n != 0 {
		t.Errorf("%s: %d bytes, %v", what, n, err)
	}
}

// unleased wants the server to say that there is no such lease.
func unleased(t *testing.T, what string, c net.Conn) {
	t.Helper()
	if b, err := io.ReadAll(c); string(b) != remote.NoLease || err != nil {
		t.Errorf("%s: %q, %v", what, b, err)
	}
	_ = c.Close()
}

var far = api.Spec{VM: "hosta", Name: "vm1:gpu0"} // what one is at the server

// TestLease: a vGPU with remote is one of the server's, with all that makes one, and a program's
// connection comes to its device process.
func TestLease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := newHost(t, daemontest.Soft(4<<30)).knownAs(hostFiles(t, dir, "gpu1")).start().serves()
	here := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "hosta"))
	here.cfg.Remote.Servers = []string{server.address}
	here.start()
	for _, remote := range []string{server.address, "127.0.0.1", api.RemoteAny} {
		w := one
		w.Remote, w.Memory = remote, 2<<30
		v := here.ensure(w)
		if v.GPU != "" || v.Spec.Remote != server.address || v.Upstream == nil || v.Upstream.Server != server.address || v.Spec.Memory != 2<<30 {
			t.Errorf("%+v, %+v", v, v.Upstream)
		}
		there := server.vgpu(far)
		if there.Spec.Lease != "hosta" || there.Spec.Memory != 2<<30 || there.Spec.Owner != "" {
			t.Errorf("%+v", there.Spec)
		}
		st, err := os.Stat(far.LeasePath(server.cfg.RunDir))
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("the keys: %v, %v", st, err)
		}
		if again := here.ensure(w); again.PID != v.PID {
			t.Error("the same wish starts another")
		}
		if here.ensure(api.Spec{VM: "vm1", Name: "gpu0"}).PID != v.PID {
			t.Error("a wish that says nothing of the server moves the vGPU")
		}
		gpus, err := server.c.GPUs(t.Context())
		if err != nil || gpus[0].Promised != 2<<30 {
			t.Errorf("%v, %v", gpus, err)
		}
		if gpus, err = here.c.GPUs(t.Context()); err != nil || gpus[0].Promised != 0 {
			t.Errorf("%v, %v: it counts here", gpus, err)
		}
		until(t, "it is renewed", func() bool { return here.vgpu(one).Upstream.State != nil })
		c := program(t, server, v.Upstream.Lease)
		hears(t, c)
		until(t, "the host hears of the session", func() bool { return here.vgpu(one).Upstream.State.Sessions == 1 })
		m := limitOf(3 << 30)
		if l, err := here.c.SetLimits(t.Context(), "vm1", "gpu0", m); err != nil || l.Memory != 3<<30 || server.vgpu(far).Spec.Memory != 3<<30 || here.vgpu(one).Status.Limits.Memory != 3<<30 {
			t.Errorf("%+v, %v", l, err)
		}
		if _, err := here.c.SetLimits(t.Context(), "vm1", "gpu0", limitOf(5<<30)); err == nil || !strings.Contains(err.Error(), server.address) {
			t.Errorf("more than there is: %v", err)
		}
		if err := here.c.Release(t.Context(), "vm1", "gpu0", true); err != nil {
			t.Fatal(err)
		}
		gone(t, "its lease has ended", c)
		if left := append(here.below(), server.below()...); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		if _, err := os.Stat(far.LeasePath(server.cfg.RunDir)); !errors.Is(err, os.ErrNotExist) {
			t.Error("the keys are left")
		}
	}
	unleased(t, "no lease", program(t, server, remote.NewLeaseID()))
	lost := remote.Preface{Lease: remote.NewLeaseID(), Session: remote.NewSessionID(), Again: true}
	if b, err := io.ReadAll(programAs(t, server, lost)); string(b) != remote.Gone {
		t.Errorf("a session of no lease hears %q, %v", b, err)
	}
}

// TestLeaseFrozen: a host that does not renew loses what it has, all of it, and is told so when it
// comes back. Nobody else does.
func TestLeaseFrozen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server, time := leaseServer(t, dir)
	frozen, well := caller(t, server, hostFiles(t, dir, "hosta")), caller(t, server, hostFiles(t, dir, "hostb"))
	w := api.LeaseWish{VM: "vm1", Name: "gpu0", Change: limitOf(512 << 20)}
	a, err := ask(t, frozen, w)
	if err != nil {
		t.Fatal(err)
	}
	b, err := ask(t, well, w)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, well, api.LeaseWish{VM: "vm2", Name: "gpu0", Change: w.Change}); err == nil {
		t.Error("there was room for a third")
	}
	pa, pb := program(t, server, a.ID), program(t, server, b.ID)
	hears(t, pa)
	hears(t, pb)
	pid := server.vgpu(far).PID
	renew := func(c *api.Client, l api.Lease, epoch uint64) error {
		return c.Do(t.Context(), http.MethodPost, "/v1/leases/"+l.ID.String()+"/renew", api.LeaseRenewal{Epoch: epoch}, nil)
	}
	time.pass(a.Term - 1)
	server.d.EndOverdue()
	for _, err := range []error{renew(well, b, 2), renew(frozen, a, 0)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	refused(t, renew(well, b, 1), http.StatusPreconditionFailed, "newer causewayd")
	refused(t, renew(well, a, 0), http.StatusGone)
	time.pass(a.Term / 2)
	if err := renew(well, b, 2); err != nil {
		t.Fatal(err)
	}
	time.pass(a.Term/2 + 1)
	refused(t, renew(frozen, a, 0), http.StatusGone) // it is over, and about to be ended
	server.d.EndOverdue()
	gone(t, "a frozen host's program", pa)
	if runs(pid) {
		t.Error("its device process runs")
	}
	refused(t, renew(frozen, a, 0), http.StatusGone)
	unleased(t, "a program of a lease that is over", program(t, server, a.ID))
	if _, err := pb.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(pb, make([]byte, 1)); err != nil {
		t.Errorf("the other host's program: %v", err)
	}
	if _, err := ask(t, well, api.LeaseWish{VM: "vm2", Name: "gpu0", Change: w.Change}); err != nil {
		t.Errorf("its memory is not free: %v", err)
	}
}

// TestLeaseRestart: neither the server's causewayd nor the host's is missed. The host's next one
// goes on with the lease, and an earlier one that wakes up does not.
func TestLeaseRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	filesHere := hostFiles(t, dir, "hosta")
	server := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "gpu1")).start().serves()
	here := newHost(t, daemontest.Soft(1<<30)).knownAs(filesHere)
	here.cfg.Remote.Servers = []string{server.address}
	here.start()
	w := one
	w.Remote = api.RemoteAny
	v := here.ensure(w)
	id := v.Upstream.Lease
	c := program(t, server, id)
	hears(t, c)
	renewed := func() bool {
		u := here.vgpu(one).Upstream
		return u != nil && u.State != nil && u.Error == ""
	}
	here.stop()
	here.start()
	until(t, "the next causewayd renews it", renewed)
	if now := here.vgpu(one); now.PID != v.PID || now.Upstream.Lease != id {
		t.Errorf("%+v", now)
	}
	err := caller(t, server, filesHere).Do(t.Context(), http.MethodPost, "/v1/leases/"+id.String()+"/renew", api.LeaseRenewal{Epoch: 1}, nil)
	refused(t, err, http.StatusPreconditionFailed)
	server.stop()
	until(t, "the host notices", func() bool { return here.vgpu(one).Upstream.Error != "" })
	server.start().serves()
	until(t, "it is renewed at the server's next causewayd", renewed)
	if _, err := c.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("the program: %v", err)
	}
	hears(t, program(t, server, id))
	// An operator of the server ends it.
	if err := server.c.Release(t.Context(), far.VM, far.Name, false); err != nil {
		t.Fatal(err)
	}
	gone(t, "the program", c)
	until(t, "the host knows, and its device process", func() bool {
		v := here.vgpu(one)
		return v.Upstream.Lost && strings.Contains(v.Status.Unheld, server.address)
	})
	if err := here.c.Release(t.Context(), "vm1", "gpu0", true); err != nil {
		t.Error(err)
	}
}

// TestLeaseRefused: what cannot be had says why, and on which server, and leaves nothing.
func TestLeaseRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "gpu1"))
	server.cfg.Remote.Allow = []string{"hosta", "other"}
	server.start().serves()
	server.ensure(api.Spec{VM: "other", Name: "vm1:gpu0"})
	here := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "hosta"))
	wish := func(remote string, memory uint64) error {
		w := one.Wish()
		w.Remote = remote
		if memory != 0 {
			w.Change = limitOf(memory)
		}
		_, err := here.c.Ensure(t.Context(), w)
		return err
	}
	here.start()
	refused(t, wish("gpu1", 0), http.StatusBadRequest, "no GPU server", "remote.servers")
	refused(t, wish(api.RemoteAny, 0), http.StatusBadRequest, "no GPU server")
	here.stop()
	const nobody = "127.0.0.1:1"
	here.cfg.Remote.Servers = []string{server.address, nobody}
	here.start()
	if list, err := here.c.Servers(t.Context()); err != nil || len(list) != 2 || strings.Contains(list[1].Error, nobody) {
		t.Errorf("its address stands twice: %+v, %v", list, err)
	}
	refused(t, wish("gpu2", 0), http.StatusBadRequest, `"gpu2"`)
	refused(t, wish("gpu 2", 0), http.StatusBadRequest, "HOST:PORT")
	refused(t, wish(nobody, 0), http.StatusBadGateway, nobody, "remote.listen")
	refused(t, wish(server.address, 2<<30), http.StatusInsufficientStorage, server.address, "do not fit")
	refused(t, wish(api.RemoteAny, 2<<30), http.StatusInsufficientStorage, server.address, "MiB left", nobody)
	if list, err := here.c.Servers(t.Context()); err != nil || len(list) != 2 || list[0].Error != "" || list[0].RoundTrip == 0 || len(list[0].GPUs) != 1 || list[1].Error == "" {
		t.Errorf("%+v, %v", list, err)
	}
	if err := wish("", 0); err != nil { // here
		t.Error(err)
	}
	if err := here.c.Release(t.Context(), "vm1", "gpu0", true); err != nil {
		t.Error(err)
	}
	if left := here.below(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	stranger, foreign := caller(t, server, hostFiles(t, dir, "hostb")), caller(t, server, hostFiles(t, t.TempDir(), "hosta"))
	for name, c := range map[string]*api.Client{"not allowed": stranger, "another authority": foreign} {
		if _, err := ask(t, c, api.LeaseWish{VM: "vm1", Name: "gpu0"}); err == nil {
			t.Errorf("%s: it has a lease", name)
		}
	}
	until(t, "the server says why", func() bool { return server.log.has("does not name the host hostb") })
	c := caller(t, server, hostFiles(t, dir, "other"))
	_, err := ask(t, c, api.LeaseWish{VM: "vm1", Name: "gpu0"})
	refused(t, err, http.StatusConflict, "none of other's")
	for _, w := range []api.LeaseWish{{VM: "..", Name: "gpu0"}, {VM: "vm1", Name: "gpu0", Protocol: 7}, {VM: "vm1", Name: "a/b"}, {VM: "vm1", Name: "gpu0", GPU: "\x1b[2J"}} {
		_, err := ask(t, c, w)
		refused(t, err, http.StatusBadRequest)
	}
	_, err = ask(t, c, api.LeaseWish{VM: strings.Repeat("v", 60), Name: "gpu0"})
	refused(t, err, http.StatusBadRequest, "63")
}

// leaseServer is a GPU server whose leases go by a clock of the test's.
func leaseServer(t *testing.T, dir string) (*host, *clock) {
	t.Helper()
	c := newClock()
	server := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "gpu1"))
	server.clock = c.Now
	server.start().serves()
	return server, c
}

// limitOf is a change of the memory limit.
func limitOf(n uint64) api.Change {
	m := limit.Memory(n)
	return api.Change{Memory: &m}
}

// TestLeaseRevoked: a host whose certificate is revoked while it is connected is refused at its
// next request, and what it has ends with its term.
func TestLeaseRevoked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server, time := leaseServer(t, dir)
	c := caller(t, server, hostFiles(t, dir, "hosta"))
	l, err := ask(t, c, api.LeaseWish{VM: "vm1", Name: "gpu0"})
	if err != nil {
		t.Fatal(err)
	}
	p := program(t, server, l.ID)
	hears(t, p)
	a, err := mtls.LoadAuthority(dir)
	if err == nil {
		_, err = a.Revoke("hosta")
	}
	if err != nil {
		t.Fatal(err)
	}
	refused(t, c.Do(t.Context(), http.MethodPost, "/v1/leases/"+l.ID.String()+"/renew", api.LeaseRenewal{}, nil), http.StatusForbidden, "revoked", "causeway ca issue")
	c.Close() // and connects anew
	if _, err := ask(t, c, api.LeaseWish{VM: "vm2", Name: "gpu0"}); err == nil {
		t.Error("it has a second")
	}
	until(t, "the log says why", func() bool { return server.log.has("the certificate is revoked: hosta") })
	time.pass(l.Term)
	server.d.EndOverdue()
	gone(t, "its program", p)
}

// TestServerRevoked: a GPU server whose certificate is revoked while a host is connected to it is
// asked nothing more a moment later, over the connection that there is or another.
func TestServerRevoked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server, _ := leaseServer(t, dir)
	c := caller(t, server, hostFiles(t, dir, "hosta"))
	l, err := ask(t, c, api.LeaseWish{VM: "vm1", Name: "gpu0"})
	if err != nil {
		t.Fatal(err)
	}
	renew := func() error {
		return c.Do(t.Context(), http.MethodPost, "/v1/leases/"+l.ID.String()+"/renew", api.LeaseRenewal{}, nil)
	}
	if err := renew(); err != nil {
		t.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(server.files().Certificate, server.files().Key)
	if err != nil {
		t.Fatal(err)
	}
	a, err := mtls.LoadAuthority(dir)
	if err == nil {
		_, err = a.Revoke(cert.Leaf.Subject.CommonName)
	}
	if err != nil {
		t.Fatal(err)
	}
	until(t, "it is not renewed", func() bool { err = renew(); return err != nil })
	for range 2 {
		if !errors.Is(err, mtls.ErrRevoked) || !strings.Contains(err.Error(), "causeway ca issue") {
			t.Errorf("%v", err)
		}
		err = renew()
	}
}

package daemon_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
	"causeway/remote/mtls"
)

// hostFiles makes certificates of an authority.
func hostFiles(t *testing.T, dir, name string) mtls.Files {
	t.Helper()
	a, err := mtls.OpenAuthority(dir, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	f, err := a.Issue(time.Hour, name, "127.0.0.1", "localhost")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// awaitsHosts has causewayd serve other hosts. call is a client of a host with such files.
func (h *host) awaitsHosts(files mtls.Files) (call func(mtls.Files) *api.Client) {
	h.t.Helper()
	cfg, err := files.Server(api.HostProtocol)
	if err != nil {
		h.t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	h.address = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.d.ServeHosts(ctx, tls.NewListener(ln, cfg)) }()
	end := h.end
	h.end = func() error {
		cancel()
		if err := ended(h.t, done); err != nil {
			h.t.Error(err)
		}
		return end()
	}
	return func(f mtls.Files) *api.Client {
		c, err := api.NewHostClient(h.address, func(host string) (*tls.Config, error) { return f.Client(api.HostProtocol, host) })
		if err != nil {
			h.t.Fatal(err)
		}
		h.t.Cleanup(c.Close)
		return c
	}
}

// TestHosts: what another host sends goes to the vGPU's device process and back; a vGPU that was
// not there is there as long as somebody sends, one that was stays. Who is no host of the authority
// is not heard, and a vGPU that cannot be is refused with the reason.
func TestHosts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b, foreign := hostFiles(t, dir, "hosta"), hostFiles(t, dir, "hostb"), hostFiles(t, t.TempDir(), "hosta")
	h := newHost(t, daemontest.Soft(1<<30)).start()
	call := h.awaitsHosts(b)
	far := call(a)
	there := func() int {
		list, err := h.c.VGPUs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	for _, was := range []int{0, 1} {
		if was == 1 {
			h.ensure(one)
		}
		s, err := far.PreCopy(t.Context(), one.Wish(), false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		heard := make([]byte, 5)
		if _, err := io.ReadFull(s, heard); err != nil || string(heard) != "hello" {
			t.Errorf("%q, %v", heard, err)
		}
		if there() != 1 {
			t.Error("there is no vGPU")
		}
		_ = s.Close()
		until(t, "as before", func() bool { return there() == was })
	}
	if _, err := call(foreign).PreCopy(t.Context(), one.Wish(), false); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a foreign host: %v", err)
	}
	large := api.Spec{VM: "vm2", Name: "gpu0"}.Wish()
	large.GPU = "H200"
	if _, err := far.PreCopy(t.Context(), large, false); err == nil || there() != 1 {
		t.Errorf("%v, %d vGPUs", err, there())
	}
	refused(t, far.Do(t.Context(), http.MethodPost, "/v1/vgpus/vm1/other/precopy", api.Arriving{Wish: one.Wish()}, nil), http.StatusBadRequest, "the path names")
	if err := far.Do(t.Context(), http.MethodGet, "/v1/vgpus", nil, nil); err == nil {
		t.Error("another host is told what runs here")
	}
}

// TestMovesAs: memory goes ahead to the vGPU that awaits the VM which is called so, whatever it is
// called there; to none where two are, or it is called otherwise.
func TestMovesAs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := hostFiles(t, dir, "host")
	there := newHost(t, daemontest.Soft(1<<30)).start()
	there.awaitsHosts(files)
	here := newHost(t, daemontest.Soft(1<<30))
	here.knownAs(files).cfg.Migration.Peers = []string{there.address}
	here.start()
	claim := func(uid, vm string) api.Spec {
		s := api.Spec{VM: api.ClaimPrefix + uid, Name: "gpu0", MovesAs: "team/virt-launcher-" + vm}
		s.Memory = 64 << 20
		return s
	}
	source := claim("1-a", "train")
	here.ensure(source)
	there.ensure(claim("1-b", "other"))
	there.tell(claim("1-b", "other"), api.Status{Connected: true})
	depart := func() {
		here.tell(source, api.Status{Connected: true, Migrating: true})
		until(t, "it has heard", func() bool { return !here.vgpu(source).Status.Migrating })
	}
	depart()
	until(t, "none awaits it", func() bool { return here.log.has("there is no vGPU " + source.Key()) })
	target := claim("1-c", "train")
	there.ensure(target)
	there.tell(target, api.Status{Connected: true})
	depart()
	until(t, "memory went ahead", func() bool { return here.vgpu(source).Status.Copied == 6 })
	if !there.log.has(target.Key()) {
		t.Error("it is not said to which vGPU")
	}
	there.ensure(claim("1-d", "train"))
	there.tell(claim("1-d", "train"), api.Status{Connected: true})
	before := here.log.times("there is no vGPU " + source.Key())
	depart()
	until(t, "of two none is taken", func() bool { return here.log.times("there is no vGPU "+source.Key()) > before })
	if n := here.vgpu(source).Status.Copied; n != 6 {
		t.Errorf("%d bytes went", n)
	}
	if v := there.vgpu(target); v.Spec.MovesAs != "team/virt-launcher-train" {
		t.Errorf("%+v", v.Spec)
	}
}

// TestTwoAwait: memory goes to no host where another says, too, that it awaits the VM; one with two
// names is one.
func TestTwoAwait(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	right, thief, here := newHost(t, daemontest.Soft(1<<30)).start(), newHost(t, daemontest.Soft(1<<30)).start(), newHost(t, daemontest.Soft(1<<30))
	right.awaitsHosts(hostFiles(t, dir, "hostb"))
	thief.awaitsHosts(hostFiles(t, dir, "hostc"))
	here.knownAs(hostFiles(t, dir, "hosta")).cfg.Migration.Peers = []string{right.address, right.address, thief.address}
	here.agree = time.Minute // all answer, on any machine
	here.start()
	s := api.Spec{VM: "vm1", Name: "gpu0"}
	s.Memory = 64 << 20
	for _, h := range []*host{here, right, thief} {
		h.ensure(s)
	}
	depart := func(said string) {
		t.Helper()
		before := here.log.times(said)
		here.tell(s, api.Status{Connected: true, Migrating: true})
		until(t, said, func() bool { return here.log.times(said) > before })
	}
	right.tell(s, api.Status{Connected: true})
	thief.tell(s, api.Status{Connected: true})
	depart("two hosts say that they await this VM")
	if n := here.vgpu(s).Status.Copied; n != 0 {
		t.Errorf("%d bytes went", n)
	}
	thief.tell(s, api.Status{})
	depart("memory went ahead")
}

// TestHostsOfClaims: another host has no vGPU of a fleet's claim made here, and brings memory to
// none that awaits no VM, by whichever name; what it has made is not found for VMs that move.
func TestHostsOfClaims(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := hostFiles(t, dir, "hosta"), hostFiles(t, dir, "hostb")
	h := newHost(t, daemontest.Soft(1<<30)).start()
	far := h.awaitsHosts(b)(a)
	claim := api.Spec{VM: api.ClaimPrefix + "1-a", Name: "gpu0", MovesAs: "team/virt-launcher-train"}
	claim.Memory = 64 << 20
	other := claim
	other.VM = "vm9"
	brings := func(s api.Spec) error {
		c, err := far.PreCopy(t.Context(), s.Wish(), false)
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	refused(t, brings(claim), http.StatusNotFound, "there is no vGPU")
	h.ensure(claim)
	for _, s := range []api.Spec{claim, other} {
		refused(t, brings(s), http.StatusConflict, "awaits no VM")
	}
	h.tell(claim, api.Status{Connected: true})
	if err := brings(claim); err != nil {
		t.Errorf("its VM is awaited: %v", err)
	}
	h.tell(claim, api.Status{Connected: true, Runs: true})
	refused(t, brings(claim), http.StatusConflict, "awaits no VM")
	other.MovesAs = "team/virt-launcher-other"
	c, err := far.PreCopy(t.Context(), other.Wish(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if v := h.vgpu(other); v.Spec.MovesAs != "" {
		t.Errorf("another host's word of a VM that moves: %+v", v.Spec)
	}
}

// TestHostsOfLost: a host that asks what has become of a vGPU here hears that its device process
// has ended, which is not that no VM is awaited.
func TestHostsOfLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := hostFiles(t, dir, "hosta"), hostFiles(t, dir, "hostb")
	h := newHost(t, daemontest.Soft(1<<30)).start()
	far := h.awaitsHosts(b)(a)
	v := h.ensure(one)
	h.tell(one, api.Status{Connected: true})
	asked := func() error { return far.Do(t.Context(), http.MethodGet, api.AwaitedPath(&one), nil, nil) }
	if err := asked(); err != nil {
		t.Errorf("its VM is awaited: %v", err)
	}
	if err := syscall.Kill(v.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "it is lost", func() bool { return h.vgpu(one).State == api.Lost })
	refused(t, asked(), http.StatusServiceUnavailable, "the device process of vm1/gpu0 has ended", "causeway logs vm1/gpu0")
}

// TestHostsEnd: a causewayd that ends does not wait for other hosts.
func TestHostsEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := hostFiles(t, dir, "hosta"), hostFiles(t, dir, "hostb")
	h := newHost(t, daemontest.Soft(1<<30)).start()
	h.ensure(one)
	s, err := h.awaitsHosts(b)(a).PreCopy(t.Context(), one.Wish(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	begin := time.Now()
	h.stop()
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	if _, err := io.ReadFull(s, make([]byte, 1)); err == nil {
		t.Error("the stream goes on")
	}
}

// TestDeparts: when QEMU begins to send a VM its memory goes to the peer that awaits it; to none if
// none does.
func TestDeparts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := hostFiles(t, dir, "host")
	there := newHost(t, daemontest.Soft(1<<30)).start()
	there.awaitsHosts(files)
	here := newHost(t, daemontest.Soft(1<<30))
	here.knownAs(files).cfg.Migration.Peers = []string{"127.0.0.1:1", there.address}
	here.start()
	here.ensure(one)
	depart := func() {
		here.tell(one, api.Status{Connected: true, Migrating: true})
		until(t, "it has heard", func() bool { return !here.vgpu(one).Status.Migrating })
	}
	depart()
	until(t, "no peer awaits it", func() bool { return here.log.has("127.0.0.1:1") && here.log.has("there is no vGPU vm1/gpu0") })
	there.ensure(one)
	there.tell(one, api.Status{Connected: true})
	depart()
	until(t, "memory went ahead", func() bool { return here.vgpu(one).Status.Copied == 6 })
	there.tell(one, api.Status{Connected: true, Sessions: []api.Session{{ID: 1}}})
	depart()
	until(t, "a VM runs there", func() bool { return here.log.has("awaits no VM") })
	if n := here.vgpu(one).Status.Copied; n != 6 {
		t.Errorf("%d bytes went to a VM that runs", n)
	}
}

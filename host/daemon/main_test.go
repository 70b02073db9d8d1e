package daemon_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon"
	"causeway/host/daemon/config"
	"causeway/host/daemon/daemontest"
	"causeway/remote/mtls"
)

// listening is a host whose causewayd is to await others at a port, with a certificate that ended a
// minute ago, and what issues another.
func listening(t *testing.T) (h *host, again func()) {
	t.Helper()
	dir := t.TempDir()
	a, err := mtls.OpenAuthority(dir, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(valid time.Duration) mtls.Files {
		t.Helper()
		f, err := a.Issue(valid, "gpu1", "127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	h = newHost(t, daemontest.Soft(1<<30)).knownAs(issue(-time.Minute))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.address = ln.Addr().String()
	_ = ln.Close()
	h.cfg.Remote.Listen = h.address
	return h, func() { issue(time.Hour) }
}

// main runs causewayd as its command does, until the test ends or the function is called.
func (h *host) main() (end func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	o := h.options()
	o.PortAgain = 10 * time.Millisecond
	go func() { done <- daemon.Main(ctx, o, func() (config.Config, error) { return o.Config, nil }) }()
	h.c = api.NewClient(api.Socket(h.cfg.RunDir))
	h.t.Cleanup(cancel)
	return func() error { cancel(); return <-done }
}

// TestCertificateEnded: a causewayd whose certificate has ended manages its own host's vGPUs as
// ever; other hosts are refused, until it has another certificate, and then served, without its
// being started anew.
func TestCertificateEnded(t *testing.T) {
	t.Parallel()
	h, again := listening(t)
	end := h.main()
	until(t, "it answers", func() bool { _, err := h.c.VGPUs(t.Context()); return err == nil })
	h.ensure(one)
	if !h.log.has("other hosts are refused until this one's certificate is renewed") {
		t.Error("nothing is said of its certificate")
	}
	other := caller(t, h, hostFiles(t, filepath.Dir(h.cfg.Migration.CA), "hosta"))
	call := func() error { return other.Do(t.Context(), http.MethodGet, "/v1/leases", nil, nil) }
	if err := call(); err == nil {
		t.Error("another host is served")
	}
	again()
	until(t, "another host is served", func() bool { return call() == nil })
	if err := end(); err != nil {
		t.Error(err)
	}
}

// taken is a host whose causewayd is to have a port that another process has, until the function is
// called.
func taken(t *testing.T) (h *host, free func()) {
	t.Helper()
	h, again := listening(t)
	again()
	ln, err := net.Listen("tcp", h.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return h, func() { _ = ln.Close() }
}

// TestPortTaken: a causewayd that cannot have a port manages its own host's vGPUs as ever, says so,
// and serves others as soon as it can have it.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	h, free := taken(t)
	h.cfg.Metrics.Listen = h.address // which is one more
	end := h.main()
	until(t, "it answers", func() bool { _, err := h.c.VGPUs(t.Context()); return err == nil })
	h.ensure(one)
	ports := func() map[string]string {
		v, err := h.c.Version(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		is := map[string]string{}
		for _, p := range v.Ports {
			is[p.Key+" "+p.Address] = p.Error
		}
		return is
	}
	is := ports()
	for _, key := range []string{"metrics.listen", "remote.listen"} {
		if why := is[key+" "+h.address]; !strings.Contains(why, key+": ") || !strings.Contains(why, "another process has that port") || !h.log.has("a port is not served") {
			t.Errorf("%s: %q", key, why)
		}
	}
	if len(is) != 2 || !h.log.has("causewayd is ready") {
		t.Error(is)
	}
	free()
	until(t, "one of the two has it", func() bool {
		is := ports()
		return (is["metrics.listen "+h.address] == "") != (is["remote.listen "+h.address] == "")
	})
	if err := end(); err != nil {
		t.Error(err)
	}
}

// TestPortFree: other hosts are served by a port that could not be had at first.
func TestPortFree(t *testing.T) {
	t.Parallel()
	h, free := taken(t)
	end := h.main()
	until(t, "it answers", func() bool { _, err := h.c.VGPUs(t.Context()); return err == nil })
	free()
	other := caller(t, h, hostFiles(t, filepath.Dir(h.cfg.Migration.CA), "hosta"))
	until(t, "another host is served", func() bool { return other.Do(t.Context(), http.MethodGet, "/v1/leases", nil, nil) == nil })
	if v, err := h.c.Version(t.Context()); err != nil || len(v.Ports) != 1 || v.Ports[0].Error != "" || !h.log.has("a port is served now") {
		t.Errorf("%+v, %v", v, err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

// TestAllPorts: one that is to have all of its ports ends, before it has said that it is ready, and
// leaves no scheduler behind.
func TestAllPorts(t *testing.T) {
	t.Parallel()
	h, _ := taken(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o := h.options()
	o.AllPorts, o.Scheduler, o.Config.Scheduler.Enabled = true, true, true
	err := daemon.Main(ctx, o, func() (config.Config, error) { return o.Config, nil })
	if err == nil || !strings.Contains(err.Error(), "remote.listen") || !strings.Contains(err.Error(), "another process has that port") {
		t.Errorf("it says %v", err)
	}
	if h.log.has("causewayd is ready") {
		t.Error("it has said that it is ready")
	}
	if _, err := os.Stat(filepath.Join(o.Config.RunDir, "scheduler.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a scheduler is left behind: %v", err)
	}
}

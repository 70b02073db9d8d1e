package daemon_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
)

// TestDomain: a server that only DNS names has vGPUs, by its name there and by any; one that DNS
// does not tell of is an error that says so.
func TestDomain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "gpu1")).start().serves()
	name, port, err := net.SplitHostPort(server.address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	var silent atomic.Bool
	here := newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "hosta"))
	here.cfg.Remote.Domain = "example.net"
	here.lookup = func(context.Context, string, string, string) (string, []*net.SRV, error) {
		if silent.Load() {
			return "", nil, errors.New("no answer")
		}
		return "", []*net.SRV{{Target: name + ".", Port: uint16(n)}}, nil
	}
	here.start()
	for _, remote := range []string{server.address, name, api.RemoteAny} {
		w := one
		w.Remote = remote
		if v := here.ensure(w); v.Spec.Remote != server.address {
			t.Errorf("%s: it lies on %q", remote, v.Spec.Remote)
		}
		if err := here.c.Release(t.Context(), "vm1", "gpu0", true); err != nil {
			t.Error(err)
		}
	}
	here.stop()
	silent.Store(true)
	here.start()
	w := one.Wish()
	w.Remote = name
	_, err = here.c.Ensure(t.Context(), w)
	refused(t, err, http.StatusServiceUnavailable, "example.net", "no answer", "remote.domain")
	if list, err := here.c.Servers(t.Context()); err != nil || len(list) != 1 || list[0].Error == "" {
		t.Errorf("%+v, %v", list, err)
	}
}

package main

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"causeway/host/api"
	"causeway/host/api/apitest"
	"causeway/host/qmp"
	"causeway/host/qmp/qmptest"
)

// TestStays: what is said of a VM that did not move is what its QEMU says.
func TestStays(t *testing.T) {
	for name, c := range map[string]struct {
		qemu *qmptest.QEMU
		is   error
		not  []error
	}{
		"runs":        {&qmptest.QEMU{}, errStays, []error{errVMGone}},
		"is paused":   {&qmptest.QEMU{State: "paused"}, errStays, []error{errVMGone}},
		"has moved":   {&qmptest.QEMU{State: "postmigrate"}, qmp.ErrMigration, []error{errVMGone, errStays}},
		"has crashed": {&qmptest.QEMU{Refuse: map[string]string{"query-status": "gone"}}, errVMGone, []error{errStays}},
	} {
		socket := filepath.Join(shortDir(t), "q")
		c.qemu.Serve(t, socket)
		q, err := qmp.Dial(socket, qmpLimit)
		if err != nil {
			t.Fatal(err)
		}
		err = stays(&qemuMover{Machine: q}, qmp.ErrMigration)
		if !errors.Is(err, c.is) || !errors.Is(err, qmp.ErrMigration) {
			t.Errorf("%s: %v", name, err)
		}
		for _, not := range c.not {
			if errors.Is(err, not) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestWhy: a VM that did not move says who ended: the device process here or there, or a worker.
func TestWhy(t *testing.T) {
	dir := shortDir(t)
	status := api.Status{}
	apitest.ServeStatus(t, dir+"/near", func() api.Status { return status })
	g := &aheadOf{vgpu: api.VGPU{Spec: api.Spec{VM: "vm1", Name: "gpu0"}}, near: api.NewDeviceClient(dir + "/nobody")}
	a := &ahead{gpus: []*aheadOf{g}}
	says := func(want string) {
		t.Helper()
		if err := a.why(t.Context(), qmp.ErrMigration); !errors.Is(err, qmp.ErrMigration) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "causewayd does not run") {
			t.Errorf("%v, not %q", err, want)
		}
	}
	says("vm1/gpu0: its device process here has ended")
	g.near.Close()
	g.near = api.NewDeviceClient(dir + "/near")
	defer g.near.Close()
	status.SaveEnd = "session 7: worker ended"
	says("vm1/gpu0: session 7: worker ended")

	far := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodGet || r.URL.Path != "/v1/vgpus/vm1/gpu0/awaited":
			t.Errorf("asked is %s %s", r.Method, r.URL)
		case strings.Contains(status.CopyEnd, "gone"):
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"error": "the device process of vm1/gpu0 has ended"}`))
		default:
			w.WriteHeader(http.StatusConflict)
			_, _ = w.Write([]byte(`{"error": "vm1/gpu0 awaits no VM here"}`))
		}
	}))
	ln, err := net.Listen("unix", dir+"/far")
	if err != nil {
		t.Fatal(err)
	}
	_ = far.Listener.Close()
	far.Listener = ln
	far.Start()
	defer far.Close()
	g.far, g.way = api.NewClient(dir+"/far"), &api.Crossing{}
	defer g.far.Close()
	for end, want := range map[string]string{
		"the other host: no room": "the other host: no room",
		"the connection is gone":  "the connection is gone: on the other host: the device process of vm1/gpu0 has ended",
	} {
		status.CopyEnd = end
		if err := g.ended(t.Context(), &status); err.Error() != want {
			t.Errorf("%v, not %q", err, want)
		}
	}
}

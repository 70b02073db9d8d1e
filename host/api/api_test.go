package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		spec Spec
		want error
	}{
		"plain":     {Spec{VM: "vm1", Name: "gpu0"}, nil},
		"full":      {Spec{VM: "vm-1.a", Name: "gpu0", Limits: Limits{Share: 300, Cap: 25}}, nil},
		"no VM":     {Spec{Name: "gpu0"}, ErrName},
		"dots":      {Spec{VM: "..", Name: "gpu0"}, ErrName},
		"slash":     {Spec{VM: "a/b", Name: "gpu0"}, ErrName},
		"long":      {Spec{VM: strings.Repeat("a", 64), Name: "gpu0"}, ErrName},
		"both long": {Spec{VM: strings.Repeat("a", 63), Name: strings.Repeat("b", 63)}, ErrName},
		"cap":       {Spec{VM: "a", Name: "b", Limits: Limits{Cap: 101}}, ErrLimit},
		"share":     {Spec{VM: "a", Name: "b", Limits: Limits{Share: 1 << 20}}, ErrLimit},
	} {
		if err := c.spec.Check(); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestClient(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	c := NewClient(socket)
	defer c.Close()
	if _, err := c.GPUs(context.Background()); !errors.Is(err, ErrNotRunning) {
		t.Fatalf("without a daemon: %v", err)
	}
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/vgpus/{vm}/{name}", func(w http.ResponseWriter, r *http.Request) {
		var s Wish
		if json.NewDecoder(r.Body).Decode(&s) != nil || s.Memory == nil || *s.Memory != 5<<20 || s.Share != nil || r.PathValue("vm") != "a" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(VGPU{Spec: Spec{Limits: s.On(Limits{})}, State: Waiting})
	})
	mux.HandleFunc("DELETE /v1/vgpus/{vm}/{name}", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(Error{Text: "a VM uses it", Remedy: "detach it first"})
	})
	srv := &http.Server{Handler: mux}
	go func() { _ = srv.Serve(ln) }()
	defer srv.Close()
	v, err := c.Ensure(context.Background(), Spec{VM: "a", Name: "g", Limits: Limits{Memory: 5 << 20}}.Wish())
	if err != nil || v.State != Waiting || v.Spec.Memory != 5<<20 {
		t.Fatalf("%+v %v", v, err)
	}
	var e *Error
	if err := c.Release(context.Background(), "a", "g", true); !errors.As(err, &e) || e.Status != 409 || e.Error() != "a VM uses it: detach it first" {
		t.Fatalf("%v", err)
	}
}

// TestUnreached: nobody there, and nobody whom this user may ask, are told apart from what went
// wrong on the way.
func TestUnreached(t *testing.T) {
	c := NewClient("/run/x.sock")
	defer c.Close()
	for errno, want := range map[syscall.Errno]int{syscall.ENOENT: 0, syscall.ECONNREFUSED: 0, syscall.EACCES: http.StatusForbidden, syscall.EPERM: http.StatusForbidden, syscall.EIO: -1} {
		err := c.unreached(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", errno)})
		var e *Error
		switch {
		case want == 0 && !errors.Is(err, ErrNotRunning),
			want > 0 && (!errors.As(err, &e) || e.Status != want || !strings.Contains(e.Text, "/run/x.sock")),
			want < 0 && !errors.Is(err, errno):
			t.Errorf("%v: %v", errno, err)
		}
	}
	d := NewDeviceClient("/run/d.sock")
	defer d.Close()
	for _, cause := range []error{syscall.ENOENT, syscall.ECONNREFUSED, syscall.ECONNRESET, io.EOF} {
		if err := d.unreached(&url.Error{Op: "Get", URL: "http://causeway/v1/status", Err: cause}); !errors.Is(err, ErrNoDevice) || errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "/run/d.sock") {
			t.Errorf("a device process: %v: %v", cause, err)
		}
	}
	far, err := NewServerClient("gpu1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for word, cause := range map[string]error{
		"remote.listen": dial(syscall.ECONNREFUSED), "firewall": dial(syscall.EHOSTUNREACH), "lets this port through": dial(os.ErrDeadlineExceeded), "is up": context.DeadlineExceeded,
		"/etc/hosts": dial(&net.DNSError{Err: "no such host", Name: "gpu1", IsTimeout: true}), "the log of its causewayd": io.EOF, "another service": syscall.ECONNRESET, "or another": &net.OpError{Op: "write", Err: os.NewSyscallError("write", syscall.EPIPE)},
	} {
		if err := far.unreached(&url.Error{Op: "Get", URL: "https://gpu1:7745/v1/gpus", Err: cause}); !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), "gpu1:7745") {
			t.Errorf("a GPU server: %v: %v", cause, err)
		}
	}
	late := c.unreached(&url.Error{Op: "Get", URL: "http://causeway/v1/gpus", Err: context.DeadlineExceeded})
	if !errors.Is(late, context.DeadlineExceeded) || !strings.Contains(late.Error(), "/run/x.sock has not answered in time") || !strings.Contains(late.Error(), "journalctl -u causewayd") {
		t.Errorf("no answer in time: %v", late)
	}
}

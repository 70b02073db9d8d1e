package daemon_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
	"causeway/host/daemon/peer"
)

// as makes a request in somebody's name, without a socket.
func (h *host) as(uid uint32, method, path, body string) (int, api.Error) {
	h.t.Helper()
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	req = req.WithContext(peer.With(h.t.Context(), peer.Peer{PID: 1, UID: uid, GID: uid}))
	rec := httptest.NewRecorder()
	h.d.Handler().ServeHTTP(rec, req)
	var e api.Error
	_ = json.Unmarshal(rec.Body.Bytes(), &e)
	return rec.Code, e
}

// TestRoles: who may what.
func TestRoles(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30))
	h.cfg.Roles.Viewer, h.cfg.Roles.Operator, h.cfg.Roles.Admin = []string{"11"}, []string{"@12"}, []string{"13"}
	h.start()
	h.ensure(one)
	const nobody, viewer, operator, admin = 10, 11, 12, 13
	for _, c := range []struct {
		method, path, body string
		least              uint32
	}{
		{"GET", "/v1/version", "", viewer},
		{"GET", "/v1/gpus", "", viewer},
		{"GET", "/v1/vgpus", "", viewer},
		{"GET", "/v1/vgpus/vm1/gpu0", "", viewer},
		{"GET", "/v1/vgpus/vm1/gpu0/log", "", viewer},
		{"GET", "/metrics", "", viewer},
		{"PUT", "/v1/vgpus/vm1/gpu0", `{"memory":1048576}`, operator},
		{"PUT", "/v1/vgpus/vm1/gpu0/limits", `{"memory":1048576}`, operator},
		{"POST", "/v1/gpus/soft/drain", "", admin},
		{"POST", "/v1/gpus/soft/resume", "", admin},
		{"DELETE", "/v1/vgpus/vm1/gpu0", "", operator},
	} {
		for uid := uint32(nobody); uid <= admin; uid++ {
			if c.method == "DELETE" && uid > operator {
				continue // it is gone
			}
			code, e := h.as(uid, c.method, c.path, c.body)
			if allowed := code == 200; allowed != (uid >= c.least) || !allowed && (code != 403 || e.Remedy == "") {
				t.Errorf("%s %s by %d: %d %v", c.method, c.path, uid, code, e.Error())
			}
		}
	}
	rec := httptest.NewRecorder()
	h.d.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/v1/version", nil))
	if rec.Code != 403 {
		t.Errorf("without a name: %d", rec.Code)
	}
}

func TestBadRequests(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).start()
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		words              string
	}{
		"no such path":     {"GET", "/v2/x", "", 404, "GET /v2/x"},
		"no such method":   {"POST", "/v1/vgpus/vm1/gpu0", "", 404, ""},
		"not JSON":         {"PUT", "/v1/vgpus/vm1/gpu0", "<xml/>", 400, "body"},
		"empty":            {"PUT", "/v1/vgpus/vm1/gpu0", "", 400, "EOF"},
		"two values":       {"PUT", "/v1/vgpus/vm1/gpu0", "{}{}", 400, "more than one"},
		"unknown field":    {"PUT", "/v1/vgpus/vm1/gpu0", `{"memorie":1}`, 400, "memorie"},
		"negative":         {"PUT", "/v1/vgpus/vm1/gpu0", `{"memory":-1}`, 400, "memory"},
		"other name":       {"PUT", "/v1/vgpus/vm1/gpu0", `{"vm":"vm2"}`, 400, "vm2/gpu0"},
		"too long":         {"PUT", "/v1/vgpus/vm1/gpu0", `{"gpu":"` + strings.Repeat("x", 1<<17) + `"}`, 413, "65536"},
		"name":             {"PUT", "/v1/vgpus/.vm/gpu0", `{}`, 400, "not a name"},
		"name that climbs": {"PUT", "/v1/vgpus/..%2f..%2fetc/gpu0", `{}`, 400, "not a name"},
		"long path":        {"PUT", "/v1/vgpus/" + strings.Repeat("v", 60) + "/" + strings.Repeat("g", 60), `{}`, 400, "too long"},
		"cap":              {"PUT", "/v1/vgpus/vm1/gpu0", `{"cap":101}`, 400, "cap"},
		"remote":           {"PUT", "/v1/vgpus/vm1/gpu0", `{"remote":"a:1"}`, 400, "no GPU server"},
		"owner":            {"PUT", "/v1/vgpus/vm1/gpu0", `{"owner":"no-such-user"}`, 400, "no-such-user"},
		"GPU":              {"PUT", "/v1/vgpus/vm1/gpu0", `{"gpu":"H200"}`, 404, "it has soft"},
		"too much":         {"PUT", "/v1/vgpus/vm1/gpu0", `{"memory":2147483648}`, 507, "2 GiB do not fit: soft (Causeway Software GPU) has 1 GiB"},
		"no vGPU":          {"GET", "/v1/vgpus/vm1/gpu0", "", 404, "vm1/gpu0"},
		"limits of none":   {"PUT", "/v1/vgpus/vm1/gpu0/limits", "{}", 404, ""},
		"log of none":      {"GET", "/v1/vgpus/vm1/gpu0/log", "", 404, ""},
		"lines":            {"GET", "/v1/vgpus/vm1/gpu0/log?lines=x", "", 400, "lines=x"},
		"condition":        {"DELETE", "/v1/vgpus/vm1/gpu0?if=used", "", 400, "unused"},
		"no GPU":           {"POST", "/v1/gpus/7/drain", "", 404, `"7"`},
	} {
		if code, e := h.as(0, c.method, c.path, c.body); code != c.status || !strings.Contains(e.Error(), c.words) {
			t.Errorf("%s: %d %q", name, code, e.Error())
		}
	}
	if left := h.below(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestFlood: connections that say nothing do not keep others out for long, and one user cannot take
// them all.
func TestFlood(t *testing.T) {
	t.Parallel()
	h := newHost(t, daemontest.Soft(1<<30)).start()
	var held []net.Conn
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	heard := map[net.Conn][]byte{}
	for range 600 { // root's bound is the total
		c, err := net.Dial("unix", api.Socket(h.cfg.RunDir))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	until(t, "most of those over the bound are told", func() bool {
		told := 0
		for _, c := range held[500:] {
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			b, _ := io.ReadAll(c)
			if heard[c] = append(heard[c], b...); bytes.Contains(heard[c], []byte("503")) && bytes.Contains(heard[c], []byte("too many connections")) {
				told++
			}
		}
		return told >= 80
	})
	for _, c := range held {
		_ = c.Close()
	}
	until(t, "served again", func() bool { _, err := h.c.Version(t.Context()); return err == nil })
}

func TestLog(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30))
	h.cfg.Devices.LogSize = 1000
	h.start()
	h.ensure(one)
	dev := api.NewClient(one.ControlPath(h.cfg.RunDir))
	defer dev.Close()
	say := func(text string) {
		t.Helper()
		d := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			return net.Dial("unix", one.ControlPath(h.cfg.RunDir))
		}}}
		defer d.CloseIdleConnections()
		resp, err := d.Post("http://x/say", "", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	read := func(lines int) string { return h.tail(one, lines) }
	say("a\nb\nc\n")
	for lines, want := range map[int]string{-1: "a\nb\nc\n", 0: "", 1: "c\n", 2: "b\nc\n", 3: "a\nb\nc\n", 99: "a\nb\nc\n"} {
		if got := read(lines); got != want {
			t.Errorf("%d lines: %q", lines, got)
		}
	}
	follow, err := h.c.Log(t.Context(), one.VM, one.Name, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	defer follow.Close()
	buf := make([]byte, 100)
	n, err := io.ReadAtLeast(follow, buf, 2)
	if err != nil || string(buf[:n]) != "c\n" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	say("d\n")
	if n, err = io.ReadAtLeast(follow, buf, 2); err != nil || string(buf[:n]) != "d\n" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	say(strings.Repeat("0123456789\n", 200))
	until(t, "rotated", func() bool { return !strings.Contains(read(-1), "0123456789") })
	say("after\n")
	if got := read(-1); got != "after\n" {
		t.Errorf("after it was rotated: %q", got)
	}
	// Who follows does not keep causewayd from ending.
	begun := time.Now()
	h.stop()
	if d := time.Since(begun); d > time.Minute {
		t.Errorf("it took %v to end", d)
	}
}

func TestReload(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).start()
	c := h.cfg
	c.Roles.Viewer, c.Devices.Cap, c.RunDir = []string{"11"}, 30, "/elsewhere"
	later, err := h.d.Reload(c)
	if err != nil || strings.Join(later, " ") != "run_dir" {
		t.Errorf("%v, %v", later, err)
	}
	if code, _ := h.as(11, "GET", "/v1/version", ""); code != 200 {
		t.Errorf("the new viewer: %d", code)
	}
	if v := h.ensure(one); v.Spec.Cap != 30 {
		t.Errorf("%+v", v.Spec)
	}
	c.Roles.Admin = []string{"no-such-user"}
	if _, err := h.d.Reload(c); err == nil {
		t.Error("a wrong configuration holds")
	}
}

// TestMetrics: what the fake device says reaches Prometheus; over TCP, metrics are all there is.
func TestMetrics(t *testing.T) {
	h := newHost(t, daemontest.Real(2, "NVIDIA H200", 1<<30)).start()
	one := roomy
	h.ensure(one)
	h.tell(one, api.Status{Past: api.Counters{Launches: 41}, Memory: 99})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.d.ServeMetrics(ctx, ln) }()
	get := func(path string) (int, string) {
		resp, err := http.Get("http://" + ln.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	launches := `causeway_vgpu_launches_total{gpu="` + daemontest.UUID(0) + `",vgpu="gpu0",vm="vm1"} 41`
	code, text := get("/metrics")
	until(t, "its device process has answered in time", func() bool {
		if !strings.Contains(text, launches) {
			code, text = get("/metrics")
		}
		return strings.Contains(text, launches)
	})
	for _, want := range []string{
		launches,
		`causeway_gpu_memory_promised_bytes{gpu="` + daemontest.UUID(0) + `"} 6.7108864e+08`,
		`causeway_build_info{version="test"} 1`,
	} {
		if code != 200 || !strings.Contains(text, want) {
			t.Errorf("%d, no %s in\n%s", code, want, text)
		}
	}
	if code, _ := get("/v1/vgpus"); code != 404 {
		t.Errorf("the API over TCP: %d", code)
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := ended(t, done); err != nil {
		t.Error(err)
	}
}

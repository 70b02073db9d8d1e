package controller

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"causeway/host/fleet/lease"
	"causeway/remote/mtls"
)

// TestHealth: a controller is not ready before it knows who leads and what there is; one whose
// configuration may come later is, with no hosts; metrics say that it leads, and no more when it
// does not.
func TestHealth(t *testing.T) {
	o := Options{Client: fake.NewClientset(), Events: record.NewFakeRecorder(10), Config: filepath.Join(t.TempDir(), "hosts.yaml"), Files: mtls.Files{CA: "/none", Certificate: "/none", Key: "/none"}, Namespace: "causeway", Identity: "a",
		Every: time.Second, Patience: 2 * time.Second, Metrics: NewMetrics(), Health: NewHealth(), Log: slog.New(slog.DiscardHandler)}
	if err := Run(t.Context(), o); err == nil {
		t.Fatal("it runs without a configuration")
	}
	mux := http.NewServeMux()
	o.Health.Register(mux)
	mux.Handle("GET /metrics", o.Metrics.Handler())
	s := httptest.NewServer(mux)
	defer s.Close()
	get := func(path string) (int, string) {
		r, err := http.Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(b)
	}
	if code, text := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(text, "not known yet") {
		t.Errorf("%d %q", code, text)
	}
	if code, _ := get("/healthz"); code != http.StatusOK {
		t.Errorf("healthz: %d", code)
	}
	o.MayCome = true
	if err := os.WriteFile(o.Config, []byte("nodes: {f: f}\nhosts: [{name: gpu1}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Fatalf("hosts and no certificate: %v", err)
	}
	if err := os.Remove(o.Config); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if code, _ := get("/readyz"); code == http.StatusOK {
			break
		}
		if time.Now().After(until) {
			t.Fatal("it does not become ready")
		}
	}
	if _, text := get("/metrics"); !strings.Contains(text, "causeway_fleet_controller_leads 1") || !strings.Contains(text, "causeway_fleet_controller_epoch 1") {
		t.Errorf("metrics: %s", text)
	}
	o.Metrics.host("gpu1", lease.Account{LastHeartbeat: time.Unix(7, 0), Answers: true, GPUs: 8, Reserved: 2, Memory: 3 << 30})
	_, text := get("/metrics")
	for _, want := range []string{`host_up{host="gpu1"} 1`, `host_heard_timestamp_seconds{host="gpu1"} 7`, `host_gpus{host="gpu1"} 8`, `host_reservations{host="gpu1"} 2`, `reserved_memory_bytes{host="gpu1"} 3.221225472e+09`, `acts_total{act="refused",host="gpu1"} 0`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	end()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, text := get("/metrics")
		if strings.Contains(text, "causeway_fleet_controller_leads 0") && !strings.Contains(text, "host_up{") {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("metrics of one that leads no more: %s", text)
		}
	}
	o.Metrics.leads(2)
	if o.Metrics.ended(1); !strings.Contains(second(get("/metrics")), "causeway_fleet_controller_leads 1") {
		t.Error("the end of a term before ends this one")
	}
}

func second(_ int, text string) string { return text }

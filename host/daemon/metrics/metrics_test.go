package metrics

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"causeway/host/api"
)

type fake struct {
	gpus  []api.GPU
	vgpus []api.VGPU
	err   error
	ends  *time.Time
	ports []api.Port
}

func (f *fake) GPUs(context.Context) ([]api.GPU, error)   { return f.gpus, nil }
func (f *fake) VGPUs(context.Context) ([]api.VGPU, error) { return f.vgpus, f.err }
func (f *fake) Version() api.Version {
	return api.Version{Version: "1.2", Started: time.Unix(1000, 0), Ports: f.ports}
}
func (f *fake) Counts() Counts { return Counts{OK: 3, Failed: 1, Refused: 2, SchedulerUp: true} }

func (f *fake) Certificate() (time.Time, bool) {
	if f.ends == nil {
		return time.Time{}, false
	}
	return *f.ends, true
}

func full() *fake {
	status := &api.Status{
		Version: "1.1", Memory: 77, Past: api.Counters{Launches: 5, BusyNanos: 2e9}, Opened: 4, Refused: 1,
		Sessions: []api.Session{{Counters: api.Counters{Launches: 2, BusyNanos: 5e8, BytesIn: 9, OutOfMemory: 1}}},
	}
	return &fake{
		gpus: []api.GPU{
			{ID: "GPU-1", Backend: "cuda", Name: "NVIDIA H200", Memory: 100, Used: 30, Promised: 20, Utilization: 50, Temperature: 41, PowerMW: 76500, Drained: true},
			{ID: "GPU-2", Backend: "soft", Name: "bad\xffname", Memory: 10},
		},
		vgpus: []api.VGPU{
			{Spec: api.Spec{VM: "a", Name: "gpu0", Limits: api.Limits{Memory: 20, Share: 100, Cap: 25, Sessions: 64}}, State: api.Connected, GPU: "GPU-1", Status: status},
			{Spec: api.Spec{VM: "b", Name: "gpu0", Limits: api.Limits{Share: 100}}, State: api.Lost, GPU: "GPU-1"},
		},
	}
}

func TestNames(t *testing.T) {
	rec := httptest.NewRecorder()
	Handler(full(), slog.Default()).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	problems, err := promlint.New(rec.Body).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestValues(t *testing.T) {
	for name, want := range map[string]string{
		"causeway_gpu_power_watts":               `causeway_gpu_power_watts{gpu="GPU-1"} 76.5`,
		"causeway_gpu_utilization_ratio":         `causeway_gpu_utilization_ratio{gpu="GPU-1"} 0.5`,
		"causeway_gpu_drained":                   "causeway_gpu_drained{gpu=\"GPU-1\"} 1\ncauseway_gpu_drained{gpu=\"GPU-2\"} 0",
		"causeway_vgpu_launches_total":           `causeway_vgpu_launches_total{gpu="GPU-1",vgpu="gpu0",vm="a"} 7`,
		"causeway_vgpu_busy_seconds_total":       `causeway_vgpu_busy_seconds_total{gpu="GPU-1",vgpu="gpu0",vm="a"} 2.5`,
		"causeway_vgpu_oom_total":                `causeway_vgpu_oom_total{gpu="GPU-1",vgpu="gpu0",vm="a"} 1`,
		"causeway_vgpu_memory_limit_bytes":       `causeway_vgpu_memory_limit_bytes{gpu="GPU-1",vgpu="gpu0",vm="a"} 20`,
		"causeway_vgpu_cap_ratio":                `causeway_vgpu_cap_ratio{gpu="GPU-1",vgpu="gpu0",vm="a"} 0.25`,
		"causeway_vgpu_sessions_refused_total":   `causeway_vgpu_sessions_refused_total{gpu="GPU-1",vgpu="gpu0",vm="a"} 1`,
		"causeway_daemon_start_time_seconds":     `causeway_daemon_start_time_seconds 1000`,
		"causeway_api_requests_total":            "causeway_api_requests_total{result=\"failed\"} 1\ncauseway_api_requests_total{result=\"ok\"} 3\ncauseway_api_requests_total{result=\"refused\"} 2",
		"causeway_vgpu_worker_cpu_seconds_total": `causeway_vgpu_worker_cpu_seconds_total{gpu="GPU-1",vgpu="gpu0",vm="a"} 0`,
	} {
		rec := httptest.NewRecorder()
		Handler(full(), slog.Default()).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
		var got []string
		for line := range strings.Lines(rec.Body.String()) {
			if strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		if strings.Join(got, "\n") != want {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
		}
	}
}

// TestFails: what can be read is told, and what cannot is said.
func TestFails(t *testing.T) {
	f := full()
	f.err, f.vgpus = errors.New("busy"), nil
	rec := httptest.NewRecorder()
	Handler(f, slog.New(slog.DiscardHandler)).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{`causeway_scrape_failed{what="vgpus"} 1`, `causeway_scrape_failed{what="gpus"} 0`, `causeway_gpu_memory_bytes{gpu="GPU-1"} 100`} {
		if rec.Code != 200 || !strings.Contains(rec.Body.String(), want) {
			t.Errorf("status %d, no %s", rec.Code, want)
		}
	}
}

// TestCertificate: its end is told where other hosts are to know this one, and that none does.
func TestCertificate(t *testing.T) {
	const name = "\ncauseway_certificate_end_time_seconds "
	end := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		ends *time.Time
		want string
	}{{nil, ""}, {&end, name + "1.7e+09\n"}, {new(time.Time), name + "0\n"}} {
		f := full()
		f.ends = c.ends
		rec := httptest.NewRecorder()
		Handler(f, slog.Default()).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
		if body := rec.Body.String(); c.want == "" && strings.Contains(body, name) || !strings.Contains(body, c.want) {
			t.Errorf("%v: %s", c.ends, body)
		}
	}
}

// TestPorts: each of the configuration is told by its key, and none where it names none.
func TestPorts(t *testing.T) {
	f := full()
	for _, ports := range [][]api.Port{nil, {{Key: "remote.listen", Error: "address already in use"}, {Key: "metrics.listen"}}} {
		f.ports = ports
		rec := httptest.NewRecorder()
		Handler(f, slog.Default()).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
		if got, want := strings.Contains(rec.Body.String(), "causeway_port_served{key=\"remote.listen\"} 0\n"), ports != nil; got != want {
			t.Errorf("%v: %s", ports, rec.Body)
		}
		if got, want := strings.Contains(rec.Body.String(), "causeway_port_served{key=\"metrics.listen\"} 1\n"), ports != nil; got != want {
			t.Errorf("%v: %s", ports, rec.Body)
		}
	}
}

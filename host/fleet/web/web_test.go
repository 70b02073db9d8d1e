package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"causeway/host/fleet/overview"
)

var start = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

// fleet is one with something of everything.
func fleet() *overview.Fleet {
	return &overview.Fleet{
		Nodes: []overview.Node{
			{Name: "gpu-host-1", State: overview.Ready, GPUs: []overview.GPU{
				{Device: "gpu-0", Model: "NVIDIA H200", Memory: 140 << 30, Claimed: 100 << 30, Compute: 75, Claims: 3},
				{Device: "gpu-1", Model: "NVIDIA H200", Memory: 140 << 30, Taints: []string{"drained=fault"}}}},
			{Name: "gpu-host-2", State: overview.NotReady, Notes: []string{"cordoned"}, GPUs: []overview.GPU{{Device: "gpu-0", Memory: 80 << 30}}},
			{Name: "empty", State: overview.Ready, GPUs: []overview.GPU{}},
		},
		Claims: []overview.Claim{
			{Namespace: "team", Name: "train", State: overview.InUse, Created: start.Add(-time.Hour), Memory: "100Gi", Pods: []string{"train-1"},
				Parts: []overview.Part{{Node: "gpu-host-1", Device: "gpu-0", Memory: 100 << 30, Compute: 75, Sessions: overview.Open}}},
			{Namespace: "team", Name: "far", State: overview.InUse, Created: start, Memory: "1Gi", Parts: []overview.Part{{Node: "server", Device: "gpu-9", Memory: 1 << 30, Lease: overview.Held}}},
			{Namespace: "team", Name: "big", State: overview.Waiting, Created: start.Add(-5 * time.Minute), Memory: "60Gi", Why: "<script>alert(1)</script> cannot allocate all claims"},
			{Namespace: "other", Name: "bad", State: overview.Refused, Created: start, Memory: "all", Why: "unknown field"},
		},
		Moves:  []overview.Move{{Namespace: "team", VM: "desk", From: "gpu-host-1", To: ""}},
		Unread: []string{"how nodes are: forbidden"},
	}
}

// served is a page over what read gives.
func served(t *testing.T, read func(context.Context) (*overview.Fleet, error)) (get func(path string) (int, string), s *Source, now *time.Time) {
	t.Helper()
	at := start
	s = &Source{Read: read, Every: time.Second, Log: slog.New(slog.DiscardHandler)}
	mux := http.NewServeMux()
	if err := (&Page{Source: s, Version: "1.2", Now: func() time.Time { return at }}).Register(mux); err != nil {
		t.Fatal(err)
	}
	mux.Handle("GET /metrics", Metrics(s, "1.2"))
	return func(path string) (int, string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		b, err := io.ReadAll(w.Result().Body)
		if err != nil {
			t.Fatal(err)
		}
		if w.Code == http.StatusOK && path != "/metrics" && !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %v", path, w.Header())
		}
		return w.Code, string(b)
	}, s, &at
}

// words of HTML, without its tags.
func words(html string) string {
	return strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(html, " ")), " ")
}

// TestPage: all that there is is shown, and others' text is text.
func TestPage(t *testing.T) {
	get, s, _ := served(t, func(context.Context) (*overview.Fleet, error) { return fleet(), nil })
	s.Look(t.Context(), start)
	code, html := get("/")
	if code != 200 || strings.Contains(html, "<script>alert") {
		t.Fatalf("%d, %s", code, html)
	}
	text := words(html)
	for _, want := range []string{
		"3 GPUs, 2 of them take no claims", "100 GiB of 360 GiB claimed", "25 % of GPU time promised", "2 claims in use", "1 waiting; 40 GiB are free and too little for any", "1 refused",
		"gpu-host-1 Ready", "NVIDIA H200 gpu-0", "memory 71 % 100 GiB of 140 GiB", "time 75 % 75 of 100, 3 claims", "drained=fault", "gpu-host-2 NotReady cordoned", "empty Ready no GPU",
		"40 GiB are free, too little for any claim that waits", "team/train InUse 100 GiB 75 gpu-host-1 gpu-0 open train-1 1h00m", "team/big Waiting 60Gi 5m",
		"&lt;script&gt;alert(1)&lt;/script&gt; cannot allocate", "other/bad Refused", "team/far ready server gpu-9", "team/desk gpu-host-1 no node yet", "Not shown: how nodes are: forbidden", "As of 12:00:00 UTC", "Causeway 1.2",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if _, part := get("/now"); strings.Contains(part, "<html") || !strings.Contains(html, strings.TrimSpace(part)) {
		t.Errorf("the part that changes: %s", part)
	}
	code, text = get("/fleet.json")
	var back overview.Fleet
	if err := json.Unmarshal([]byte(text), &back); err != nil || code != 200 || len(back.Claims) != 4 || back.Moves[0].VM != "desk" {
		t.Errorf("%d, %v, %s", code, err, text)
	}
	for path, want := range map[string]string{"/style.css": "prefers-color-scheme", "/live.js": "fetch", "/other": "404"} {
		if _, text := get(path); !strings.Contains(text, want) {
			t.Errorf("%s: %s", path, text)
		}
	}
}

// TestStates: what is missing, old or never was is said.
func TestStates(t *testing.T) {
	var f *overview.Fleet
	fails := errors.New("connection refused")
	get, s, now := served(t, func(context.Context) (*overview.Fleet, error) { return f, fails })
	has := func(path, want string) {
		t.Helper()
		if _, html := get(path); !strings.Contains(words(html), want) {
			t.Errorf("%q is missing in %s", want, words(html))
		}
	}
	has("/", "Reading the fleet")
	if code, _ := get("/fleet.json"); code != http.StatusServiceUnavailable {
		t.Errorf("%d", code)
	}
	s.Look(t.Context(), start)
	has("/", "The API server does not answer connection refused")
	f, fails = &overview.Fleet{}, nil
	s.Look(t.Context(), start)
	has("/", "No node offers GPUs")
	has("/", "No claim. causeway-fleet claim NAME")
	has("/", "No claim has a GPU of another host")
	has("/", "No VM with vGPUs is on its way")
	fails = errors.New("connection refused")
	s.Look(t.Context(), start.Add(time.Second))
	*now = start.Add(90 * time.Second)
	has("/now", "This is as it was 1m ago connection refused")
	fails = nil
	s.Look(t.Context(), start)
	has("/now", "This is as it was 1m ago It has not been read since")
}

// TestMetrics: they are there, each once, and a fleet that was never read says nothing.
func TestMetrics(t *testing.T) {
	f := fleet()
	f.Nodes[0].GPUs = append(f.Nodes[0].GPUs, f.Nodes[0].GPUs[0]) // a node that lies
	get, s, _ := served(t, func(context.Context) (*overview.Fleet, error) { return f, nil })
	if code, text := get("/metrics"); code != 200 || strings.Contains(text, "causeway_fleet_claims") {
		t.Errorf("%d, %s", code, text)
	}
	s.Look(t.Context(), start)
	code, text := get("/metrics")
	if code != 200 {
		t.Fatalf("%d, %s", code, text)
	}
	for _, want := range []string{
		`causeway_fleet_gpu_memory_bytes{gpu="gpu-0",model="NVIDIA H200",node="gpu-host-1"} 1.5032385536e+11`, `causeway_fleet_gpu_claimed_memory_bytes{gpu="gpu-0",model="NVIDIA H200",node="gpu-host-1"} 1.073741824e+11`,
		`causeway_fleet_gpu_stranded_memory_bytes{gpu="gpu-0",model="NVIDIA H200",node="gpu-host-1"} 4.294967296e+10`, `causeway_fleet_gpu_compute_promised_ratio{gpu="gpu-0",model="NVIDIA H200",node="gpu-host-1"} 0.75`,
		`causeway_fleet_gpu_out{gpu="gpu-1",model="NVIDIA H200",node="gpu-host-1"} 1`, `causeway_fleet_node_ready{node="gpu-host-2"} 0`, `causeway_fleet_claims{namespace="team",state="Waiting"} 1`,
		`causeway_fleet_claims{namespace="other",state="InUse"} 0`, `causeway_fleet_leases{state="ready"} 1`, `causeway_fleet_leases{state="asked"} 0`, "causeway_fleet_moves 1", `causeway_fleet_info{version="1.2"} 1`,
		fmt.Sprintf("causeway_fleet_read_timestamp_seconds %v", float64(start.Unix())),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	if !regexp.MustCompile(`causeway_fleet_claim_wait_seconds\{namespace="team"\} [1-9]`).MatchString(text) {
		t.Error("nobody waits")
	}
}

// TestDashboard: the fleet's dashboard asks for what there is, here and in causewayd, and each
// panel has its place.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile("../../../scripts/grafana/fleet.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID    string
		Panels []struct {
			ID      int
			Title   string
			Type    string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil || d.UID == "" || len(d.Panels) < 10 {
		t.Fatalf("%v, %d panels", err, len(d.Panels))
	}
	_, text := func() (int, string) {
		get, s, _ := served(t, func(context.Context) (*overview.Fleet, error) { return fleet(), nil })
		s.Look(t.Context(), start)
		return get("/metrics")
	}()
	asked, ids := map[string]bool{}, map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24 || (len(p.Targets) == 0) != (p.Type == "row") {
			t.Errorf("%s: %+v", p.Title, p)
		}
		ids[p.ID] = true
		for _, q := range p.Targets {
			for _, name := range regexp.MustCompile(`causeway_fleet_\w+`).FindAllString(q.Expr, -1) {
				asked[name] = true
				if strings.HasPrefix(name, "causeway_fleet_controller_") { // its own test has those
					continue
				}
				if !strings.Contains(text, "\n"+name+"{") && !strings.Contains(text, "\n"+name+" ") {
					t.Errorf("%s: there is no %s", p.Title, name)
				}
			}
		}
	}
	for _, name := range regexp.MustCompile(`(?m)^# HELP (causeway_fleet_\w+)`).FindAllStringSubmatch(text, -1) {
		if !asked[name[1]] && name[1] != "causeway_fleet_info" {
			t.Errorf("nobody looks at %s", name[1])
		}
	}
}

package daemon_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon"
	"causeway/host/daemon/config"
	"causeway/host/daemon/daemontest"
	"causeway/host/daemon/peer"
)

// FuzzAPI reads its input as requests, one a line: who, method, path and body. No device process
// can start, for there is no such program. Whatever is asked: the answer is JSON, what was refused
// says why, nobody gets beyond his role, nothing is causewayd's own fault (500) but that program,
// and nothing is left in the run directory.
func FuzzAPI(f *testing.F) {
	f.Add("3 PUT /v1/vgpus/vm1/gpu0 {\"vm\":\"vm1\",\"name\":\"gpu0\",\"memory\":\"1GiB\"}\n1 GET /v1/vgpus \n2 PUT /v1/vgpus/vm1/gpu0/limits {\"cap\":\"10%\"}")
	f.Add("3 POST /v1/gpus/soft/drain {}\n1 GET /v1/gpus \n3 POST /v1/gpus/soft/resume \n0 GET /v1/version ")
	f.Add("2 DELETE /v1/vgpus/vm1/gpu0?if=unused \n1 GET /v1/vgpus/vm1/gpu0/log?lines=5&follow=false \n1 GET /metrics \n1 GET /v1/profiles ")
	f.Add("3 PUT /v1/vgpus/%2e%2e/x {\"vm\":\"..\",\"name\":\"x\"}\n2 PUT /v1/vgpus/a/b {}\n2 PATCH /v1/x {]")
	cfg := config.Default()
	cfg.Below(f.TempDir())
	cfg.Scheduler.Enabled = false
	cfg.Devices.SocketOwner = "0"
	cfg.Devices.Log = config.LogFile
	cfg.Roles.Viewer, cfg.Roles.Operator, cfg.Roles.Admin = []string{"1001"}, []string{"1002"}, []string{"1003"}
	d, err := daemon.New(f.Context(), daemon.Options{
		Config: cfg, Program: "/nonexistent", Version: "test", Machine: daemontest.Soft(1), Grace: 100 * time.Millisecond, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = d.Close() })
	h := d.Handler()
	least := map[string]int{"GET": 1, "PUT": 2, "DELETE": 2, "POST": 3}
	f.Fuzz(func(t *testing.T, in string) {
		for n, line := range strings.Split(in, "\n") {
			words := strings.SplitN(line, " ", 4)
			if n > 20 || len(words) < 4 || len(words[0]) != 1 || words[0][0] < '0' || words[0][0] > '3' || !strings.HasPrefix(words[2], "/") {
				return
			}
			who, method := int(words[0][0]-'0'), words[1]
			req, err := http.NewRequest(method, "http://causewayd"+words[2], strings.NewReader(words[3]))
			if err != nil || method == "CONNECT" || req.URL.Query().Has("follow") {
				return
			}
			ctx, cancel := context.WithTimeout(peer.With(t.Context(), peer.Peer{PID: 1, UID: uint32(1000 + who), GID: 999}), 10*time.Second)
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req.WithContext(ctx))
			late := ctx.Err()
			cancel()
			if late != nil {
				t.Fatalf("%q: no answer", line)
			}
			judge(t, line, rec, who >= least[method] || least[method] == 0)
		}
		if left, err := os.ReadDir(cfg.RunDir); err == nil {
			for _, e := range left {
				if e.IsDir() && e.Name() != "state" && e.Name() != "log" {
					t.Errorf("left behind: %s", e.Name())
				}
			}
		}
	})
}

// judge holds an answer against what every answer promises.
func judge(t *testing.T, line string, rec *httptest.ResponseRecorder, may bool) {
	t.Helper()
	switch code := rec.Code; {
	case code == http.StatusInternalServerError && !strings.Contains(rec.Body.String(), "/nonexistent"):
		t.Errorf("%q: causewayd blames itself: %s", line, rec.Body)
	case code >= 300 && code < 400: // the router's, of a path that is not clean
	case code < 400 && !may:
		t.Errorf("%q was allowed", line)
	case code == http.StatusMethodNotAllowed: // the router's
	case code >= 400:
		var e api.Error
		if err := json.Unmarshal(rec.Body.Bytes(), &e); err != nil || e.Text == "" {
			t.Errorf("%q: %d, %q: %v", line, code, rec.Body, err)
		}
	case strings.Contains(rec.Header().Get("Content-Type"), "json"):
		if !json.Valid(rec.Body.Bytes()) {
			t.Errorf("%q: %q", line, rec.Body)
		}
	}
}

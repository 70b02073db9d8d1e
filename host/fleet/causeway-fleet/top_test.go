package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"causeway/host/fleet/overview"
)

// TestUses: figures are those of claims' vGPUs, on nodes and at GPU hosts; figures that are none
// are left out, and a Prometheus that does not answer as one is named.
func TestUses(t *testing.T) {
	answer := func(query string) string {
		series := func(vm, vgpu, value string) string {
			return fmt.Sprintf(`{"metric":{"vm":%q,"vgpu":%q,"instance":"n"},"value":[1,%q]}`, vm, vgpu, value)
		}
		var list []string
		switch {
		case strings.HasPrefix(query, "rate(causeway_vgpu_busy_seconds_total") && strings.Count(query, "[30s]") == 2:
			list = []string{series("claim-1-a", "gpu0", "0.25"), series("node1", "claim-1-b:gpu0", "0.5"), series("claim-1-c", "gpu0", "NaN")}
		case strings.HasPrefix(query, "causeway_vgpu_memory_used_bytes"):
			list = []string{series("claim-1-a", "gpu0", "1048576"), series("claim-1-c", "gpu0", "-5")}
		case strings.HasPrefix(query, "causeway_vgpu_sessions"):
			list = []string{series("claim-1-a", "gpu0", "3")}
		}
		return `{"status":"success","data":{"resultType":"vector","result":[` + strings.Join(list, ",") + `]}}`
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil || r.URL.Path != "/api/v1/query" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, answer(r.Form.Get("query")))
	}))
	defer s.Close()
	u, err := uses(t.Context(), s.URL, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	f := &overview.Fleet{}
	for _, uid := range []string{"1-a", "1-b", "1-c"} {
		p := overview.Part{Memory: 1 << 30}
		if uid == "1-b" {
			p.Lease = overview.Held
		}
		f.Claims = append(f.Claims, overview.Claim{Namespace: "team", Name: uid, UID: uid, Pods: []string{"p"}, Parts: []overview.Part{p}})
	}
	got := f.Top(u)
	if len(got) != 3 || got[0].Claim != "team/1-b" || got[0].Used.Busy != 0.5 || got[1].Used.Busy != 0.25 || got[1].Used.Memory != 1<<20 || got[1].Used.Sessions != 3 || got[2].Used != nil {
		t.Errorf("%+v", got)
	}
	for name, text := range map[string]string{"no JSON": "hello", "a matrix": `{"status":"success","data":{"resultType":"matrix","result":[]}}`, "an error": `{"status":"error","errorType":"bad_data","error":"no"}`} {
		odd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }))
		if _, err := uses(t.Context(), odd.URL, time.Minute); !errors.Is(err, errPrometheus) {
			t.Errorf("%s: %v", name, err)
		}
		odd.Close()
	}
	if _, err := uses(t.Context(), "http://127.0.0.1:1", time.Minute); !errors.Is(err, errPrometheus) {
		t.Error(err)
	}
	for _, args := range [][]string{{"top"}, {"top", "--prometheus", s.URL, "--format", "xml"}, {"top", "--prometheus", s.URL, "--window", "0s"}} {
		t.Setenv(prometheusVariable, "")
		c := root()
		c.SetArgs(args)
		if err := c.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}

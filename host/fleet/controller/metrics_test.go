package controller

import (
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"causeway/host/fleet/lease"
)

// names are those of the controller in a text, each once.
func names(text string, of string) (list []string) {
	for _, m := range regexp.MustCompile(of).FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// TestDashboard: the fleet's dashboard and alerts ask for what a controller says, with the labels
// that it has, and the dashboard for all of it.
func TestDashboard(t *testing.T) {
	m := NewMetrics()
	m.leads(3)
	m.host("gpu1", lease.Account{LastHeartbeat: time.Unix(1000, 0), Answers: true, GPUs: 8, Reserved: 2, Memory: 1 << 30})
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	said := names(w.Body.String(), `(?m)^(causeway_fleet_controller_\w+)[{ ]`)
	if len(said) != 8 {
		t.Fatalf("%v", said)
	}
	for file, whole := range map[string]bool{"grafana/fleet.json": true, "prometheus/fleet.rules.yml": false} {
		b, err := os.ReadFile("../../../scripts/" + file)
		if err != nil {
			t.Fatal(err)
		}
		asked := names(string(b), `\b(causeway_fleet_controller_\w+)`)
		for _, name := range asked {
			if !slices.Contains(said, name) {
				t.Errorf("%s: a controller has no %s", file, name)
			}
		}
		for _, name := range said {
			if whole && !slices.Contains(asked, name) {
				t.Errorf("%s: nobody looks at %s", file, name)
			}
		}
		for _, act := range names(string(b), `act=\\?"(\w+)`) {
			if !slices.Contains(lease.Acts, act) {
				t.Errorf("%s: nothing is counted as %q", file, act)
			}
		}
	}
}

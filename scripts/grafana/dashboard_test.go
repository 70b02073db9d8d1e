package grafana

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"causeway/host/api"
	"causeway/host/daemon/metrics"
)

// nothing is a metrics.Source.
type nothing struct{}

func (nothing) GPUs(context.Context) ([]api.GPU, error)   { return nil, nil }
func (nothing) VGPUs(context.Context) ([]api.VGPU, error) { return nil, nil }
func (nothing) Version() api.Version                      { return api.Version{} }
func (nothing) Counts() metrics.Counts                    { return metrics.Counts{} }
func (nothing) Certificate() (time.Time, bool)            { return time.Time{}, false }

// exported are the names and labels that causewayd has.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	ch := make(chan *prometheus.Desc, 1000)
	metrics.New(nothing{}, slog.New(slog.DiscardHandler)).Describe(ch)
	close(ch)
	names := map[string][]string{}
	text := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([^}]*)\}`)
	for d := range ch {
		m := text.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("what is %s?", d)
		}
		names[m[1]] = strings.Split(m[2], ",")
	}
	if len(names) < 20 {
		t.Fatalf("%d names only", len(names))
	}
	return names
}

var (
	name     = regexp.MustCompile(`\bcauseway_\w+`)
	selector = regexp.MustCompile(`\b(causeway_\w+)\{([^}]*)\}`)
	label    = regexp.MustCompile(`(\w+)\s*=~?`)
)

// check says which names and labels of an expression causewayd does not have.
func check(t *testing.T, names map[string][]string, where, expr string) {
	t.Helper()
	for _, n := range name.FindAllString(expr, -1) {
		if _, there := names[n]; !there {
			t.Errorf("%s: causewayd has no %s", where, n)
		}
	}
	for _, s := range selector.FindAllStringSubmatch(expr, -1) {
		known := " instance job " + strings.Join(names[s[1]], " ") + " "
		for _, l := range label.FindAllStringSubmatch(s[2], -1) {
			if !strings.Contains(known, " "+l[1]+" ") {
				t.Errorf("%s: %s has no label %s", where, s[1], l[1])
			}
		}
	}
	if strings.Count(expr, "(") != strings.Count(expr, ")") {
		t.Errorf("%s: parentheses of %s", where, expr)
	}
}

// The dashboard must be JSON of Grafana's, with expressions over what causewayd exports.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile("causeway.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Title         string
		UID           string
		SchemaVersion int
		Panels        []struct {
			ID      int
			Title   string
			Type    string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ RefID, Expr string }
		}
		Templating struct{ List []struct{ Name string } }
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	if d.SchemaVersion < 38 || d.UID == "" || len(d.Panels) < 15 || len(d.Templating.List) < 3 {
		t.Fatalf("schema %d, %d panels, %d variables", d.SchemaVersion, len(d.Panels), len(d.Templating.List))
	}
	names, seen := exported(t), map[int]bool{}
	for _, p := range d.Panels {
		if seen[p.ID] || p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W == 0 || p.GridPos.H == 0 {
			t.Errorf("%s: its number is another's, or its place is off the grid", p.Title)
		}
		seen[p.ID] = true
		if (len(p.Targets) == 0) != (p.Type == "row") {
			t.Errorf("%s: %d queries", p.Title, len(p.Targets))
		}
		for _, q := range p.Targets {
			check(t, names, p.Title+" "+q.RefID, q.Expr)
		}
	}
}

// Alerts are tried by promtool (../prometheus/test); here their names are compared with what there
// is.
func TestRules(t *testing.T) {
	b, err := os.ReadFile("../prometheus/causeway.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	names, alerts := exported(t), 0
	for line := range strings.Lines(string(b)) {
		if expr, found := strings.CutPrefix(strings.TrimSpace(line), "expr: "); found {
			check(t, names, "rules", expr)
			alerts++
		}
	}
	if alerts < 10 || alerts != strings.Count(string(b), "- alert:") {
		t.Errorf("%d expressions", alerts)
	}
}

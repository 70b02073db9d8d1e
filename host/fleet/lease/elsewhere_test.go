package lease

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestElsewhere: a GPU that the host's own node offers is not offered twice. Any other node that
// says it has the GPU takes it from nobody, and is named once.
func TestElsewhere(t *testing.T) {
	for _, c := range []struct {
		nodes   []string
		offered bool
		says    string
	}{
		{nil, true, ""},
		{[]string{"gpu1"}, false, "another offers it"},
		{[]string{"gpu1.example.net"}, false, "another offers it"},
		{[]string{"node9"}, true, "a node says that it has a GPU of another host"},
		{[]string{"gpu10", "gpu1x.example.net"}, true, "a node says that it has a GPU of another host"},
		{[]string{"gpu1", "node9"}, false, "another offers it"},
	} {
		r := newRig()
		var log bytes.Buffer
		r.Log = slog.New(slog.NewTextHandler(&log, nil))
		r.a.elsewhere = map[string][]string{"GPU-1": c.nodes, "GPU-of-others": {"node9"}}
		r.pass(t)
		r.pass(t)
		if got := len(r.pool.Slices[0].Devices) == 1; got != c.offered {
			t.Errorf("%v say that they have it: offered %v", c.nodes, got)
		}
		if !strings.Contains(log.String(), c.says) || strings.Count(log.String(), "level=ERROR") != len(c.nodes) {
			t.Errorf("%v: the log says %q", c.nodes, log.String())
		}
	}
}

// TestElsewhereAgain: what a node has stopped saying is said again when it is said again.
func TestElsewhereAgain(t *testing.T) {
	r := newRig()
	for i, nodes := range [][]string{{"gpu1"}, nil, {"gpu1"}} {
		r.a.elsewhere = map[string][]string{"GPU-1": nodes}
		r.pass(t)
		if got := len(r.pool.Slices[0].Devices) == 1; got != (nodes == nil) {
			t.Errorf("look %d, %v: offered %v", i, nodes, got)
		}
	}
}

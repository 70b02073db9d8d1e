package ratelog

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	var out bytes.Buffer
	h := New(slog.NewTextHandler(&out, nil), 5, 2)
	now := time.Unix(1000, 0)
	h.b.now = func() time.Time { return now }
	log := slog.New(h)
	lines := func() int {
		n := strings.Count(out.String(), "\n")
		if strings.Contains(out.String(), "left_out_before") {
			t.Log(out.String())
		}
		out.Reset()
		return n
	}
	for range 20 {
		log.With("session", 7).Info("x")
	}
	if n := lines(); n != 5 {
		t.Errorf("%d of a burst", n)
	}
	now = now.Add(time.Second)
	for range 20 {
		log.WithGroup("g").Warn("y", "a", 1)
	}
	if s := out.String(); strings.Count(s, "\n") != 2 || !strings.Contains(s, "g.left_out_before=15") && !strings.Contains(s, "left_out_before=15") {
		t.Errorf("a second later: %q", s)
	}
	out.Reset()
	now = now.Add(time.Hour)
	log.Debug("below the level")
	for range 20 {
		log.Info("z")
	}
	if s := out.String(); strings.Count(s, "\n") != 5 || !strings.Contains(s, "left_out_before=18") {
		t.Errorf("an hour later: %q", s)
	}
	now = now.Add(-time.Hour)
	log.Info("a clock that goes back")
	if n := lines(); n > 5+1 {
		t.Errorf("%d lines", n)
	}
}

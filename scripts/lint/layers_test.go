package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestJudgeLayer(t *testing.T) {
	for _, c := range []struct {
		name, pkg, imported string
		want                string // part of the sentence; empty if nothing is wrong
	}{
		{"down", "host/worker", "causeway/host/schedule/gate", ""},
		{"up", "host/schedule/memory", "causeway/host/worker/link", "host/worker does not stand below it"},
		{"up from a subfolder", "host/worker/meter", "causeway/host/api", "must not import"},
		{"beside", "host/device", "causeway/host/daemon/config", "must not import"},
		{"own room", "host/worker/spawn", "causeway/host/worker/link", ""},
		{"own room upwards", "host/worker/link", "causeway/host/worker", ""},
		{"far down", "host/causeway", "causeway/remote/sys", ""},
		{"the bottom from the middle", "host/driver/soft", "causeway/remote/sys", ""},
		{"similar name", "host/apiary", "causeway/host/limit", "is in no room"},
		{"new room", "host/mirror", "causeway/remote", "is in no room"},
		{"what host must not import", "host/report", "causeway/scripts/lint", "no room that host/ may import"},
		{"not ours", "host/limit", "golang.org/x/sys/unix", ""},
		{"not host's", "scripts/errors", "causeway/host/api", ""},
	} {
		got := judgeLayer(c.pkg, c.imported)
		if c.want == "" && got != "" || c.want != "" && !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestRooms: each room is there, and named once.
func TestRooms(t *testing.T) {
	seen := map[string]bool{}
	for _, rooms := range layers {
		for _, r := range rooms {
			if info, err := os.Stat(filepath.Join("../..", r)); err != nil || !info.IsDir() {
				t.Errorf("%s: no such folder (%v)", r, err)
			}
			if seen[r] {
				t.Errorf("%s has two places", r)
			}
			seen[r] = true
		}
	}
}

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"causeway/host/doctor"
)

func TestDoctor(t *testing.T) {
	t.Setenv(mainEnv, "1") // it starts this program anew, to ask for GPUs
	run, _ := fakeNode(t)
	bad := filepath.Join(t.TempDir(), "causewayd.toml")
	if err := os.WriteFile(bad, []byte("memroy = 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, err := command(t, "doctor", "--json", "--run-dir", run, "--config", bad)
	var results []doctor.Result
	if jerr := json.Unmarshal([]byte(out), &results); jerr != nil || !errors.Is(err, errChecksFailed) {
		t.Fatalf("%v, %v: %s", err, jerr, out)
	}
	for _, r := range results {
		if r.Check == "configuration" && (r.State != doctor.Failed || !strings.Contains(r.Found, "memroy")) {
			t.Errorf("%+v", r)
		}
		if r.Check == "causewayd" && !strings.Contains(r.Found, "causewayd is 1") {
			t.Errorf("it asked another daemon: %+v", r)
		}
	}
	brief, _, _ := command(t, "doctor", "--brief", "--run-dir", run, "--config", bad)
	if strings.Contains(brief, "ok       kernel") || !strings.Contains(brief, "failed   configuration") {
		t.Errorf("%s", brief)
	}
}

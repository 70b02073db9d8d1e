package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMigrateRefuses: what cannot be moved is refused with the reason, before anybody is asked to
// move it.
func TestMigrateRefuses(t *testing.T) {
	run, f := fakeNode(t)
	dir := shortDir(t)
	if out, _, err := command(t, "certify", "--dir", dir, "hosta", "127.0.0.1"); err != nil || !strings.Contains(out, "hosta-key.pem") {
		t.Fatal(out, err)
	}
	file := filepath.Join(dir, "causewayd.toml")
	text := fmt.Sprintf("[migration]\nca = '%[1]s/ca.pem'\ncertificate = '%[1]s/hosta.pem'\nkey = '%[1]s/hosta-key.pem'\n", dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ours := []string{"--run-dir", run, "--config", file, "--memory-only"}
	fails := func(want string, args ...string) {
		t.Helper()
		if _, _, err := command(t, append([]string{"migrate"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, not %q", args, err, want)
		}
	}
	fails("no causewayd listens there", append(ours, "vm1", "127.0.0.1:1")...)
	fails("no vGPU vm7", append(ours, "vm7", "127.0.0.1:1")...)
	fails("no such file", "vm1", "hostb", "--run-dir", run, "--memory-only", "--config", dir+"/none")
	fails("no usable certificate", "vm1", "hostb", "--run-dir", run, "--memory-only", "--config", emptyFile(t, dir))
	fails("--qmp needs --uri", "vm1", "hostb", "--qmp", "/nowhere")
	f.VGPUs[0].Status.Sessions[0].Unmovable = "a stream captures"
	fails("process 77 keeps the VM from being moved: a stream captures", append(ours, "vm1", "127.0.0.1:1")...)
}

// emptyFile is a configuration that says nothing.
func emptyFile(t *testing.T, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "empty.toml")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCA: an authority from its beginning to a revoked host, by the commands.
func TestCA(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		c := caCommand()
		c.SetOut(&out)
		c.SetErr(&out)
		c.SetArgs(append(args, "--dir", dir))
		err := c.Execute()
		return out.String(), err
	}
	must := func(says string, args ...string) {
		t.Helper()
		if out, err := run(args...); err != nil || !strings.Contains(out, says) {
			t.Errorf("%q: %q, %v", args, out, err)
		}
	}
	if _, err := run("issue", "gpu1"); err == nil || !strings.Contains(err.Error(), "ca init") {
		t.Errorf("without an authority: %v", err)
	}
	must("revoked", "init")
	if _, err := run("init"); err == nil {
		t.Error("an authority was made over another")
	}
	must("gpu1.pem", "issue", "gpu1", "192.0.2.1")
	must("192.0.2.1", "list")
	must("revoked: gpu1", "revoke", "gpu1")
	must("nothing that was not", "revoke", "gpu1")
	must("hold for 825 days", "issue", "hosta")
	must("when the authority ends", "issue", "hosta", "--days", "36500")
	must("have expired: --days 0", "issue", "hostb", "--days", "0")
	must(`"revoked": "2`, "list", "--json")
	if _, err := run("revoke", "gpu2"); err == nil || !strings.Contains(err.Error(), "ca list") {
		t.Errorf("a host that there is not was revoked: %v", err)
	}
	st, err := os.Stat(filepath.Join(dir, "ca-key.pem"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
}

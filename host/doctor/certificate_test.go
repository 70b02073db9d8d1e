package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"causeway/remote/mtls"
)

// TestCertificate: a host's own certificate is looked at as others would, and told to end before it
// does.
func TestCertificate(t *testing.T) {
	if r := certificate(t.Context(), &Machine{}); r.State != OK || !strings.Contains(r.Found, "none is needed") {
		t.Errorf("of a host by itself: %+v", r)
	}
	for name, c := range map[string]struct {
		authority, own time.Duration
		spoil          func(t *testing.T, a *mtls.Authority, dir string, f *mtls.Files)
		state          State
		found, do      string
	}{
		"good":                    {9000 * time.Hour, 8000 * time.Hour, nil, OK, "gpu1 is known until 20", ""},
		"ends soon":               {9000 * time.Hour, 100 * time.Hour, nil, Warning, "gpu1 is known until", "causeway ca issue gpu1"},
		"its authority ends soon": {100 * time.Hour, 8000 * time.Hour, nil, Warning, "gpu1 is known until", "authority"},
		"has ended":               {9000 * time.Hour, -time.Minute, nil, Failed, "expired", "causeway ca issue"},
		"revoked": {9000 * time.Hour, 8000 * time.Hour, func(t *testing.T, a *mtls.Authority, _ string, _ *mtls.Files) {
			if _, err := a.Revoke("gpu1"); err != nil {
				t.Fatal(err)
			}
		}, Failed, "revoked", "causeway ca issue"},
		"a list that is cut": {9000 * time.Hour, 8000 * time.Hour, func(t *testing.T, _ *mtls.Authority, dir string, _ *mtls.Files) {
			if err := os.WriteFile(filepath.Join(dir, "revoked"), []byte("-----BEGIN X509 CRL-----\nMII"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, Failed, "revocation list", "copy the authority's file revoked"},
		"another's key": {9000 * time.Hour, 8000 * time.Hour, func(t *testing.T, a *mtls.Authority, _ string, f *mtls.Files) {
			other, err := a.Issue(time.Hour, "gpu2")
			if err != nil {
				t.Fatal(err)
			}
			f.Key = other.Key
		}, Failed, "gpu1.pem with ", "causeway ca issue"},
		"another authority": {9000 * time.Hour, 8000 * time.Hour, func(t *testing.T, _ *mtls.Authority, _ string, f *mtls.Files) {
			dir := t.TempDir()
			if _, err := mtls.NewAuthority(dir, time.Hour); err != nil {
				t.Fatal(err)
			}
			f.CA = filepath.Join(dir, "ca.pem")
		}, Failed, "unknown authority", "of two authorities"},
		"a key for all to read": {9000 * time.Hour, 8000 * time.Hour, func(t *testing.T, _ *mtls.Authority, _ string, f *mtls.Files) {
			if err := os.Chmod(f.Key, 0o644); err != nil {
				t.Fatal(err)
			}
		}, Failed, "gpu1-key.pem", "chmod 600"},
		"no file": {9000 * time.Hour, 8000 * time.Hour, func(t *testing.T, _ *mtls.Authority, _ string, f *mtls.Files) {
			f.Certificate += ".not"
		}, Failed, "gpu1.pem.not", "causeway ca issue"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			a, err := mtls.NewAuthority(dir, c.authority)
			if err != nil {
				t.Fatal(err)
			}
			f, err := a.Issue(c.own, "gpu1")
			if err != nil {
				t.Fatal(err)
			}
			if c.spoil != nil {
				c.spoil(t, a, dir, &f)
			}
			r := certificate(t.Context(), &Machine{Identity: f})
			if r.State != c.state || !strings.Contains(r.Found, c.found) || !strings.Contains(r.Do, c.do) || (r.Do == "") != (c.state == OK) {
				t.Errorf("%+v", r)
			}
		})
	}
}

package mtls

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// site is an authority whose hosts' certificates are issued by another one that it has issued, as
// sites have them: each host's file holds both.
func site(t *testing.T, dir string, names ...string) (Files, []*x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// Causeway's own has none below it.
	if _, err := os.Stat(filepath.Join(dir, caName)); err != nil {
		c := template("site", time.Hour)
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
		if err := write(dir, caName, caKey, c, c, key, key); err != nil {
			t.Fatal(err)
		}
	}
	root, err := OpenAuthority(dir, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c := template("hosts of the site", time.Hour)
	c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, c, root.cert, key.Public(), root.key)
	if err != nil {
		t.Fatal(err)
	}
	between, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	f, err := (&Authority{dir: dir, cert: between, key: key}).Issue(time.Hour, names...)
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(f.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	f.Certificate = filepath.Join(dir, names[0]+"-chain.pem")
	own = append(own, pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: der})...)
	if err := os.WriteFile(f.Certificate, own, 0o644); err != nil {
		t.Fatal(err)
	}
	shown, err := certificates(own)
	if err != nil {
		t.Fatal(err)
	}
	return f, shown
}

// TestBetween: a host whose certificate another than the authority's own has issued is known by
// what it shows beside its own, in a handshake and when it is judged again, and not without.
func TestBetween(t *testing.T) {
	dir := t.TempDir()
	a, shown := site(t, dir, "hosta")
	b, _ := site(t, dir, "hostb")
	if se, ce := met(t, b, a, "hostb"); se != nil || ce != nil {
		t.Errorf("they refuse each other: %v, %v", se, ce)
	}
	if s, err := a.Standing(); err != nil || s.Host != "hosta" {
		t.Errorf("%+v, %v", s, err)
	}
	if err := b.Check(shown); err != nil {
		t.Errorf("judged again: %v", err)
	}
	var unknown x509.UnknownAuthorityError
	if err := b.Check(shown[:1]); !errors.As(err, &unknown) {
		t.Errorf("without what lies between: %v", err)
	}
	if err := b.Check(nil); !errors.Is(err, errNone) {
		t.Errorf("nothing was shown: %v", err)
	}
	alone := a
	alone.Certificate = filepath.Join(dir, "hosta.pem")
	if _, err := alone.Client(speaks, "hostb"); !errors.As(err, &unknown) {
		t.Errorf("a file without it: %v", err)
	}
}

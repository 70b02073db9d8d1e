package mtls

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// met is how a handshake between two hosts ends, at either side.
func met(t *testing.T, server, client Files, name string) (se, ce error) {
	t.Helper()
	s, err := server.Server(speaks)
	if err != nil {
		return err, err
	}
	c, err := client.Client(speaks, name)
	if err != nil {
		return err, err
	}
	_, se, ce = meet(t, s, c)
	return se, ce
}

// TestRevoked: a certificate that the list names is refused by either side, from the next handshake
// on, and another of the same host is not; one that was shown before is judged anew.
func TestRevoked(t *testing.T) {
	dir := t.TempDir()
	a, b := issue(t, dir, "hosta", "127.0.0.1"), issue(t, dir, "hostb", "127.0.0.1")
	au, err := LoadAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := tls.LoadX509KeyPair(a.Certificate, a.Key)
	if err != nil {
		t.Fatal(err)
	}
	server, err := b.Server(speaks) // before it is revoked, as one that runs
	if err != nil {
		t.Fatal(err)
	}
	if se, ce := met(t, b, a, "hostb"); se != nil || ce != nil || b.Check([]*x509.Certificate{shown.Leaf}) != nil {
		t.Fatal(se, ce, b.Check([]*x509.Certificate{shown.Leaf}))
	}
	if list, err := au.Revoke("hosta"); err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	client, err := a.Client(speaks, "hostb")
	if err != nil {
		t.Fatal(err)
	}
	if _, se, ce := meet(t, server, client); !errors.Is(se, ErrRevoked) || ce == nil || Remedy(se) == "" || !strings.Contains(Remedy(ce), "log") {
		t.Errorf("as client: %v (%s), %v (%s)", se, Remedy(se), ce, Remedy(ce))
	}
	if se, ce := met(t, a, b, "hosta"); se == nil || !errors.Is(ce, ErrRevoked) {
		t.Errorf("as server: %v, %v", se, ce)
	}
	if err := b.Check([]*x509.Certificate{shown.Leaf}); !errors.Is(err, ErrRevoked) {
		t.Errorf("what was shown: %v", err)
	}
	if list, err := au.Revoke("hosta"); err != nil || len(list) != 0 {
		t.Errorf("again: %v, %v", list, err)
	}
	again := issue(t, dir, "hosta", "127.0.0.1")
	if se, ce := met(t, b, again, "hostb"); se != nil || ce != nil {
		t.Errorf("its next certificate: %v, %v", se, ce)
	}
	all, err := au.Issued()
	if err != nil || len(all) != 3 || all[0].Host != "hosta" || all[0].Revoked.IsZero() == all[1].Revoked.IsZero() || !all[2].Revoked.IsZero() {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := au.Revoke(all[2].Serial); err != nil {
		t.Error(err)
	}
	if se, ce := met(t, b, again, "hostb"); !errors.Is(ce, ErrRevoked) {
		t.Errorf("revoked by its number: %v, %v", se, ce)
	}
	if _, err := au.Revoke("hostc"); !errors.Is(err, ErrNotIssued) {
		t.Error(err)
	}
}

// TestRevocationList: a list that cannot be used has nobody known, and says why.
func TestRevocationList(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	a, b := issue(t, dir, "hosta"), issue(t, dir, "hostb")
	issue(t, other, "hosta")
	lists := map[string][]byte{}
	for _, d := range []string{dir, other} {
		au, err := LoadAuthority(d)
		if err != nil {
			t.Fatal(err)
		}
		name, err := au.List()
		if err != nil {
			t.Fatal(err)
		}
		if lists[d], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	if se, ce := met(t, b, a, "hostb"); se != nil || ce != nil {
		t.Errorf("an empty list: %v, %v", se, ce)
	}
	file := filepath.Join(dir, listName)
	flip := bytes.Clone(lists[dir])
	block, _ := pem.Decode(flip)
	block.Bytes[len(block.Bytes)-1] ^= 1
	for name, c := range map[string]struct {
		b   []byte
		why string
	}{
		"nothing": {nil, "no list"}, "half": {lists[dir][:len(lists[dir])/2], "no list"}, "another authority's": {lists[other], "none of the authorities"},
		"changed": {pem.EncodeToMemory(block), "none of the authorities"}, "both, cut": {append(bytes.Clone(lists[dir]), lists[dir][:40]...), "not the whole"},
		"a certificate": {pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: block.Bytes}), "CERTIFICATE"},
		"no CRL":        {pem.EncodeToMemory(&pem.Block{Type: pemList, Bytes: []byte{1, 2}}), "x509"},
	} {
		if err := os.WriteFile(file, c.b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Server(speaks); !errors.Is(err, ErrList) || !strings.Contains(err.Error(), c.why) || Remedy(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := a.Client(speaks, "hostb"); !errors.Is(err, ErrList) {
			t.Errorf("%s: %v", name, err)
		}
	}
	au, err := LoadAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseRevoked(lists[dir], []*x509.Certificate{au.cert}, au.cert.NotAfter.Add(time.Second)); err == nil || !strings.Contains(err.Error(), "replaced") {
		t.Errorf("an old list: %v", err)
	}
}

// TestExpired: who has a certificate that is over is refused, with a word of what to do.
func TestExpired(t *testing.T) {
	dir := t.TempDir()
	b := issue(t, dir, "hostb")
	au, err := LoadAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	old, err := au.Issue(-time.Minute, "hosta")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Client(speaks, "hostb"); !errors.Is(err, ErrIdentity) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("its own host: %v", err)
	}
	server, err := b.Server(speaks)
	if err != nil {
		t.Fatal(err)
	}
	client, err := b.Client(speaks, "hostb")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(old.Certificate, old.Key)
	if err != nil {
		t.Fatal(err)
	}
	client.Certificates = []tls.Certificate{pair}
	if _, se, ce := meet(t, server, client); se == nil || ce == nil || !strings.Contains(se.Error(), "expired") || !strings.Contains(Remedy(se), "clocks") {
		t.Errorf("%v (%s), %v", se, Remedy(se), ce)
	}
	if Remedy(nil) != "" || Remedy(io.EOF) != "" {
		t.Error("a remedy for nothing")
	}
}

// TestOlderAuthority: one that was made before there were lists can revoke, too, with its hosts as
// they are.
func TestOlderAuthority(t *testing.T) {
	dir := t.TempDir()
	if err := newAuthority(dir, time.Hour, x509.KeyUsageCertSign); err != nil {
		t.Fatal(err)
	}
	a, b := issue(t, dir, "hosta"), issue(t, dir, "hostb")
	if err := os.RemoveAll(filepath.Join(dir, issuedDir)); err != nil {
		t.Fatal(err)
	}
	au, err := LoadAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := au.Revoke("hosta"); err != nil {
		t.Fatal(err)
	}
	if se, _ := met(t, b, a, "hostb"); !errors.Is(se, ErrRevoked) {
		t.Error(se)
	}
}

// FuzzRevoked: whatever a list's file holds, it is read to its end or refused.
func FuzzRevoked(f *testing.F) {
	dir := f.TempDir()
	au, err := NewAuthority(dir, time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	if _, err := au.Issue(time.Hour, "hosta"); err != nil {
		f.Fatal(err)
	}
	if _, err := au.Revoke("hosta"); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, listName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(append(bytes.Clone(b), b...))
	f.Add([]byte("-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRevoked(b, []*x509.Certificate{au.cert}, time.Now())
		if err != nil {
			return
		}
		if len(r) > 1 { // the authority has signed nothing else
			t.Errorf("%v", r)
		}
	})
}

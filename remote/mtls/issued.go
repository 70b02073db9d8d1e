package mtls

import (
	"cmp"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// issuedDir, in an authority's folder, holds a copy of each certificate that it has issued, by
// serial number: a host's former ones hold as well until they expire.
const issuedDir = "issued"

// ErrNotIssued says that the authority knows of no such certificate.
var ErrNotIssued = errors.New("no certificate of that host or serial number was issued here")

// Issued is a certificate of an authority.
type Issued struct {
	Host    string    `json:"host"`
	Names   []string  `json:"names"` // by which it is called
	Serial  string    `json:"serial"`
	Begin   time.Time `json:"begin"`
	End     time.Time `json:"end"`
	Revoked time.Time `json:"revoked,omitzero"`
}

// note keeps a copy of a certificate that was issued.
func (a *Authority) note(file string) error {
	b, err := os.ReadFile(filepath.Join(a.dir, file))
	if err != nil {
		return err
	}
	list, err := certificates(b)
	if err == nil && len(list) != 1 {
		err = ErrIdentity
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	dir := filepath.Join(a.dir, issuedDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return writeNew(filepath.Join(dir, list[0].SerialNumber.Text(16)+".pem"), pemCert, list[0].Raw, 0o644)
}

// Issued lists the certificates of hosts, by host and age.
func (a *Authority) Issued() ([]Issued, error) {
	files, err := filepath.Glob(filepath.Join(a.dir, issuedDir, "*.pem"))
	if err != nil {
		return nil, err
	}
	now, err := filepath.Glob(filepath.Join(a.dir, "*.pem")) // of before copies were kept
	if err != nil {
		return nil, err
	}
	when, err := a.revocations()
	if err != nil {
		return nil, err
	}
	var list []Issued
	seen := map[string]bool{}
	for _, name := range append(files, now...) {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		certs, err := certificates(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, c := range certs {
			serial := c.SerialNumber.Text(16)
			if c.IsCA || seen[serial] || c.CheckSignatureFrom(a.cert) != nil {
				continue
			}
			seen[serial] = true
			list = append(list, Issued{c.Subject.CommonName, names(c), serial, c.NotBefore, c.NotAfter, when[serial]})
		}
	}
	slices.SortFunc(list, func(x, y Issued) int {
		return cmp.Or(strings.Compare(x.Host, y.Host), x.Begin.Compare(y.Begin), strings.Compare(x.Serial, y.Serial))
	})
	return list, nil
}

func names(c *x509.Certificate) []string {
	list := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		list = append(list, ip.String())
	}
	return list
}

// list is the authority's revocation list; nil: it has none yet.
func (a *Authority) list() (*x509.RevocationList, error) {
	b, err := os.ReadFile(filepath.Join(a.dir, listName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := parseRevoked(b, []*x509.Certificate{a.cert}, time.Time{}); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(a.dir, listName), err)
	}
	block, _ := pem.Decode(b)
	return x509.ParseRevocationList(block.Bytes)
}

// revocations are when which serial number was revoked.
func (a *Authority) revocations() (map[string]time.Time, error) {
	when := map[string]time.Time{}
	l, err := a.list()
	if err != nil || l == nil {
		return when, err
	}
	for _, e := range l.RevokedCertificateEntries {
		when[e.SerialNumber.Text(16)] = e.RevocationTime
	}
	return when, nil
}

// Revoke revokes a certificate by serial number, or all of a host's, and writes the list. It
// returns those that were not before.
func (a *Authority) Revoke(who string) ([]Issued, error) {
	all, err := a.Issued()
	if err != nil {
		return nil, err
	}
	of := slices.DeleteFunc(slices.Clone(all), func(i Issued) bool { return i.Host != who && !strings.EqualFold(i.Serial, who) })
	if len(of) == 0 {
		return nil, fmt.Errorf("%w: %s: `causeway ca list` lists them", ErrNotIssued, who)
	}
	of = slices.DeleteFunc(of, func(i Issued) bool { return !i.Revoked.IsZero() })
	return of, a.writeList(of)
}

// writeList writes the list with some more certificates in it. What has expired stays: clocks
// differ.
func (a *Authority) writeList(more []Issued) error {
	was, err := a.list()
	if err != nil {
		return err
	}
	now := time.Now()
	next := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: now.Add(-time.Minute), NextUpdate: a.cert.NotAfter}
	if was != nil {
		next.RevokedCertificateEntries = was.RevokedCertificateEntries
		if was.Number != nil {
			next.Number = new(big.Int).Add(was.Number, big.NewInt(1))
		}
	}
	for _, m := range more {
		serial, ok := new(big.Int).SetString(m.Serial, 16)
		if !ok {
			return fmt.Errorf("serial number %q", m.Serial)
		}
		next.RevokedCertificateEntries = append(next.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: serial, RevocationTime: now})
	}
	issuer := *a.cert
	// One that was made before there were lists does not say so.
	issuer.KeyUsage |= x509.KeyUsageCRLSign
	der, err := x509.CreateRevocationList(rand.Reader, next, &issuer, a.key)
	if err != nil {
		return fmt.Errorf("revocation list: %w", err)
	}
	return writeNew(filepath.Join(a.dir, listName), pemList, der, 0o644)
}

// List is the file of the revocation list, which is made if there is none.
func (a *Authority) List() (string, error) {
	l, err := a.list()
	if err == nil && l == nil {
		err = a.writeList(nil)
	}
	return filepath.Join(a.dir, listName), err
}

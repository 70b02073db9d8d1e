package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Errors of handshakes, beside those of crypto/tls and crypto/x509.
var (
	ErrRevoked = errors.New("the certificate is revoked")
	ErrList    = errors.New("the revocation list cannot be used, and so nobody can be known")
)

const (
	listName = "revoked" // beside the authority's certificate
	pemList  = "X509 CRL"
	mostList = 16 << 20
)

// revoked are the serial numbers that the lists of authorities name, by authority.
type revoked map[string]bool

// revokedKey names a certificate: its serial number is its authority's.
func revokedKey(issuer []byte, serial string) string { return serial + " " + string(issuer) }

// readRevoked reads the lists in a file. Where there is no file nothing is revoked; one that cannot
// be used is an error, for what it would say is not known: that it is signed by none of the
// authorities, or is older than it says that it may become.
func readRevoked(file string, authorities []*x509.Certificate) (revoked, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrList, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostList+1))
	if err == nil && len(b) > mostList {
		err = fmt.Errorf("it has more than %d bytes", mostList)
	}
	var r revoked
	if err == nil {
		r, err = parseRevoked(b, authorities, time.Now())
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrList, file, err)
	}
	return r, nil
}

func parseRevoked(b []byte, authorities []*x509.Certificate, now time.Time) (revoked, error) {
	r := revoked{}
	n := 0
	for ; ; n++ {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			break
		}
		if block.Type != pemList {
			return nil, fmt.Errorf("it holds a %q", block.Type)
		}
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, err
		}
		if err := signedBy(list, authorities); err != nil {
			return nil, err
		}
		if !list.NextUpdate.IsZero() && now.After(list.NextUpdate) {
			return nil, fmt.Errorf("it was to be replaced by %s", list.NextUpdate.Format(time.DateOnly))
		}
		for _, e := range list.RevokedCertificateEntries {
			r[revokedKey(list.RawIssuer, e.SerialNumber.Text(16))] = true
		}
	}
	if n == 0 || strings.TrimSpace(string(b)) != "" {
		return nil, errors.New("it is no list, or not the whole of one")
	}
	return r, nil
}

// signedBy wants a list to be one of these authorities'. Certificates of authorities that were made
// before there were lists do not say that they may sign them.
func signedBy(list *x509.RevocationList, authorities []*x509.Certificate) error {
	for _, a := range authorities {
		if string(a.RawSubject) == string(list.RawIssuer) && a.CheckSignature(list.SignatureAlgorithm, list.RawTBSRevocationList, list.Signature) == nil {
			return nil
		}
	}
	return errors.New("none of the authorities has signed it")
}

// check judges a chain, from a host's certificate to its authority's.
func (r revoked) check(chain []*x509.Certificate) error {
	for _, c := range chain {
		if r[revokedKey(c.RawIssuer, c.SerialNumber.Text(16))] {
			return fmt.Errorf("%w: %s, serial number %s", ErrRevoked, c.Subject.CommonName, c.SerialNumber.Text(16))
		}
	}
	return nil
}

var errNone = errors.New("no certificate was verified")

// checkAny wants a chain of which nothing is revoked.
func (r revoked) checkAny(chains [][]*x509.Certificate) error {
	err := errNone
	for _, chain := range chains {
		if err = r.check(chain); err == nil {
			return nil
		}
	}
	return err
}

// Check judges what a host showed some time ago as a handshake would now: its certificate first,
// then those between that and its authority's.
func (f Files) Check(shown []*x509.Certificate) error {
	id, err := f.load()
	if err != nil {
		return err
	}
	chains, err := verified(shown, x509.VerifyOptions{Roots: id.pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return err
	}
	return id.revoked.checkAny(chains)
}

// CheckServer judges what the server of a connection showed some time ago as a handshake with a
// client's configuration would now.
func CheckServer(cfg *tls.Config, s tls.ConnectionState) (err error) {
	if s.VerifiedChains, err = verified(s.PeerCertificates, x509.VerifyOptions{Roots: cfg.RootCAs, DNSName: cfg.ServerName}); err != nil {
		return err
	}
	return cfg.VerifyConnection(s)
}

// listBeside is where the revocation list of an authority's certificate is.
func listBeside(ca string) string { return filepath.Join(filepath.Dir(ca), listName) }

// Remedy says what an operator does about a failed handshake of either side; empty: nothing that is
// known.
func Remedy(err error) string {
	var invalid x509.CertificateInvalidError
	var foreign x509.UnknownAuthorityError
	var name x509.HostnameError
	var remote *net.OpError
	var alert tls.AlertError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, ErrRevoked):
		return "if that host is to be one again, issue it another certificate: causeway ca issue"
	case errors.Is(err, ErrList):
		return "copy the authority's file " + listName + " anew to where ca.pem is"
	case errors.Is(err, ErrIdentity):
		return ownRemedy(err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "look at both hosts' clocks; issue the host a new certificate: causeway ca issue"
	case errors.As(err, &foreign):
		return "that host's certificate is of another authority: issue it one of this (causeway ca issue)"
	case errors.As(err, &name):
		return "call the host by a name that its certificate has, or issue it one with that name: causeway ca issue HOST NAME..."
	case errors.As(err, &alert), errors.As(err, &remote) && remote.Op == "remote error":
		return "the other host refuses this one: the log of its causewayd says why"
	case strings.Contains(err.Error(), "didn't provide a certificate"):
		return "that host showed no certificate: issue it one (causeway ca issue)"
	case strings.Contains(err.Error(), "unsupported versions"):
		return "that host offers no TLS 1.3"
	}
	return ""
}

// ownRemedy says what to do about this host's own files.
func ownRemedy(err error) string {
	var invalid x509.CertificateInvalidError
	var foreign x509.UnknownAuthorityError
	switch {
	case errors.Is(err, errReadable):
		return "chmod 600 it"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "issue this host a new certificate (causeway ca issue), and copy it and its key here; or look at this host's clock"
	case errors.As(err, &foreign):
		return "it and ca.pem are of two authorities: copy both, and the key, from the folder of one"
	}
	return "issue this host a certificate (causeway ca issue), copy it, its key and ca.pem here, and name the files in [migration] of causewayd.toml"
}

// Package mtls is how hosts of Causeway know one another: TLS 1.3 with a certificate on each side,
// of one authority, which issues for nothing else. Who has such a certificate is one of the hosts;
// by its name it is known when it is called.
package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"
)

// ErrIdentity says that a host has no certificate that others could know it by.
var ErrIdentity = errors.New("no usable certificate of this host")

// errReadable: who reads a host's key can be that host.
var errReadable = errors.New("others may read or write the key")

// Files are where a host's identity is, as PEM: the authority's certificate, its own, and its own
// key.
type Files struct{ CA, Certificate, Key string }

// identity is what the files hold at one moment.
type identity struct {
	pool    *x509.CertPool
	own     tls.Certificate
	shown   []*x509.Certificate // it, and those between it and the authority's
	revoked revoked
}

// load reads the files, which may have been renewed since.
func (f Files) load() (*identity, error) {
	ca, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIdentity, err)
	}
	id := &identity{pool: x509.NewCertPool()}
	authorities, err := certificates(ca)
	if err != nil || len(authorities) == 0 {
		return nil, fmt.Errorf("%w: %s holds no certificate", errors.Join(ErrIdentity, err), f.CA)
	}
	for _, a := range authorities {
		id.pool.AddCert(a)
	}
	if id.revoked, err = readRevoked(listBeside(f.CA), authorities); err != nil {
		return nil, err
	}
	if st, err := os.Stat(f.Key); err == nil && st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%w: %w %s", ErrIdentity, errReadable, f.Key)
	}
	if id.own, err = tls.LoadX509KeyPair(f.Certificate, f.Key); err != nil {
		return nil, fmt.Errorf("%w: %s with %s: %w", ErrIdentity, f.Certificate, f.Key, err)
	}
	for _, der := range id.own.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrIdentity, f.Certificate, err)
		}
		id.shown = append(id.shown, c)
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := id.chains(use); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrIdentity, f.Certificate, err)
		}
	}
	return id, nil
}

// chains lead from the host's own certificate to its authority's.
func (id *identity) chains(use x509.ExtKeyUsage) ([][]*x509.Certificate, error) {
	return verified(id.shown, x509.VerifyOptions{Roots: id.pool, KeyUsages: []x509.ExtKeyUsage{use}})
}

// verified leads from what a host shows to its authority's certificate: its own comes first, and
// what lies between is not trusted.
func verified(shown []*x509.Certificate, o x509.VerifyOptions) ([][]*x509.Certificate, error) {
	if len(shown) == 0 {
		return nil, errNone
	}
	o.Intermediates = x509.NewCertPool()
	for _, c := range shown[1:] {
		o.Intermediates.AddCert(c)
	}
	return shown[0].Verify(o)
}

// certificates are those in PEM; what else is there is not looked at.
func certificates(b []byte) (list []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			return list, nil
		}
		if block.Type != pemCert {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
}

// config is what both sides have in common.
func (id *identity) config(protocol string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{id.own}, RootCAs: id.pool, ClientCAs: id.pool,
		ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{protocol}, SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error { return id.revoked.checkAny(s.VerifiedChains) },
	}
}

// Server is for connections of other hosts that speak protocol (ALPN). The files, and the
// revocation list beside the authority's, are read for each of them, and once now.
func (f Files) Server(protocol string) (*tls.Config, error) {
	id, err := f.load()
	if err != nil {
		return nil, err
	}
	c := id.config(protocol)
	c.GetConfigForClient = f.Later(protocol).GetConfigForClient
	return c, nil
}

// Later is Server where the files cannot be used now: connections are refused until they can.
func (f Files) Later(protocol string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{protocol}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		id, err := f.load()
		if err != nil {
			return nil, err
		}
		return id.config(protocol), nil
	}}
}

// OutOfTime reports whether a host's files cannot be used since time has passed, or its clock is
// wrong: its certificate has ended or not begun, or the revocation list is to be copied anew.
func OutOfTime(err error) bool {
	var invalid x509.CertificateInvalidError
	return errors.Is(err, ErrList) || errors.Is(err, ErrIdentity) && errors.As(err, &invalid) && invalid.Reason == x509.Expired
}

// Client is for a connection to a host, whose certificate must have that name or address.
func (f Files) Client(protocol, host string) (*tls.Config, error) {
	id, err := f.load()
	if err != nil {
		return nil, err
	}
	c := id.config(protocol)
	c.ServerName = host
	return c, nil
}

// Standing is who a host is to others, and until when: its own certificate's end, or an earlier one
// of its authority's.
type Standing struct {
	Host  string
	Until time.Time
}

// Standing says how others know the host now; an error is what they would see as well.
func (f Files) Standing() (s Standing, err error) {
	id, err := f.load()
	if err != nil {
		return s, err
	}
	chains, err := id.chains(x509.ExtKeyUsageServerAuth)
	if err == nil {
		err = id.revoked.checkAny(chains)
	}
	if err != nil {
		return s, fmt.Errorf("%w: %w", ErrIdentity, err)
	}
	s = Standing{id.own.Leaf.Subject.CommonName, id.own.Leaf.NotAfter}
	for _, c := range chains[0] {
		if c.NotAfter.Before(s.Until) {
			s.Until = c.NotAfter
		}
	}
	return s, nil
}

// Peer names the host at the other end of a connection, for logs.
func Peer(s *tls.ConnectionState) string {
	if s == nil || len(s.PeerCertificates) == 0 {
		return "nobody"
	}
	return s.PeerCertificates[0].Subject.CommonName
}

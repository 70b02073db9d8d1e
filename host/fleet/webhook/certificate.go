package webhook

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// Life is how long a certificate holds; it is renewed when a third of that is left.
const Life = 90 * 24 * time.Hour

// Pair is a certificate with its key, both PEM, and the certificate before it: a replica may serve
// that for some moments more.
type Pair struct {
	Certificate, Key, Previous []byte
	// Token is what the API server shows to be known (Guard). It stays over renewals.
	Token string
}

// New makes a certificate for a server of these names, and a token. It is its own authority: it
// vouches for nobody else.
func New(names []string, now time.Time) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return Pair{}, err
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "causeway-fleet webhook"}, DNSNames: names,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(Life), // clocks differ
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return Pair{}, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	token, err := NewToken()
	if err != nil {
		return Pair{}, err
	}
	return Pair{
		Token:       token,
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}, nil
}

// errRenew says that a certificate has to be replaced.
var errRenew = errors.New("the certificate has to be renewed")

// check makes a certificate ready to serve, or says why it does not do.
func (p *Pair) check(names []string, now time.Time) (*tls.Certificate, error) {
	c, err := tls.X509KeyPair(p.Certificate, p.Key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRenew, err)
	}
	for _, name := range names {
		if err := c.Leaf.VerifyHostname(name); err != nil {
			return nil, fmt.Errorf("%w: %w", errRenew, err)
		}
	}
	if left := c.Leaf.NotAfter.Sub(now); left < Life/3 || now.Before(c.Leaf.NotBefore) {
		return nil, fmt.Errorf("%w: it holds from %v to %v", errRenew, c.Leaf.NotBefore, c.Leaf.NotAfter)
	}
	if !isToken(p.Token) { // a version before this one kept none
		return nil, fmt.Errorf("%w: there is no token beside it", errRenew)
	}
	return &c, nil
}

// bundle is whom the API server is to trust: the certificate, and the one before it while it holds.
func (p *Pair) bundle(now time.Time) []byte {
	b := append([]byte{}, p.Certificate...)
	if block, _ := pem.Decode(p.Previous); block != nil {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && now.Before(c.NotAfter) {
			b = append(b, pem.EncodeToMemory(block)...)
		}
	}
	return b
}

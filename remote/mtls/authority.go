package mtls

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"causeway/remote/sys"
)

// Names of files in an authority's folder.
const (
	caName  = "ca.pem"
	caKey   = "ca-key.pem"
	pemCert = "CERTIFICATE"
	pemKey  = "PRIVATE KEY"
)

// Authority issues certificates of hosts, from a folder.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// OpenAuthority uses the authority in a folder, or makes one there that holds for so long.
func OpenAuthority(dir string, valid time.Duration) (*Authority, error) {
	a, err := LoadAuthority(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return NewAuthority(dir, valid)
	}
	return a, err
}

// NewAuthority makes an authority in a folder that has none.
func NewAuthority(dir string, valid time.Duration) (*Authority, error) {
	if err := newAuthority(dir, valid, x509.KeyUsageCertSign|x509.KeyUsageCRLSign); err != nil {
		return nil, err
	}
	return LoadAuthority(dir)
}

// LoadAuthority uses the authority in a folder; fs.ErrNotExist: there is none.
func LoadAuthority(dir string) (*Authority, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, caName), filepath.Join(dir, caKey))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("authority in %s: %w (`causeway ca init` makes one; --dir says where it is)", dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("authority in %s: %w", dir, err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("%s is no authority's", filepath.Join(dir, caName))
	}
	return &Authority{dir, pair.Leaf, key}, nil
}

func newAuthority(dir string, valid time.Duration, use x509.KeyUsage) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, caName)); err == nil {
		return fmt.Errorf("%s is there: certificates are issued where its key is, and another authority is made in another folder", filepath.Join(dir, caName))
	}
	t := template("Causeway hosts", valid)
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = use
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	return write(dir, caName, caKey, t, t, key, key)
}

// End is when the authority's own certificate ends, and all that it has issued.
func (a *Authority) End() time.Time { return a.cert.NotAfter }

// Issue makes the certificate and key of a host in the folder, with its names and addresses, of
// which the first names the files. It holds for so long, and no longer than the authority.
func (a *Authority) Issue(valid time.Duration, names ...string) (Files, error) {
	if err := checkNames(names); err != nil {
		return Files{}, err
	}
	t := template(names[0], valid)
	if end := a.End(); t.NotAfter.After(end) {
		t.NotAfter = end
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Files{}, err
	}
	cert, keyFile := names[0]+".pem", names[0]+"-key.pem"
	err = write(a.dir, cert, keyFile, t, a.cert, key, a.key)
	if err == nil {
		err = a.note(cert)
	}
	return Files{filepath.Join(a.dir, caName), filepath.Join(a.dir, cert), filepath.Join(a.dir, keyFile)}, err
}

// hostName is how a host may be called, beside its addresses. One that stands for many, as
// *.example.net, would let that host be any of them.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?$`)

// checkNames wants names and addresses of a host, of which the first is that of files, too.
func checkNames(names []string) error {
	if len(names) == 0 || names[0] == "ca" {
		return fmt.Errorf("%q is no host's name", names)
	}
	for i, n := range names {
		if i > 0 && net.ParseIP(n) != nil {
			continue
		}
		last := n[strings.LastIndexByte(n, '.')+1:]
		if number := strings.Trim(last, "0123456789") == ""; !hostName.MatchString(n) || number && net.ParseIP(n) == nil {
			return fmt.Errorf("%q is no host's name or address: write it as in gpu1.example.net or 192.0.2.1", n)
		}
	}
	return nil
}

func template(name string, valid time.Duration) *x509.Certificate {
	// rand.Reader does not fail
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(valid)}
}

// write makes a certificate for key's public part, signed by parent's key, and both files.
func write(dir, cert, keyFile string, t, parent *x509.Certificate, key *ecdsa.PrivateKey, by crypto.Signer) error {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key.Public(), by)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writeNew(filepath.Join(dir, keyFile), pemKey, private, 0o600); err != nil {
		return err
	}
	return writeNew(filepath.Join(dir, cert), pemCert, der, 0o644)
}

// writeNew makes a file, in place of one that is there: a certificate is renewed so.
func writeNew(path, kind string, der []byte, mode fs.FileMode) error {
	return sys.Replace(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

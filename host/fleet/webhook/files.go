package webhook

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// Files are a certificate and its key that somebody else keeps, cert-manager for instance. They are
// read again when they have changed.
type Files struct {
	Path, KeyPath string

	mu   sync.Mutex
	read time.Time // when the file that was read was written
	now  *tls.Certificate
}

// Certificate implements tls.Config's GetCertificate. While a new pair is half written the one
// before serves on.
func (f *Files) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.Path)
	if err == nil && f.now != nil && info.ModTime().Equal(f.read) {
		return f.now, nil
	}
	if err == nil {
		var c tls.Certificate
		if c, err = tls.LoadX509KeyPair(f.Path, f.KeyPath); err == nil {
			f.now, f.read = &c, info.ModTime()
		}
	}
	if f.now == nil {
		return nil, fmt.Errorf("the certificate: %w", err)
	}
	return f.now, nil
}

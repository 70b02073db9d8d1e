package webhook

import (
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
)

// NewToken makes what the API server shows as the last part of a path. Those who may read the
// configurations of webhooks know it, and nobody else: it is as a path may be, in lower case.
func NewToken() (string, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return "", err
	}
	return hex.EncodeToString(b), nil
}

// isToken: it can be a part of a path that the API server takes.
func isToken(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 16 && s == strings.ToLower(s)
}

// MostAtOnce is how many questions are answered at the same time: each is read whole.
const MostAtOnce = 8

// Guard has the API server's questions answered and nobody else's. Who shows nothing costs a look
// at his request's first line: his body is not read.
type Guard struct {
	// Token is what the API server shows behind the path, ahead of which nothing is let in while
	// there is none; nil: it shows none, and its path is as it is.
	Token func() string
	// Clients are whose certificates are taken, of these names; nil: none is asked for. The
	// server's TLS has to ask for it.
	Clients *x509.CertPool
	Names   []string
	// Refused is told of each request that is not let in.
	Refused func()
	Next    http.Handler

	slots chan struct{}
}

// NewGuard is a guard that has not begun to count.
func NewGuard(g Guard) *Guard {
	g.slots = make(chan struct{}, MostAtOnce)
	return &g
}

// ServeHTTP implements http.Handler.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, known := g.path(r.URL.Path)
	switch {
	case !known:
		g.refuse(w, http.StatusNotFound, "404 page not found")
		return
	case g.Clients != nil && !g.knows(r):
		g.refuse(w, http.StatusForbidden, "this webhook answers the API server alone, which shows its certificate: docs/KUBERNETES.md")
		return
	}
	select {
	case g.slots <- struct{}{}:
		defer func() { <-g.slots }()
	case <-r.Context().Done():
		return // nobody waits any more
	}
	asked := r.Clone(r.Context())
	asked.URL.Path, asked.URL.RawPath = path, ""
	g.Next.ServeHTTP(w, asked)
}

// path is a request's without the token.
func (g *Guard) path(whole string) (path string, known bool) {
	if g.Token == nil {
		return whole, true
	}
	at := max(strings.LastIndexByte(whole, '/'), 0)
	token := g.Token()
	return whole[:at], token != "" && subtle.ConstantTimeCompare([]byte(strings.TrimPrefix(whole[at:], "/")), []byte(token)) == 1
}

// knows reports whether who asks has shown a certificate that is taken. TLS has judged it.
func (g *Guard) knows(r *http.Request) bool {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return false
	}
	c := r.TLS.PeerCertificates[0]
	return slices.ContainsFunc(g.Names, func(name string) bool { return name == c.Subject.CommonName || slices.Contains(c.DNSNames, name) })
}

// refuse ends the connection with it: who is not let in keeps nothing.
func (g *Guard) refuse(w http.ResponseWriter, status int, text string) {
	if g.Refused != nil {
		g.Refused()
	}
	w.Header().Set("Connection", "close")
	http.Error(w, text, status)
}

// TLS asks for a client's certificate where clients has authorities. The kubelet, which asks
// whether the webhook is ready, has none: what needs one is behind a Guard.
func TLS(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), clients *x509.CertPool) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate}
	if clients != nil {
		c.ClientCAs, c.ClientAuth = clients, tls.VerifyClientCertIfGiven
	}
	return c
}

package webhook

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// echo answers with the path that it sees.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })

// TestGuardToken: whoever does not show the token has no answer, and his body is not read.
func TestGuardToken(t *testing.T) {
	token, err := NewToken()
	if err != nil || !isToken(token) {
		t.Fatal(token, err)
	}
	now, refused := "", 0
	g := NewGuard(Guard{Token: func() string { return now }, Refused: func() { refused++ }, Next: echo})
	ask := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		g.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, unread{t}))
		return w
	}
	for range 2 {
		for _, path := range []string{"/", "/pods", "/pods/", "/pods/" + token[:31], "/pods/" + token + "/", "/pods/" + token + "0", "/" + token + "/pods", "/pods/" + strings.ToUpper(token) + "x"} {
			if w := ask(path); w.Code != http.StatusNotFound || w.Header().Get("Connection") != "close" || strings.Contains(w.Body.String(), token) {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
		if now == "" && ask("/pods/"+token).Code != http.StatusNotFound {
			t.Error("let in while there is no token")
		}
		now = token
	}
	if w := ask("/pods/" + token); w.Code != http.StatusOK || w.Body.String() != "/pods" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if refused != 17 {
		t.Errorf("%d refused counted", refused)
	}
	for _, bad := range []string{"", "xyz", token[:30], token + "00", strings.Replace(token, token[:1], "G", 1)} {
		if isToken(bad) {
			t.Errorf("%q is a token", bad)
		}
	}
}

// unread is a body that nobody may read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

// authority makes certificates for clients.
func authority(t *testing.T) (issue func(name string) tls.Certificate, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(c *x509.Certificate, by *x509.Certificate) *x509.Certificate {
		der, err := x509.CreateCertificate(rand.Reader, c, by, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		made, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	until := time.Now().Add(time.Hour)
	root := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: until, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	root = sign(root, root)
	pool = x509.NewCertPool()
	pool.AddCert(root)
	return func(name string) tls.Certificate {
		c := sign(&x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: until, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, root)
		return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key, Leaf: c}
	}, pool
}

// TestGuardCertificate: with an authority of clients a certificate of it and of the name is
// answered; none, another name's and another authority's are not, by TLS or with 403.
func TestGuardCertificate(t *testing.T) {
	issue, pool := authority(t)
	foreign, _ := authority(t)
	own, err := New([]string{name}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	served, err := tls.X509KeyPair(own.Certificate, own.Key)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	g := NewGuard(Guard{Clients: pool, Names: []string{"kube-apiserver"}, Refused: func() { refused++ }, Next: echo})
	s := httptest.NewUnstartedServer(g)
	s.TLS = TLS(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &served, nil }, pool)
	s.StartTLS()
	defer s.Close()
	ask := func(certs ...tls.Certificate) (int, error) {
		tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if len(certs) == 0 {
				return &tls.Certificate{}, nil
			}
			return &certs[0], nil
		}}}
		defer tr.CloseIdleConnections()
		r, err := (&http.Client{Transport: tr}).Post(s.URL+"/pods", "application/json", strings.NewReader("{}"))
		if err != nil {
			return 0, err
		}
		defer r.Body.Close()
		return r.StatusCode, nil
	}
	if code, err := ask(issue("kube-apiserver")); err != nil || code != http.StatusOK {
		t.Errorf("the API server: %d, %v", code, err)
	}
	if code, err := ask(); err != nil || code != http.StatusForbidden {
		t.Errorf("no certificate: %d, %v", code, err)
	}
	if code, err := ask(issue("system:node:node1")); err != nil || code != http.StatusForbidden {
		t.Errorf("another name: %d, %v", code, err)
	}
	if code, err := ask(foreign("kube-apiserver")); err == nil {
		t.Errorf("another authority: %d", code)
	}
	if refused != 2 {
		t.Errorf("%d refused counted", refused)
	}
}

// TestGuardAtOnce: no more questions are read at once than there is memory for; who waits goes on
// when one has its answer, and nobody waits for who has left.
func TestGuardAtOnce(t *testing.T) {
	in, out := make(chan struct{}), make(chan struct{})
	g := NewGuard(Guard{Next: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { in <- struct{}{}; <-out })})
	done := make(chan int)
	for range MostAtOnce + 1 {
		go func() {
			w := httptest.NewRecorder()
			g.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/pods", nil))
			done <- w.Code
		}()
	}
	for range MostAtOnce {
		<-in
	}
	gone := httptest.NewRequest(http.MethodPost, "/pods", nil)
	ctx, cancel := context.WithCancel(gone.Context())
	cancel()
	// Returns: all places are taken, and it has left.
	g.ServeHTTP(httptest.NewRecorder(), gone.WithContext(ctx))
	select {
	case <-in:
		t.Fatal("more at once than there are places")
	default:
	}
	out <- struct{}{}
	<-done
	<-in
	close(out)
	for range MostAtOnce {
		<-done
	}
}

// TestBounded: connections beyond those that an address may have are closed, others' are not, and
// there is room again when some end.
func TestBounded(t *testing.T) {
	ln := &fakeListener{conns: make(chan net.Conn, 2*mostConns)}
	b := Bounded(ln)
	put := func(address string) *fakeConn {
		c := &fakeConn{address: address}
		ln.conns <- c
		return c
	}
	var kept []net.Conn
	accept := func() {
		t.Helper()
		c, err := b.Accept()
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, c)
	}
	for range mostOfAddress {
		put("10.0.0.1:1")
		accept()
	}
	refused := put("10.0.0.1:2")
	put("10.0.0.2:1")
	accept()
	if !refused.closed || len(kept) != mostOfAddress+1 || kept[mostOfAddress].RemoteAddr().String() != "10.0.0.2:1" {
		t.Error("one address keeps others out, or has more than it may")
	}
	for range 2 { // closed twice, counted once
		if err := kept[0].Close(); err != nil {
			t.Fatal(err)
		}
	}
	put("10.0.0.1:3")
	accept()
	refused = put("10.0.0.1:4")
	for i := len(kept) - 1; i < mostConns; i++ {
		put("[2001:db8::" + string(rune('a'+i%6)) + string(rune('a'+i/6%26)) + string(rune('a'+i/156)) + "]:1")
		accept()
	}
	if !refused.closed {
		t.Error("an address has more than it may")
	}
	refused = put("10.0.0.3:1")
	close(ln.conns)
	if _, err := b.Accept(); err == nil || !refused.closed {
		t.Error("more in all than there may be")
	}
}

type fakeListener struct {
	net.Listener

	conns chan net.Conn
}

func (l *fakeListener) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

type fakeConn struct {
	net.Conn

	address string
	closed  bool
}

func (c *fakeConn) RemoteAddr() net.Addr { return address(c.address) }
func (c *fakeConn) Close() error         { c.closed = true; return nil }

type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

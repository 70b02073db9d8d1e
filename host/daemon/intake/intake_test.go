package intake

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/mtls"
)

const speaks = "test/1"

func issue(t testing.TB, dir, name string) mtls.Files {
	t.Helper()
	a, err := mtls.OpenAuthority(dir, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	f, err := a.Issue(time.Hour, name, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// port is an intake under test: it echoes what sessions say, and tells control connections who they
// are.
type port struct {
	at  string
	mu  sync.Mutex
	log strings.Builder
}

func (p *port) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *port) said(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Contains(p.log.String(), text)
}

func open(t testing.TB, files mtls.Files) *port {
	t.Helper()
	p := &port{}
	i := &Intake{
		TLS: func() (*tls.Config, error) { return files.Server(speaks) },
		Admit: func(c *x509.Certificate) (string, error) {
			if c.Subject.CommonName == "hostb" {
				return "", errors.New("hostb is not wanted")
			}
			return c.Subject.CommonName, nil
		},
		Session: func(_ context.Context, s remote.Preface, c *net.TCPConn) {
			defer c.Close()
			_, _ = c.Write(s.Lease[:])
			_, _ = io.Copy(c, c)
		},
		Patience: time.Hour,
		Log:      slog.New(slog.NewTextHandler(p, nil)),
	}
	ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	p.at = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- i.Serve(ctx, ln, func(ctx context.Context, l net.Listener) error {
			defer context.AfterFunc(ctx, func() { _ = l.Close() })()
			for {
				c, err := l.Accept()
				if err != nil {
					return nil
				}
				_, _ = io.WriteString(c, c.(*Control).Host)
				_ = c.Close()
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

func dial(t testing.TB, p *port, b []byte) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	return c
}

// control is a host that asks who it is.
func control(t testing.TB, p *port, cfg *tls.Config) (string, error) {
	c := tls.Client(dial(t, p, remote.Preface{}.Encode()), cfg)
	b, err := io.ReadAll(c)
	return string(b), err
}

// TestIntake: a session's bytes come as they were sent, right behind the preface; a host of the
// authority is known; everybody else is told nothing, and the log says why.
func TestIntake(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	p := open(t, issue(t, dir, "gpu1"))
	id := remote.NewLeaseID()
	c := dial(t, p, append(remote.Preface{Lease: id, Session: remote.SessionID{1}}.Encode(), "\x16\x03\x01 and so on"...))
	_ = c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(c); err != nil || string(b) != string(id[:])+"\x16\x03\x01 and so on" {
		t.Errorf("%q, %v", b, err)
	}
	client := func(f mtls.Files, change func(*tls.Config)) *tls.Config {
		cfg, err := f.Client(speaks, "127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		change(cfg)
		return cfg
	}
	hosta, foreign := issue(t, dir, "hosta"), issue(t, other, "hosta")
	nothing := func(*tls.Config) {}
	if who, err := control(t, p, client(hosta, nothing)); who != "hosta" || err != nil {
		t.Errorf("%q, %v", who, err)
	}
	trusted := client(hosta, nothing).RootCAs
	for why, cfg := range map[string]*tls.Config{
		"hostb is not wanted":                      client(issue(t, dir, "hostb"), nothing),
		"certificate signed by unknown authority":  client(foreign, func(c *tls.Config) { c.RootCAs = trusted }),
		"client didn't provide a certificate":      client(hosta, func(c *tls.Config) { c.Certificates = nil }),
		"client offered only unsupported versions": client(hosta, func(c *tls.Config) { c.MinVersion, c.MaxVersion = 0, tls.VersionTLS12 }),
		"client requested unsupported application": client(hosta, func(c *tls.Config) { c.NextProtos = []string{"h2"} }),
		"it speaks nothing that a host does":       client(hosta, func(c *tls.Config) { c.NextProtos = nil }),
	} {
		if who, err := control(t, p, cfg); who != "" {
			t.Errorf("%s: %q, %v", why, who, err)
		}
		for deadline := time.Now().Add(time.Minute); !p.said(why); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the log does not say %q", why)
			}
		}
	}
	for name, b := range map[string]string{"HTTP": "GET / HTTP/1.1\r\nHost: gpu1:7745\r\n\r\n", "TLS at once": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("x", 32), "short": "CWSESS"} {
		c := dial(t, p, []byte(b))
		_ = c.(*net.TCPConn).CloseWrite()
		if n, _ := io.Copy(io.Discard, c); n != 0 {
			t.Errorf("%s: %d bytes are answered", name, n)
		}
	}
}

// TestSilent: connections that say nothing are bounded, those over it are dropped at once, and they
// leave room when they are gone.
func TestSilent(t *testing.T) {
	p := open(t, issue(t, t.TempDir(), "gpu1"))
	var silent []net.Conn
	for range mostFromOne {
		silent = append(silent, dial(t, p, []byte("C")))
	}
	heard := func() bool {
		c := dial(t, p, append(remote.Preface{Lease: remote.NewLeaseID(), Session: remote.SessionID{1}}.Encode(), 'x'))
		defer c.Close()
		_, err := io.ReadFull(c, make([]byte, 17))
		return err == nil
	}
	for deadline := time.Now().Add(time.Minute); heard(); {
		if time.Now().After(deadline) {
			t.Fatal("there is no bound")
		}
	}
	for _, c := range silent {
		_ = c.Close()
	}
	for deadline := time.Now().Add(time.Minute); !heard(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("there is no room again")
		}
	}
}

// TestOtherVersion: a host of another version, whatever it comes for, hears that, and the log says
// which it is.
func TestOtherVersion(t *testing.T) {
	p := open(t, issue(t, t.TempDir(), "gpu1"))
	for _, preface := range []remote.Preface{{}, {Lease: remote.NewLeaseID(), Session: remote.NewSessionID()}, {Lease: remote.NewLeaseID(), Session: remote.NewSessionID(), Again: true}} {
		b := preface.Encode()
		b[7]--
		c := dial(t, p, append(b, "the client's hello"...))
		if said, err := io.ReadAll(c); string(said) != remote.Version || err != nil {
			t.Errorf("it hears %q, %v", said, err)
		}
		_ = c.Close()
	}
	if !p.said("another version of Causeway") {
		t.Error("the log does not say so")
	}
	c := dial(t, p, func() []byte { b := remote.Preface{}.Encode(); b[7]--; return b }())
	err := tls.Client(c, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}).Handshake()
	if remote.Said(err) != remote.Version {
		t.Errorf("its handshake ends with %v", err)
	}
}

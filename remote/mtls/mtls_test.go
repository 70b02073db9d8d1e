package mtls

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

const speaks = "test/1"

func issue(t *testing.T, dir string, names ...string) Files {
	t.Helper()
	a, err := OpenAuthority(dir, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	f, err := a.Issue(time.Hour, names...)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// meet has a client call a server by a name. It returns what each says of the handshake and a byte
// each way.
func meet(t *testing.T, server, client *tls.Config) (peer string, serverErr, clientErr error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			done <- err
			return
		}
		s := tls.Server(c, server)
		defer s.Close()
		_, err = io.CopyN(s, s, 1)
		if err == nil {
			state := s.ConnectionState()
			peer = Peer(&state)
		}
		done <- err
	}()
	raw, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(raw, client)
	_, clientErr = c.Write([]byte{1})
	if clientErr == nil {
		_, clientErr = io.ReadFull(c, make([]byte, 1))
	}
	_ = c.Close()
	serverErr = <-done
	return peer, serverErr, clientErr
}

// TestHosts: two hosts of one authority know each other by name and address; whoever is of another,
// or none, or called by another name, or speaks something else, is refused.
func TestHosts(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	a, b := issue(t, dir, "hosta"), issue(t, dir, "hostb", "127.0.0.1")
	foreign := issue(t, other, "hosta")
	server, err := b.Server(speaks)
	if err != nil {
		t.Fatal(err)
	}
	client := func(f Files, name string) *tls.Config {
		c, err := f.Client(speaks, name)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if peer, se, ce := meet(t, server, client(a, "hostb")); se != nil || ce != nil || peer != "hosta" {
		t.Errorf("%v, %v, %s", se, ce, peer)
	}
	if _, se, ce := meet(t, server, client(a, "127.0.0.1")); se != nil || ce != nil {
		t.Errorf("by address: %v, %v", se, ce)
	}
	nobody, old, else_ := client(a, "hostb"), client(a, "hostb"), client(a, "hostb")
	nobody.Certificates = nil
	old.MinVersion, old.MaxVersion = 0, tls.VersionTLS12
	else_.NextProtos = []string{"http/1.1"}
	mixed := client(foreign, "hostb")
	mixed.RootCAs = client(a, "hostb").RootCAs
	for name, c := range map[string]*tls.Config{
		"another name": client(a, "hostc"), "a foreign server": client(foreign, "hostb"), "a foreign client": mixed, "no certificate": nobody, "TLS 1.2": old, "another protocol": else_,
	} {
		if _, se, ce := meet(t, server, c); se == nil || ce == nil {
			t.Errorf("%s: %v, %v", name, se, ce)
		}
	}
	// A certificate that is renewed holds for the next connection.
	before, _ := os.ReadFile(b.Certificate)
	issue(t, dir, "hostb", "renewed")
	if after, _ := os.ReadFile(b.Certificate); string(before) == string(after) {
		t.Error("the certificate is the same")
	}
	if _, se, ce := meet(t, server, client(a, "renewed")); se != nil || ce != nil {
		t.Errorf("renewed: %v, %v", se, ce)
	}
}

// TestIdentity: files that make no identity are refused by name.
func TestIdentity(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	a, b, foreign := issue(t, dir, "hosta"), issue(t, dir, "hostb"), issue(t, other, "hosta")
	for name, f := range map[string]Files{
		"no file":           {a.CA, a.Certificate, a.Key + "x"},
		"another's key":     {a.CA, a.Certificate, b.Key},
		"another authority": {foreign.CA, a.Certificate, a.Key},
		"no authority":      {a.Key, a.Certificate, a.Key},
	} {
		if _, err := f.Server(speaks); !errors.Is(err, ErrIdentity) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Chmod(a.Key, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Client(speaks, "hostb"); !errors.Is(err, ErrIdentity) {
		t.Errorf("a key that anybody reads: %v", err)
	}
	if au, err := OpenAuthority(dir, time.Hour); err != nil {
		t.Error(err)
	} else if _, err := au.Issue(time.Hour, "../x"); err == nil {
		t.Error("a path was taken for a host")
	} else {
		for _, names := range [][]string{{}, {""}, {"ca"}, {"*.example.net"}, {"a b"}, {"hosta", "*"}, {"hosta", "b/c"}, {"hosta", "192.0.2.400"}, {"-x"}, {"::1"}} {
			if _, err := au.Issue(time.Hour, names...); err == nil {
				t.Errorf("%q was taken for a host", names)
			}
		}
		for _, names := range [][]string{{"h_1.example.net", "::1", "192.0.2.1", "node-7"}, {"192.0.2.1"}} {
			f, err := au.Issue(1000*time.Hour, names...)
			if err != nil {
				t.Errorf("%q: %v", names, err)
			}
			if s, err := f.Standing(); err != nil || s.Host != names[0] || !s.Until.Equal(au.End()) {
				t.Errorf("%q: %+v, %v: the authority ends %v", names, s, err, au.End())
			}
		}
	}
	if err := os.Remove(dir + "/ca-key.pem"); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(dir, time.Hour); err == nil {
		t.Error("an authority was made over another's certificate")
	}
}

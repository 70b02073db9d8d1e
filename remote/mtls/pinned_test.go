package mtls

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// lease makes both sides of one.
func lease(t *testing.T) (server, client Pinned) {
	t.Helper()
	server, client, err := NewPinnedPair()
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// TestPinned: the two sides of a lease know each other; nobody else is let in, and nobody lets in
// who has another key than the lease says.
func TestPinned(t *testing.T) {
	s, c := lease(t)
	otherS, otherC := lease(t)
	config := func(make func(...string) (*tls.Config, error), change ...func(*tls.Config)) *tls.Config {
		t.Helper()
		cfg, err := make(speaks)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range change {
			f(cfg)
		}
		return cfg
	}
	for _, again := range []string{"first", "again"} {
		if _, se, ce := meet(t, config(s.Server), config(c.Client)); se != nil || ce != nil {
			t.Fatalf("%s: %v, %v", again, se, ce)
		}
	}
	trusting := otherC // a client of another lease that would take this server
	trusting.Peer = c.Peer
	for name, m := range map[string]struct{ server, client *tls.Config }{
		"a client of another lease": {config(s.Server), config(trusting.Client)},
		"a server of another lease": {config(otherS.Server), config(c.Client)},
		"another lease":             {config(s.Server), config(otherC.Client)},
		"no certificate":            {config(s.Server), config(c.Client, func(c *tls.Config) { c.Certificates = nil })},
		"the server as its client":  {config(s.Server), config(s.Client)},
		"the client as its server":  {config(c.Server), config(c.Client)},
		"TLS 1.2 of the client":     {config(s.Server), config(c.Client, func(c *tls.Config) { c.MinVersion, c.MaxVersion = 0, tls.VersionTLS12 })},
		"TLS 1.2 of the server":     {config(s.Server, func(c *tls.Config) { c.MinVersion, c.MaxVersion = 0, tls.VersionTLS12 }), config(c.Client)},
		"a client without protocol": {config(s.Server), config(c.Client, func(c *tls.Config) { c.NextProtos, c.VerifyConnection = nil, nil })},
		"a client of another":       {config(s.Server), config(c.Client, func(c *tls.Config) { c.NextProtos = []string{"h2"} })},
		"a server without protocol": {config(s.Server, func(c *tls.Config) { c.NextProtos, c.VerifyConnection = nil, nil }), config(c.Client)},
		"a certificate without key": {config(s.Server), config(otherC.Client, func(o *tls.Config) { o.Certificates[0].Certificate = [][]byte{c.Certificate}; o.VerifyConnection = nil })},
		"a server without its key":  {config(otherS.Server, func(o *tls.Config) { o.Certificates[0].Certificate = [][]byte{s.Certificate}; o.VerifyConnection = nil }), config(c.Client)},
		"the right key behind its own": {config(s.Server), config(otherC.Client, func(o *tls.Config) {
			o.Certificates[0].Certificate = append(o.Certificates[0].Certificate, c.Certificate)
			o.VerifyConnection = nil
		})},
	} {
		if _, se, ce := meet(t, m.server, m.client); se == nil || ce == nil {
			t.Errorf("%s: %v, %v", name, se, ce)
		}
	}
	// Of several protocols the first of the server's that the client has, too.
	for want, of := range map[string][2][]string{
		VerbsProtocol:   {SessionProtocols(true), SessionProtocols(true)},
		SessionProtocol: {SessionProtocols(true), SessionProtocols(false)},
	} {
		for _, turn := range [][2][]string{of, {of[1], of[0]}} {
			server, err1 := s.Server(turn[0]...)
			client, err2 := c.Client(turn[1]...)
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			got, verify := "", client.VerifyConnection
			client.VerifyConnection = func(s tls.ConnectionState) error {
				got = s.NegotiatedProtocol
				return verify(s)
			}
			if _, se, ce := meet(t, server, client); se != nil || ce != nil || got != want {
				t.Errorf("%q of %v: %v, %v", got, turn, se, ce)
			}
		}
	}
	// Roles swapped as a whole are the same two keys: the lease says who calls, not the keys.
	if _, se, ce := meet(t, config(c.Server), config(s.Client)); se != nil || ce != nil {
		t.Errorf("swapped: %v, %v", se, ce)
	}
}

// TestPinnedIdentity: what makes no identity is refused before anybody is called.
func TestPinnedIdentity(t *testing.T) {
	s, c := lease(t)
	own, err := s.Hash()
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]Pinned{
		"nobody": {}, "no peer": {Certificate: s.Certificate, Key: s.Key}, "itself for a peer": {s.Certificate, s.Key, own},
		"another's key": {s.Certificate, c.Key, s.Peer}, "no key": {s.Certificate, nil, s.Peer}, "no certificate": {s.Key, s.Key, s.Peer},
	} {
		for _, make := range []func(...string) (*tls.Config, error){p.Server, p.Client} {
			if _, err := make(speaks); !errors.Is(err, ErrIdentity) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	b, err := json.Marshal(s)
	var back Pinned
	if err == nil {
		err = json.Unmarshal(b, &back)
	}
	if err != nil || back.Peer != s.Peer || string(back.Key) != string(s.Key) || string(back.Certificate) != string(s.Certificate) {
		t.Errorf("%v, %s", err, b)
	}
	for _, bad := range []string{"", "ab", strings.Repeat("x", 64)} {
		if err := new(KeyHash).UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"
)

// at has a side of a connection judge certificates by a clock that is off by so much.
func at(c *tls.Config, off time.Duration) *tls.Config {
	clock := func() time.Time { return time.Now().Add(off) }
	c.Time = clock
	if get := c.GetConfigForClient; get != nil {
		c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := get(h)
			if err == nil {
				c.Time = clock
			}
			return c, err
		}
	}
	return c
}

// TestClocksApart: hosts whose clocks differ by minutes, both ways, meet with certificates that
// were issued a moment ago and that end soon; at more than an hour the error is of a certificate's
// time, with clocks as its remedy.
func TestClocksApart(t *testing.T) {
	dir := t.TempDir()
	server, client := issue(t, dir, "gpu1"), issue(t, dir, "hosta")
	for _, c := range []struct {
		server, client time.Duration
		meet           bool
	}{
		{7 * time.Minute, -7 * time.Minute, true}, {-7 * time.Minute, 7 * time.Minute, true}, {-50 * time.Minute, 50 * time.Minute, true},
		{-2 * time.Hour, 0, false}, {2 * time.Hour, 0, false}, {0, -2 * time.Hour, false},
	} {
		s, err := server.Server(speaks)
		if err != nil {
			t.Fatal(err)
		}
		k, err := client.Client(speaks, "gpu1")
		if err != nil {
			t.Fatal(err)
		}
		peer, se, ke := meet(t, at(s, c.server), at(k, c.client))
		if c.meet {
			if se != nil || ke != nil || peer != "hosta" {
				t.Errorf("%v and %v: %q, %v, %v", c.server, c.client, peer, se, ke)
			}
			continue
		}
		if se == nil || ke == nil || !strings.Contains(Remedy(se)+Remedy(ke), "clocks") {
			t.Errorf("%v and %v: %v (%s), %v (%s)", c.server, c.client, se, Remedy(se), ke, Remedy(ke))
		}
		var here, there x509.CertificateInvalidError
		if errors.As(se, &here) == errors.As(ke, &there) {
			t.Errorf("%v and %v: %v, %v: not one of them refuses", c.server, c.client, se, ke)
		}
	}
}

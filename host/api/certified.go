package api

import (
	"bytes"
	"crypto/tls"
	"net/http"
	"sync"
)

// certified is how a GPU server is asked by connections that are kept. A server judges at each
// request the certificate that the connection has shown: when it refuses that, and this host has
// another by now, the connections are given up, and the next ones show the new one.
type certified struct {
	begin    func() *http.Transport
	identity func() (*tls.Config, error)

	mu    sync.Mutex
	now   *http.Transport // nil: none yet
	shown []byte          // this host's certificate, as now was begun
}

// RoundTrip implements http.RoundTripper.
func (c *certified) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := c.transport().RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusForbidden {
		c.refused()
	}
	return resp, err
}

func (c *certified) transport() *http.Transport {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now == nil {
		c.now, c.shown = c.begin(), c.own()
	}
	return c.now
}

// refused begins anew if the certificate is another one. What is under way goes on.
func (c *certified) refused() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if own := c.own(); own != nil && !bytes.Equal(own, c.shown) {
		c.now.CloseIdleConnections()
		c.now, c.shown = c.begin(), own
	}
}

// own is this host's certificate; nil: it has none that could be shown.
func (c *certified) own() []byte {
	cfg, err := c.identity()
	if err != nil || len(cfg.Certificates) == 0 || len(cfg.Certificates[0].Certificate) == 0 {
		return nil
	}
	return cfg.Certificates[0].Certificate[0]
}

// CloseIdleConnections is what http.Client closes by.
func (c *certified) CloseIdleConnections() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != nil {
		c.now.CloseIdleConnections()
	}
}

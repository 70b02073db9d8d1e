package webhook

import (
	"net"
	"sync"
)

// Bounds of a listener's connections.
const (
	mostConns     = 512
	mostOfAddress = 64
)

// Bounded closes connections beyond what there may be at once, from one address and in all: whoever
// opens many and says nothing keeps out neither the API server nor others.
func Bounded(ln net.Listener) net.Listener { return &bounded{Listener: ln, of: map[string]int{}} }

type bounded struct {
	net.Listener

	mu  sync.Mutex
	all int
	of  map[string]int // by address, without its port
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil {
			host = c.RemoteAddr().String()
		}
		if b.take(host) {
			return &counted{Conn: c, done: sync.OnceFunc(func() { b.drop(host) })}, nil
		}
		_ = c.Close()
	}
}

func (b *bounded) take(host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all >= mostConns || b.of[host] >= mostOfAddress {
		return false
	}
	b.all++
	b.of[host]++
	return true
}

func (b *bounded) drop(host string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all--
	if b.of[host]--; b.of[host] == 0 {
		delete(b.of, host)
	}
}

// counted is a connection that says when it is closed.
type counted struct {
	net.Conn

	done func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.done()
	return c.Conn.Close()
}

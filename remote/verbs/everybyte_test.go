package verbs_test

import (
	"errors"
	"net"
	"sync"
	"testing"

	"causeway/remote/verbs/verbstest"
)

// endsAt is a connection that ends when so many bytes were written, or read.
type endsAt struct {
	net.Conn
	reads bool

	mu   sync.Mutex
	left int
}

func (c *endsAt) of(n int, reads bool) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reads != c.reads {
		return n, nil
	}
	n = min(n, c.left)
	c.left -= n
	if n == 0 {
		return 0, errors.Join(errors.New("cut"), c.Conn.Close())
	}
	return n, nil
}

func (c *endsAt) Read(p []byte) (int, error) {
	n, err := c.of(len(p), true)
	if err != nil {
		return 0, err
	}
	return c.Conn.Read(p[:n])
}

func (c *endsAt) Write(p []byte) (int, error) {
	n, err := c.of(len(p), false)
	if err != nil {
		return 0, err
	}
	done, err := c.Conn.Write(p[:n])
	if err == nil && done < len(p) {
		_, err = c.of(1, false)
	}
	return done, err
}

// TestUpgradeEveryByte: wherever the connection ends inside of which two ends agree on RDMA and on
// queue pairs for copies, nothing is left of it at either.
func TestUpgradeEveryByte(t *testing.T) {
	t.Parallel() // it waits for what does not come through
	for _, reads := range []bool{false, true} {
		agreed := false
		for at := 0; !agreed; at += 5 {
			if at == 1000 {
				t.Fatal("they never agree")
			}
			f := verbstest.New()
			w, err1, err2 := wideOver(t, f, ports(f, "near", 2), ports(f, "far", 2), 3, 3, func(near net.Conn) net.Conn {
				return &endsAt{Conn: near, reads: reads, left: at}
			})
			if agreed = err1 == nil && err2 == nil; agreed && at < 64+2*2 {
				t.Errorf("they agree after %d bytes", at)
			}
			for _, c := range []net.Conn{w.near, w.far} { // one end may have all, and the other not
				if c != nil {
					_ = c.Close()
				}
			}
			if n := f.Left(); n != 0 {
				t.Fatalf("after %d bytes, read: %v: %v; %v: %d queue pairs and registrations are left", at, reads, err1, err2, n)
			}
			_, _ = w.nearBase.Close(), w.farBase.Close()
		}
	}
}

package api

import (
	"crypto/tls"
	"net"
	"time"

	"causeway/remote/mtls"
)

// judged is a connection to another host's causewayd that stays between requests: what that has
// shown is judged as a handshake would now, whenever something is said to it. So a certificate that
// was revoked meanwhile is refused at the next request.
type judged struct {
	*tls.Conn
	host     string
	identity func(host string) (*tls.Config, error)
	last     time.Time // one goroutine writes at a time
}

// judgedFor is how long it is not judged again: how far a host is is measured by requests that
// follow one another.
const judgedFor = 100 * time.Millisecond

var _ net.Conn = (*judged)(nil)

// Write implements net.Conn.
func (c *judged) Write(p []byte) (int, error) {
	if time.Since(c.last) > judgedFor {
		if err := c.judge(); err != nil {
			_ = c.Close()
			return 0, err
		}
		c.last = time.Now()
	}
	return c.Conn.Write(p)
}

func (c *judged) judge() error {
	cfg, err := c.identity(c.host)
	if err != nil {
		return err
	}
	return mtls.CheckServer(cfg, c.ConnectionState())
}

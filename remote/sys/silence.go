package sys

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// BoundSilence makes a net.Dialer's Control: a connection whose other end acknowledges nothing for
// so long ends, also while data waits to be sent, which TCP's keep-alive is silent about.
func BoundSilence(limit time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if bad := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
		}); bad != nil {
			return bad
		}
		return err
	}
}

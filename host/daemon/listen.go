package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"causeway/host/daemon/peer"
	"causeway/host/daemon/process"
)

// Bounds of connections to the API. root is bounded by the total only.
const (
	maxConns     = 512
	maxUserConns = 64
)

// Listen makes the API's socket, which anybody may connect to: who that is decides what it may. One
// that nobody serves any more is replaced. The run directory's lock must be held.
func (d *Daemon) Listen(path string) (net.Listener, error) {
	if process.Listening(path) {
		return nil, fmt.Errorf("a process that is no causewayd of this run directory serves %s: end it (`ss -xlp src %[1]s` names it)", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("old socket: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false)
	made, err := os.Lstat(path)
	if err == nil {
		err = os.Chmod(path, 0o666)
	}
	if err != nil {
		_ = ln.Close()
		return nil, err
	}
	return &ownSocket{UnixListener: ln, path: path, made: made}, nil
}

// ownSocket removes its path when it ends, if that is still its own: the run directory may have
// been made anew, for another causewayd.
type ownSocket struct {
	*net.UnixListener
	path string
	made fs.FileInfo
}

func (s *ownSocket) Close() error {
	err := s.UnixListener.Close()
	if now, there := os.Lstat(s.path); err == nil && there == nil && os.SameFile(now, s.made) {
		err = os.Remove(s.path)
	}
	return err
}

// bounded accepts connections of Unix sockets, up to a number for each user.
type bounded struct {
	net.Listener
	mu    sync.Mutex
	all   int
	users map[uint32]int
}

type boundedConn struct {
	net.Conn
	peer peer.Peer
	free func()
}

func newBounded(ln net.Listener) *bounded { return &bounded{Listener: ln, users: map[uint32]int{}} }

// Accept implements net.Listener. A connection too many is told so and closed.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		u, ok := c.(*net.UnixConn)
		if !ok {
			_ = c.Close()
			continue
		}
		who, err := peer.Of(u)
		if err != nil {
			_ = c.Close()
			continue
		}
		if !b.take(who.UID) {
			_ = c.SetDeadline(time.Now().Add(time.Second))
			_, _ = fmt.Fprintf(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{\"error\":\"too many connections\",\"remedy\":\"close some\"}\n")
			_ = c.Close()
			continue
		}
		return &boundedConn{Conn: c, peer: who, free: sync.OnceFunc(func() { b.give(who.UID) })}, nil
	}
}

func (b *bounded) take(uid uint32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all >= maxConns || uid != 0 && b.users[uid] >= maxUserConns {
		return false
	}
	b.all++
	b.users[uid]++
	return true
}

func (b *bounded) give(uid uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all--
	if b.users[uid]--; b.users[uid] == 0 {
		delete(b.users, uid)
	}
}

func (c *boundedConn) Close() error {
	c.free()
	return c.Conn.Close()
}

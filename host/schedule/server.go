package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/schedule/policy"
	"causeway/remote/sys"
)

// Server is a node's scheduler.
type Server struct {
	Log *slog.Logger

	mu      sync.Mutex
	engines map[string]*engine
	shares  int
	conns   map[*net.UnixConn]struct{}
	closed  bool
	group   sync.WaitGroup
}

// Listen makes the socket of a scheduler. One that nobody serves any more is replaced.
func Listen(path string) (*net.UnixListener, error) {
	addr := &net.UnixAddr{Name: path, Net: "unixpacket"}
	if c, err := net.DialUnix("unixpacket", nil, addr); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("%s: another scheduler is at work", path)
	} else if errors.Is(err, unix.ECONNREFUSED) {
		if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSocket != 0 {
			_ = os.Remove(path)
		}
	}
	ln, err := net.ListenUnix("unixpacket", addr)
	if err != nil {
		return nil, fmt.Errorf("scheduler's socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("scheduler's socket: %w", err), ln.Close())
	}
	return ln, nil
}

// Serve accepts clients until ctx ends, then closes the server and its listener. Grants stay as
// they were: clients see the end of their connections, and open them.
func (s *Server) Serve(ctx context.Context, ln *net.UnixListener) error {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	defer ln.Close()
	defer s.Close()
	for {
		c, err := ln.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED):
			time.Sleep(50 * time.Millisecond)
			continue
		case err != nil:
			return fmt.Errorf("accept: %w", err)
		}
		s.Attach(c)
	}
}

// Attach serves a connection, which it takes over, beside others.
func (s *Server) Attach(c *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) >= MaxShares+16 {
		_ = c.Close()
		return
	}
	if s.conns == nil {
		s.conns, s.engines = map[*net.UnixConn]struct{}{}, map[string]*engine{}
	}
	s.conns[c] = struct{}{}
	s.group.Go(func() {
		s.routineClient(c)
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	})
}

// Close ends all connections and waits for what served them.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.group.Wait()
}

// client is a connection's state. Its goroutine owns it.
type client struct {
	server *Server
	engine *engine // nil: has not joined
	share  *share
}

// routineClient serves one connection.
func (s *Server) routineClient(conn *net.UnixConn) {
	defer conn.Close()
	log := s.Log
	if err := permitted(conn); err != nil {
		log.Warn("client refused", "error", err)
		return
	}
	c := &client{server: s}
	defer c.leave()
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(8*4))
	for {
		b, files, err := receive(conn, buf, oob)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				log.Warn("client", "error", err)
			}
			return
		}
		var a answer
		r, err := decodeRequest(b)
		if err != nil {
			sys.CloseAll(files)
		} else {
			err = c.do(r, files, &a)
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := send(conn, &a, nil); err != nil {
			log.Warn("client", "error", err)
			return
		}
	}
}

// permitted lets in root and the scheduler's own user.
func permitted(conn *net.UnixConn) error {
	who, err := sys.Peer(conn)
	if err != nil {
		return err
	}
	return sys.Trusted(who)
}

// do carries out a request. It takes over the files.
func (c *client) do(r request, files []int, a *answer) error {
	if r.Op != opAdd {
		sys.CloseAll(files)
	}
	switch {
	case r.Op == opStatus:
		a.Status = c.server.Status()
		return nil
	case r.Op == opJoin && c.share != nil:
		return fmt.Errorf("%w: it has joined", ErrRequest)
	case r.Op != opJoin && c.share == nil:
		if r.Op == opAdd {
			sys.CloseAll(files)
		}
		return fmt.Errorf("%w: %s before join", ErrRequest, r.Op)
	}
	l := policy.Limits{Weight: r.Weight, Cap: r.Cap}
	switch r.Op {
	case opJoin:
		return c.join(r, l)
	case opLimits:
		c.engine.setLimits(c.share, l)
	case opAdd:
		x, err := openSession(files)
		if err != nil {
			return err
		}
		if err := c.engine.add(c.share, r.Session, x); err != nil {
			x.close()
			return err
		}
	case opRemove:
		return c.engine.remove(c.share, r.Session)
	case opAccount:
		a.Charged = c.engine.account(c.share, r.Card, r.Period)
	}
	return nil
}

func (c *client) join(r request, l policy.Limits) error {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shares >= MaxShares {
		return fmt.Errorf("more than %d virtual GPUs", MaxShares)
	}
	e := s.engines[r.GPU]
	if e == nil {
		var err error
		if e, err = newEngine(r.GPU, r.Soft, s.Log); err != nil {
			return err
		}
		s.engines[r.GPU] = e
	}
	s.shares++
	c.engine, c.share = e, e.join(r.Key, l)
	s.Log.Info("joined", "gpu", r.GPU, "key", r.Key, "share", l.Weight, "cap", l.Cap)
	return nil
}

// leave ends a membership, and the engine of a GPU that has none left.
func (c *client) leave() {
	if c.share == nil {
		return
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shares--
	s.Log.Info("left", "gpu", c.engine.gpu, "key", c.share.key)
	if c.engine.leave(c.share) {
		delete(s.engines, c.engine.gpu)
		c.engine.close()
	}
}

// Status describes all GPUs.
func (s *Server) Status() *Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &Status{}
	for _, e := range s.engines {
		st.GPUs = append(st.GPUs, e.status())
	}
	return st
}

// send sends a message with files, which stay open.
func send(c *net.UnixConn, v any, files []int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxPacket {
		return fmt.Errorf("message of %d bytes", len(b))
	}
	return sys.SendPacket(c, b, files)
}

// receive reads a packet. Its files are the caller's.
func receive(c *net.UnixConn, buf, oob []byte) ([]byte, []int, error) {
	b, files, err := sys.ReceivePacket(c, buf, oob)
	if errors.Is(err, sys.ErrTruncated) {
		err = fmt.Errorf("%w: %w", ErrRequest, err)
	}
	return b, files, err
}

package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Options of a Server.
type Options struct {
	Logger *slog.Logger // nil: slog.Default()
	// Front hears that a front end has connected, or that everything of it is gone. nil: nobody
	// does.
	Front func(connected bool)
	// Logging hears that a front end begins to log what is written for running rings, as QEMU does
	// when a migration starts; Memory.Logging says how long. QEMU 10 cannot be told no here: it
	// aborts if these features are refused, and does not look at what the answer to SET_LOG_BASE
	// holds. nil: nobody does.
	Logging func()
	// Mirror hears what the front end says, for a Standby in another process. nil: there is none.
	Mirror Mirror
}

// Server serves one Device to one front end at a time.
type Server struct {
	mem   *Memory
	dev   Device
	log   *slog.Logger
	hears func(connected bool)
	logs  func()
	other Mirror

	mu     sync.Mutex
	active *conn
}

// NewServer makes a server. dev must have been built on mem.
func NewServer(mem *Memory, dev Device, o Options) *Server {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Front == nil {
		o.Front = func(bool) {}
	}
	if o.Logging == nil {
		o.Logging = func() {}
	}
	if o.Mirror == nil {
		o.Mirror = noMirror{}
	}
	return &Server{mem: mem, dev: dev, log: o.Logger, hears: o.Front, logs: o.Logging, other: o.Mirror}
}

// Listen opens a listening socket at path. A socket that nobody serves any more is replaced.
func Listen(path string) (*net.UnixListener, error) {
	if fi, err := os.Lstat(path); err == nil && fi.Mode()&os.ModeSocket != 0 {
		c, err := net.Dial("unix", path)
		if err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("listen on %s: another process serves this socket: %w", path, unix.EADDRINUSE)
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			_ = os.Remove(path)
		}
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("vhost-user socket: %w", err)
	}
	return ln, nil
}

// handover is how long a new front end waits for the end of the previous one, whose disconnect may
// not have been noticed yet.
const handover = 2 * time.Second

// Serve accepts front ends until ctx ends, which is no error, or accepting fails. It closes ln, and
// returns after the last connection was torn down.
func (s *Server) Serve(ctx context.Context, ln *net.UnixListener) error {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	defer ln.Close()
	conns, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for {
		sock, err := ln.AcceptUnix()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED):
			s.log.Warn("accept failed, trying again", "error", err)
			time.Sleep(100 * time.Millisecond)
			continue
		default:
			return fmt.Errorf("accept a vhost-user front end: %w", err)
		}
		c := s.admit(conns, sock)
		if c == nil {
			s.log.Warn("front end refused: another one is connected")
			_ = sock.Close()
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			c.routine(conns)
		}()
	}
}

// admit makes sock the active connection, or returns nil if there is one.
func (s *Server) admit(ctx context.Context, sock *net.UnixConn) *conn {
	s.mu.Lock()
	prev := s.active
	s.mu.Unlock()
	if prev != nil {
		t := time.NewTimer(handover)
		defer t.Stop()
		select {
		case <-prev.done:
		case <-ctx.Done():
			return nil
		case <-t.C:
			return nil
		}
	}
	c := newConn(s, sock)
	s.mu.Lock()
	s.active = c
	s.mu.Unlock()
	return c
}

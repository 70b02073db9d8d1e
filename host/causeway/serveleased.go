package main

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/remote"
	"causeway/remote/mtls"
)

// leasedListener takes the connections of one lease, that of `causeway serve-plain --lease`.
type leasedListener struct {
	ln   *net.TCPListener
	id   remote.LeaseID
	keys mtls.Pinned
	log  *slog.Logger

	ready chan fileConn
	again func(*net.TCPConn, remote.SessionID) error // a session goes on over a connection
	ended chan struct{}
	err   error // of the listener, once ended is closed
	wg    sync.WaitGroup
}

// sessionConn is the first connection of a session.
type sessionConn struct {
	*net.TCPConn
	session remote.SessionID
}

// How many connections may not have said yet what they are for, and how long they may take.
const (
	prefacesAtOnce = 64
	prefaceLimit   = 10 * time.Second
)

// newLeased makes a lease, writes the file for the other side, and begins to take connections.
func newLeased(ln *net.TCPListener, file string, again func(*net.TCPConn, remote.SessionID) error, log *slog.Logger) (*leasedListener, error) {
	server, client, err := mtls.NewPinnedPair()
	if err != nil {
		return nil, err
	}
	at := ln.Addr().String()
	l := &leasedListener{ln: ln, id: remote.NewLeaseID(), keys: server, log: log, again: again, ready: make(chan fileConn), ended: make(chan struct{})}
	f := lease.File{ID: l.id, Identity: client, Upstream: &api.Upstream{Server: at, Address: at, Lease: l.id}, Addresses: []string{at}}
	if err := f.Write(file); err != nil {
		return nil, err
	}
	go l.routineAccept()
	return l, nil
}

// close ends what is under way. The listener is closed.
func (l *leasedListener) close() {
	<-l.ended
	l.wg.Wait()
}

// accept is the next connection of the lease.
func (l *leasedListener) accept() (fileConn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.ended:
		return nil, l.err
	}
}

func (l *leasedListener) routineAccept() {
	defer close(l.ended)
	room := make(chan struct{}, prefacesAtOnce)
	for {
		c, err := l.ln.AcceptTCP()
		if err != nil {
			l.err = err
			return
		}
		room <- struct{}{}
		l.wg.Go(func() {
			defer func() { <-room }()
			l.preface(c)
		})
	}
}

// preface hands a connection of the lease over. One that says something else, or nothing, is
// closed.
func (l *leasedListener) preface(c *net.TCPConn) {
	_ = c.SetDeadline(time.Now().Add(prefaceLimit))
	p, err := remote.ReadPreface(c)
	if err == nil && p.Lease != l.id {
		err = errors.New("it is for another lease")
	}
	if err != nil {
		l.log.Warn("a connection is not taken", "from", c.RemoteAddr().String(), "error", err)
		_ = c.Close()
		return
	}
	_ = c.SetDeadline(time.Time{})
	if p.Again {
		defer c.Close()
		if err := l.again(c, p.Session); err != nil {
			l.log.Warn("a connection is not taken", "from", c.RemoteAddr().String(), "error", err)
			_, _ = io.WriteString(c, remote.Gone)
		}
		return
	}
	select {
	case l.ready <- sessionConn{c, p.Session}:
	case <-l.ended:
		_ = c.Close()
	}
}

package guestend

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/remotetest"
	"causeway/remote/resume"
	"causeway/remote/shm"
	"causeway/remote/tcp"
	"causeway/remote/verbs"
)

// patience is how long sessions by RDMA go on without a way, in place of resume.Limit: a machine
// that has other things to do is waited for.
const patience = 10 * time.Minute

// Unix is a session over shared memory.
func (l *Library) Unix() (remotetest.Ends, error) {
	s, err := newSocket()
	return remotetest.Ends{
		Accept: func() (remote.Carrier, error) {
			c, err := s.accept()
			if err != nil {
				return nil, err
			}
			return remotetest.AsCarrier(shm.AcceptUnix(c))
		},
		Connect: func() (*remotetest.Guest, error) { return l.connect("unix", s.path, "") },
	}, err
}

// TCP is a session over a TCP connection.
func (l *Library) TCP() (remotetest.Ends, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return remotetest.Ends{}, err
	}
	return remotetest.Ends{
		Accept: func() (remote.Carrier, error) {
			c, err := ln.Accept()
			if err := errors.Join(err, ln.Close()); err != nil {
				return nil, err
			}
			return remotetest.AsCarrier(tcp.Accept(c))
		},
		Connect: func() (*remotetest.Guest, error) { return l.connect("tcp", ln.Addr().String(), "") },
	}, nil
}

// RDMA is a session by RDMA, of which the library is the guest's end, and the worker's is a's; what
// they say beside it goes by a TLS connection to an address of this machine, and who has that
// connection. sysfs is where the library sees its devices; empty: where the kernel shows them.
func (l *Library) RDMA(a verbs.Adapter, address, sysfs string) (remotetest.Ends, error) {
	k, err := remotetest.NewKeys()
	if err != nil {
		return remotetest.Ends{}, err
	}
	near, far, err := remotetest.PairTCPAt(address)
	if err != nil {
		return remotetest.Ends{}, err
	}
	s, err := newSocket()
	var worker atomic.Pointer[resume.Conn]
	again := func(context.Context, error) (net.Conn, error) {
		w := worker.Load()
		if w == nil {
			return nil, errors.New("the server has not begun")
		}
		near, far, err := remotetest.PairTCPAt(address)
		if err == nil {
			go func() { _ = w.Accept(far, k.ServerAgain) }()
		}
		return near, err
	}
	return remotetest.Ends{
		Accept: func() (remote.Carrier, error) {
			c, err := frame.Server(context.Background(), far, k.Server)
			if err != nil {
				return nil, err
			}
			lifted, err := remotetest.Lift(c, a, false)
			if err != nil {
				return nil, err
			}
			stream, err := resume.NewServerOver(c, lifted, nil)
			if err != nil {
				return nil, err
			}
			stream.SetLimit(patience)
			worker.Store(stream)
			return remotetest.AsCarrier(tcp.Accept(stream))
		},
		Connect: func() (*remotetest.Guest, error) {
			between := make(chan error, 1)
			go func() { between <- s.pass(near, k, again) }()
			g, err := l.connect("rdma", s.path, sysfs)
			if err != nil {
				_ = s.ln.Close() // where nobody has come
				err = errors.Join(err, <-between)
			}
			return g, err
		},
	}, err
}

// socket is where one library finds its host.
type socket struct {
	path string
	ln   *net.UnixListener
}

func newSocket() (socket, error) {
	dir, err := os.MkdirTemp("", "guestend.")
	if err != nil {
		return socket{}, err
	}
	s := socket{path: filepath.Join(dir, "session")}
	s.ln, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: s.path, Net: "unixpacket"})
	return s, err
}

// accept returns the first that comes.
func (s socket) accept() (*net.UnixConn, error) {
	c, err := s.ln.AcceptUnix()
	return c, errors.Join(err, s.ln.Close(), os.RemoveAll(filepath.Dir(s.path)))
}

// pass is the host between the guest and the GPU server, to the session's end (host/worker's part,
// whose keys it has).
func (s socket) pass(near net.Conn, k remotetest.Keys, dial resume.Dialer) error {
	conn, err := s.accept()
	if err != nil {
		return errors.Join(err, near.Close())
	}
	guest := &packets{bufio.NewReaderSize(conn, int(remote.FileDirectMost)+remote.HelloSize), conn}
	b := make([]byte, remote.HelloSize)
	_, err = io.ReadFull(guest, b)
	if err == nil {
		var h remote.Hello
		if h, _, err = remote.ParseHello(b); err == nil && h.Type != remote.MsgDirect {
			err = fmt.Errorf("message %d is of no RDMA end", h.Type)
		}
	}
	if err != nil {
		return errors.Join(err, conn.Close(), near.Close())
	}
	up, err := frame.Client(context.Background(), near, k.Client)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	to := near.RemoteAddr().(*net.TCPAddr).IP.String()
	if _, err := conn.Write(remote.FormatHello(remote.Hello{Type: remote.MsgWelcome}, to)); err != nil {
		up.Abort()
		return errors.Join(err, conn.Close())
	}
	again, err := resume.NewAgain(up, k.ClientAgain, dial)
	if err != nil {
		up.Abort()
		return errors.Join(err, conn.Close())
	}
	_, err = verbs.Pass(context.Background(), guest, up, func(string) error { return nil }, again.Connect, patience)
	return err
}

// packets is a channel of packets, read as a stream.
type packets struct {
	*bufio.Reader
	*net.UnixConn
}

// Read implements io.Reader.
func (p *packets) Read(b []byte) (int, error) { return p.Reader.Read(b) }

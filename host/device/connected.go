package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/mtls"
	"causeway/remote/sys"
	"causeway/virtio/fs"
)

/*
A virtual GPU that another host has by a lease serves no VM: its programs' sessions come as
connections, which causewayd hands over at the device's socket, one to a connection there. Their
workers hear them as they hear any guest; what the device knows, counts and limits is the same.
*/

// ErrFar says that a session's two ends are on two hosts, where it stays.
var ErrFar = errors.New("a session between two hosts stays where it is")

// handTime bounds how long causewayd may take to hand a connection over.
const handTime = 5 * time.Second

// ServeLease serves connections that are handed over at ln, with the keys of a lease, until ctx
// ends, and then ends all sessions.
func (d *Device) ServeLease(ctx context.Context, ln *net.UnixListener, keys mtls.Pinned) error {
	return d.serveConnected(ctx, ln, func(c *net.UnixConn) error { return d.take(c, keys) })
}

// serveConnected has take make a session of each connection at ln, which take closes.
func (d *Device) serveConnected(ctx context.Context, ln *net.UnixListener, take func(*net.UnixConn) error) error {
	tick, stop := context.WithCancel(ctx)
	defer stop()
	d.ending.Add(2)
	go func() { defer d.ending.Done(); d.routineTick(tick) }()
	go func() { defer d.ending.Done(); d.routineAudit(tick) }()
	end := context.AfterFunc(ctx, func() { _ = ln.Close() })
	var err error
	for {
		var c *net.UnixConn
		if c, err = ln.AcceptUnix(); err != nil {
			if temporarily(err) && ctx.Err() == nil {
				d.log.Warn("a program's connection is not taken", "error", err)
				time.Sleep(acceptPause)
				continue
			}
			break
		}
		if err := take(c); err != nil {
			d.log.Warn("a program's connection is not taken", "error", err)
		}
	}
	if !end() {
		err = nil // ctx has ended
	}
	stop()
	for _, s := range d.all() {
		s.Release()
	}
	d.ending.Wait()
	d.membership().Close()
	return err
}

// acceptPause is how long no connection is taken when there are no descriptors for one.
const acceptPause = 50 * time.Millisecond

// temporarily: a connection cannot be taken, the next may be.
func temporarily(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED)
}

// take has a session of the connection that comes over c.
func (d *Device) take(c *net.UnixConn, keys mtls.Pinned) error {
	defer c.Close()
	if err := trustedPeer(c); err != nil {
		return err
	}
	_ = c.SetDeadline(time.Now().Add(handTime))
	said, files, err := sys.ReceivePacket(c, make([]byte, remote.PrefaceSize+64), make([]byte, sys.RightsRoom(1)))
	if err != nil {
		return fmt.Errorf("a connection is to be handed over: %w", err)
	}
	if len(files) != 1 {
		sys.CloseAll(files)
		return fmt.Errorf("%d connections are handed over at once", len(files))
	}
	unix.CloseOnExec(files[0])
	conn := os.NewFile(uintptr(files[0]), "program's connection")
	from := said[min(len(said), remote.PrefaceSize):]
	p, err := remote.ParsePreface(said[:len(said)-len(from)])
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	former := d.connectedAs(p.Session)
	switch {
	case p.Again:
		defer conn.Close()
		return again(former, conn)
	case former != nil:
		return errors.Join(fmt.Errorf("there is a session %x", p.Session), conn.Close())
	}
	opened, errno := d.Open(fs.Caller{})
	if errno != 0 {
		d.ending.Go(func() { // the next one does not wait for this one's answer
			refuseFar(conn, errSessions)
			_ = conn.Close()
		})
		return fmt.Errorf("a session of %s: %w", printableAddress(from), errno)
	}
	s := opened.(*session)
	s.log = s.log.With("from", printableAddress(from))
	s.mu.Lock()
	s.connected, s.called = "a program at "+printableAddress(from), p.Session
	s.mu.Unlock()
	if !s.do(func() {
		s.connect(conn, func(c *link.Config) { c.Carrier, c.TLS, c.Session, c.Spare = link.CarrierTCP, &keys, s.called, p.Ready })
	}) {
		_ = conn.Close()
		s.Release()
	}
	return nil
}

// connectedAs is the session that another host's relay calls so; nil: there is none.
func (d *Device) connectedAs(id remote.SessionID) *session {
	for _, s := range d.all() {
		s.mu.Lock()
		is := s.connected != "" && s.called == id
		s.mu.Unlock()
		if is {
			return s
		}
	}
	return nil
}

// again gives a session's worker the connection over which it is to go on. That there is none is
// said to who made the connection.
func again(s *session, conn *os.File) error {
	var p workerProcess
	if s != nil {
		s.mu.Lock()
		if s.state < dead {
			p = s.proc
		}
		s.mu.Unlock()
	}
	if p == nil || p.Send(link.Reconnected{Connection: link.FileOf(int(conn.Fd()))}) != nil {
		_, _ = conn.WriteString(remote.Gone)
		return errors.New("it is for a session that has ended")
	}
	return nil
}

// printableAddress is what causewayd says of who connected, for the log.
func printableAddress(b []byte) string { return strings.Trim(strconv.QuoteToASCII(string(b)), `"`) }

// connect starts the worker of a connection, which it closes. carry says what carries the session.
// It runs on routine.
func (s *session) connect(conn *os.File, carry func(*link.Config)) {
	defer conn.Close()
	if err := s.connectWorker(conn, carry); err != nil {
		s.log.Log(context.Background(), slog.LevelWarn, "session refused", "error", err)
		switch {
		case s.dev.opts.Programs:
			refuseProgram(conn, err)
		default:
			refuseFar(conn, err)
		}
		s.fail(nil)
		s.Release()
	}
}

// refuseFar tells another host's relay of what kind it is that a session does not begin, ahead of
// TLS, whose keys a worker would have.
func refuseFar(conn *os.File, why error) {
	said := remote.Not
	switch {
	case errors.Is(why, errSessions), errors.Is(why, errUser):
		said = remote.Full
	case errors.Is(why, errTooFast), errors.Is(why, errLate):
		said = remote.NotNow
	}
	c, err := net.FileConn(conn)
	if err != nil {
		return
	}
	defer c.Close()
	if half, ok := c.(remote.HalfCloser); ok {
		remote.Refuse(half, said)
	}
}

func (s *session) connectWorker(conn *os.File, carry func(*link.Config)) error {
	entered, err := s.entering()
	if err != nil {
		return err
	}
	defer entered()
	if err := s.dev.reachable(); err != nil {
		s.dev.refusedOne()
		return err
	}
	if err := s.admit(); err != nil {
		s.dev.refusedOne()
		return err
	}
	if err := s.provide(); err != nil {
		s.leave()
		return err
	}
	started, err := s.starting()
	if err != nil {
		return err
	}
	defer started()
	cfg := s.config()
	// Its connection would carry it on without this process, which holds its limits and has it end
	// with its lease, and without which nobody knows of it.
	cfg.Tied = true
	if !s.dev.opts.Leased { // programs of a container stay
		cfg.Migratable, cfg.Base = false, 0
	}
	cfg.Migratable = cfg.Migratable || s.dev.opts.Leased && s.at.software()
	carry(&cfg)
	p, err := s.dev.workers.connect(s.at, cfg, int(conn.Fd()))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.proc = p
	gone := s.state >= dead
	if !gone {
		s.state = running
	}
	s.mu.Unlock()
	if gone { // meanwhile
		p.Kill()
		return errGone
	}
	s.log.Info("worker started", "worker", p.PID())
	s.follow(p)
	go func() {
		<-p.Done()
		s.Release() // nobody holds a file open that would be closed
	}()
	return nil
}

// fixed says why a session cannot leave its worker; nil: nothing of that kind.
func (s *session) fixed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.dev.opts.Programs:
		return ErrPrograms
	case s.connected != "":
		return fmt.Errorf("%w: its program runs on another host", ErrFar)
	case s.at != nil && s.at.Worker.Relay != nil:
		return fmt.Errorf("%w: its GPU is on the server %s", ErrFar, s.at.Worker.Relay.Server)
	}
	return nil
}

// SetUpstream says how the GPU server is where the programs' sessions run. While it is lost no
// session begins, and none goes on if that is said. What is said of a server that they have left,
// which causewayd may not know yet, is nothing to them.
func (d *Device) SetUpstream(s api.UpstreamState) {
	var end []*session
	d.mu.Lock()
	d.upstream = s
	if s.Ends && d.unreachedLocked() != "" {
		end = slices.Collect(maps.Keys(d.sessions)) // those that begin from now on are refused
	}
	d.mu.Unlock()
	for _, x := range end {
		x.fail(fmt.Errorf("%w: %s", errUnreached, s.Why))
	}
}

// unreachedLocked is why the GPU server is not reached; "": it is, or there is none.
func (d *Device) unreachedLocked() string {
	if of := d.upstream.Lease; !of.IsZero() && (d.at.Worker.Relay == nil || d.at.Worker.Relay.Lease != of) {
		return ""
	}
	return d.upstream.Why
}

// errUnreached refuses a session whose GPU server is lost.
var errUnreached = errors.New("no CUDA program can begin")

// reachable says why no session can begin.
func (d *Device) reachable() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if why := d.unreachedLocked(); why != "" {
		return fmt.Errorf("%w: %s", errUnreached, why)
	}
	return nil
}

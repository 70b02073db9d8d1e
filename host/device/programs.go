package device

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/sys"
	"causeway/virtio/fs"
)

/*
A virtual GPU for programs of this host serves no VM: each CUDA process, in a container for
instance, connects at a socket of packets, and its memory comes as files over that connection. What
the device knows, counts and limits of sessions is the same as of a VM's.
*/

// ErrPrograms says that a session of such a program cannot leave its worker.
var ErrPrograms = errors.New("a session of a program of this host stays where it is")

// ListenPrograms opens the socket at which programs connect. Who may is said by the folders around
// it.
func ListenPrograms(path string) (*net.UnixListener, error) {
	return listenAs(path, 0o666, nil, listenPackets)
}

// ListenNVML opens the socket at which their management libraries ask.
func ListenNVML(path string) (*net.UnixListener, error) { return Listen(path, 0o666, nil) }

// listenPackets is vhostuser.Listen for packets. Nobody serves the socket that may be there:
// causewayd has looked, and asking would begin a session.
func listenPackets(path string) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		_ = os.Remove(path)
	}
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("session socket: %w", err)
	}
	return ln, nil
}

// ServePrograms makes a session of each connection at ln, and answers questions at nvml, if that is
// not nil, until ctx ends; then it ends all sessions.
func (d *Device) ServePrograms(ctx context.Context, ln, nvml *net.UnixListener) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	if nvml != nil && d.opts.Machine != nil {
		defer context.AfterFunc(ctx, func() { _ = nvml.Close() })()
		wg.Go(func() { d.answerPrograms(ctx, nvml) })
	}
	return d.serveConnected(ctx, ln, d.takeProgram)
}

// takeProgram has a session of a connection, which it closes.
func (d *Device) takeProgram(c *net.UnixConn) error {
	defer c.Close()
	who, err := sys.Peer(c)
	if err != nil {
		return err
	}
	conn, err := c.File()
	if err != nil {
		return err
	}
	opened, errno := d.Open(fs.Caller{UID: who.Uid, GID: who.Gid, PID: uint32(who.Pid)})
	if errno != 0 {
		refuseProgram(conn, fmt.Errorf("too many programs wait for a session: %w", errno))
		_ = conn.Close()
		return fmt.Errorf("a session of process %d: %w", who.Pid, errno)
	}
	s := opened.(*session)
	s.mu.Lock()
	s.connected = fmt.Sprintf("process %d of uid %d", who.Pid, who.Uid)
	s.log = s.log.With("uid", who.Uid)
	s.mu.Unlock()
	// The worker itself sees whether a driver that has started will do for the program: it can look
	// at what it says first.
	if !s.do(func() {
		s.connect(conn, func(c *link.Config) { c.Carrier, c.Spare, c.Tenant = link.CarrierUnix, true, true })
	}) {
		_ = conn.Close()
		s.Release()
	}
	return nil
}

// refuseProgram tells a program why it has no session, as a worker would. One that takes nothing is
// not waited for.
func refuseProgram(conn *os.File, why error) {
	status := uint32(unix.EUSERS)
	if errno := unix.Errno(0); errors.As(why, &errno) {
		status = uint32(errno)
	}
	_ = unix.Send(int(conn.Fd()), remote.FormatHello(remote.Hello{Type: remote.MsgWelcome, Status: status}, why.Error()), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// answerPrograms answers management libraries: each connection gets the state of the virtual GPU
// and is closed.
func (d *Device) answerPrograms(ctx context.Context, ln *net.UnixListener) {
	inv, room := d.inventory(), make(chan struct{}, maxQuestions)
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := ln.AcceptUnix()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return
		case temporarily(err):
			time.Sleep(acceptPause)
			continue
		default:
			d.log.Error("programs' nvidia-smi is answered no more", "error", err)
			return
		}
		select {
		case room <- struct{}{}:
		default: // whoever asks that much waits for nobody's sake
			_ = c.Close()
			continue
		}
		wg.Go(func() {
			defer func() { <-room }()
			defer c.Close()
			ctx, cancel := context.WithTimeout(ctx, answerLimit)
			defer cancel()
			b, err := inv.Answer(ctx)
			if err != nil {
				d.log.Warn("NVML of programs is limited to names", "error", err)
				return // nothing: they ask their CUDA library for the names
			}
			_ = c.SetWriteDeadline(time.Now().Add(answerLimit))
			_, _ = c.Write(b) // who has gone wants no answer
		})
	}
}

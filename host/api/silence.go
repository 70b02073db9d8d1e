package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"causeway/remote/sys"
)

/*
A question may take as long as it takes: a vGPU starts, programs move, a log goes on. So what people
ask is bounded by no time of its own. Instead, while there is no answer, who serves the socket is
asked for its version over another connection, now and then: a process that is stopped or hangs has
its socket still, where the kernel takes connections for it, and answers neither.
*/

// ErrSilent says that a process has its socket and answers nothing there.
var ErrSilent = errors.New("answers nothing")

// Times of a watched client.
const (
	silenceLook  = 5 * time.Second  // between two looks for a sign of life
	silenceLimit = 10 * time.Second // for one: a busy host's process may wait long for a turn
	silenceAfter = time.Second      // for one behind a question whose own time is over
)

// watch is how a client looks for signs of life; the zero value: not at all.
type watch struct{ look, limit time.Duration }

func (c *Client) watched() bool { return c.watch != (watch{}) }

// begin watches over a question. asked ends with ctx, with over, and with ErrSilent as its cause.
func (c *Client) begin(ctx context.Context) (asked context.Context, over func()) {
	if !c.watched() {
		return ctx, func() {}
	}
	asked, end := context.WithCancelCause(ctx)
	go func() {
		for {
			select {
			case <-asked.Done():
				return
			case <-time.After(c.watch.look):
			}
			if !c.lives(asked, c.watch.limit) {
				end(c.silent(c.watch.look + c.watch.limit))
				return
			}
		}
	}()
	return asked, func() { end(nil) }
}

// lives reports whether whoever serves the socket answers something. That nobody does is for the
// question itself to say.
func (c *Client) lives(asked context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(asked, limit)
	defer cancel()
	resp, err := c.get(ctx, "/v1/version")
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	return asked.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && !full(err)
}

// silent is what to say of who serves the socket and has answered nothing for a time; 0: which is
// known without one.
func (c *Client) silent(took time.Duration) error {
	p := c.serving()
	what, remedy := "causewayd", "`systemctl restart causewayd` (VMs and programs go on) unless its host has too much to do; `journalctl -u causewayd` may say what it is at"
	if c.device {
		what, remedy = "the vGPU's device process", "programs may wait for it, too; `journalctl` or `causeway logs` may say what it is at, and `causeway detach` and `attach` give a VM another"
	}
	if p.stopped {
		return fmt.Errorf("%s is stopped (process %d, by SIGSTOP or a debugger) and %w at %s: `kill -CONT %[2]d` has it go on", what, p.pid, ErrSilent, c.socket)
	}
	if p.pid != 0 {
		what += fmt.Sprintf(" (process %d)", p.pid)
	}
	since := ""
	if took != 0 {
		since = " for " + took.String()
	}
	return fmt.Errorf("%s %w at %s%s: %s", what, ErrSilent, c.socket, since, remedy)
}

// process is who serves a socket.
type process struct {
	pid     int // 0: not known
	stopped bool
}

// serving finds who has made the socket listen, if that is a process that can be seen from here.
// The kernel connects to one that is stopped, too.
func (c *Client) serving() (p process) {
	conn, err := net.DialTimeout("unix", c.socket, time.Second)
	if err != nil {
		return p
	}
	defer conn.Close()
	who, err := sys.Peer(conn.(*net.UnixConn))
	if err != nil || who.Pid <= 1 { // 1: a service manager made the socket
		return p
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", who.Pid))
	if err != nil {
		return p
	}
	// The state is behind the program's name in brackets, which may have any bytes in it.
	after := stat[strings.LastIndexByte(string(stat), ')')+1:]
	state := strings.TrimSpace(string(after))
	return process{pid: int(who.Pid), stopped: strings.HasPrefix(state, "T") || strings.HasPrefix(state, "t")}
}

// late is why a question of this host's whose own time is over was not answered.
func (c *Client) late(err error) error {
	if c.watched() && (c.serving().stopped || !c.lives(context.Background(), silenceAfter)) {
		return c.silent(0)
	}
	maybe := ", so what was asked may be done or not: `causeway ps` shows it, and"
	var request *url.Error
	if errors.As(err, &request) && request.Op == "Get" {
		maybe = ":"
	}
	return fmt.Errorf("who serves %s has not answered in time%s `journalctl -u causewayd` shows what it is at; the machine may have too much to do: %w", c.socket, maybe, err)
}

// full reports whether a connection was refused since too many wait to be taken, as those do of a
// process that has been stopped for long.
func full(err error) bool { return errors.Is(err, syscall.EAGAIN) }

// answer is the body of one, watched over until it is closed.
type answer struct {
	io.ReadCloser
	asked context.Context
	over  func()
}

// Read implements io.Reader.
func (a *answer) Read(b []byte) (int, error) {
	n, err := a.ReadCloser.Read(b)
	if cause := context.Cause(a.asked); err != nil && errors.Is(cause, ErrSilent) {
		err = cause
	}
	return n, err
}

// Close implements io.Closer.
func (a *answer) Close() error {
	err := a.ReadCloser.Close()
	a.over()
	return err
}

// answerStream is an answer that is a stream, which may be closed while others use it.
type answerStream struct {
	io.ReadWriteCloser
	over func()
}

// Close implements io.Closer.
func (a *answerStream) Close() error {
	defer a.over()
	return a.ReadWriteCloser.Close()
}

package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func start(t *testing.T, args ...string) (*Process, string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "log")
	out, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p, err := Start(Command{Path: "/bin/sh", Args: append([]string{"-c"}, args...), Env: []string{"PATH=/usr/bin:/bin"}, Output: out})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Signal(syscall.SIGKILL)
		<-p.Done()
		_ = p.Close()
	})
	return p, name
}

func wait(t *testing.T, p *Process) string {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	return p.Reason()
}

func TestReason(t *testing.T) {
	for script, want := range map[string]string{
		"exit 3":        "it ended with status 3",
		"kill -KILL $$": "signal 9",
	} {
		p, _ := start(t, script)
		if got := wait(t, p); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
}

// TestDetached: session and group of its own, nothing of ours but the log, an environment that is
// all that was given.
func TestDetached(t *testing.T) {
	leak, err := os.Open("/") // ours
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	t.Setenv("SECRET", "x")
	if err := CloseOnExec(); err != nil { // of what the test inherited
		t.Fatal(err)
	}
	p, name := start(t, `exec >&2; readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2; ls /proc/$$/fd; env; pwd; cut -d' ' -f5,6 /proc/$$/stat`)
	wait(t, p)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("/dev/null\n%s\n%[1]s\n0\n1\n2\n", name)
	if got := string(b); !strings.HasPrefix(got, want) || strings.Contains(got, "SECRET") || !strings.HasSuffix(got, fmt.Sprintf("/\n%d %[1]d\n", p.PID())) {
		t.Errorf("got\n%s\nwant it to begin with\n%s", got, want)
	}
}

func TestAdopt(t *testing.T) {
	p, _ := start(t, "sleep 60")
	q, err := Adopt(p.PID(), p.StartTime())
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := Adopt(p.PID(), p.StartTime()+1); !errors.Is(err, ErrOther) {
		t.Errorf("another start time: %v", err)
	}
	if !q.Alive() {
		t.Error("it does not run")
	}
	if err := q.End(context.Background(), 5*time.Second); err != nil {
		t.Error(err)
	}
	if got, want := wait(t, q), ofOthers(t, "signal 15 (terminated) ended it"); got != want {
		t.Errorf("the end of one that is not a child: %q, want %q", got, want)
	}
	wait(t, p)
	if _, err := Adopt(p.PID(), p.StartTime()); !errors.Is(err, ErrGone) && !errors.Is(err, ErrOther) {
		t.Errorf("one that ended: %v", err)
	}
	if err := q.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("signal to one that ended: %v", err)
	}
}

// ofOthers is how a process ended as far as this kernel tells those who are not its parent.
func ofOthers(t *testing.T, how string) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if major > 6 || major == 6 && minor >= 15 {
		return how
	}
	return "it was started by an earlier causewayd, so its exit status is not known"
}

// TestStatusOfOthers: an exit status is told apart from a signal.
func TestStatusOfOthers(t *testing.T) {
	p, _ := start(t, "sleep 0.3; exit 3")
	q, err := Adopt(p.PID(), p.StartTime())
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if got, want := wait(t, q), ofOthers(t, "it ended with status 3"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestEndKills(t *testing.T) {
	p, name := start(t, `trap '' TERM; echo ready >&2; while :; do sleep 0.05; done`)
	for b := []byte(nil); !strings.Contains(string(b), "ready"); b, _ = os.ReadFile(name) {
		time.Sleep(5 * time.Millisecond)
	}
	if err := p.End(context.Background(), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if got := wait(t, p); !strings.Contains(got, "signal 9") {
		t.Error(got)
	}
}

func TestListening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if Listening(path) {
		t.Error("nothing is there")
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	if !Listening(path) {
		t.Error("somebody listens")
	}
	_ = ln.SetDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := ln.Accept(); err == nil {
		t.Error("looking was a connection")
	}
	_ = ln.Close()
	if Listening(path) {
		t.Error("nobody listens any more")
	}
}

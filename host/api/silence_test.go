package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// watched is a client that looks for signs of life soon, of a socket that somebody makes.
func watched(t *testing.T, limit time.Duration) (c *Client, socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "api") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c = NewDaemonClient(dir)
	t.Cleanup(c.Close)
	c.watch = watch{20 * time.Millisecond, limit}
	return c, Socket(dir)
}

// serves serves a socket until the test ends.
func serves(t *testing.T, socket string, h http.Handler) {
	t.Helper()
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close() })
}

// TestSilent: whatever is asked of a process that takes no connection, as one does not that is
// stopped, is answered by an error, also where so many wait that the kernel refuses another.
func TestSilent(t *testing.T) {
	c, socket := watched(t, 50*time.Millisecond)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: socket}), unix.Listen(fd, 6)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d := NewDeviceClient(socket)
	defer d.Close()
	d.watch = c.watch
	for what, ask := range map[string]func() error{
		"causewayd":       func() error { _, err := c.VGPUs(ctx); return err },
		"may be done":     func() error { _, err := c.Ensure(ctx, Wish{VM: "vm1", Name: "gpu0"}); return err },
		"device process":  func() error { _, err := d.Status(ctx); return err },
		"may be done yet": func() error { _, err := d.Stream(ctx, "/v1/arrive", nil); return err },
	} {
		if err := ask(); !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q", err, what)
		}
	}
	for range 64 { // each leaves a connection that nobody takes
		if _, err := c.VGPUs(ctx); !errors.Is(err, ErrSilent) {
			t.Fatal(err)
		}
		if conn, err := net.Dial("unix", socket); err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			continue
		}
		return
	}
	t.Error("the kernel takes as many as come")
}

// TestLong: what takes as long as many looks for a sign of life is waited for, an answer without
// news too; when nothing comes any more its reader is told.
func TestLong(t *testing.T) {
	c, socket := watched(t, 2*time.Second)
	var looks atomic.Int32
	hangs := make(chan struct{})
	var hung atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/version", func(http.ResponseWriter, *http.Request) {
		if looks.Add(1); hung.Load() {
			<-hangs
		}
	})
	mux.HandleFunc("PUT /v1/vgpus/{vm}/{name}", func(w http.ResponseWriter, _ *http.Request) {
		for looks.Load() < 5 {
			time.Sleep(time.Millisecond)
		}
		_, _ = w.Write([]byte("{}"))
	})
	mux.HandleFunc("GET /v1/vgpus/{vm}/{name}/log", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("a line\n"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	serves(t, socket, mux)
	defer close(hangs)
	if _, err := c.Ensure(t.Context(), Wish{VM: "vm1", Name: "gpu0"}); err != nil {
		t.Error(err)
	}
	log, err := c.Log(t.Context(), "vm1", "gpu0", -1, true)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	line := make([]byte, 7)
	if _, err := io.ReadFull(log, line); err != nil || string(line) != "a line\n" {
		t.Fatalf("%q, %v", line, err)
	}
	for n := looks.Load(); looks.Load() < n+5; {
		time.Sleep(time.Millisecond)
	}
	hung.Store(true)
	if _, err := log.Read(line); !errors.Is(err, ErrSilent) {
		t.Error(err)
	}
}

const servesEnv = "CAUSEWAY_TEST_SERVES"

// TestServes is the process that TestStopped stops.
func TestServes(t *testing.T) {
	socket := os.Getenv(servesEnv)
	if socket == "" {
		t.Skip("it is TestStopped's")
	}
	serves(t, socket, http.NotFoundHandler())
	select {}
}

// TestStopped: of a process that is stopped it is said how it goes on, also where the question's
// own time is over first.
func TestStopped(t *testing.T) {
	c, socket := watched(t, 50*time.Millisecond)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServes$")
	cmd.Env = append(os.Environ(), servesEnv+"="+socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		// One that is stopped before it listens nobody would know.
		if c, err := net.Dial("unix", socket); err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatal("it does not serve")
		}
	}
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for !c.serving().stopped { // a signal takes its time
		time.Sleep(time.Millisecond)
	}
	want := "kill -CONT " + strconv.Itoa(cmd.Process.Pid)
	if _, err := c.VGPUs(t.Context()); !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := c.VGPUs(ctx); !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	// causewayd has words of its own for a device process whose time is over.
	plain := NewClient(socket)
	defer plain.Close()
	if _, err := plain.VGPUs(ctx); errors.Is(err, ErrSilent) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

package vhostuser_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
)

// fakeDevice records what the server does to it.
type fakeDevice struct {
	mu      sync.Mutex
	calls   []string
	configs map[int]vhostuser.QueueConfig
	next    uint16 // answer of StopQueue
	refuse  error  // answer of StartQueue
}

func (d *fakeDevice) add(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, fmt.Sprintf(format, args...))
}

// take returns the calls since the last take.
func (d *fakeDevice) take() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := strings.Join(d.calls, " ")
	d.calls = nil
	return s
}

func (d *fakeDevice) config(i int) vhostuser.QueueConfig {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.configs[i]
}

func (d *fakeDevice) set(i int, c vhostuser.QueueConfig) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.configs == nil {
		d.configs = map[int]vhostuser.QueueConfig{}
	}
	d.configs[i] = c
}

func (d *fakeDevice) Queues() int { return 3 }
func (d *fakeDevice) StartQueue(i int, c vhostuser.QueueConfig) error {
	if d.refuse != nil {
		return d.refuse
	}
	d.set(i, c)
	d.add("start%d", i)
	return nil
}
func (d *fakeDevice) UpdateQueue(i int, c vhostuser.QueueConfig) {
	d.set(i, c)
	d.add("update%d", i)
}
func (d *fakeDevice) StopQueue(i int) uint16 {
	d.add("stop%d", i)
	return d.next
}
func (d *fakeDevice) Reset()      { d.add("reset") }
func (d *fakeDevice) Disconnect() { d.add("disconnect") }

// migratable adds a StateHandler.
type migratable struct {
	fakeDevice
	state  []byte
	loaded []byte
	err    error
}

func (d *migratable) Save(w io.Writer) error {
	if d.err != nil {
		return d.err
	}
	_, err := w.Write(d.state)
	return err
}

func (d *migratable) Load(r io.Reader) (err error) {
	d.loaded, err = io.ReadAll(r)
	if d.err != nil {
		return d.err
	}
	return err
}

type bench struct {
	t    *testing.T
	sock string
	mem  *vhostuser.Memory
}

// serve starts a server for dev. After the test nothing of it may remain.
func serve(t *testing.T, dev vhostuser.Device) *bench {
	t.Helper()
	checkLeaks(t)
	b := &bench{t, filepath.Join(t.TempDir(), "s"), vhostuser.NewMemory()}
	ln, err := vhostuser.Listen(b.sock)
	if err != nil {
		t.Fatal(err)
	}
	srv := vhostuser.NewServer(b.mem, dev, vhostuser.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return b
}

func (b *bench) dial() *vhosttest.Frontend {
	b.t.Helper()
	f, err := vhosttest.Dial(b.sock)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(f.Close)
	return f
}

// connect dials and shakes hands.
func (b *bench) connect() *vhosttest.Frontend {
	b.t.Helper()
	f := b.dial()
	if err := f.Handshake(); err != nil {
		b.t.Fatal(err)
	}
	return f
}

func ram(t *testing.T, gpa, size uint64) *vhosttest.Memory {
	t.Helper()
	m, err := vhosttest.NewMemory(gpa, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("did not happen: %s", what)
		}
	}
}

func openFDs(t *testing.T) int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func mappings(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "guest-ram") + strings.Count(string(b), "dirty-log")
}

// checkLeaks compares goroutines, descriptors and mappings of guest memory before and after the
// test.
func checkLeaks(t *testing.T) {
	t.Helper()
	if r, w, err := os.Pipe(); err == nil { // the first one opens the poller
		_, _ = r.Close(), w.Close()
	}
	g, fds, maps := runtime.NumGoroutine(), openFDs(t), mappings(t)
	t.Cleanup(func() {
		eventuallyLeakFree(t, g, fds, maps)
	})
}

func eventuallyLeakFree(t *testing.T, g, fds, maps int) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		ng, nf, nm := runtime.NumGoroutine(), openFDs(t), mappings(t)
		if ng <= g && nf <= fds && nm <= maps {
			return
		}
		if time.Now().After(end) {
			t.Errorf("leak: goroutines %d -> %d, descriptors %d -> %d, mappings %d -> %d", g, ng, fds, nf, maps, nm)
			return
		}
	}
}

package schedule

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/schedule/gate"
	"causeway/host/schedule/page"
	"causeway/remote/sys"
)

// leaks fails the test if descriptors or goroutines are left at its end. Called first.
func leaks(t *testing.T) {
	t.Helper()
	if r, w, err := os.Pipe(); err == nil { // the first one opens the poller
		_, _ = r.Close(), w.Close()
	}
	files, routines := descriptors(), runtime.NumGoroutine()
	t.Cleanup(func() {
		for end := time.Now().Add(time.Minute); descriptors() > files || runtime.NumGoroutine() > routines; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("descriptors: %d before, %d after; goroutines: %d, %d", files, descriptors(), routines, runtime.NumGoroutine())
				return
			}
		}
	})
}

func descriptors() int {
	list, _ := os.ReadDir("/proc/self/fd")
	return len(list)
}

// serve runs a scheduler on a socket until the returned function is called.
func serve(t *testing.T, path string) (stop func()) {
	t.Helper()
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- (&Server{Log: quietLog}).Serve(ctx, ln) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// gpu is one GPU: kernels that take some time each, one after the other in the order of submission.
type gpu struct {
	mu   sync.Mutex
	free time.Time // when all that was submitted is done
}

// fakeWorker is a worker on the other side of a session's pages: it launches kernels as fast as its
// gate lets it.
type fakeWorker struct {
	gpu    *gpu
	kernel time.Duration
	gate   *gate.Gate
	mem    [2][]byte
	bell   int

	mu     sync.Mutex
	end    time.Time // of its last kernel
	fences []struct {
		n  uint64
		at time.Time
	}
	done atomic.Int64 // kernels

	cancel context.CancelFunc
	group  sync.WaitGroup
}

func (w *fakeWorker) Metering(bool)      {}
func (w *fakeWorker) OnPass(func()) bool { return false }

func (w *fakeWorker) Fence(n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fences = append(w.fences, struct {
		n  uint64
		at time.Time
	}{n, w.end})
}

func (w *fakeWorker) Passed() (n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.fences {
		if time.Now().Before(f.at) {
			break
		}
		n = f.n
	}
	if len(w.fences) > 1000 {
		w.fences = w.fences[500:]
	}
	return n
}

func (w *fakeWorker) launch() {
	g := w.gpu
	g.mu.Lock()
	begin := time.Now()
	if g.free.After(begin) {
		begin = g.free
	}
	g.free = begin.Add(w.kernel)
	end := g.free
	g.mu.Unlock()
	w.mu.Lock()
	w.end = end
	w.mu.Unlock()
	w.done.Add(1)
}

// work starts a worker on a session.
func work(t *testing.T, g *gpu, x *Session, kernel time.Duration) *fakeWorker {
	t.Helper()
	w := &fakeWorker{gpu: g, kernel: kernel, bell: -1}
	grantFile, usageFile, bell := x.Files()
	if _, err := sys.MapPage(grantFile, true); err == nil {
		t.Error("a worker can write its grant")
	}
	var errs [3]error
	w.mem[0], errs[0] = sys.MapPage(grantFile, false)
	w.mem[1], errs[1] = sys.MapPage(usageFile, true)
	w.bell, errs[2] = unix.FcntlInt(uintptr(bell), unix.F_DUPFD_CLOEXEC, 3)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	grant, err := page.NewGrant(w.mem[0])
	if err != nil {
		t.Fatal(err)
	}
	usage, err := page.NewUsage(w.mem[1])
	if err != nil {
		t.Fatal(err)
	}
	tasks := make(chan func() error, 1)
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(context.Background())
	w.gate = gate.New(gate.Options{
		Grant: grant, Usage: usage, Bell: w.bell, Gauge: w,
		OnConsumer: func(f func() error) error {
			select {
			case tasks <- f:
			case <-ctx.Done():
			}
			return nil
		},
		Serve: func() error {
			select {
			case f := <-tasks:
				return f()
			default:
				return nil
			}
		},
	})
	w.group.Go(func() {
		for ctx.Err() == nil && w.gate.Before(ctx) == nil {
			w.launch()
			w.gate.After()
			w.mu.Lock()
			ahead := time.Until(w.end)
			w.mu.Unlock()
			if ahead > 20*time.Millisecond { // as a guest that waits now and then
				w.gate.Rest()
				time.Sleep(ahead / 2)
			}
			select {
			case f := <-tasks:
				_ = f()
			default:
			}
		}
	})
	return w
}

func (w *fakeWorker) stop() {
	w.cancel()
	w.gate.Poke()
	w.group.Wait()
	w.gate.Close(true)
	sys.UnmapPage(w.mem[0])
	sys.UnmapPage(w.mem[1])
	_ = unix.Close(w.bell)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// inTime measures until it is within bounds, which it must be within a minute.
func inTime(t *testing.T, what string, least, most float64, measure func() float64) {
	t.Helper()
	var all []float64
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		got := measure()
		if got >= least && got <= most {
			return
		}
		all = append(all, got)
	}
	t.Errorf("%s is %.3f, not %.2f to %.2f", what, all, least, most)
}

func join(t *testing.T, socket, key string, weight, cap uint32) *Membership {
	t.Helper()
	s := Join(socket, Member{GPU: "GPU-1", Key: key, Weight: weight, Cap: cap}, quietLog)
	t.Cleanup(s.Close)
	return s
}

func add(t *testing.T, s *Membership) *Session {
	t.Helper()
	x, err := s.Add()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	return x
}

package virtio_test

import (
	"io"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
	"causeway/virtio"
	"causeway/virtio/virtiotest"
)

// keeper keeps chains until Quiesce.
type keeper struct {
	mu    sync.Mutex
	kept  []*virtio.Chain
	came  chan int
	leave int // chains that Quiesce forgets
}

func (k *keeper) Handle(q int, c *virtio.Chain) {
	k.mu.Lock()
	k.kept = append(k.kept, c)
	k.mu.Unlock()
	k.came <- q
}

func (k *keeper) Quiesce(int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.kept[k.leave:] {
		c.Complete(0)
	}
	k.kept = k.kept[:k.leave]
}

type runnerBench struct {
	mem             *vhostuser.Memory
	k               *keeper
	r               *virtio.Runner
	d               *virtiotest.Driver
	cfg             vhostuser.QueueConfig
	kick, call, err *vhosttest.Event
}

func newRunner(t *testing.T, o virtiotest.Options) *runnerBench {
	t.Helper()
	mem := vhostuser.NewMemory()
	b := &runnerBench{mem: mem, k: &keeper{came: make(chan int, 1000)}, d: virtiotest.NewDriver(ram(t, mem, 0x100000, 1<<20), 16, o)}
	b.r = virtio.NewRunner(mem, 2, b.k, quiet())
	b.cfg = b.d.Config()
	for _, e := range []struct {
		mine   **vhosttest.Event
		theirs **vhostuser.EventFD
	}{{&b.kick, &b.cfg.Kick}, {&b.call, &b.cfg.Call}, {&b.err, &b.cfg.Err}} {
		ev, err := vhosttest.NewEvent()
		must(t, err)
		*e.mine = ev
		*e.theirs, err = vhostuser.DupEventFD(ev.FD(), "test")
		must(t, err)
		t.Cleanup(func() {
			ev.Close()
			(*e.theirs).Close()
		})
	}
	return b
}

func (b *runnerBench) add(t *testing.T, n int) {
	t.Helper()
	for range n {
		_, err := b.d.Add(nil, []virtiotest.Buffer{{GPA: 0x180000, Bytes: make([]byte, 16)}})
		must(t, err)
	}
	if b.d.NeedKick() {
		b.kick.Signal()
	}
}

func (b *runnerBench) await(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-b.k.came:
		case <-time.After(time.Minute):
			t.Fatal("a chain did not come")
		}
	}
}

func TestRunner(t *testing.T) {
	allOptions(t, func(t *testing.T, o virtiotest.Options) {
		before := runtime.NumGoroutine()
		b := newRunner(t, o)
		b.add(t, 3) // before the start: no kick is needed
		runs := func(want bool) {
			t.Helper()
			if b.r.Running() != want {
				t.Errorf("running: %v", !want)
			}
		}
		runs(false)
		must(t, b.r.StartQueue(1, b.cfg))
		runs(true)
		if b.r.StartQueue(1, b.cfg) == nil || b.r.StartQueue(2, b.cfg) == nil || b.r.StartQueue(-1, b.cfg) == nil {
			t.Error("a queue started twice, or beyond the last")
		}
		b.await(t, 3)
		for range 5 {
			time.Sleep(time.Millisecond) // let it sleep, so that the kick matters
			b.add(t, 1)
			b.await(t, 1)
		}
		if next := b.r.StopQueue(1); next != 8 {
			t.Errorf("stopped at %d", next)
		}
		runs(false)
		for range 8 {
			if _, ok := b.d.Poll(); !ok {
				t.Fatal("a chain did not come back")
			}
		}
		if !b.call.Wait(time.Minute) {
			t.Error("no interrupt")
		}
		b.add(t, 2) // while it is stopped
		b.cfg.Base = 8
		must(t, b.r.StartQueue(1, b.cfg))
		b.await(t, 2)
		b.r.UpdateQueue(0, b.cfg)
		b.r.UpdateQueue(1, b.cfg)
		if next := b.r.StopQueue(1); next != 10 || b.r.StopQueue(1) != 0 {
			t.Errorf("stopped at %d", next)
		}
		for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d goroutines, were %d", runtime.NumGoroutine(), before)
			}
		}
	})
}

func TestRunnerBrokenRing(t *testing.T) {
	b := newRunner(t, virtiotest.Options{})
	must(t, b.r.StartQueue(0, b.cfg))
	b.d.SetAvailIdx(1000)
	b.kick.Signal()
	if !b.err.Wait(time.Minute) {
		t.Error("the front end did not hear of the broken ring")
	}
	b.r.StopQueue(0)
	b.cfg.Desc = 0
	if b.r.StartQueue(0, b.cfg) == nil {
		t.Error("a ring outside memory started")
	}
}

func TestRunnerSkipsBadChains(t *testing.T) {
	b := newRunner(t, virtiotest.Options{})
	must(t, b.r.StartQueue(0, b.cfg))
	b.d.PutDesc(b.d.Desc, 5, 0, 16, 0, 0)
	b.d.Offer(5)
	b.d.Offer(5)
	b.add(t, 1)
	b.await(t, 1)
	b.r.StopQueue(0)
	if b.d.UsedIdx() != 3 {
		t.Errorf("%d chains came back of 3", b.d.UsedIdx())
	}
}

// TestRunnerForgottenChain: a handler that loses a chain does not hang the front end.
func TestRunnerForgottenChain(t *testing.T) {
	b := newRunner(t, virtiotest.Options{})
	must(t, b.r.StartQueue(0, b.cfg))
	b.add(t, 2)
	b.await(t, 2)
	b.k.leave = 1
	start := time.Now()
	b.r.StopQueue(0)
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("stopping took %v", d)
	}
	b.k.leave = 0
	b.k.Quiesce(0) // too late, and harmless
	if b.d.UsedIdx() != 1 {
		t.Errorf("%d chains came back", b.d.UsedIdx())
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// diedInFlight is a queue whose process died with three chains in flight, and where the device kept
// those.
func diedInFlight(t *testing.T, queue int) (*runnerBench, *virtio.InFlight) {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, virtio.InFlightSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	must(t, err)
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	f, err := virtio.NewInFlight(mem)
	must(t, err)
	b := newRunner(t, virtiotest.Options{})
	b.r.Track(func(int) *virtio.InFlight { return f })
	must(t, b.r.StartQueue(queue, b.cfg))
	b.add(t, 3)
	b.await(t, 3)
	b.k.leave = 3
	b.r.StopQueue(queue)
	return b, f
}

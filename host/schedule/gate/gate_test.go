package gate

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/schedule/page"
	"causeway/remote/sys"
)

// fakeGauge is a GPU whose fences pass when the test says so.
type fakeGauge struct {
	mu       sync.Mutex
	on       bool
	fences   uint64
	fenced   int
	passed   atomic.Uint64
	tells    bool
	tell     func()
	complete bool   // fences pass at once
	asked    func() // happens when somebody looks
}

var _ driver.Gauge = (*fakeGauge)(nil)

func (f *fakeGauge) Metering(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.on = on
}

func (f *fakeGauge) Fence(n uint64) {
	f.mu.Lock()
	f.fences = n
	f.fenced++
	all := f.complete
	f.mu.Unlock()
	if all {
		f.pass(n)
	}
}

func (f *fakeGauge) pass(n uint64) {
	f.passed.Store(n)
	if f.tell != nil {
		f.tell()
	}
}

func (f *fakeGauge) Passed() uint64 {
	if f.asked != nil {
		f.asked()
	}
	return f.passed.Load()
}

func (f *fakeGauge) OnPass(tell func()) bool {
	if f.tells {
		f.tell = tell
	}
	return f.tells
}

func (f *fakeGauge) last() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fences
}

// rig is a gate with the scheduler's side in the test's hands. The test's goroutine is the
// consumer, unless it says otherwise.
type rig struct {
	*Gate
	t     *testing.T
	gauge *fakeGauge
	grant page.Grant
	usage page.Usage
	bell  int
	tasks chan func() error
}

func newRig(t *testing.T, gauge *fakeGauge) *rig {
	t.Helper()
	before := runtime.NumGoroutine()
	mem, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	bell, err := sys.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, gauge: gauge, bell: bell, tasks: make(chan func() error, 1)}
	if r.grant, err = page.NewGrant(mem); err != nil {
		t.Fatal(err)
	}
	if r.usage, err = page.NewUsage(mem[4096:]); err != nil {
		t.Fatal(err)
	}
	r.grant.Set(page.Open, 0)
	r.Gate = New(Options{
		Grant: r.grant, Usage: r.usage, Bell: bell, Gauge: gauge,
		OnConsumer: func(f func() error) error {
			done := make(chan struct{})
			select {
			case r.tasks <- func() error { defer close(done); return f() }:
			case <-r.Gate.quit:
				return errors.New("over")
			}
			r.Poke()
			select {
			case <-done:
				return nil
			case <-r.Gate.quit:
				return errors.New("over")
			}
		},
		Serve: r.serveTasks,
	})
	t.Cleanup(func() {
		r.Close(true)
		_ = unix.Close(bell)
		_ = unix.Munmap(mem)
		for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%d goroutines before, %d after", before, runtime.NumGoroutine())
				return
			}
		}
	})
	return r
}

// serveTasks is what the consumer does between two operations.
func (r *rig) serveTasks() error {
	select {
	case f := <-r.tasks:
		return f()
	default:
		return nil
	}
}

func (r *rig) op() {
	r.t.Helper()
	if err := r.Before(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	r.After()
}

// until waits for something, as a consumer at rest.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(100 * time.Microsecond) {
		_ = r.serveTasks()
		if time.Now().After(end) {
			r.t.Fatalf("never: %s", what)
		}
	}
}

func (r *rig) rang() bool {
	var b [8]byte
	_, err := unix.Read(r.bell, b[:])
	return err == nil && binary.NativeEndian.Uint64(b[:]) > 0
}

func (r *rig) active() bool { return r.usage.Active.Load() == 1 }
func (r *rig) drained() bool {
	return page.Word(r.usage.Drained.Load()) == r.grant.Word()
}

const metered = page.Open | page.Metered

// TestFree: one that is free asks the gauge for nothing, and tells the scheduler once that it is
// there.
func TestFree(t *testing.T) {
	r := newRig(t, &fakeGauge{})
	for range 1000 {
		r.op()
		r.Rest()
	}
	if r.gauge.fenced != 0 || r.gauge.on {
		t.Errorf("%d fences, metering %v", r.gauge.fenced, r.gauge.on)
	}
	if !r.active() || !r.rang() || r.rang() {
		t.Error("the scheduler was not told once")
	}
}

// TestSettles: work of the free time is fenced when the grant ends, by a consumer that is asleep,
// and drained is told after it passed.
func TestSettles(t *testing.T) {
	for _, tells := range []bool{false, true} {
		r := newRig(t, &fakeGauge{tells: tells})
		r.op()
		r.grant.Set(page.Metered, time.Millisecond)
		r.until("a fence", func() bool { return r.gauge.last() == 1 })
		time.Sleep(2 * time.Millisecond)
		if r.drained() || !r.active() {
			t.Error("drained before the GPU is")
		}
		r.gauge.pass(1)
		r.until("drained", r.drained)
		r.until("quiet", func() bool { return !r.active() })
		if r.usage.Busy.Load() < uint64(time.Millisecond) {
			t.Errorf("busy for %d ns", r.usage.Busy.Load())
		}
	}
}

// TestStands: a closed gate holds the consumer, which serves others meanwhile, until it opens.
func TestStands(t *testing.T) {
	r := newRig(t, &fakeGauge{complete: true})
	r.grant.Set(page.Metered, time.Millisecond)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.op()
	}()
	r.until("wants", r.active)
	r.until("drained", r.drained)
	ran := make(chan struct{})
	go func() {
		r.tasks <- func() error { close(ran); return nil }
		r.Poke()
	}()
	<-ran
	if r.usage.Waiting.Load() != 1 {
		t.Error("nobody says that it waits")
	}
	select {
	case <-done:
		t.Fatal("it passed a closed gate")
	case <-time.After(20 * time.Millisecond):
	}
	r.grant.Set(metered, time.Millisecond)
	<-done
	if r.usage.Waits.Load() != 1 || r.usage.Waited.Load() < uint64(20*time.Millisecond) || r.usage.Waiting.Load() != 0 {
		t.Errorf("%d waits, %d ns", r.usage.Waits.Load(), r.usage.Waited.Load())
	}
}

// TestReplaced: a worker whose predecessor says at the last moment that there is nothing to do says
// otherwise.
func TestReplaced(t *testing.T) {
	r := newRig(t, &fakeGauge{complete: true})
	r.grant.Set(page.Metered, time.Millisecond)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.op()
	}()
	r.until("wants", r.active)
	r.usage.Active.Store(0)
	r.until("wants again", r.active)
	r.grant.Set(metered, time.Millisecond)
	<-done
}

// TestEnds: the end of the session, and an error of what it serves, end a wait at the gate.
func TestEnds(t *testing.T) {
	r := newRig(t, &fakeGauge{complete: true})
	r.grant.Set(page.Metered, time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(5*time.Millisecond, func() { cancel(); r.Poke() })
	if err := r.Before(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	over := errors.New("moved")
	r.tasks <- func() error { return over }
	if err := r.Before(context.Background()); !errors.Is(err, over) {
		t.Errorf("%v", err)
	}
}

// TestBudget: while metered, no more is in flight than the budget allows, and a fence is behind the
// last of it.
func TestBudget(t *testing.T) {
	for _, tells := range []bool{false, true} {
		r := newRig(t, &fakeGauge{tells: tells})
		r.grant.Set(metered, time.Millisecond)
		var passed atomic.Int64
		ctx, cancel := context.WithCancel(context.Background())
		var consumer sync.WaitGroup
		consumer.Go(func() {
			for passed.Load() < 100 && r.Before(ctx) == nil {
				r.After()
				passed.Add(1)
				r.Rest()
			}
		})
		stop := func() { cancel(); r.Poke(); consumer.Wait() }
		t.Cleanup(stop) // before the rig's
		for end := time.Now().Add(time.Minute); passed.Load() < leastOps && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(20 * time.Millisecond) // for more than there may be
		if n := passed.Load(); n < leastOps || n > firstOps {
			t.Errorf("%d operations in flight", n)
		}
		for end := time.Now().Add(time.Minute); passed.Load() < 100; time.Sleep(500 * time.Microsecond) {
			if time.Now().After(end) {
				t.Fatalf("stuck at %d", passed.Load())
			}
			if n := r.gauge.last(); n > r.gauge.Passed() {
				r.gauge.pass(r.gauge.Passed() + 1)
			}
			if n := int64(r.Gate.submitted.Load()) - int64(r.gauge.Passed()); n > firstOps+1 {
				t.Fatalf("%d operations in flight", n)
			}
		}
		stop()
		r.gauge.pass(r.gauge.last())
		r.until("quiet", func() bool { return !r.active() })
	}
}

// TestFull: operations that were let through without a fence, and take longer than was thought
// then, get one when there is no room behind them.
func TestFull(t *testing.T) {
	r := newRig(t, &fakeGauge{})
	r.grant.Set(metered, 10*time.Millisecond)
	estimate := func(d time.Duration) {
		r.Gate.mu.Lock()
		r.Gate.est = float64(d)
		r.Gate.mu.Unlock()
	}
	r.op()
	estimate(time.Microsecond)
	for range 50 {
		r.op()
	}
	before := r.gauge.last()
	estimate(5 * time.Millisecond)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.op()
	}()
	for end := time.Now().Add(time.Minute); r.gauge.last() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no fence")
		}
	}
	r.gauge.pass(before + 1)
	<-done
}

// TestQuiet: one that is metered says when it begins and when it has nothing more to do, and
// neither twice.
func TestQuiet(t *testing.T) {
	r := newRig(t, &fakeGauge{complete: true, tells: true})
	r.grant.Set(metered, time.Millisecond)
	for range 3 {
		r.op()
		r.Rest()
		r.until("quiet", func() bool { return !r.active() })
		if !r.rang() {
			t.Error("silence")
		}
	}
	time.Sleep(5 * time.Millisecond)
	if r.rang() {
		t.Error("the bell rings at rest")
	}
}

// TestWithoutGauge: a driver that cannot say what it has in flight is gated all the same.
func TestWithoutGauge(t *testing.T) {
	r := newRig(t, &fakeGauge{})
	r.Gate.Gauge, r.Gate.tells = nil, false
	r.grant.Set(metered, time.Millisecond)
	for range 100 {
		r.op()
		r.Rest()
	}
	r.grant.Set(page.Metered, time.Millisecond)
	r.until("drained", r.drained)
}

func BenchmarkFree(b *testing.B) {
	g := benchGate(b, page.Open)
	ctx := context.Background()
	for b.Loop() {
		_ = g.Before(ctx)
		g.After()
	}
}

func BenchmarkMetered(b *testing.B) {
	g := benchGate(b, metered)
	ctx := context.Background()
	for b.Loop() {
		_ = g.Before(ctx)
		g.After()
	}
}

func benchGate(b *testing.B, w page.Word) *Gate {
	mem, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		b.Fatal(err)
	}
	grant, _ := page.NewGrant(mem)
	usage, _ := page.NewUsage(mem[4096:])
	grant.Set(w, time.Second)
	bell, err := sys.NewEvent()
	if err != nil {
		b.Fatal(err)
	}
	g := New(Options{
		Grant: grant, Usage: usage, Bell: bell, Gauge: &fakeGauge{complete: true},
		OnConsumer: func(func() error) error { return nil }, Serve: func() error { return nil },
	})
	b.Cleanup(func() {
		g.Close(true)
		_ = unix.Close(bell)
		_ = unix.Munmap(mem)
	})
	return g
}

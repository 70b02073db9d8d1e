package cuda

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
)

// gaugeSession is a submitterSession whose gauge has its words: the stand-in registers no memory.
func gaugeSession(t *testing.T, submitters int) *session {
	t.Helper()
	s, _ := submitterSession(t, submitters)
	mem, err := unix.Mmap(-1, 0, 4*gaugeWords, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	s.OnPass(nil)
	s.gauge.mem, s.gauge.dev = mem, registered(mem)
	for i := range gaugeWords {
		s.gauge.free = append(s.gauge.free, i)
	}
	cudatest.Reset(0)
	return s
}

// writes lists the streams to which words were written since the last Reset.
func writes() []uint64 {
	var list []uint64
	for _, c := range cudatest.Calls() {
		if c.Kind == cudatest.WriteValue {
			list = append(list, c.Stream)
		}
	}
	return list
}

func launchOn(t *testing.T, s *session, stream uint32) {
	t.Helper()
	if res := s.testLaunch(stream, 1); res != cuda.Success {
		t.Fatal(res)
	}
}

func awaitPassed(t *testing.T, s *session, n uint64) {
	t.Helper()
	for end := time.Now().Add(time.Minute); s.Passed() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("fence %d does not pass: %d", n, s.Passed())
		}
	}
}

// TestGauge: a word goes behind each stream that got work, also of the time before, and each fence
// passes.
func TestGauge(t *testing.T) {
	s := gaugeSession(t, 0)
	launchOn(t, s, 16)
	launchOn(t, s, 18)
	s.Metering(true)
	s.Fence(1)
	if got := writes(); len(got) != 2 || got[0]+got[1] != 16+18 {
		t.Errorf("written to %v", got)
	}
	awaitPassed(t, s, 1)
	cudatest.Reset(0)
	s.Fence(2) // nothing came
	launchOn(t, s, 17)
	launchOn(t, s, 17)
	s.Fence(3)
	if got := writes(); len(got) != 1 || got[0] != 17 {
		t.Errorf("written to %v", got)
	}
	awaitPassed(t, s, 3)
	if n := len(s.gauge.free); n != gaugeWords {
		t.Errorf("%d words are free", n)
	}
	s.Metering(false)
	launchOn(t, s, 17)
	if len(s.gauge.dirty) != 0 {
		t.Error("streams are noted although nobody asks")
	}
}

// TestGaugeSubmitters: a word follows its stream's calls through submitters.
func TestGaugeSubmitters(t *testing.T) {
	s := gaugeSession(t, 3)
	s.Metering(true)
	for i := range uint64(3000) {
		launchOn(t, s, 16+uint32(i%submitterStreams))
		if i%10 == 9 {
			s.Fence(i/10 + 1)
		}
	}
	awaitPassed(t, s, 300)
	last := map[uint64]cudatest.Kind{}
	for _, c := range cudatest.Calls() {
		last[c.Stream] = c.Kind
	}
	for st, k := range last {
		if st != 0 && k != cudatest.WriteValue {
			t.Errorf("stream %d ends with %v", st, k)
		}
	}
}

// TestGaugeLegacy: the legacy stream gets a word only if that orders nothing anew.
func TestGaugeLegacy(t *testing.T) {
	s := gaugeSession(t, 0)
	s.streams.put(40, &stream{handle: made[bind.Stream](40), ctx: 1})
	s.Metering(true)
	for i, c := range []struct {
		order []uint32
		want  []uint64
	}{
		{[]uint32{streamLegacy}, []uint64{streamLegacy}},
		{[]uint32{40, streamLegacy}, []uint64{40, streamLegacy}},
		{[]uint32{streamLegacy, 40}, []uint64{40}},
		// Does not wait for the legacy stream.
		{[]uint32{streamLegacy, 16}, []uint64{streamLegacy, 16}},
		{[]uint32{40, streamLegacy, 40}, []uint64{40}},
	} {
		cudatest.Reset(0)
		for _, st := range c.order {
			launchOn(t, s, st)
		}
		s.Fence(uint64(i + 1))
		got := writes()
		ok := len(got) == len(c.want)
		for j := range c.want {
			ok = ok && got[j] == c.want[j]
		}
		if !ok {
			t.Errorf("%v: written to %v, want %v", c.order, got, c.want)
		}
		awaitPassed(t, s, uint64(i+1))
	}
}

// TestGaugeCapture: while a stream captures, nothing is put on it, and it is fenced afterwards.
func TestGaugeCapture(t *testing.T) {
	s := gaugeSession(t, 0)
	s.Metering(true)
	launchOn(t, s, 16)
	s.active.Store(1) // the stand-in cannot say which stream captures: none is touched then
	s.Fence(1)
	awaitPassed(t, s, 1)
	if got := writes(); len(got) != 0 {
		t.Errorf("written to %v", got)
	}
	s.active.Store(0)
	s.Fence(2)
	if got := writes(); len(got) != 1 || got[0] != 16 {
		t.Errorf("written to %v", got)
	}
	awaitPassed(t, s, 2)
}

// TestGaugeEnds: fences pass when their stream, their context or their luck has gone.
func TestGaugeEnds(t *testing.T) {
	s := gaugeSession(t, 0)
	s.Metering(true)
	launchOn(t, s, 16)
	if res := s.StreamDestroy(&wire.Call{Ctx: 1}, &wire.StreamDestroyArgs{Stream: 16}); res == cuda.ErrorInvalidHandle {
		t.Fatal(res)
	}
	s.Fence(1)
	if got := writes(); len(got) != 1 || got[0] != 16 {
		t.Errorf("written to %v", got)
	}
	awaitPassed(t, s, 1)

	stuck := func(ctx uint32, n uint64) {
		g := &s.gauge
		g.mu.Lock()
		g.points = append(g.points, point{n: n, dues: []due{{index: 9, value: 1 << 30, ctx: ctx, handle: s.handleOf(ctx)}}})
		g.since = time.Now()
		g.mu.Unlock()
		if s.Passed() != n-1 {
			t.Fatalf("fence %d passes before its time", n)
		}
	}
	stuck(2, 2)
	s.forgetGauge(2, s.handleOf(2))
	awaitPassed(t, s, 2)
	cudatest.Kill(1000)
	stuck(1, 3)
	s.gauge.faults.Add(1) // as note does
	awaitPassed(t, s, 3)
	stuck(1, 4)
	s.gauge.faults.Add(1)
	awaitPassed(t, s, 4)
}

// TestGaugeFaults: an error that ends one context leaves the fences of another as they were, whose
// work goes on.
func TestGaugeFaults(t *testing.T) {
	s := gaugeSession(t, 0)
	s.Metering(true)
	g := &s.gauge
	g.mu.Lock()
	for i, ctx := range []uint32{1, 2, 2, 1} {
		g.points = append(g.points, point{n: uint64(i + 1), dues: []due{{index: i, value: 1, ctx: ctx, handle: s.handleOf(ctx)}}})
	}
	g.since = time.Now()
	g.mu.Unlock()
	cudatest.Kill(1000)
	g.faults.Add(1)
	awaitPassed(t, s, 1)
	for range 20 {
		time.Sleep(time.Millisecond)
		if n := s.Passed(); n != 1 {
			t.Fatalf("with the other context fence %d has passed, whose work goes on", n)
		}
	}
	cudatest.Kill(2000)
	g.faults.Add(1)
	awaitPassed(t, s, 4)
}

// TestGaugeBeforeCapture: what a stream had before it began to capture is fenced, also if nobody
// asked for fences then; so is that of one which an event brings into the capture, and that of one
// which was destroyed.
func TestGaugeBeforeCapture(t *testing.T) {
	for _, free := range []bool{false, true} {
		for what, leave := range map[string]func(s *session){
			"begins a capture": func(s *session) {
				// The stand-in has no captures.
				s.StreamBeginCapture(&wire.Call{Ctx: 1}, &wire.StreamBeginCaptureArgs{Stream: 16})
			},
			"waits for another's capture": func(s *session) {
				s.active.Store(1)
				cudatest.Capture(18)
				if res := s.StreamWaitEvent(&wire.Call{Ctx: 1}, &wire.StreamWaitEventArgs{Stream: 16, Event: 32}); res != cuda.Success {
					t.Fatal(res)
				}
			},
			"is destroyed": func(s *session) {
				s.StreamDestroy(&wire.Call{Ctx: 1}, &wire.StreamDestroyArgs{Stream: 16})
			},
		} {
			s := gaugeSession(t, 0)
			s.Metering(!free)
			launchOn(t, s, 16)
			leave(s)
			s.active.Store(1)
			cudatest.Capture(16)
			s.Metering(true)
			s.Fence(1)
			if got := writes(); len(got) != 1 || got[0] != 16 {
				t.Errorf("a stream that %s, free %v: written to %v", what, free, got)
			}
			awaitPassed(t, s, 1)
			if n := len(s.gauge.free); n != gaugeWords {
				t.Errorf("a stream that %s, free %v: %d words are free", what, free, n)
			}
		}
	}
}

// TestGaugeOfNobody: nothing is put on streams that are destroyed, or begin to capture, where
// nobody will ask for fences, and where somebody may, no more is kept than has not come.
func TestGaugeOfNobody(t *testing.T) {
	for _, gated := range []bool{false, true} {
		s := gaugeSession(t, 0)
		s.gauge.gated = gated
		for range 10 * gaugeEarly {
			launchOn(t, s, 16)
			s.captureGauge(s.everyStream())
		}
		if n := len(s.gauge.early); n > gaugeEarly || (n == 0) == gated || (len(writes()) == 0) == gated {
			t.Errorf("gated %v: %d words are kept, %d were written", gated, n, len(writes()))
		}
	}
}

// TestGaugeWordsComeBack: words that were given up, with their contexts or because those had an
// error, are there again; while none is, a fence waits for one rather than go without.
func TestGaugeWordsComeBack(t *testing.T) {
	s := gaugeSession(t, 0)
	s.Metering(true)
	g := &s.gauge
	for n := range uint64(2 * gaugeWords / 8) {
		for range 8 {
			launchOn(t, s, 16)
			s.behind(s.streams.m[16])
		}
		s.Fence(n + 1)
		g.mu.Lock()
		g.dropLocked(func(due) bool { return true })
		g.mu.Unlock()
		if n%2 == 0 {
			s.outliveGauge(1, s.handleOf(1))
		}
		awaitPassed(t, s, n+1)
	}
	cudatest.Reset(0)
	g.mu.Lock()
	if g.lost = g.reapLocked(g.lost); len(g.free) != gaugeWords || len(g.lost) != 0 {
		t.Errorf("%d words are free, %d lost", len(g.free), len(g.lost))
	}
	const n = 2*gaugeWords/8 + 1
	g.points = append(g.points, point{n: n}) // has all of them
	for _, i := range g.free {
		g.values[i]++
		g.points[0].dues = append(g.points[0].dues, due{index: i, value: g.values[i], ctx: 1, handle: s.handleOf(1)})
	}
	all := g.points[0].dues
	g.free = nil
	g.mu.Unlock()
	go func() {
		time.Sleep(20 * time.Millisecond)
		for _, d := range all {
			g.word(d).store(d.value)
		}
	}()
	launchOn(t, s, 16)
	if s.Fence(n + 1); len(writes()) != 1 {
		t.Errorf("written to %v", writes())
	}
	awaitPassed(t, s, n+1)
}

package worker

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/schedule/gate"
	"causeway/host/schedule/page"
	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/shm"
)

// TestNoSleepOnARecord: what comes while the consumer falls asleep, of a guest that saw it awake
// and rings no bell, is found.
func TestNoSleepOnARecord(t *testing.T) {
	w, c := newFake(t, nil)
	slept, executed := 0, 0
	c.onState = func(state uint32) {
		if state == remote.WorkerSleeping && executed < 3 {
			executed++ // the last moment at which a guest may find the worker awake
			c.put(t, wire.Header{Flags: wire.Header{}.Flags | remote.RecordReply, Slot: 1, Seq: uint32(executed)}, &wire.CtxSynchronizeArgs{})
		}
	}
	c.onWait = func() error {
		slept++
		if c.Poll(0) {
			t.Error("the consumer sleeps with a record before it")
		}
		return context.Canceled
	}
	if err := w.loop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if slept != 1 || len(c.replies) != 3 {
		t.Errorf("slept %d times after %d replies, want once after 3", slept, len(c.replies))
	}
	if n := len(c.states); c.states[n-1] != remote.WorkerPolling || c.states[n-2] != remote.WorkerSleeping {
		t.Errorf("states at the end: %v", c.states)
	}
}

// TestNoSleepOnATask: what other goroutines want of the consumer while it falls asleep is done.
func TestNoSleepOnATask(t *testing.T) {
	w, c := newFake(t, nil)
	ran := false
	asked := make(chan error, 1)
	c.onState = func(state uint32) {
		if state != remote.WorkerSleeping || ran {
			return
		}
		queued := make(chan struct{})
		go func() {
			close(queued)
			asked <- w.onLoop(func() error { ran = true; return nil })
		}()
		<-queued
		for !w.pending.Load() { // the other goroutine is between two of its steps
			runtime.Gosched()
		}
	}
	c.onWait = func() error {
		if !ran {
			t.Error("the consumer sleeps with a task before it")
		}
		return context.Canceled
	}
	if err := w.loop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-asked; err != nil {
		t.Error(err)
	}
	if c.rings != 1 {
		t.Errorf("a consumer that may sleep was rung %d times", c.rings)
	}
}

// TestSpaceIsTold: a guest that waits for space in the ring is woken after each record.
func TestSpaceIsTold(t *testing.T) {
	w, c := newFake(t, nil)
	c.waits = true
	for range 2 {
		c.put(t, wire.Header{}, &wire.MemFreeArgs{Ptr: 1})
	}
	c.onWait = func() error { return context.Canceled }
	if err := w.loop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.woken, []uint32{remote.SlotCount, remote.SlotCount}) {
		t.Errorf("woken: %v", c.woken)
	}
}

// TestRepliesOfTheirTime: a slot is answered once, by the request that it holds, and its sleeper is
// woken.
func TestRepliesOfTheirTime(t *testing.T) {
	w, c := newFake(t, nil)
	c.sleeps = map[uint32]bool{3: true}
	w.slots[3].begin(wire.OpCtxSynchronize, 7)
	w.Reply(3, 6, cuda.Success, nil) // of the request before
	w.WakeSlot(3, 6)
	if len(c.replies) != 0 || len(c.woken) != 0 {
		t.Fatal("an old request was answered")
	}
	w.Reply(3, 7, cuda.ErrorInvalidValue, nil)
	w.Reply(3, 7, cuda.Success, nil)
	w.WakeSlot(3, 7)
	if len(c.replies) != 1 || c.replies[0].Result != uint32(cuda.ErrorInvalidValue) || !slices.Equal(c.woken, []uint32{3}) {
		t.Errorf("replies %v, woken %v", c.replies, c.woken)
	}
	w.slots[4].begin(wire.OpCtxSynchronize, 8)
	w.WakeSlot(4, 8) // answered by the GPU; nobody sleeps
	w.Reply(4, 8, cuda.Success, nil)
	if len(c.replies) != 1 || len(c.woken) != 1 {
		t.Errorf("replies %v, woken %v", c.replies, c.woken)
	}
}

// TestRepliesAtTheEdgeOfASlot: what does not fit is kept, to the last byte, until it was fetched.
func TestRepliesAtTheEdgeOfASlot(t *testing.T) {
	w, c := newFake(t, nil)
	for _, beyond := range []int{-1, 0, 1, 500, int(remote.SlotPayload), int(remote.SlotPayload) + 1} {
		payload := make([]byte, int(remote.SlotPayload)+beyond)
		for i := range payload {
			payload[i] = byte(i * 13)
		}
		w.slots[2].begin(wire.OpMemcpyDtoH, 1)
		w.Reply(2, 1, cuda.Success, payload)
		o := c.replies[len(c.replies)-1]
		got := slices.Clone(o.Payload)
		if int(o.Total) != len(payload) || len(got) != min(len(payload), int(remote.SlotPayload)) {
			t.Errorf("%d bytes: %d in the slot, of %d", len(payload), len(got), o.Total)
		}
		for len(got) < len(payload) {
			part, res := w.replyMore(2, uint32(len(got)))
			if res != cuda.Success || len(part) == 0 {
				t.Fatalf("%d of %d bytes: %v", len(got), len(payload), res)
			}
			got = append(got, part...)
		}
		if !slices.Equal(got, payload) {
			t.Errorf("%d bytes came as others", len(payload))
		}
		if _, res := w.replyMore(2, uint32(len(got))); res != cuda.ErrorInvalidValue {
			t.Errorf("more than all of %d bytes: %v", len(payload), res)
		}
		if part, res := w.replyMore(2, remote.SlotPayload); res != cuda.ErrorInvalidValue || w.host.used != 0 {
			t.Errorf("of %d bytes that were fetched %d come again, %d are booked: %v", len(payload), len(part), w.host.used, res)
		}
	}
}

// TestDeferredOnce: an error of what nobody waited for is told by one reply, of a kind that may
// carry it.
func TestDeferredOnce(t *testing.T) {
	w, c := newFake(t, nil)
	reply := func(op wire.Op, res cuda.Result) cuda.Result {
		w.slots[0].begin(op, 1)
		w.Reply(0, 1, res, []byte("payload"))
		o := c.replies[len(c.replies)-1]
		if (o.Result == 0) != (len(o.Payload) > 0) && res == cuda.Success {
			t.Errorf("%v: result %d with a payload of %d bytes", op, o.Result, len(o.Payload))
		}
		return cuda.Result(o.Result)
	}
	w.Deferred(cuda.ErrorInvalidHandle)
	w.Deferred(cuda.ErrorInvalidValue) // the first counts
	for _, op := range []wire.Op{wire.OpMemAlloc, wire.OpReplyMore, wire.OpSessionFence, wire.OpRegionAdd, wire.OpModuleLoad, wire.OpGraphAddNode} {
		if res := reply(op, cuda.Success); res != cuda.Success {
			t.Errorf("%v brought %v", op, res)
		}
	}
	if res := reply(wire.OpCtxSynchronize, cuda.ErrorNotReady); res != cuda.ErrorNotReady {
		t.Errorf("a failure of its own became %v", res)
	}
	if res := reply(wire.OpCtxSynchronize, cuda.Success); res != cuda.ErrorInvalidHandle {
		t.Errorf("synchronize brought %v", res)
	}
	if res := reply(wire.OpCtxSynchronize, cuda.Success); res != cuda.Success {
		t.Errorf("again: %v", res)
	}
}

// TestMoveWaitsForReplies: a session does not move while a call is open.
func TestMoveWaitsForReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := newFake(t, nil)
		w.slots[9].begin(wire.OpStreamSynchronize, 1)
		done := make(chan error, 1)
		go func() { done <- w.awaitReplies(t.Context(), w.watch.busy) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatal("moved with an open call", err)
		default:
		}
		w.Reply(9, 1, cuda.Success, nil)
		if err := <-done; err != nil {
			t.Error(err)
		}
		w.slots[remote.SlotCount-1].begin(wire.OpStreamSynchronize, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.awaitReplies(ctx, w.watch.busy); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call that is never answered: %v", err)
		}
	})
}

const patience = 250 * time.Millisecond // for the GPU

// TestParkedSessionsAnswerLater: while guest memory is away, replies, words and wake-ups wait.
func TestParkedSessionsAnswerLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c := newFake(t, nil)
		l := &virtiofs{mem: shm.NewMemory(), done: make(chan struct{})}
		consumer := make(chan error, 1)
		tasks := make(chan struct{})
		go func() {
			for range tasks {
				if err := w.runTask(); err != nil {
					consumer <- err
				}
			}
			consumer <- nil
		}()
		park := func() error {
			parked := make(chan error, 1)
			go func() { parked <- w.park(l, link.Park{Limit: time.Second, Patience: patience}) }()
			synctest.Wait()
			tasks <- struct{}{}
			return <-parked
		}
		if err := w.resume(l); err == nil {
			t.Error("resumed what runs")
		}
		for range 2 {
			if err := park(); err != nil {
				t.Fatal(err)
			}
			before := len(c.replies)
			w.slots[1].begin(wire.OpCtxSynchronize, 1)
			done := make(chan struct{}, 3)
			for _, f := range []func(){
				func() { w.Reply(1, 1, cuda.Success, nil) },
				func() { w.CompleteWord(2, 5) },
				func() { w.SetSticky(cuda.ErrorIllegalAddress) },
			} {
				go func() { f(); done <- struct{}{} }()
			}
			// Whoever waits for guest memory waits for a lock, which a bubble cannot see: that it
			// is held is what counts.
			if w.guestMu.TryRLock() {
				t.Fatal("guest memory is in reach of a parked session")
			}
			if len(c.replies) != before || len(c.words) != 0 || c.sticky != 0 {
				t.Error("guest memory was touched")
			}
			if err := w.resume(l); err != nil {
				t.Fatal(err)
			}
			if err := w.resume(l); err == nil {
				t.Error("resumed twice")
			}
			for range 3 {
				<-done
			}
			if len(c.replies) != before+1 || c.words[2] != 5 || c.sticky == 0 {
				t.Errorf("%d replies, words %v, sticky %d", len(c.replies)-before, c.words, c.sticky)
			}
			c.words, c.sticky = nil, 0
			w.sticky.Store(0)
		}
		close(tasks)
		if err := <-consumer; err != nil {
			t.Error(err)
		}
	})
}

// countingGauge is a session whose GPU finishes nothing by itself.
type countingGauge struct {
	driver.Session
	fences  atomic.Uint64 // the gate's monitor asks
	onFence func()
}

func (g *countingGauge) Metering(bool) {}
func (g *countingGauge) Fence(n uint64) {
	g.fences.Store(n)
	if g.onFence != nil {
		g.onFence()
	}
}
func (g *countingGauge) Passed() uint64     { return g.fences.Load() }
func (g *countingGauge) OnPass(func()) bool { return false }

var errStood = errors.New("stood at the gate")

// gated makes a session whose gate is closed, or metered. What stands there fails with errStood.
func gatedFake(t *testing.T, w *Worker, flags page.Word) {
	t.Helper()
	grant, err := page.NewGrant(make([]byte, page.GrantSize))
	if err != nil {
		t.Fatal(err)
	}
	usage, err := page.NewUsage(make([]byte, page.UsageSize))
	if err != nil {
		t.Fatal(err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	grant.Set(flags, time.Millisecond)
	o := gate.Options{Grant: grant, Usage: usage, Bell: bell, OnConsumer: func(f func() error) error { return nil }, Serve: func() error { return errStood }}
	o.Gauge, _ = w.session.(driver.Gauge)
	w.gate = gate.New(o)
	t.Cleanup(func() {
		w.gate.Close(true)
		_ = unix.Close(bell)
	})
}

// step has the consumer execute one record.
func step(t *testing.T, w *Worker, c *fakeCarrier, a wire.Args) error {
	t.Helper()
	h := wire.Header{}
	if a.Op().Info().Mode != wire.Async {
		h.Flags, h.Seq = remote.RecordReply, 1
	}
	c.put(t, h, a)
	if ok, err := c.Next(&w.incoming); !ok || err != nil {
		t.Fatal(ok, err)
	}
	defer c.Advance()
	return w.consume(t.Context(), false)
}

// TestWhatStandsAtTheGate: with a closed gate nothing gives the GPU work, and everything else
// passes.
func TestWhatStandsAtTheGate(t *testing.T) {
	w, c := newFake(t, nil)
	gatedFake(t, w, 0)
	for _, op := range []wire.Op{
		wire.OpLaunch, wire.OpGraphLaunch, wire.OpGraphUpload, wire.OpMemset, wire.OpMemcpy, wire.OpMemcpyHtoD, wire.OpMemcpyDtoH,
		wire.OpMemcpyStaged, wire.OpMemcpy3D, wire.OpMemcpyWait,
	} {
		if err := step(t, w, c, wire.NewArgs(op)); !errors.Is(err, errStood) {
			t.Errorf("%v passed a closed gate: %v", op, err)
		}
	}
	for _, op := range []wire.Op{
		wire.OpCtxSynchronize, wire.OpEventQuery, wire.OpMemAlloc, wire.OpMemFree, wire.OpModuleLoad, wire.OpStreamCreate, wire.OpSessionFence,
		wire.OpEventRecord,
	} {
		if err := step(t, w, c, wire.NewArgs(op)); err != nil {
			t.Errorf("%v stands at a closed gate: %v", op, err)
		}
	}
}

// TestAGateWantsAllOfItsPages: grant, usage and the scheduler's bell; without one of them nobody
// would let work through.
func TestAGateWantsAllOfItsPages(t *testing.T) {
	for lacking := range 4 {
		w, _ := newFake(t, nil)
		bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		s := &starter{}
		s.pages.mem[link.PageGrant], s.pages.mem[link.PageUsage], s.pages.bell = make([]byte, page.GrantSize), make([]byte, page.UsageSize), bell
		switch lacking {
		case 1:
			s.pages.mem[link.PageGrant] = nil
		case 2:
			s.pages.mem[link.PageUsage] = nil
		case 3:
			s.pages.bell = 0
		}
		if err := s.openGate(w); err != nil || (w.gate != nil) != (lacking == 0) {
			t.Errorf("without %d: a gate %v, %v", lacking, w.gate != nil, err)
		}
		if w.gate != nil {
			standsAndServes(t, w, s)
			w.gate.Close(true)
		}
		_ = unix.Close(bell)
	}
}

// standsAndServes: a consumer that stands at the gate of openGate does what else is asked of it.
func standsAndServes(t *testing.T, w *Worker, s *starter) {
	t.Helper()
	grant, err := page.NewGrant(s.pages.mem[link.PageGrant])
	if err != nil {
		t.Fatal(err)
	}
	grant.Set(0, 0)
	ctx, cancel := context.WithCancel(t.Context())
	passed := make(chan error, 1)
	go func() { passed <- w.pass(ctx, wire.OpLaunch) }()
	if err := w.onLoop(func() error { return nil }); err != nil {
		t.Error(err)
	}
	cancel()
	w.gate.Poke()
	if err := <-passed; !errors.Is(err, errEnded) {
		t.Errorf("it passes a closed gate: %v", err)
	}
}

// TestAFenceStandsBehindItsWork: what a fence counts was given to the driver before it, or the
// fence says nothing of it.
func TestAFenceStandsBehindItsWork(t *testing.T) {
	var g *countingGauge
	var order []string
	w, c := newFake(t, func(s driver.Session) driver.Session {
		g = &countingGauge{Session: &noting{s, func() { order = append(order, "work") }}}
		return g
	})
	g.onFence = func() { order = append(order, "fence") }
	gatedFake(t, w, page.Open|page.Metered)
	for range 8 {
		if err := step(t, w, c, wire.NewArgs(wire.OpMemset)); err != nil {
			t.Fatal(err)
		}
	}
	for i, what := range order {
		if what == "fence" && (i == 0 || order[i-1] != "work") {
			t.Errorf("a fence stands before its work: %v", order)
		}
	}
	if !slices.Contains(order, "fence") {
		t.Errorf("no fence: %v", order)
	}
}

// noting tells of each fill of memory that a session makes.
type noting struct {
	driver.Session
	note func()
}

func (n *noting) Memset(c *wire.Call, a *wire.MemsetArgs) cuda.Result {
	n.note()
	return n.Session.Memset(c, a)
}

// TestFencesFollowWork: metered work is fenced while the ring never rests.
func TestFencesFollowWork(t *testing.T) {
	var g *countingGauge
	w, c := newFake(t, func(s driver.Session) driver.Session { g = &countingGauge{Session: s}; return g })
	gatedFake(t, w, page.Open|page.Metered)
	for range 6 {
		if err := step(t, w, c, wire.NewArgs(wire.OpMemset)); err != nil {
			t.Fatal(err)
		}
	}
	if g.fences.Load() < 2 {
		t.Errorf("%d fences behind 6 operations", g.fences.Load())
	}
}

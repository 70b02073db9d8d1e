package worker

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/shm"
)

// meant is a budget whose limit and use the test sets.
type meant struct {
	driver.Budget
	limit, used uint64
}

func (b *meant) Limit() uint64 { return b.limit }
func (b *meant) Used() uint64  { return b.used }

// TestWatchByChance: a guest that asked for it is told each time that it comes to hold more than it
// may, or the limit falls further below that, once, and nothing else.
func TestWatchByChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	w, _ := newFake(t, nil)
	f := &front{w: w}
	b := &meant{limit: 50, used: 10}
	w.watch.budget, w.watch.posting = b, true // nobody takes the events but the test
	want := func(wanted uint32) cuda.Result { return f.WatchBudget(nil, &wire.WatchBudgetArgs{Wanted: wanted}) }
	if want(1) != cuda.ErrorInvalidValue {
		t.Error("a guest that takes no callbacks is to be told")
	}
	if res := w.calls.openAt(3, 0); res != cuda.Success || want(2) != cuda.ErrorInvalidValue {
		t.Fatal(res)
	}
	// waits is what was to be told, and was not taken
	wanted, over, last, waits := false, false, uint64(0), uint32(0)
	for step := range 5000 {
		event := uint32(0)
		look := func() {
			now := b.limit != 0 && b.used > b.limit
			if now && (!over || b.limit < last) {
				event = wire.CallbackOverBudget
			}
			over, last = now, b.limit
		}
		switch rng.IntN(10) {
		case 0:
			wanted, over, last, waits = false, false, 0, 0
			if res := want(0); res != cuda.Success {
				t.Fatal(res)
			}
		case 1, 2:
			wanted = true
			if look(); event == 0 && over {
				event = wire.CallbackStillOver
			}
			if res := want(1); res != cuda.Success {
				t.Fatal(res)
			}
		default:
			if rng.IntN(2) == 0 {
				b.used = rng.Uint64N(100)
			} else {
				b.limit = rng.Uint64N(5) * 20
			}
			if wanted {
				look()
			}
			w.limitIs(b.limit)
		}
		if waits != wire.CallbackOverBudget && event != 0 { // which says more than anything else
			waits = event
		}
		if got := w.watch.event; got != waits {
			t.Fatalf("step %d: told %d, not %d; %d of %d, %d before", step, got, waits, b.used, b.limit, last)
		}
		if rng.IntN(3) > 0 {
			w.watch.event, waits = 0, 0
		}
		if event == wire.CallbackOverBudget && w.watch.number != b.used-b.limit {
			t.Fatalf("step %d: told of %d bytes, not %d", step, w.watch.number, b.used-b.limit)
		}
		if state := w.watch.state(); state.Wanted != wanted || wanted && state.Over != over {
			t.Fatalf("step %d: %+v, over: %v", step, state, over)
		}
	}
}

// TestContextOfASession: who tells the guest something before an adopted session's consumer runs
// waits by the context that ends with the session, and Run changes nothing that it reads.
func TestContextOfASession(t *testing.T) {
	w, _ := newFake(t, nil)
	before := w.ctx
	ctx, cancel := context.WithCancel(t.Context())
	w.bell.(*fakeBell).onWait = func() error { cancel(); return ctx.Err() }
	if err := w.Run(ctx); err != nil || w.ctx != before {
		t.Errorf("%v, or another context than before", err)
	}
	select {
	case <-before.Done():
	case <-time.After(10 * time.Second):
		t.Error("it does not end with the session")
	}
}

// TestWhatAParkFinds: a park knows whether the guest has submitted more, also what it submits in
// the moment in which it is told to ring, and gives everything back.
func TestWhatAParkFinds(t *testing.T) {
	for _, what := range []string{"nothing", "a record", "a record at the last moment"} {
		w, c := newFake(t, nil)
		l := &virtiofs{mem: shm.NewMemory(), done: make(chan struct{})}
		submit := func() { c.put(t, wire.Header{}, &wire.SessionFenceArgs{}) }
		switch what {
		case "a record":
			submit()
		case "a record at the last moment":
			c.onState = func(state uint32) {
				if state == remote.WorkerSleeping {
					submit()
				}
			}
		}
		stood := make(chan error, 1)
		go func() {
			task := <-w.tasks
			stood <- task()
		}()
		if err := w.park(l, link.Park{Limit: longPark, Patience: longPark}); err != nil {
			t.Fatal(what, err)
		}
		if w.parked == nil || w.parked.waiting != (what != "nothing") {
			t.Errorf("%s: parked %v, with more: %v", what, w.parked != nil, w.parked != nil && w.parked.waiting)
		}
		if w.guestMu.TryRLock() || !w.away.Load() {
			t.Errorf("%s: guest memory is within reach", what)
		}
		if err := w.park(l, link.Park{Limit: longPark, Patience: longPark}); err == nil {
			t.Errorf("%s: parked twice", what)
		}
		did := false
		if err := w.whileParked(func() { did = true }); err != nil || !did {
			t.Errorf("%s: what is to be done while it stands: %v, %v", what, did, err)
		}
		if err := w.resume(l); err != nil {
			t.Error(err)
		}
		if err := <-stood; err != nil || !w.guestMu.TryLock() || w.away.Load() || w.parked != nil || c.states[len(c.states)-1] != remote.WorkerPolling {
			t.Errorf("%s: it does not go on: %v, states %v", what, err, c.states)
		}
		if w.resume(l) == nil {
			t.Errorf("%s: resumed twice", what)
		}
	}
}

// longPark is longer than any test.
const longPark = time.Hour

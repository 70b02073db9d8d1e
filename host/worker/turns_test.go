package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/shm"
)

var errTurn = errors.New("of the test")

// orderedGPU notes before which operations it is told that others are behind.
type orderedGPU struct {
	driver.Session
	told []string
}

func (g *orderedGPU) Before(op wire.Op, behind bool) {
	g.told = append(g.told, fmt.Sprint(op == wire.OpSessionFence, behind))
}

// TestBehind: a driver is told of an operation whether another was there just ahead of it; what
// comes after a rest is the first again.
func TestBehind(t *testing.T) {
	var g *orderedGPU
	w, c := newFake(t, func(s driver.Session) driver.Session { g = &orderedGPU{Session: s}; return g })
	if w.ordered = g; len(g.told) != 0 {
		t.Fatal(g.told)
	}
	for range 3 {
		c.put(t, wire.Header{}, &wire.MemFreeArgs{Ptr: 1})
	}
	waits := 0
	c.onWait = func() error {
		if waits++; waits == 2 {
			return context.Canceled
		}
		for range 2 {
			c.put(t, wire.Header{}, &wire.MemFreeArgs{Ptr: 1})
		}
		return nil
	}
	if err := w.loop(t.Context()); err != nil || waits != 2 {
		t.Fatal(err, waits)
	}
	if want := []string{"false false", "false true", "false true", "false false", "false true"}; !slices.Equal(g.told, want) {
		t.Errorf("%v, want %v", g.told, want)
	}
}

// TestEndsOfTheLoop: what ends a consumer, and that a task which was there before the first record
// came first.
func TestEndsOfTheLoop(t *testing.T) {
	for name, x := range map[string]struct {
		set  func(w *Worker, c *fakeCarrier)
		want error
	}{
		"the bell fails": {func(_ *Worker, c *fakeCarrier) { c.onWait = func() error { return errTurn } }, errTurn},
		"its context":    {func(_ *Worker, c *fakeCarrier) { c.onWait = func() error { return context.Canceled } }, nil},
		"a task":         {func(w *Worker, _ *fakeCarrier) { w.task(func() error { return errTurn }) }, errTurn},
		"no record":      {func(_ *Worker, c *fakeCarrier) { c.records = [][]byte{make([]byte, 5)} }, wire.ErrMalformed},
	} {
		w, c := newFake(t, nil)
		c.onWait = func() error { return nil }
		x.set(w, c)
		if err := w.loop(t.Context()); !errors.Is(err, x.want) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "a task" && len(c.states) != 0 {
			t.Error("the ring is touched before what is to be done first")
		}
	}
}

// task has something wait for the consumer.
func (w *Worker) task(f func() error) {
	go func() { _ = w.onLoop(f) }()
	for !w.pending.Load() {
		time.Sleep(10 * time.Microsecond)
	}
}

// TestRoomThatNobodyGives: a question that cannot be asked, or is denied, has the program see what
// the driver said, of that record alone; a task's error and the session's end are those of the
// consumer. Answers that nobody took do not stand in the way of the next.
func TestRoomThatNobodyGives(t *testing.T) {
	asked := []link.Want{}
	fails := errTurn
	w, _ := newFake(t, nil)
	w.room = room{asks: func(m link.ToParent) error { asked = append(asked, m.(link.Want)); return fails }, short: func() uint64 { return 7 }, answers: make(chan link.Room, 1)}
	r := &w.room
	ask := func(n uint64) error { r.stalled = n; r.denied = false; return w.awaitRoom(t.Context()) }
	if err := ask(7); err != nil || !r.denied || r.stalled != 0 || len(asked) != 1 || asked[0] != (link.Want{Number: 1, Bytes: 7}) || r.lacks() != 0 {
		t.Errorf("%v, denied %v, asked %+v", err, r.denied, asked)
	}
	fails = nil
	for n, granted := range []bool{true, false} {
		r.answered(link.Room{Number: 1, Granted: !granted}) // which nobody takes
		r.answered(link.Room{Number: uint64(n + 2), Granted: granted})
		if err := ask(8); err != nil || r.denied == granted || asked[len(asked)-1] != (link.Want{Number: uint64(n + 2), Bytes: 8}) || (r.lacks() == 7) != granted {
			t.Errorf("%v, denied %v, asked %+v", err, r.denied, asked)
		}
	}
	w.task(func() error { return errTurn })
	if err := ask(1); !errors.Is(err, errTurn) {
		t.Error(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	r.stalled = 1
	if err := w.awaitRoom(over); !errors.Is(err, errEnded) {
		t.Error(err)
	}
	if r = (&room{}); r.lacks() != 0 {
		t.Error("nobody gives room, and it is asked for")
	}
	(&starter{}).openRoom(w)
	if w.room.number == 0 {
		t.Error("without a budget there is another room")
	}
}

// TestRepliesOfNoSlot: slots that are not are neither answered nor fetched from; a request on a
// slot ends what of the last reply was not fetched, but for one that fetches it.
func TestRepliesOfNoSlot(t *testing.T) {
	w, c := newFake(t, nil)
	for _, slot := range []uint32{remote.SlotCount, remote.SlotCount + 1, ^uint32(0)} {
		w.Reply(slot, 1, cuda.Success, nil)
		w.WakeSlot(slot, 1)
		if _, res := w.replyMore(slot, 0); res != cuda.ErrorInvalidValue || len(c.replies) != 0 || len(c.woken) != 0 {
			t.Errorf("slot %d: %v", slot, res)
		}
	}
	s := &w.slots[remote.SlotCount-1]
	long := bytes.Repeat([]byte{1}, int(remote.SlotPayload)+10)
	s.begin(wire.OpMemcpyDtoH, 1)
	if w.Reply(remote.SlotCount-1, 1, cuda.Success, long); len(c.replies) != 1 || w.host.used != uint64(len(long)) || s.open || s.out.Payload != nil {
		t.Errorf("%d replies, %d bytes are booked", len(c.replies), w.host.used)
	}
	if n := s.begin(wire.OpReplyMore, 2); n != 0 || len(s.more) != len(long) || !s.open || s.seq != 2 {
		t.Errorf("%d bytes go with a request for them", n)
	}
	s.forget()
	if s.open {
		t.Error("a request that will come again is open")
	}
	if n := s.begin(wire.OpMemcpyDtoH, 3); n != uint64(len(long)) || s.more != nil {
		t.Errorf("%d bytes go with another request", n)
	}
}

// TestRepliesBeyondTheBudget: a long reply that the host has no memory for is an error, unless the
// guest must learn of what was made.
func TestRepliesBeyondTheBudget(t *testing.T) {
	w, c := newFake(t, nil)
	w.host.limit = 10
	long := bytes.Repeat([]byte{1}, int(remote.SlotPayload)+1)
	for _, x := range []struct {
		op   wire.Op
		own  bool
		n    int
		want cuda.Result
	}{{wire.OpMemcpyDtoH, false, len(long), cuda.ErrorOutOfMemory}, {wire.OpMemcpyDtoH, false, len(long) - 1, cuda.Success}, {wire.OpModuleLoad, true, len(long), cuda.Success}} {
		if x.op.Info().OwnReply != x.own {
			t.Fatalf("%v", x.op)
		}
		w.slots[1].begin(x.op, 1)
		w.Reply(1, 1, cuda.Success, long[:x.n])
		o := c.replies[len(c.replies)-1]
		kept := 0
		if x.want == cuda.Success {
			kept = x.n
		}
		booked := uint64(0)
		if kept > int(remote.SlotPayload) {
			booked = uint64(kept)
		}
		if cuda.Result(o.Result) != x.want || int(o.Total) != kept || len(o.Payload) != min(kept, int(remote.SlotPayload)) || w.host.used != booked || (w.slots[1].more != nil) != (booked > 0) {
			t.Errorf("%v of %d bytes: %d, %d of %d; %d are booked", x.op, x.n, o.Result, len(o.Payload), o.Total, w.host.used)
		}
	}
}

// TestParkRules: only what lends memory, and is not parked, is parked, and only what is parked
// resumes or does something while it stands. One that was given up for a call that goes on stays
// given up.
func TestParkRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c := newFake(t, nil)
		l := &virtiofs{mem: shm.NewMemory(), done: make(chan struct{})}
		how := link.Park{Limit: time.Second, Patience: time.Second}
		if w.park(nil, how) == nil || w.resume(nil) == nil || w.resume(l) == nil {
			t.Error("what is not lent is parked, or what is not parked resumes")
		}
		did := false
		if w.whileParked(func() { did = true }) == nil || did {
			t.Error("it does something for one that is not parked")
		}
		begin := time.Now()
		if err := w.park(l, how); !errors.Is(err, errBusy) || time.Since(begin) != how.Limit || w.parked != nil {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		synctest.Wait()
		if err := w.runTask(); err != nil || w.away.Load() || len(c.states) != 0 || !w.guestMu.TryLock() {
			t.Errorf("it is parked later: %v, states %v", err, c.states)
		}
		w.guestMu.Unlock()
		synctest.Wait()
		stood := make(chan error, 1)
		go func() { stood <- (<-w.tasks)() }()
		if err := w.park(l, how); err != nil {
			t.Fatal(err)
		}
		if w.resume(nil) == nil || w.parked == nil {
			t.Error("what is not lent resumes")
		}
		close(l.done) // the guest is gone
		if err := <-stood; !errors.Is(err, errEnded) || !w.guestMu.TryLock() || !w.away.Load() {
			t.Errorf("its guest is gone: %v", err)
		}
		close(w.ended)
		if err := w.whileParked(func() {}); !errors.Is(err, errEnded) {
			t.Error(err)
		}
		if err := w.onLoop(func() error { return nil }); !errors.Is(err, errEnded) {
			t.Error(err)
		}
	})
}

// TestLocatesWhole: a range lies in guest memory from its first byte on, also one of no bytes.
func TestLocatesWhole(t *testing.T) {
	l := newVirtiofs(nil)
	l.guest = []link.BackedMemory{{MemoryRegion: link.MemoryRegion{GPA: 1 << 20, Size: 8192, Offset: 4096}, File: 5}}
	for _, x := range []struct {
		e  link.Range
		at int64 // -1: nowhere
	}{
		{link.Range{GPA: 1 << 20, Size: 8192}, 4096}, {link.Range{GPA: 1<<20 + 8191, Size: 1}, 12287}, {link.Range{GPA: 1<<20 + 8192}, -1}, {link.Range{GPA: 1<<20 - 1, Size: 2}, -1},
		{link.Range{GPA: 1<<20 + 1, Size: 8192}, -1}, {link.Range{GPA: 1 << 20, Size: ^uint64(0)}, -1},
	} {
		if run, err := l.locate(x.e); (err == nil) != (x.at >= 0) || err == nil && (run != shm.Run{FD: 5, Offset: x.at, Size: x.e.Size}) {
			t.Errorf("%+v: %+v, %v", x.e, run, err)
		}
	}
}

// TestFetchesToTheLastByte: a long reply is fetched part by part; with the last one, however long
// that is, nothing of it is kept or booked.
func TestFetchesToTheLastByte(t *testing.T) {
	const most = int(remote.SlotPayload) - 16
	for _, n := range []int{1, most - 1, most, most + 1, 2 * most, 2*most + 1} {
		w, _ := newFake(t, nil)
		s := &w.slots[4]
		s.more = bytes.Repeat([]byte{7}, n)
		w.host.book(uint64(n))
		for at := 0; at < n; at += most {
			if s.more == nil || w.host.used != uint64(n) {
				t.Errorf("%d of %d bytes are fetched, and %d are booked", at, n, w.host.used)
			}
			part, res := w.replyMore(4, uint32(at))
			if want := min(most, n-at); res != cuda.Success || len(part) != want {
				t.Errorf("at %d of %d: %v, %d bytes, not %d", at, n, res, len(part), want)
			}
		}
		if s.more != nil || w.host.used != 0 {
			t.Errorf("all of %d bytes are fetched, and %d are booked", n, w.host.used)
		}
		if _, res := w.replyMore(4, uint32(n)); res != cuda.ErrorInvalidValue {
			t.Errorf("behind %d bytes: %v", n, res)
		}
	}
}

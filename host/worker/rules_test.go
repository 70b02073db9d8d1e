package worker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/schedule/memory"
	"causeway/host/worker/link"
	"causeway/host/worker/state"
	"causeway/remote"
	"causeway/remote/shm"
	"causeway/remote/sys"
)

// TestSnapshotsOfOthers: what is no state of a session, or of another version or protocol, is
// refused by that, though all the rest fits.
func TestSnapshotsOfOthers(t *testing.T) {
	for at, why := range []string{"not the state", "session state of version", "protocol version"} {
		b := written(t, sampleSnapshot())
		b[4*at]++
		if _, err := readSnapshot(state.NewReader(bytes.NewReader(b), 1<<20)); !errors.Is(err, state.ErrState) || !strings.Contains(err.Error(), why) {
			t.Errorf("word %d: %v", at, err)
		}
	}
	b := written(t, &snapshot{Virtiofs: &virtiofsState{}})
	binary.LittleEndian.PutUint32(b[16:], carrierVirtiofs+1) // behind four words
	if _, err := readSnapshot(state.NewReader(bytes.NewReader(b), 1<<20)); !errors.Is(err, state.ErrState) || !strings.Contains(err.Error(), "carrier 3") {
		t.Errorf("another carrier: %v", err)
	}
	for _, warm := range []bool{false, true} {
		s := &snapshot{Virtiofs: &virtiofsState{}, Warm: warm}
		if got, err := readSnapshot(state.NewReader(bytes.NewReader(written(t, s)), 1<<20)); err != nil || got.Warm != warm {
			t.Errorf("a driver started ahead: %v, %v", warm, err)
		}
	}
}

// reasoningGPU makes one stream come out another.
type reasoningGPU struct {
	*plainGPU
	fails wire.ID
}

func (g reasoningGPU) StreamCreate(c *wire.Call, a *wire.StreamCreateArgs) cuda.Result {
	if a.Stream == g.fails {
		c.Because("it comes out another")
		return cuda.ErrorInvalidValue
	}
	return g.plainGPU.StreamCreate(c, a)
}

// TestRehearsalWithAReason: what a driver gives a reason for keeps the session away, whatever
// failed before it; a rehearsal that only is not complete does not. The parent is told which.
func TestRehearsalWithAReason(t *testing.T) {
	s := newRecorded(t)
	s.must(1, &wire.CtxCreateArgs{Ctx: 1}, &wire.StreamCreateArgs{Stream: 30}, &wire.StreamCreateArgs{Stream: 31}, &wire.StreamCreateArgs{Stream: 32})
	for what, c := range map[string]struct {
		reason, fails wire.ID
		errno         unix.Errno
	}{
		"all is well":            {},
		"one fails":              {fails: 30, errno: unix.EIO},
		"one has a reason":       {reason: 31, errno: unix.EADDRNOTAVAIL},
		"after one that fails":   {reason: 31, fails: 30, errno: unix.EADDRNOTAVAIL},
		"before one that fails":  {reason: 31, fails: 32, errno: unix.EADDRNOTAVAIL},
		"the first has a reason": {reason: 30, errno: unix.EADDRNOTAVAIL},
	} {
		var gpu *plainGPU
		w, _ := newFake(t, func(d driver.Session) driver.Session { gpu = newPlain(d); return reasoningGPU{gpu, c.reason} })
		if c.fails != 0 {
			gpu.things[c.fails] = &thing{}
		}
		err := w.perform(s.snapshot())
		var d *differs
		if (err != nil) != (c.errno != 0) || errors.As(err, &d) != (c.reason != 0) || c.reason != 0 && !strings.Contains(err.Error(), "comes out another") {
			t.Errorf("%s: %v", what, err)
		}
		parent, worker := ends(t)
		if err := (&starter{link: worker, log: slog.New(slog.DiscardHandler)}).performed(err); err != nil {
			t.Error(err)
		}
		r, err := parent.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if m, ok := r.Message().(link.Adopted); !ok || m.Errno != c.errno {
			t.Errorf("%s: the parent is told %#v", what, r.Message())
		}
		_, _ = parent.Close(), worker.Close()
	}
}

// standingGPU is a driver that moves, or says why not.
type standingGPU struct {
	*lendingGPU
	fixed, busy error
	lends       int
}

func (g *standingGPU) Lend() ([]driver.Lent, error) {
	g.lends++
	return g.lendingGPU.Lend()
}

func (g *standingGPU) Movable() error { return g.fixed }

func (g *standingGPU) Quiesce(context.Context) error { return g.busy }

// carried has a session have a carrier that moves.
func carried(t *testing.T, w *Worker) {
	l := newVirtiofs(nil)
	var err error
	if l.ring, err = shm.NewRing(make([]byte, remote.Region0Size), 0); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		l.bell, err = shm.NewBell(fd, func(uint32) {})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	w.carrier = l
}

// TestMoveThatStops: wherever a move stops, the session has its guest's memory again, and once what
// it lent; who asked is told why. One that has moved touches neither.
func TestMoveThatStops(t *testing.T) {
	no := errors.New("no such thing")
	to := newRecorded(t)
	to.w.session = &lendingGPU{plainGPU: to.gpu}
	x := successor{to.w, no}
	files, snap, takes, memory, agrees, refuses, hears := x.files, x.snap, x.takes, x.memory, x.agrees, x.refuses, x.hears
	lent := func(h *handover) error {
		list, err := h.receiveLent()
		if driver.CloseLent(list); err == nil && len(list) != 1 {
			err = errors.New("nothing is lent")
		}
		return err
	}
	for what, c := range map[string]struct {
		set  func(w *Worker, g *standingGPU)
		peer steps
		err  string // empty: it moves
	}{
		"over a carrier that does not": {set: func(w *Worker, _ *standingGPU) { w.carrier = nil }, err: "over this carrier"},
		"of a driver that does not":    {set: func(_ *Worker, g *standingGPU) { g.fixed = no }, err: no.Error()},
		"of a GPU that works":          {set: func(_ *Worker, g *standingGPU) { g.busy = no }, err: "wait for the GPU"},
		"to nobody":                    {err: "descriptors"},
		"to one that refuses at once":  {peer: steps{refuses}, err: no.Error()},
		"behind what is lent":          {peer: steps{files, lent}, err: "session"},
		"refused with what is lent":    {peer: steps{files, lent, snap, refuses}, err: no.Error()},
		"behind that":                  {peer: steps{files, lent, snap, takes, memory}, err: "successor"},
		"refused at the end":           {peer: steps{files, lent, snap, takes, memory, refuses}, err: "successor: " + no.Error()},
		"agreed":                       {peer: steps{files, lent, snap, takes, memory, agrees, hears}},
	} {
		s := newRecorded(t)
		g := &standingGPU{lendingGPU: &lendingGPU{plainGPU: s.gpu}}
		s.w.session = g
		carried(t, s.w)
		if c.set != nil {
			c.set(s.w, g)
		}
		ours, theirs := stream(t)
		h, err := newHandover(ours, localMost)
		if err != nil {
			t.Fatal(err)
		}
		other, err := newHandover(theirs, localMost)
		if err != nil {
			t.Fatal(err)
		}
		done := c.peer.play(other)
		if len(c.peer) == 0 {
			<-done // it is gone before
			done <- nil
		}
		_, err = s.w.move(h, time.Now().Add(quiesceForMove), quiesceForMove)
		if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", what, err)
		}
		h.close()
		if err := <-done; err != nil {
			t.Errorf("%s: the successor: %v", what, err)
		}
		if free := s.w.guestMu.TryLock(); free != (c.err != "") {
			t.Errorf("%s: the guest's memory is free: %v", what, free)
		}
		if kept := g.lends == 1 && c.err != ""; g.kept > 1 || (g.kept == 1) != kept || c.err == "" && g.lends != 1 {
			t.Errorf("%s: what was lent %d times is kept %d times", what, g.lends, g.kept)
		}
	}
}

// TestMoveWithAnOpenCall: a call that is not answered is waited for as long as the GPU is, and then
// keeps the session here, with its guest's memory.
func TestMoveWithAnOpenCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRecorded(t)
		s.w.session = &standingGPU{lendingGPU: &lendingGPU{plainGPU: s.gpu}}
		carried(t, s.w)
		s.w.slots[3].begin(wire.OpCtxSynchronize, 1)
		begin := time.Now()
		if _, err := s.w.move(nil, time.Now().Add(quiesceForMove), quiesceForMove); err == nil || !strings.Contains(err.Error(), "a call is still waiting") || time.Since(begin).Round(time.Millisecond) != quiesceForMove {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if !s.w.guestMu.TryLock() {
			t.Error("the guest's memory is not given back")
		}
	})
}

// TestParkLeavesRepliesBehind: replies that are on their way have their moment, and no more, before
// a session is parked, however long its GPU might have taken.
func TestParkLeavesRepliesBehind(t *testing.T) {
	for _, open := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w, _ := newFake(t, nil)
			l := &virtiofs{mem: shm.NewMemory(), done: make(chan struct{})}
			if open {
				w.slots[3].begin(wire.OpCtxSynchronize, 1)
			}
			begin := time.Now()
			stood := make(chan error, 1)
			go func() { stood <- (<-w.tasks)() }()
			if err := w.park(l, link.Park{Limit: time.Hour, Patience: time.Minute}); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin).Round(time.Millisecond); open && took != replyPatience || !open && took != 0 {
				t.Errorf("open %v: parked after %v", open, took)
			}
			if err := w.resume(l); err != nil {
				t.Error(err)
			}
			if err := <-stood; err != nil || w.away.Load() {
				t.Error(err)
			}
		})
	}
}

// TestRoomIsAskedOfTheParent: what a session's budget lacked of room is asked of its parent.
func TestRoomIsAskedOfTheParent(t *testing.T) {
	page, err := memory.New(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	page.SetRoom(1000)
	slot, err := page.Take()
	if err != nil {
		t.Fatal(err)
	}
	mem, err := sys.MapPage(page.File(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.UnmapPage(mem)
	b, err := memory.Open(mem, slot, 0)
	if err != nil {
		t.Fatal(err)
	}
	parent, worker := ends(t)
	defer parent.Close()
	defer worker.Close()
	w, _ := newFake(t, nil)
	(&starter{link: worker, budget: b}).openRoom(w)
	if w.room.lacks() != 0 || b.Reserve(1001) || w.room.lacks() != 1001 || w.room.lacks() != 0 {
		t.Error("what is short is another")
	}
	w.room.stalled = 1001
	w.room.answered(link.Room{Number: 1, Granted: true})
	if err := w.awaitRoom(t.Context()); err != nil || w.room.denied {
		t.Errorf("%v, denied %v", err, w.room.denied)
	}
	r, err := parent.Receive()
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := r.Message().(link.Want); !ok || m != (link.Want{Number: 1, Bytes: 1001}) {
		t.Errorf("the parent is asked %#v", r.Message())
	}
}

// TestCarriersLetGo: a carrier that is closed has neither its doorbell nor the guest's memory; one
// that has not begun has none to let go of.
func TestCarriersLetGo(t *testing.T) {
	const name = "causeway-test-guest"
	for _, begun := range []bool{false, true} {
		w, _ := newFake(t, nil)
		carried(t, w)
		l, bell := w.carrier.(*virtiofs), -1
		if bell = l.bell.FD(); !begun {
			l.bell = nil
		}
		l.guest = []link.BackedMemory{{File: memfile(t, name, 4096)}}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		_, err := unix.FcntlInt(uintptr(bell), unix.F_GETFD, 0)
		if (err != nil) != begun || filesOf(t, name) != 0 || l.guest != nil {
			t.Errorf("begun %v: its doorbell: %v, %d files", begun, err, filesOf(t, name))
		}
		if !begun {
			_ = unix.Close(bell)
		}
	}
}

// TestRequestsKeepTheirContext: a change that was made without a context is made again without one,
// whatever its object's is.
func TestRequestsKeepTheirContext(t *testing.T) {
	r := newRecorder(&hostMemory{limit: 1 << 30})
	note := func(ctx wire.ID, a wire.Args) {
		t.Helper()
		if err := r.note(&wire.Call{Op: a.Op(), Ctx: ctx}, a.Op().Info(), a, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	note(0, &wire.PrimaryCtxRetainArgs{Ctx: 16})
	note(16, &wire.StreamCreateArgs{Stream: 30})
	note(0, &wire.StreamSetAttributeArgs{Target: 30, Attr: 1, Value: make([]byte, 8)})
	note(16, &wire.StreamSetAttributeArgs{Target: 30, Attr: 2, Value: make([]byte, 8)})
	// Of one that is gone.
	note(17, &wire.StreamSetAttributeArgs{Target: 30, Attr: 3, Value: make([]byte, 8)})
	want := []wire.ID{0, 16, 0, 16, 16}
	for i, e := range r.entries() {
		if h, op, err := wire.ParseHeader(e.rec); err != nil || h.Ctx != want[i] {
			t.Errorf("%v is made in context %d, not %d: %v", op, h.Ctx, want[i], err)
		}
	}
}

package relay

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// repliedRing notes what a server's frames do to a ring.
type repliedRing struct {
	*fakeGuest
	replies         []remote.Outgoing
	sticky, console uint32
	sleeps          bool
}

func (r *repliedRing) Reply(o *remote.Outgoing) bool {
	r.replies = append(r.replies, *o)
	return r.sleeps
}
func (r *repliedRing) SetSticky(v uint32)  { r.sticky = v }
func (r *repliedRing) SetConsole(v uint32) { r.console = v }

type wokenBell struct {
	guestBell
	woken []uint32
}

func (b *wokenBell) Wake(slot uint32) { b.woken = append(b.woken, slot) }

// TestFramesAtTheirBounds: what a server may just say is done.
func TestFramesAtTheirBounds(t *testing.T) {
	s, conn, _ := wideSession(2, newFork(), newFork())
	g := newGuest()
	ring, bell := &repliedRing{fakeGuest: g}, &wokenBell{guestBell: g.bell()}
	s.ring, s.mem, s.bell = ring, guestMem{g}, bell
	say := func(h frame.Header, payload []byte) {
		t.Helper()
		h.Len = uint32(len(payload))
		conn.say(payload)
		if err := s.frame(t.Context(), h); err != nil || len(conn.in) != 0 || s.in.Buffered() != 0 {
			t.Errorf("%+v: %v, %d bytes are left", h, err, s.in.Buffered())
		}
	}
	reply := func(n, total int) []byte {
		return append(frame.Reply{Seq: 7, Result: 8, Len: uint32(n), Total: uint32(total)}.Append(nil), make([]byte, n)...)
	}
	const most = int(remote.SlotPayload)
	for i, x := range []struct {
		slot     uint32
		n, total int
		sleeps   bool
	}{{0, 0, 0, false}, {remote.SlotCount - 1, 5, 5, true}, {1, most, most, false}, {2, most, most + 1, true}, {3, most, 1 << 30, false}} {
		ring.sleeps = x.sleeps
		bell.woken = nil
		say(frame.Header{Kind: frame.Slot, Arg: uint64(x.slot)}, reply(x.n, x.total))
		if len(ring.replies) != i+1 {
			t.Fatalf("%+v: %d replies", x, len(ring.replies))
		}
		if o := ring.replies[i]; o.Slot != x.slot || o.Seq != 7 || o.Result != 8 || len(o.Payload) != x.n || int(o.Total) != x.total || (len(bell.woken) == 1 && bell.woken[0] == x.slot) != x.sleeps {
			t.Errorf("%+v: slot %d, %d of %d bytes, woken %v", x, o.Slot, len(o.Payload), o.Total, bell.woken)
		}
	}
	say(frame.Header{Kind: frame.Word, Arg: frame.Pair(remote.WordCount-1, 9)}, nil)
	say(frame.Header{Kind: frame.Control, Arg: frame.Pair(remote.ControlPageStickyOffset, 10)}, nil)
	say(frame.Header{Kind: frame.Control, Arg: frame.Pair(remote.ControlPageConsoleOffset, 11)}, nil)
	if g.word(remote.WordCount-1) != 9 || ring.sticky != 10 || ring.console != 11 || s.dead.Load() {
		t.Errorf("word %d, sticky %d, console %d", g.word(remote.WordCount-1), ring.sticky, ring.console)
	}
	if say(frame.Header{Kind: frame.Control, Arg: frame.Pair(remote.ControlPageWorkerStateOffset, remote.WorkerDead)}, nil); !s.dead.Load() {
		t.Error("its worker is not dead")
	}
	s.given.Store(100)
	for _, head := range []uint64{0, 60, 60, 100} {
		if say(frame.Header{Kind: frame.Head, Arg: head}, nil); s.head.Load() != head || len(s.room) != 1 {
			t.Errorf("head %d, not %d, %d are told", s.head.Load(), head, len(s.room))
		}
		<-s.room
	}
	if err := s.frame(t.Context(), frame.Header{Kind: frame.Head, Arg: 99}); !errors.Is(err, remote.ErrProtocol) {
		t.Error(err)
	}
	for _, n := range []uint64{1, frame.MaxRead} {
		say(frame.Header{Kind: frame.Read, Arg: n}, frame.Extent{Region: 1, Size: n}.Append(nil))
	}
	if len(s.reads) != 1 || len(s.wide.reads) != 1 || (<-s.reads).id != 1 || (<-s.wide.reads).id != frame.MaxRead {
		t.Error("the READs do not wait")
	}
	for _, n := range []uint64{0, 1, 300_000} {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(n + uint64(i))
		}
		say(frame.Header{Kind: frame.Write}, append(frame.Extent{Region: 1, Offset: 1<<20 - n, Size: n}.Append(nil), p...))
		if string(g.mem[1<<20-n:]) != string(p) {
			t.Errorf("other bytes come of %d", n)
		}
	}
}

// TestWritesWiden: a WRITE that is worth it has the branches begun, and no smaller one.
func TestWritesWiden(t *testing.T) {
	for n, begins := range map[int]bool{frame.Bulk - 1: false, frame.Bulk: true} {
		s, conn, _ := wideSession(1, newFork())
		p := frame.Extent{Region: 1, Size: uint64(n - frame.ExtentSize)}.Append(nil)
		conn.say(append(p, make([]byte, n-frame.ExtentSize)...))
		if err := s.frame(t.Context(), frame.Header{Kind: frame.Write, Len: uint32(n)}); err != nil || (len(conn.asked) == 1) != begins {
			t.Errorf("%d bytes: %v, asked for %v", n, err, conn.asked)
		}
	}
}

// TestFramesWithoutMemory: what a server says while a session is to stand still stays to be done,
// and what it says within a frame as well.
func TestFramesWithoutMemory(t *testing.T) {
	s, conn, _ := wideSession(0)
	s.still = true
	for _, x := range []struct {
		h       frame.Header
		payload []byte
	}{
		{frame.Header{Kind: frame.Slot}, frame.Reply{Seq: 1}.Append(nil)}, {frame.Header{Kind: frame.Word}, nil}, {frame.Header{Kind: frame.Control, Arg: frame.Pair(remote.ControlPageStickyOffset, 1)}, nil},
		{frame.Header{Kind: frame.Write}, append(frame.Extent{Region: 1, Size: 4}.Append(nil), "four"...)},
	} {
		x.h.Len = uint32(len(x.payload))
		said := append(x.h.Append(nil), x.payload...)
		conn.say(said)
		if err := s.receive(t.Context()); !errors.Is(err, errStill) {
			t.Errorf("%+v: %v", x.h, err)
		}
		if again := s.unread(); string(again) != string(said) {
			t.Errorf("%+v: %d bytes are left of %d", x.h, len(again), len(said))
		}
		s.input.again = nil
	}
	conn.say([]byte{1, 2, 3})
	_ = conn.Close()
	if err := s.receive(t.Context()); !errors.Is(err, ErrServer) || short(errTest) != errTest {
		t.Error(err)
	}
}

// waitingRing has more for a park to find.
type waitingRing struct {
	quietRing
	more bool
}

func (r *waitingRing) Poll(int) bool { return r.more }

// TestParksTell: a park says whether the guest had submitted more, also where its context ends
// while it is taken; a failure is the taker's, and then the memory is there, also for who may reach
// it by itself.
func TestParksTell(t *testing.T) {
	for _, more := range []bool{true, false} {
		for _, fails := range []error{nil, errTest} {
			for _, late := range []bool{true, false} {
				ring := &waitingRing{more: more}
				s := &Session{ring: ring, bell: noBell{}, poked: make(chan struct{}, 1)}
				s.grants.parked = true // as a recall leaves it
				// Its consumer is at the network: Park takes the memory itself.
				s.parks.out = true
				ctx, cancel := context.WithCancel(t.Context())
				waiting, err := s.Park(ctx, func() error {
					if late {
						cancel()
						for range 100 {
							runtime.Gosched()
						}
						time.Sleep(time.Millisecond)
					}
					return fails
				})
				cancel()
				if !errors.Is(err, fails) || waiting != more && err == nil || s.reachable() != (fails != nil) || s.grants.parked != (fails == nil) || (s.parks.resume != nil) != (fails == nil) {
					t.Errorf("more %v, fails %v, late %v: %v, %v; parked %v", more, fails, late, waiting, err, !s.reachable())
				}
				want := []uint32{remote.WorkerSleeping}
				if fails != nil {
					want = append(want, remote.WorkerPolling)
				}
				if len(ring.states) != len(want) || ring.states[len(want)-1] != want[len(want)-1] {
					t.Errorf("states %v", ring.states)
				}
				if fails != nil {
					continue
				}
				if _, err := s.Park(t.Context(), nothing); !errors.Is(err, ErrParked) || !s.grants.parked {
					t.Errorf("parked twice: %v", err)
				}
				if err := s.Resume(nothing); err != nil || s.grants.parked || !s.pending.Load() || ring.states[1] != remote.WorkerPolling {
					t.Errorf("%v, parked %v", err, s.grants.parked)
				}
			}
		}
	}
}

// TestBackWaits: a consumer comes back to guest memory behind the park that holds, or with its
// context's end; what it did at the network is its error.
func TestBackWaits(t *testing.T) {
	s := &Session{ring: &quietRing{}, bell: noBell{}, poked: make(chan struct{}, 1)}
	if err := s.atNetwork(t.Context(), func() error { return errTest }); !errors.Is(err, errTest) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := s.back(ctx); err != nil || s.parks.out {
		t.Error(err)
	}
	s.parks.out, s.parks.resume = true, make(chan struct{})
	cancel()
	if err := s.back(ctx); !errors.Is(err, context.Canceled) || !s.parks.out {
		t.Error(err)
	}
	s.parks.resume = nil
	if err := s.back(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := s.awaitRoom(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	s.poke()
	if err := s.awaitRoom(t.Context()); err != nil {
		t.Error(err)
	}
}

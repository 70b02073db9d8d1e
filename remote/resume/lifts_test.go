package resume

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"

	"causeway/remote"
	"causeway/remote/frame"
)

// reachingWay reaches the other end's memory.
type reachingWay struct {
	*fakeWay
	does    bool
	grants  bool
	did     []byte // f, s, S(ettle)
	fails   error
	settles error
}

func (w *reachingWay) Close() error                { return w.fakeWay.Close() }
func (w *reachingWay) Read(p []byte) (int, error)  { return w.fakeWay.Read(p) }
func (w *reachingWay) Write(p []byte) (int, error) { return len(p), nil }
func (w *reachingWay) Grant([]byte) (frame.Granted, func(), error) {
	return frame.Granted{}, nil, errTest
}
func (w *reachingWay) Reaches() bool { return w.does }
func (w *reachingWay) Grants() bool  { return w.grants }
func (w *reachingWay) Fetch([]byte, frame.Granted, uint64) error {
	w.did = append(w.did, 'f')
	return w.fails
}
func (w *reachingWay) Store([]byte, frame.Granted, uint64) error {
	w.did = append(w.did, 's')
	return w.fails
}
func (w *reachingWay) Settle() error { w.did = append(w.did, 'S'); return w.settles }

// TestReaches: memory is reached over what the stream goes over now, and is there when it is said
// to be; where it is not, what it went over is lost, unless nothing but the bounds was wrong.
func TestReaches(t *testing.T) {
	for name, x := range map[string]struct {
		way         reachingWay
		none        bool
		fetch, does string // what Fetch and Store have it do
		want        error
		fetched     error
		lost        bool
	}{
		"it does":            {reachingWay{does: true}, false, "f", "sS", nil, nil, false},
		"it does not":        {reachingWay{}, false, "", "", frame.ErrUnreached, frame.ErrUnreached, false},
		"there is none":      {reachingWay{does: true}, true, "", "", frame.ErrUnreached, frame.ErrUnreached, false},
		"it fails":           {reachingWay{does: true, fails: errTest}, false, "f", "s", frame.ErrUnreached, frame.ErrUnreached, true},
		"it does not settle": {reachingWay{does: true, settles: errTest}, false, "f", "sS", frame.ErrUnreached, nil, true},
		"out of bounds":      {reachingWay{does: true, fails: remote.ErrOutOfBounds}, false, "f", "s", remote.ErrOutOfBounds, remote.ErrOutOfBounds, false},
	} {
		for _, store := range []bool{false, true} {
			c, w := bareConn(digest{}, minute), x.way
			w.fakeWay = newWay()
			if !x.none {
				c.up = &w
			}
			want, does, lost := x.fetched, x.fetch, x.lost && x.fetched != nil
			var err error
			if store {
				want, does, lost = x.want, x.does, x.lost
				err = c.Store(nil, frame.Granted{}, 0)
			} else {
				err = c.Fetch(nil, frame.Granted{}, 0)
			}
			if !errors.Is(err, want) || (err == nil) != (want == nil) || string(w.did) != does || (c.timer != nil) != lost || lost && (c.up != nil || w.counts() != [2]int{1, 0} || !errors.Is(err, errTest)) {
				t.Errorf("%s, store %v: %v, %s, lost: %v", name, store, err, w.did, c.timer != nil)
			}
			c.end(ErrLost)
		}
	}
	c := bareConn(digest{}, minute)
	c.up = newWay() // which can reach nothing
	if err := c.Fetch(nil, frame.Granted{}, 0); !errors.Is(err, frame.ErrUnreached) {
		t.Error(err)
	}
	c.end(ErrLost)
}

// TestLifted: what a stream can is what its first way can; another connection is agreed on anew,
// and ended where it cannot be gone on over.
func TestLifted(t *testing.T) {
	for _, x := range []struct {
		way             Way
		reaches, grants bool
	}{{nil, false, false}, {newWay(), false, false}, {&reachingWay{}, false, false}, {&reachingWay{does: true}, true, false}, {&reachingWay{grants: true}, false, true}} {
		c := &Conn{lift: Lifted{Way: x.way}}
		if c.Reaches() != x.reaches || c.Grants() != x.grants {
			t.Errorf("%T: %v %v", x.way, c.Reaches(), c.Grants())
		}
	}
	for name, x := range map[string]struct {
		set    func(c *Conn)
		agrees error
		want   error
		aborts int
	}{
		"it is":          {func(*Conn) {}, nil, nil, 0},
		"not agreed":     {func(*Conn) {}, errTest, errTest, 0},
		"not to be used": {func(c *Conn) { c.err = ErrGone }, nil, ErrGone, 1},
	} {
		c, up := bareConn(digest{}, minute), newWay()
		c.lift = Lifted{Way: newWay(), Again: func(context.Context, *frame.Secure) (Way, error) { return up, x.agrees }}
		x.set(c)
		if err := c.goOver(nil, 0, 0); !errors.Is(err, x.want) || up.aborts != x.aborts || (c.up != nil) != (x.want == nil) {
			t.Errorf("%s: %v, ended %d times", name, err, up.aborts)
		}
		c.err = nil
		c.end(ErrLost)
	}
}

// TestLeavesWhole: what goes by one of several connections, 256 KiB of a copy with the heads of its
// frames, leaves at once: an end that is left over is a write, a record and a wake-up of its own.
func TestLeavesWhole(t *testing.T) {
	for name, bytes := range map[string]uint64{
		"a READ's answer, in two frames": 256<<10 + 2*frame.HeaderSize,
		"a WRITE":                        256<<10 + frame.HeaderSize + frame.ExtentSize,
	} {
		c := bareConn(digest{}, minute)
		c.up = newWay()
		c.kept.added(c.kept.grow(nil, int(bytes)), true)
		c.mu.Lock()
		c.sendLocked(1)
		if c.sent != bytes {
			t.Errorf("%s: %d of %d bytes", name, c.sent, bytes)
		}
		c.mu.Unlock()
		c.end(ErrLost)
	}
}

// TestSends: all that is kept leaves, up to where somebody asked; what came meanwhile is for the
// routine, and who waits for room or for a hold is told. Where it does not leave it stays kept.
func TestSends(t *testing.T) {
	made := func(bytes int) (*Conn, *fakeWay) {
		c, up := bareConn(digest{}, minute), newWay()
		c.up = up
		c.kept.added(c.kept.grow(nil, bytes), true)
		return c, up
	}
	send := func(c *Conn, to uint64) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sendLocked(to)
	}
	c, up := made(3*batch + 5)
	if send(c, 1); c.sent != batch || !poked(c.due) || c.sending {
		t.Errorf("up to 1: %d bytes", c.sent)
	}
	if send(c, batch+1); c.sent != 2*batch || !poked(c.due) {
		t.Errorf("up to one more: %d bytes", c.sent)
	}
	if send(c, ^uint64(0)); c.sent != 3*batch+5 || poked(c.due) || len(up.sent) != 3*batch+5 || c.kept.pin != noPin {
		t.Errorf("all: %d bytes", c.sent)
	}
	c.got, c.told = ackEach, 0 // five bytes of a header have left, and the rest is not there
	if send(c, ^uint64(0)); c.told != 0 || len(up.sent) != 3*batch+5 {
		t.Errorf("within a frame %d bytes are said to have come", c.told)
	}

	c, up = made(0)
	c.got = ackEach
	if send(c, 0); c.told != ackEach || !bytes.Equal(up.sent, frame.Header{Kind: frame.Ack, Arg: ackEach}.Append(nil)) || poked(c.due) {
		t.Errorf("%d bytes are said to have come", c.told)
	}
	c.got = 2*ackEach - 1
	if send(c, 0); c.told != ackEach {
		t.Error("less than is worth it is said")
	}
	c.got++
	c.hold = hold{on: true, tells: true}
	if send(c, 0); !c.hold.told || c.told != ackEach || !poked(c.due) {
		t.Errorf("%+v, %d", c.hold, c.told)
	}

	c, up = made(100)
	up.fail = errTest
	if send(c, 100); c.mute != up || c.sending || c.kept.size() != 100 || c.kept.pin != noPin {
		t.Errorf("%d bytes stay", c.kept.size())
	}
	c.end(ErrLost)

	c, up = made(100)
	c.sending = true // by another
	if send(c, 100); len(up.sent) != 0 || !c.sending {
		t.Error("two send at a time")
	}
}

// TestBegins: a stream begins over its first connection, or over what was agreed on inside of it,
// with its budget; what has no room is ended.
func TestBegins(t *testing.T) {
	first := func() *frame.Secure {
		k := newKeys(t)
		near, far := pair(t)
		go func() { _, _ = frame.Server(context.Background(), far, k.server) }()
		s, err := frame.Client(context.Background(), near, k.client)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Abort)
		return s
	}
	s := first()
	room, none := &budget{limit: 1 << 30}, &budget{}
	dials := make(chan error, 1)
	var dial Dialer = func(_ context.Context, why error) (net.Conn, error) {
		dials <- why
		return nil, ErrGone
	}
	for _, x := range []struct {
		over, client bool
		b            *budget
	}{{false, true, room}, {true, true, room}, {false, false, room}, {true, false, room}, {true, true, none}, {true, false, none}} {
		way := newWay()
		l, want := Lifted{}, Way(s)
		if x.over {
			l.Way, want = way, way
		}
		var c *Conn
		var err error
		if x.client {
			c, err = NewClientOver(s, l, nil, dial, x.b)
		} else {
			c, err = NewServerOver(s, l, x.b)
		}
		if x.b == none {
			if c != nil || !errors.Is(err, ErrBudget) || way.counts() != [2]int{1, 0} || none.used() != 0 {
				t.Errorf("%+v: %v, %v", x, err, way.counts())
			}
			continue
		}
		if err != nil || c.up != want || c.lift.Way != l.Way || c.branches.kept != Budget(room) || room.used() != keptLeast*keptChunk || c.client != x.client || c.limit != Limit {
			t.Errorf("%+v: over %T, %v", x, c.up, err)
		}
		if c.SetLimit(minute); c.limit != minute || c.now != minute {
			t.Errorf("it waits for %v, %v", c.limit, c.now)
		}
		if !x.over {
			c.mu.Lock()
			c.up = way // the other is used again
			c.mu.Unlock()
		}
		if x.client {
			c.broken(way, errTest)
			if why := <-dials; !errors.Is(why, errTest) {
				t.Error(why)
			}
			<-c.ctx.Done()
		} else {
			c.end(errTest)
		}
		if room.used() != 0 {
			t.Errorf("%d bytes stay booked", room.used())
		}
	}
}

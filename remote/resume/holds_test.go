package resume

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// TestHolds: the server is told once that a stream is held, over the connection that there is or
// comes soon; what is not told is an error, whose cause is not waited for in vain.
func TestHolds(t *testing.T) {
	said := frame.Header{Kind: frame.Hold}.Append(nil)
	for name, x := range map[string]struct {
		set   func(c *Conn, up *fakeWay)
		later func(c *Conn, up *fakeWay) // while it waits; nil: it does not
		told  bool
		want  error
	}{
		"there is one":  {func(c *Conn, up *fakeWay) { c.up = up }, nil, true, nil},
		"told already":  {func(c *Conn, up *fakeWay) { c.up, c.hold = up, hold{on: true, told: true} }, nil, true, nil},
		"it has ended":  {func(c *Conn, up *fakeWay) { c.up, c.err = up, errTest }, nil, false, errTest},
		"it ends":       {func(*Conn, *fakeWay) {}, func(c *Conn, _ *fakeWay) { c.endLocked(errTest) }, false, errTest},
		"one comes":     {func(*Conn, *fakeWay) {}, func(c *Conn, up *fakeWay) { c.up = up }, true, nil},
		"none comes":    {func(*Conn, *fakeWay) {}, func(*Conn, *fakeWay) {}, false, ErrLost},
		"takes nothing": {func(c *Conn, up *fakeWay) { c.up = up; up.fail = errTest }, nil, false, errAny},
		"is lost": {func(c *Conn, up *fakeWay) { c.up, c.sending = up, true }, func(c *Conn, _ *fakeWay) {
			c.hold.tells, c.hold.told, c.sending = false, true, false
			c.loseLocked(errTest)
		}, false, errAny},
		"is lost untold": {func(c *Conn, up *fakeWay) { c.up, c.sending = up, true }, func(c *Conn, _ *fakeWay) {
			c.sending = false
			c.loseLocked(errTest)
		}, false, errAny},
		"takes nothing more": {func(c *Conn, up *fakeWay) { c.up, c.sending = up, true }, func(c *Conn, up *fakeWay) { c.sending, c.mute = false, up }, false, errAny},
		"ends meanwhile":     {func(c *Conn, up *fakeWay) { c.up, c.sending = up, true }, func(c *Conn, _ *fakeWay) { c.endLocked(errTest) }, false, errTest},
		"behind another": {func(c *Conn, up *fakeWay) { c.up, c.sending = up, true }, func(c *Conn, _ *fakeWay) {
			c.sending = false
			c.poke()
		}, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, up := bareConn(digest{}, minute), newWay()
				go c.routineSend()
				c.client = true
				before := time.AfterFunc(minute, func() { t.Error("it ends while it is held") })
				c.timer = before
				x.set(c, up)
				begin := time.Now()
				var err error
				ended := away(func() { err = c.Hold() })
				if is := ended(); is != (x.later == nil) {
					t.Fatalf("it has ended: %v, %v", is, err)
				}
				if x.later != nil {
					time.Sleep(holdPatience / 2)
					c.mu.Lock()
					x.later(c, up)
					c.changed.Broadcast()
					c.mu.Unlock()
					if !ended() {
						time.Sleep(holdPatience / 2)
					}
				}
				if !ended() || time.Since(begin) > holdPatience {
					t.Fatal("it waits for more than it can have")
				}
				c.mu.Lock()
				if (err != nil) != (x.want != nil) || x.want != nil && x.want != errAny && !errors.Is(err, x.want) || c.hold.told != x.told || c.err == nil && c.hold.tells {
					t.Errorf("%v; %+v", err, c.hold)
				}
				if c.err == nil && name != "told already" && (!c.hold.on || c.timer != nil) {
					t.Errorf("it does not stand still: %+v %v", c.hold, c.timer)
				}
				up.mu.Lock()
				if n := bytes.Count(up.sent, said); x.told && n > 1 || !x.told && x.want == ErrLost && n > 0 || name == "told already" && n > 0 {
					t.Errorf("it is told %d times", n)
				}
				if x.told && name != "told already" && !up.deadline.Before(time.Now()) {
					t.Error("who reads is not told")
				}
				up.mu.Unlock()
				ends := c.err
				c.mu.Unlock()
				if ends == nil {
					before.Stop()
					time.Sleep(2 * minute) // no clock of its runs
					synctest.Wait()
					if c.ended() != nil {
						t.Error(c.ended())
					}
				}
				c.end(ErrLost)
				c.cancel()
				before.Stop()
			})
		})
	}
}

// TestHoldGivesUp: a connection that takes nothing more is not waited for for ever.
func TestHoldGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bareConn(digest{}, minute)
		c.up = newWay() // nobody sends
		var err error
		ended := away(func() { err = c.Hold() })
		time.Sleep(holdPeriod - 1)
		if ended() {
			t.Error(err)
		}
		time.Sleep(time.Nanosecond)
		if !ended() || err == nil || c.hold.told || c.hold.tells || !c.hold.on {
			t.Errorf("%v, %+v", err, c.hold)
		}
	})
}

// TestReleases: what is held goes on over another connection, its branches as well; what is not
// held, or has ended, is left alone.
func TestReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, up := bareConn(digest{}, minute), newWay()
		b, err := c.bareBranch(0)
		if err != nil {
			t.Fatal(err)
		}
		c.branches.list[0] = b
		for _, s := range []*Conn{c, b} {
			s.up = up
			if s.Release(); s.up != up || poked(s.lost) {
				t.Error("what is not held is released")
			}
			s.hold, s.err = hold{on: true, told: true}, errTest
			if s.Release(); s.up != up || poked(s.lost) || !s.hold.on {
				t.Error("what has ended is released")
			}
			s.err = nil
		}
		c.Release()
		for _, s := range []*Conn{c, b} {
			if s.hold != (hold{}) || s.up != nil || !poked(s.lost) || s.timer == nil || !errors.Is(s.why, ErrHeld) {
				t.Errorf("%+v, %v", s.hold, s.why)
			}
		}
		if n := up.counts(); n != [2]int{2, 0} {
			t.Errorf("the connections that they had are ended: %v", n)
		}
		c.hold.on, c.up = true, nil
		c.Release()
		c.end(ErrLost)
		synctest.Wait()
	})
}

// TestStands: what stands still without its server's knowledge waits for nothing, and keeps its
// state if it stood before.
func TestStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, up := bareConn(digest{}, minute), newWay()
		c.up = up
		c.timer = time.AfterFunc(minute, func() { t.Error("its clock runs") })
		c.hold = hold{on: true, told: true}
		if c.stand(); !c.hold.told || !up.deadline.IsZero() {
			t.Error("what is held is held again")
		}
		c.hold, c.err = hold{}, errTest
		if c.stand(); c.hold.on || !up.deadline.IsZero() {
			t.Error("what has ended stands")
		}
		c.err = nil
		c.kept.end = c.window
		waits := away(func() { _, _ = c.Write(make([]byte, 10)) })
		if waits() {
			t.Error("there is room")
		}
		if c.stand(); c.hold != (hold{on: true}) || !up.deadline.Before(time.Now()) || c.timer != nil || !waits() {
			t.Errorf("%+v, %v", c.hold, up.deadline)
		}
		time.Sleep(2 * minute)
		c.hold, c.up = hold{}, nil
		c.stand()
		if !c.hold.on {
			t.Error("without a connection it does not stand")
		}
		c.end(ErrLost)
	})
}

// TestExports: only what is held, told, at rest and between two frames is described.
func TestExports(t *testing.T) {
	for name, set := range map[string]func(c *Conn){
		"held":             func(*Conn) {},
		"not told":         func(c *Conn) { c.hold.told = false },
		"somebody sends":   func(c *Conn) { c.sending = true },
		"within a frame":   func(c *Conn) { c.out.left = 1 },
		"within a header":  func(c *Conn) { c.out.have = 1 },
		"ended":            func(c *Conn) { c.err = errTest },
		"a branch is none": func(c *Conn) { c.branches.list[0] = bareConn(digest{}, minute) },
	} {
		c := bareConn(digest{7}, minute)
		c.hold = hold{on: true, told: true}
		c.attempt, c.got, c.frames.left, c.reached = 3, 4, 5, 2
		c.kept.added(c.kept.grow(nil, 2*keptChunk), true)
		c.kept.drop(1)
		set(c)
		s, err := c.Export()
		if (err == nil) != (name == "held") {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (s.Secret != digest{7} || s.Attempt != 3 || s.Got != 4 || s.Left != 5 || len(s.Head) != 0 || s.Start != 1 || len(s.Kept) != 2*keptChunk-1 || s.Reached != 2 || c.kept.pin != noPin) {
			t.Errorf("%+v", s)
		}
		c.end(ErrLost)
	}
}

// TestStateBounds: what can be a stream is one, up to each of its bounds.
func TestStateBounds(t *testing.T) {
	const window = 100
	for name, x := range map[string]struct {
		s  State
		ok bool
	}{
		"nothing":             {State{}, true},
		"all kept":            {State{Start: 5, Kept: make([]byte, mostKept*window), Reached: 5}, true},
		"one byte more":       {State{Start: 5, Kept: make([]byte, mostKept*window+1), Reached: 5}, false},
		"all sent":            {State{Start: 5, Kept: make([]byte, 9), Reached: 14}, true},
		"more":                {State{Start: 5, Kept: make([]byte, 9), Reached: 15}, false},
		"less":                {State{Start: 5, Kept: make([]byte, 9), Reached: 4}, false},
		"to the end":          {State{Start: ^uint64(0) - 9, Kept: make([]byte, 9), Reached: ^uint64(0) - 9}, true},
		"beyond it":           {State{Start: ^uint64(0) - 9, Kept: make([]byte, 11), Reached: ^uint64(0)}, false},
		"most of a header":    {State{Head: make([]byte, frame.HeaderSize-1)}, true},
		"a whole one":         {State{Head: make([]byte, frame.HeaderSize)}, false},
		"a frame's last byte": {State{Left: 1}, true},
		"a whole frame":       {State{Left: frame.Max}, true},
		"more than one":       {State{Left: frame.Max + 1}, false},
		"a byte and a header": {State{Left: 1, Head: make([]byte, 1)}, false},
		"the last move":       {State{Attempt: mostMoves<<moveShift - 1}, true},
		"one more":            {State{Attempt: mostMoves << moveShift}, false},
	} {
		if err := x.s.check(window); (err == nil) != x.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAdoptsState: what was described is what goes on, in all it knows; the attempts to come are
// later than any of before.
func TestAdoptsState(t *testing.T) {
	c := bareConn(digest{}, minute)
	defer c.end(ErrLost)
	kept := append(frame.Header{Kind: frame.Data, Len: 4}.Append(nil), "abcd"...)
	kept = append(kept, frame.Header{Kind: frame.Data, Len: 100}.Append(nil)...)
	kept = append(kept, "begun"...)
	s := State{Attempt: 5<<moveShift + 17, Got: 30, Head: []byte{1, 2, 3}, Start: 1000, Kept: kept, Reached: 1020}
	if err := c.adoptState(s); err != nil {
		t.Fatal(err)
	}
	again, _ := c.kept.take(nil, 1000, c.kept.size())
	c.kept.pin = noPin
	if c.hold != (hold{on: true, told: true}) || c.attempt != 6<<moveShift || c.got != 30 || c.frames.have != 3 || !bytes.Equal(c.frames.head[:3], s.Head) || c.frames.left != 0 ||
		c.kept.start != 1000 || c.kept.end != 1000+uint64(len(kept)) || c.sent != 1020 || c.reached != 1020 || !bytes.Equal(bytes.Join(again, nil), kept) || c.wrote.rest() != 95 || !c.out.whole() {
		t.Errorf("%+v, attempt %#x, got %d, %d bytes from %d, of a frame %d", c.hold, c.attempt, c.got, c.kept.size(), c.kept.start, c.wrote.rest())
	}
	for _, h := range []frame.Header{{Kind: frame.Hold, Len: 2}, {Kind: frame.Hold, Flags: 2}, {Kind: frame.Hold, Arg: 2}} {
		if err := c.longer(h); !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("%+v: %v", h, err)
		}
	}
	c.from = newWay()
	if err := c.longer(frame.Header{Kind: frame.Hold}); err != nil || c.now != c.limit {
		t.Errorf("for what came by a connection that is lost it waits for %v, %v", c.now, err)
	}
	c.from, c.limit = nil, 2*HoldLimit
	if err := c.longer(frame.Header{Kind: frame.Hold}); err != nil || c.now != c.limit {
		t.Errorf("it waits for %v, %v", c.now, err)
	}
}

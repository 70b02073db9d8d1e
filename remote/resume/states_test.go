package resume

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"causeway/remote"
)

var errTest = errors.New("of the test")

// TestLosses: a connection that is lost is looked for again, from then on for as long as the stream
// may be without one; one that is lost again has no more time, one that is held none is looked for.
func TestLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, up := bareConn(digest{}, minute), newWay()
		c.up = up
		c.broken(newWay(), errTest) // another's
		if c.up != up || poked(c.lost) || c.timer != nil {
			t.Error("another connection's loss is this one's")
		}
		c.broken(up, errTest)
		if c.up != nil || !poked(c.lost) || c.timer == nil || !errors.Is(c.why, errTest) || up.counts() != [2]int{1, 0} {
			t.Errorf("lost: %+v, for %v, %v", up.counts(), c.why, c.timer)
		}
		timer := c.timer
		c.overdueSoon(t, minute-1, false)
		c.mu.Lock()
		c.loseLocked(ErrFresh)
		c.mu.Unlock()
		if c.timer != timer || !poked(c.lost) {
			t.Error("a loss begins anew, or is not heard of")
		}
		c.overdueSoon(t, 1, true)
		if !errors.Is(c.err, ErrFresh) || !errors.Is(c.err, ErrLost) {
			t.Error(c.err)
		}

		c = bareConn(digest{}, minute)
		c.up, c.hold.on = up, true
		c.loseLocked(errTest)
		if c.up != nil || c.timer != nil || poked(c.lost) {
			t.Error("for what is held another connection is looked for")
		}
		c.hold.on, c.up = false, up
		c.overdue(c.losses) // which came too late to be stopped
		c.up = nil
		c.overdue(c.losses)
		if c.err != nil {
			t.Error(c.err)
		}
		c.loseLocked(errTest)
		if c.overdue(c.losses - 1); c.err != nil { // also for the next loss
			t.Error(c.err)
		}
		c.stopTimerLocked()
		c.err = errTest
		c.up = up
		if c.broken(up, ErrLost); c.up != up || c.timer != nil {
			t.Error("what has ended loses its connection")
		}
	})
}

// overdueSoon has time pass, and reports an error if the stream has not ended, or has, by then.
func (c *Conn) overdueSoon(t *testing.T, d time.Duration, ended bool) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	if (c.ended() != nil) != ended {
		t.Errorf("after %v: %v", d, c.ended())
	}
}

// TestAdopts: a stream without a connection goes on over another whose other end has what it can
// have, and has all the time again; who waits is told. None other does, and then nothing has
// changed.
func TestAdopts(t *testing.T) {
	for name, x := range map[string]struct {
		set      func(c *Conn)
		received uint64
		want     error
	}{
		"the least":      {func(*Conn) {}, 100, nil},
		"the most":       {func(*Conn) {}, 150, nil},
		"less":           {func(*Conn) {}, 99, remote.ErrProtocol},
		"more":           {func(*Conn) {}, 151, remote.ErrProtocol},
		"ended":          {func(c *Conn) { c.err = errTest }, 100, errTest},
		"held":           {func(c *Conn) { c.hold.on = true }, 100, ErrHeld},
		"earlier":        {func(c *Conn) { c.attempt++ }, 100, errNewer},
		"earlier, less":  {func(c *Conn) { c.attempt++ }, 99, errNewer},
		"there is one":   {func(c *Conn) { c.up = newWay() }, 100, errAny},
		"of both, ended": {func(c *Conn) { c.err = errTest; c.hold.on = true; c.up = newWay() }, 100, errTest},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, up := bareConn(digest{}, minute), newWay()
				c.attempt, c.kept.start, c.reached, c.kept.end, c.got, c.sent, c.now = 7, 100, 150, 300, 70, 140, HoldLimit
				c.loseLocked(errTest)
				x.set(c)
				was := c.up
				waiting := false
				ended := away(func() {
					c.mu.Lock()
					defer c.mu.Unlock()
					waiting = true
					c.changed.Wait()
				})
				if ended() || !waiting {
					t.Fatal("nobody waits")
				}
				err := c.adopt(up, 7, x.received)
				if x.want != nil {
					if err == nil || x.want != errAny && !errors.Is(err, x.want) || c.up != was || c.timer == nil || c.sent != 140 || c.kept.start != 100 || poked(c.due) {
						t.Errorf("%v; the connection is %v", err, c.up)
					}
					c.end(ErrLost)
					c.changed.Broadcast()
					c.timer.Stop()
					ended()
					return
				}
				if err != nil || c.up != up || c.sent != x.received || c.kept.start != x.received || c.told != 70 || c.now != minute || c.timer != nil || !poked(c.due) || !ended() {
					t.Errorf("%v: sent %d, told %d, for %v", err, c.sent, c.told, c.now)
				}
				c.overdueSoon(t, HoldLimit, false)
				c.end(ErrLost)
			})
		})
	}
}

var errAny = errors.New("any")

// TestEndsOnce: what ends a stream the first time is what it ended for; its connection, those that
// shake hands, its clock, its budget and who waits hear of it.
func TestEndsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, up, b := bareConn(digest{}, minute), newWay(), &budget{limit: 1 << 30}
		if err := c.kept.begin(b); err != nil {
			t.Fatal(err)
		}
		shakes := newWay()
		c.up, c.pending, c.timer = up, []net.Conn{shakes}, time.AfterFunc(minute, func() { t.Error("its clock runs still") })
		c.mute = up
		waits := away(func() { _ = c.Ready(t.Context()) })
		if waits() {
			t.Error("it is ready")
		}
		c.end(errTest)
		c.end(ErrLost)
		if !errors.Is(c.ended(), errTest) || up.counts() != [2]int{1, 0} || shakes.counts() != [2]int{0, 1} || b.used() != 0 || c.ctx.Err() == nil || !waits() {
			t.Errorf("%v: %v %v, %d bytes are booked, %v", c.ended(), up.counts(), shakes.counts(), b.used(), c.ctx.Err())
		}
		time.Sleep(2 * minute)
	})
}

// TestTakesNothing: a connection that takes nothing more is not written to, and read for a while;
// one of the past changes nothing, nor does the same word again.
func TestTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, up := bareConn(digest{}, minute), newWay()
		c.up = up
		c.unwritable(newWay(), errTest)
		if c.mute != nil || c.writableLocked() != up {
			t.Error("of another connection")
		}
		c.unwritable(up, errTest)
		time.Sleep(readable / 2)
		c.unwritable(up, ErrLost)
		c.mu.Lock()
		if c.writableLocked() != nil || c.up != up {
			t.Errorf("it is written to: %v", c.up)
		}
		c.mu.Unlock()
		time.Sleep(readable / 2)
		synctest.Wait()
		if c.mu.Lock(); c.up != nil || !errors.Is(c.why, errTest) {
			t.Errorf("it is read still, or was lost for another reason: %v", c.why)
		}
		c.mu.Unlock()
		time.Sleep(readable) // of the second word
		synctest.Wait()
		if n := up.counts(); n != [2]int{1, 0} {
			t.Errorf("it is ended %v times", n)
		}
		c.end(errTest)
		c.up, c.mute = up, nil
		if c.unwritable(up, errTest); c.mute != nil {
			t.Error("of a stream that has ended")
		}
	})
	for name, x := range map[string]struct {
		c    *Conn
		want bool
	}{
		"none":           {&Conn{}, false},
		"one":            {&Conn{up: newWay()}, true},
		"held":           {&Conn{up: newWay(), hold: hold{on: true}}, false},
		"held, and told": {&Conn{up: newWay(), hold: hold{on: true, told: true}}, false},
		"held, to tell":  {&Conn{up: newWay(), hold: hold{on: true, tells: true}}, true},
		"tells nothing":  {&Conn{up: newWay(), hold: hold{tells: true}}, true},
	} {
		if up := x.c.writableLocked(); (up != nil) != x.want {
			t.Errorf("%s: %v", name, up)
		}
	}
}

// TestSettles: who ends a stream waits until what was written has left, a client also for a
// connection, and neither for longer than a goodbye may take, or for what stands still or has
// ended.
func TestSettles(t *testing.T) {
	for name, x := range map[string]struct {
		set  func(c *Conn)
		then func(c *Conn) // after half of the time; nil: nothing is waited for
		goes bool          // then it does not wait for the rest of it
	}{
		"all has left":           {func(c *Conn) { c.up, c.sent = newWay(), 100 }, nil, true},
		"more than all":          {func(c *Conn) { c.up, c.sent = newWay(), 101 }, nil, true},
		"a byte has not":         {func(c *Conn) { c.up, c.sent = newWay(), 99 }, func(c *Conn) { c.sent++ }, true},
		"what came behind":       {func(c *Conn) { c.up, c.sent = newWay(), 99 }, func(c *Conn) { c.sent++; c.kept.end++ }, true},
		"it never leaves":        {func(c *Conn) { c.up, c.sent = newWay(), 99 }, func(*Conn) {}, false},
		"a server without":       {func(*Conn) {}, nil, true},
		"a server's is lost":     {func(c *Conn) { c.up = newWay() }, func(c *Conn) { c.up = nil }, true},
		"a client without":       {func(c *Conn) { c.client = true }, func(c *Conn) { c.up, c.sent = newWay(), 100 }, true},
		"a client's comes again": {func(c *Conn) { c.client = true; c.sent = 100 }, func(c *Conn) { c.up = newWay() }, true},
		"a client's is awaited":  {func(c *Conn) { c.client = true; c.sent = 100 }, func(c *Conn) {}, false},
		"ended":                  {func(c *Conn) { c.client = true; c.err = errTest }, nil, true},
		"ends":                   {func(c *Conn) { c.client = true }, func(c *Conn) { c.err = errTest }, true},
		"held":                   {func(c *Conn) { c.client = true; c.hold.on = true }, nil, true},
		"is held":                {func(c *Conn) { c.client = true }, func(c *Conn) { c.hold.on = true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := bareConn(digest{}, minute)
				c.kept.end = 100
				x.set(c)
				begin := time.Now()
				ended := away(func() {
					c.mu.Lock()
					defer c.mu.Unlock()
					c.settleLocked()
				})
				if is := ended(); is != (x.then == nil) {
					t.Fatalf("it waits: %v", !is)
				}
				if x.then == nil {
					return
				}
				time.Sleep(goodbyeLimit / 2)
				c.mu.Lock()
				x.then(c)
				c.changed.Broadcast()
				c.mu.Unlock()
				if ended() != x.goes {
					t.Errorf("it waits: %v", x.goes)
				}
				time.Sleep(goodbyeLimit / 2)
				if !ended() {
					t.Errorf("after %v", time.Since(begin))
				}
			})
		})
	}
}

// TestCloses: the other end hears that a stream ends, but not of one that is held, which another
// process may go on with; its branches end with it.
func TestCloses(t *testing.T) {
	for name, x := range map[string]struct {
		held bool
		want [2]int
	}{"in order": {false, [2]int{0, 1}}, "held": {true, [2]int{1, 0}}} {
		synctest.Test(t, func(t *testing.T) {
			c, up := bareConn(digest{}, minute), newWay()
			b, err := c.bareBranch(0)
			if err != nil {
				t.Fatal(err)
			}
			c.branches.list[2], b.branches.fresh = b, false
			c.up, c.hold.on = up, x.held
			if err := c.Close(); err != nil || up.counts() != x.want || !errors.Is(c.ended(), net.ErrClosed) || !errors.Is(b.ended(), net.ErrClosed) {
				t.Errorf("%s: %v, %v, %v", name, err, up.counts(), b.ended())
			}
			if err := c.Close(); err != nil || up.counts() != x.want {
				t.Errorf("%s, again: %v, %v", name, err, up.counts())
			}
		})
	}
}

// TestCloseAwaitsBranches: what was given to branches leaves before they end, where they have a
// connection that takes it.
func TestCloseAwaitsBranches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bareConn(digest{}, minute)
		c.up = newWay()
		var list []*Conn
		for n := range 2 {
			b, err := c.bareBranch(n)
			if err != nil {
				t.Fatal(err)
			}
			b.client, b.kept.end, c.branches.list[n] = true, 100, b
			list = append(list, b)
		}
		list[1].up = newWay() // the first has none
		begin := time.Now()
		ended := away(func() { _ = c.Close() })
		if ended() || list[1].ended() != nil {
			t.Error("nobody waits for what a branch has to send")
		}
		list[1].mu.Lock()
		list[1].sent = 100
		list[1].changed.Broadcast()
		list[1].mu.Unlock()
		if !ended() || time.Since(begin) != 0 {
			t.Errorf("it waits for more: %v", time.Since(begin))
		}
	})
}

// TestReadDeadline: it is of whichever connection there is, and of those that come.
func TestReadDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, up := bareConn(digest{}, minute), newWay()
		at := time.Now().Add(time.Hour)
		if err := c.SetReadDeadline(at); err != nil || c.until != at {
			t.Error(err)
		}
		c.up = up
		if err := c.await(); err != nil || up.deadline != at {
			t.Errorf("%v: %v", err, up.deadline)
		}
		if err := c.SetReadDeadline(at.Add(1)); err != nil || up.deadline != at.Add(1) {
			t.Errorf("%v: %v", err, up.deadline)
		}
		if c.expired() {
			t.Error("it has come")
		}
		time.Sleep(time.Hour)
		if c.expired() {
			t.Error("it has come before its time")
		}
		time.Sleep(time.Nanosecond)
		if !c.expired() {
			t.Error("it has not come in time")
		}
		if err := c.Ready(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

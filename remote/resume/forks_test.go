package resume

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"causeway/remote/frame"
)

// TestBranchBegins: a branch is its trunk's in all it has, and is lost from its beginning; of a
// trunk that stands still or has ended, or in a budget without room, none begins.
func TestBranchBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, tight := bareConn(digest{5}, minute), &budget{limit: 2*keptLeast*keptChunk - 1}
		c.client, c.patient, c.branches.kept = true, 7*time.Second, tight
		dials := make(chan error, 8)
		c.branches.dial = func(ctx context.Context, why error) (net.Conn, error) {
			dials <- why
			<-ctx.Done()
			return nil, ctx.Err()
		}
		list, err := c.Branch(MostBranches + 1)
		if len(list) != 1 || !errors.Is(err, ErrBudget) {
			t.Fatalf("%d branches, %v", len(list), err)
		}
		synctest.Wait()
		if len(dials) != 0 {
			t.Error("a branch makes a connection before its trunk has one")
		}
		for n, b := range list {
			b := b.(*Conn)
			b.mu.Lock()
			if b != c.branches.list[n] || b.trunk != c || !b.client || b.window != BranchWindow || b.patient != 7*time.Second || b.limit != time.Duration(branchPatience)*minute || b.now != branchFirst*minute ||
				b.branches.n != n || !b.branches.fresh || b.secret != branchSecret(digest{5}, n) || b.timer == nil || !errors.Is(b.why, ErrFresh) {
				t.Errorf("branch %d is %d, for %v of %v, for %v", n, b.branches.n, b.now, b.limit, b.why)
			}
			b.mu.Unlock()
		}
		c.mu.Lock()
		c.up = newWay()
		c.changed.Broadcast()
		c.mu.Unlock()
		synctest.Wait()
		if len(dials) != 1 || !errors.Is(<-dials, ErrFresh) {
			t.Error("the branch makes no connection")
		}
		c.end(errTest)
		synctest.Wait()
		for _, b := range list {
			if err := b.(*Conn).ended(); !errors.Is(err, errTest) {
				t.Errorf("a branch goes on without its trunk: %v", err)
			}
		}
		if tight.used() != 0 {
			t.Errorf("%d bytes stay booked", tight.used())
		}
		tight.limit = 1 << 30
		if list, err := c.Branch(2); len(list) != 0 || !errors.Is(err, ErrHeld) || tight.used() != 0 {
			t.Errorf("of what has ended %d begin: %v, %d bytes are booked", len(list), err, tight.used())
		}
	})
}

// TestServersBranches: the server has as many branches as it takes, each of them once, whose first
// connection alone is told.
func TestServersBranches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bareConn(digest{5}, minute)
		var begun []int
		var last frame.Branch
		if _, err := c.branch(0); !errors.Is(err, ErrBranch) {
			t.Error(err)
		}
		c.TakeBranches(MostBranches+5, nil)
		if c.branches.most != MostBranches {
			t.Errorf("%d are taken", c.branches.most)
		}
		c.TakeBranches(2, func(n int, b frame.Branch) { begun, last = append(begun, n), b })
		if _, err := c.branch(2); !errors.Is(err, ErrBranch) {
			t.Error(err)
		}
		b, err := c.branch(1)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := c.branch(1); err != nil || again != b {
			t.Errorf("it begins twice: %v", err)
		}
		synctest.Wait()
		if len(begun) != 0 {
			t.Error("it is told before it has a connection")
		}
		for range 2 {
			b.mu.Lock()
			b.up = nil
			b.mu.Unlock()
			if err := b.adopt(newWay(), 0, 0); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		if len(begun) != 1 || begun[0] != 1 || last != frame.Branch(b) || b.branches.fresh {
			t.Errorf("told: %v", begun)
		}
		if b.kept.added(b.kept.grow(nil, 5), true); b.Backlog() != 5 {
			t.Errorf("%d bytes wait", b.Backlog())
		}
		b.poke() // somebody sends what is kept
		synctest.Wait()
		if b.mu.Lock(); b.sent != 5 {
			t.Errorf("%d bytes are sent", b.sent)
		}
		b.mu.Unlock()
		if b.Backlog() != 0 {
			t.Errorf("%d bytes wait", b.Backlog())
		}
		plain := bareConn(digest{}, minute)
		if plain.Backlog() != frame.Away {
			t.Error("without a connection it can send")
		}
		plain.branches.fresh = true
		if plain.connectedLocked(); !plain.branches.fresh {
			t.Error("a trunk is told of as a branch")
		}
		far := greeting{Attempt: 1}
		for _, x := range []struct {
			secret digest
			want   *Conn
		}{{c.secret, c}, {branchSecret(c.secret, 1), b}, {branchSecret(c.secret, 7), nil}, {digest{9}, nil}} {
			far.Proof = far.proof(x.secret, digest{1}, fromClient)
			if got, err := c.shown(far, digest{1}); got != x.want || (err == nil) != (got != nil) {
				t.Errorf("%v, %v", got == x.want, err)
			}
		}
		c.end(errTest)
		if _, err := c.branch(0); !errors.Is(err, errTest) {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// TestEndsWithABranch: a trunk ends with a branch that was used, not with one that was closed or
// never used; no other stream has one to end.
func TestEndsWithABranch(t *testing.T) {
	for _, x := range []struct {
		fresh bool
		err   error
		ends  bool
	}{{false, errTest, true}, {true, errTest, false}, {false, net.ErrClosed, false}} {
		synctest.Test(t, func(t *testing.T) {
			c := bareConn(digest{}, minute)
			b, err := c.bareBranch(3)
			if err != nil {
				t.Fatal(err)
			}
			b.branches.fresh = x.fresh
			b.end(x.err)
			synctest.Wait()
			if err := c.ended(); errors.Is(err, errTest) != x.ends || x.ends && err.Error() != "connection 3 for copies: of the test" {
				t.Errorf("%+v: %v", x, err)
			}
			c.end(ErrLost)
			synctest.Wait()
		})
	}
}

// TestReady: who waits for a connection that takes something hears of one, of the stream's end and
// of its own.
func TestReady(t *testing.T) {
	for name, x := range map[string]struct {
		set, then func(c *Conn, cancel func())
		want      error
	}{
		"there is one": {func(c *Conn, _ func()) { c.up = newWay() }, nil, nil},
		"ended":        {func(c *Conn, _ func()) { c.err = errTest }, nil, errTest},
		"too late":     {func(_ *Conn, cancel func()) { cancel() }, nil, context.Canceled},
		"one comes":    {func(*Conn, func()) {}, func(c *Conn, _ func()) { c.up = newWay(); c.changed.Broadcast() }, nil},
		"one that takes nothing is replaced": {func(c *Conn, _ func()) { c.up = newWay(); c.mute = c.up }, func(c *Conn, _ func()) {
			c.up = newWay()
			c.changed.Broadcast()
		}, nil},
		"it ends": {func(*Conn, func()) {}, func(c *Conn, _ func()) { c.endLocked(errTest) }, errTest},
		"cancels": {func(*Conn, func()) {}, func(_ *Conn, cancel func()) { cancel() }, context.Canceled},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := bareConn(digest{}, minute)
			ctx, cancel := context.WithCancel(t.Context())
			x.set(c, cancel)
			var err error
			ended := away(func() { err = c.Ready(ctx) })
			if is := ended(); is != (x.then == nil) {
				t.Errorf("%s: it waits: %v", name, !is)
			}
			if x.then != nil {
				c.mu.Lock()
				x.then(c, cancel)
				c.mu.Unlock()
			}
			if !ended() || !errors.Is(err, x.want) {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
			c.mu.Lock()
			c.err = errTest
			c.changed.Broadcast()
			c.mu.Unlock()
			ended()
		})
	}
}

// TestHoldsBranches: what was not used is held without a word, what was is told, and nothing goes
// on where one thing failed.
func TestHoldsBranches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, failed := range []error{nil, errTest} {
			c := bareConn(digest{}, minute)
			var list [4]*Conn // unused, given up, used, used
			for n := range list {
				b, err := c.bareBranch(n)
				if err != nil {
					t.Fatal(err)
				}
				list[n], c.branches.list[n] = b, b
			}
			list[0].loseLocked(ErrFresh)
			list[1].end(ErrBranch)
			for _, b := range list[2:] {
				b.branches.fresh, b.up = false, newWay()
				go b.routineSend()
			}
			waits := away(func() { _, _ = list[0].Read(make([]byte, 1)) })
			if waits() {
				t.Error("it reads without a connection")
			}
			if err := c.holdBranches(failed); !errors.Is(err, failed) {
				t.Errorf("%v, not %v", err, failed)
			}
			for n, b := range list {
				b.mu.Lock()
				if b.hold.on != (n != 1) || b.hold.told != (failed == nil && n != 1) || b.timer != nil && n != 1 {
					t.Errorf("branch %d, behind %v: %+v, %v", n, failed, b.hold, b.timer)
				}
				b.mu.Unlock()
			}
			if !waits() {
				t.Error("who reads is not told")
			}
			if failed == nil {
				states, err := c.exportBranches()
				if err != nil || len(states) != 4 || states[0].Secret != list[0].secret || states[1].Secret != (digest{}) || states[3].Secret != list[3].secret {
					t.Errorf("%d states, %v", len(states), err)
				}
				list[2].err = errTest // it was used
				if _, err := c.exportBranches(); !errors.Is(err, errTest) {
					t.Errorf("one that was lost is described: %v", err)
				}
				list[2].err = nil
			}
			c.end(ErrLost)
			synctest.Wait()
		}
		c := bareConn(digest{}, minute)
		b, err := c.bareBranch(0)
		if err != nil {
			t.Fatal(err)
		}
		c.branches.list[0], b.branches.fresh, b.hold.on, b.hold.told = b, false, false, false
		if err := c.holdBranches(nil); !errors.Is(err, ErrLost) {
			t.Errorf("a branch that is not told: %v", err)
		}
		c.end(ErrLost)
		synctest.Wait()
	})
}

// TestAwaitsBranches: a hold waits for branches that were used and have no connection, for as long
// as a goodbye may take, and for no others.
func TestAwaitsBranches(t *testing.T) {
	for name, x := range map[string]struct {
		set   func(b *Conn)
		waits bool
	}{
		"used":     {func(*Conn) {}, true},
		"unused":   {func(b *Conn) { b.branches.fresh = true }, false},
		"held":     {func(b *Conn) { b.hold.on = true }, false},
		"ended":    {func(b *Conn) { b.err = errTest }, false},
		"has one":  {func(b *Conn) { b.up = newWay() }, false},
		"its mute": {func(b *Conn) { b.up = newWay(); b.mute = b.up }, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := bareConn(digest{}, minute)
			b, err := c.bareBranch(0)
			if err != nil {
				t.Fatal(err)
			}
			c.branches.list[0], b.branches.fresh = b, false
			x.set(b)
			begin := time.Now()
			c.awaitBranches()
			if took := time.Since(begin); took != map[bool]time.Duration{true: goodbyeLimit}[x.waits] {
				t.Errorf("%s: %v", name, took)
			}
			b.err = nil
			c.end(ErrLost)
			synctest.Wait()
		})
	}
}

// TestImportsBranches: what was used goes on as such, for as long as that may be lost; what was not
// is given up as soon as before.
func TestImportsBranches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dial Dialer = func(ctx context.Context, _ error) (net.Conn, error) { return nil, errTest }
		states := []State{{}, {Got: 1}, {Start: 1, Reached: 1}, {Kept: make([]byte, 1)}, {}, {}, {}, {}}
		c, err := Import(State{Branches: states, Secret: digest{4}}, nil, dial, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(c.Branches()); n != MostBranches {
			t.Errorf("%d branches", n)
		}
		for n, b := range c.branches.list {
			used := n >= 1 && n <= 3
			if b.branches.fresh == used || b.now != map[bool]time.Duration{false: branchFirst * Limit, true: HoldLimit}[used] || b.branches.n != n || !b.hold.on || !b.hold.told || b.secret != branchSecret(digest{4}, n) {
				t.Errorf("branch %d: %+v, for %v", n, b.hold, b.now)
			}
		}
		c.Release()
		time.Sleep(Limit)
		synctest.Wait()
		if !errors.Is(c.ended(), ErrLost) || !errors.Is(c.ended(), errTest) {
			t.Errorf("it is not looked for: %v", c.ended())
		}
	})
}

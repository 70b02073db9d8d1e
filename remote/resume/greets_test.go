package resume

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"causeway/remote"
)

// TestFinal: after which errors a client makes no other attempt; of a branch that has had no
// connection also what the other end refuses.
func TestFinal(t *testing.T) {
	trunk := &Conn{}
	for name, x := range map[string]struct {
		err                 error
		trunk, used, begins bool
	}{
		"gone":         {ErrGone, true, true, true},
		"hostile":      {remote.Violation("x"), true, true, true},
		"no branch":    {ErrBranch, false, false, true},
		"no room":      {errFarBudget, false, false, true},
		"no proof":     {ErrProof, false, false, true},
		"anything":     {errTest, false, false, false},
		"no room here": {ErrBudget, false, false, false},
	} {
		err := fmt.Errorf("wrapped: %w", x.err)
		if c := (&Conn{}); c.final(err) != x.trunk {
			t.Errorf("%s, of a trunk: %v", name, !x.trunk)
		}
		c := &Conn{trunk: trunk}
		if c.final(err) != x.used {
			t.Errorf("%s, of a branch: %v", name, !x.used)
		}
		if c.branches.fresh = true; c.final(err) != x.begins {
			t.Errorf("%s, of a branch that begins: %v", name, !x.begins)
		}
		if c = (&Conn{}); c.isLost() != true {
			t.Error("without a connection it is not lost")
		}
	}
	for _, c := range []*Conn{{up: newWay()}, {err: errTest}, {hold: hold{on: true}}} {
		if c.isLost() {
			t.Errorf("%v %v %v: lost", c.up, c.err, c.hold)
		}
	}
}

// TestAttempts: a client tries again at once, then ever more rarely, a branch more rarely still,
// for the reason that the last attempt gave; none is made behind the last.
func TestAttempts(t *testing.T) {
	for name, x := range map[string]struct {
		branch, fresh bool
		most          time.Duration
		first         error
	}{
		"a trunk":              {false, false, againMost, errTest},
		"a branch":             {true, false, againBranch, errTest},
		"a branch that begins": {true, true, againBranch, ErrFresh},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := bareConn(digest{}, time.Hour)
				if x.branch {
					c.trunk, c.branches.fresh = bareConn(digest{}, time.Hour), x.fresh
				}
				begin, tries := time.Now(), []time.Duration{}
				reason := errors.New("no way")
				var dial Dialer = func(_ context.Context, why error) (net.Conn, error) {
					if n := len(tries); n == 0 && !errors.Is(why, x.first) || n > 0 && !x.fresh && !errors.Is(why, reason) || x.fresh && !errors.Is(why, ErrFresh) {
						t.Errorf("attempt %d, for %v", n, why)
					}
					if tries = append(tries, time.Since(begin)); len(tries) == 12 {
						return nil, ErrGone
					}
					return nil, reason
				}
				ended := away(func() { c.routineRedial(&tls.Config{}, dial) })
				if ended() || len(tries) > 0 {
					t.Error("it makes connections while there is one")
				}
				c.mu.Lock()
				c.loseLocked(errTest)
				c.mu.Unlock()
				time.Sleep(time.Minute)
				if !ended() || !errors.Is(c.ended(), ErrGone) {
					t.Errorf("it goes on: %v", c.ended())
				}
				at, wait := time.Duration(0), againFirst
				for n, got := range tries {
					if got != at {
						t.Fatalf("attempt %d after %v, not %v", n, got, at)
					}
					at, wait = at+wait, min(2*wait, x.most)
				}
				if len(tries) != 12 {
					t.Errorf("%d attempts", len(tries))
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		// It ends between two attempts, and where none is to be made.
		for _, lost := range []bool{true, false} {
			c := bareConn(digest{}, time.Hour)
			if lost {
				c.loseLocked(errTest)
			}
			ended := away(func() {
				c.routineRedial(&tls.Config{}, func(context.Context, error) (net.Conn, error) { return nil, errTest })
			})
			if ended() {
				t.Error("it gives up")
			}
			if c.end(ErrLost); !ended() {
				t.Error("it goes on")
			}
		}
	})
}

// TestPending: of connections that shake hands there is one, and one for each branch, beside the
// newest; what was noted is forgotten with its connection alone, and nothing is noted of a stream
// that has ended.
func TestPending(t *testing.T) {
	c := &Conn{}
	list := make([]*fakeWay, 6)
	for n := range list {
		list[n] = newWay()
	}
	add := func(n int, pending ...int) {
		t.Helper()
		if err := c.addPending(list[n]); err != nil {
			t.Error(err)
		}
		if len(c.pending) != len(pending) {
			t.Fatalf("%d shake hands", len(c.pending))
		}
		for i, p := range pending {
			if c.pending[i] != list[p] {
				t.Errorf("place %d is not %d's", i, p)
			}
		}
		for i, w := range list[:n+1] {
			if closed := w.closes > 0; closed == (i >= pending[0]) {
				t.Errorf("%d is closed: %v", i, closed)
			}
		}
	}
	add(0, 0)
	add(1, 1) // the oldest gives way
	c.branches.most = 2
	add(2, 1, 2)
	add(3, 1, 2, 3)
	add(4, 2, 3, 4)
	if c.dropPending(list[3]); len(c.pending) != 2 || c.pending[0] != list[2] || c.pending[1] != list[4] {
		t.Errorf("%d shake hands", len(c.pending))
	}
	c.err = errTest
	if err := c.addPending(list[5]); !errors.Is(err, errTest) || len(c.pending) != 2 {
		t.Error(err)
	}
	if err := c.Accept(list[5], &tls.Config{}); !errors.Is(err, errTest) || list[5].closes != 1 {
		t.Errorf("%v: closed %d times", err, list[5].closes)
	}
}

// TestGivesWay: a connection gives way to one of a later attempt, whose other end has what it can
// have; nothing else is answered, nor changes anything.
func TestGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, x := range map[string]struct {
			far  greeting
			err  error
			want error
		}{
			"the least": {greeting{Attempt: 8, Got: 100}, nil, nil}, "the most": {greeting{Attempt: 1 << 40, Got: 150}, nil, nil},
			"the same attempt": {greeting{Attempt: 7, Got: 100}, nil, ErrProof}, "an earlier one": {greeting{Attempt: 6, Got: 100}, nil, ErrProof},
			"less": {greeting{Attempt: 8, Got: 99}, nil, remote.ErrProtocol}, "more": {greeting{Attempt: 8, Got: 151}, nil, remote.ErrProtocol},
			"ended": {greeting{Attempt: 8, Got: 100}, errTest, errTest},
		} {
			for _, connected := range []bool{true, false} {
				c, up := bareConn(digest{}, minute), newWay()
				c.attempt, c.kept.start, c.reached, c.kept.end, c.got, c.err = 7, 100, 150, 200, 33, x.err
				if connected {
					c.up = up
				}
				own, err := c.giveWay(x.far)
				switch {
				case x.want != nil:
					if !errors.Is(err, x.want) || c.attempt != 7 || (c.up != nil) != connected || up.counts() != [2]int{} {
						t.Errorf("%s: %v, attempt %d", name, err, c.attempt)
					}
				case err != nil || own.Attempt != x.far.Attempt || own.Got != 33 || c.attempt != x.far.Attempt || c.up != nil:
					t.Errorf("%s: %+v, %v, attempt %d", name, own, err, c.attempt)
				case connected && (!errors.Is(c.why, errReplaced) || up.counts() != [2]int{1, 0} || !poked(c.lost)) || !connected && (c.why != nil || poked(c.lost)):
					t.Errorf("%s: lost for %v", name, c.why)
				}
				c.err = nil
				c.end(ErrLost)
			}
		}
	})
}

// TestRefusals: each reason that a server names is the one that the client hears.
func TestRefusals(t *testing.T) {
	for _, x := range []struct{ err, told error }{{ErrProof, ErrProof}, {ErrBranch, ErrBranch}, {ErrBudget, errFarBudget}} {
		if err := refusal(refused(fmt.Errorf("wrapped: %w", x.err))); !errors.Is(err, x.told) {
			t.Errorf("%v is heard as %v", x.err, err)
		}
	}
	if n := refused(errTest); n != 0 {
		t.Errorf("anything is answered %d", n)
	}
	if n := refused(nil); n != 0 {
		t.Errorf("nothing is answered %d", n)
	}
}

// TestProofs: a proof is of who says it, what it says, and on which connection.
func TestProofs(t *testing.T) {
	g := greeting{Attempt: 1, Got: 2}
	g.Proof = g.proof(digest{1}, digest{2}, fromClient)
	if !g.proven(digest{1}, digest{2}, fromClient) {
		t.Error("it is not proven")
	}
	if g.proven(digest{3}, digest{2}, fromClient) || g.proven(digest{1}, digest{3}, fromClient) || g.proven(digest{1}, digest{2}, fromServer) {
		t.Error("another's is")
	}
	for _, other := range []greeting{{2, 2, g.Proof}, {1, 3, g.Proof}, {1, 2, digest{}}} {
		if other.proven(digest{1}, digest{2}, fromClient) {
			t.Errorf("%+v is", other)
		}
	}
	if got := parseGreeting([greetingSize]byte(g.encode())); got != g {
		t.Errorf("%+v is read as %+v", g, got)
	}
	if branchSecret(digest{1}, 0) == branchSecret(digest{1}, 1) || branchSecret(digest{1}, 0) == branchSecret(digest{2}, 0) {
		t.Error("two branches know the same")
	}
}

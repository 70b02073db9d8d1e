package resume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// forked is a rig with branches: the client's, and the server's as they come.
type forked struct {
	*rig
	near, far []*Conn
}

// newForked begins a stream and its branches. wrap is as newRig's; the connections that come behind
// the first are whichever stream's.
func newForked(t testing.TB, n int, limit time.Duration, wrap func(n int, c net.Conn, server bool) net.Conn) *forked {
	t.Helper()
	f := &forked{rig: newRig(t, limit, wrap), far: make([]*Conn, n)}
	if wrap == nil {
		wrap = func(_ int, c net.Conn, _ bool) net.Conn { return c }
	}
	f.client.branches.cfg, f.client.branches.kept, f.server.branches.kept = f.clientAgain, f.budget, f.budget
	f.client.branches.dial = func(context.Context, error) (net.Conn, error) {
		n := int(f.dials.Add(1))
		near, far := pair(t)
		go func() { _ = f.server.Accept(wrap(n, far, true), f.serverAgain) }()
		return wrap(n, near, false), nil
	}
	type begun struct {
		n int
		b *Conn
	}
	come := make(chan begun, n)
	f.server.TakeBranches(n, func(n int, b frame.Branch) { come <- begun{n, b.(*Conn)} })
	list, err := f.client.Branch(n)
	if err != nil || len(list) != n {
		t.Fatal(len(list), err)
	}
	for _, b := range list {
		if err := b.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.near = append(f.near, b.(*Conn))
	}
	for range n {
		b := <-come
		if f.far[b.n] != nil {
			t.Fatalf("branch %d begins twice", b.n)
		}
		f.far[b.n] = b.b
	}
	return f
}

// cut has a branch lose its connection.
func (f *forked) cut(n int) {
	b := f.near[n]
	b.mu.Lock()
	up := b.up
	b.mu.Unlock()
	if up != nil {
		reset(up.(*frame.Secure).NetConn().(*frame.Buffered).Conn)
	}
}

// TestBranches (each connection carries a record of TLS or more): what is written to a stream and
// its branches comes whole by each, wherever connections are cut.
func TestBranches(t *testing.T) {
	for _, each := range []int{1 << 30, 60_001} {
		t.Run(fmt.Sprint(each), func(t *testing.T) {
			f := newForked(t, 3, minute, func(n int, c net.Conn, server bool) net.Conn {
				if server != (n%2 == 1) {
					return c
				}
				return &cutting{Conn: c, left: each + 37*n}
			})
			t.Run("all at once", func(t *testing.T) {
				for i := range f.near {
					t.Run("", func(t *testing.T) {
						t.Parallel()
						exchange(t, f.near[i], f.far[i], 300_000)
					})
				}
				t.Run("", func(t *testing.T) {
					t.Parallel()
					exchange(t, f.client, f.server, 300_000)
				})
			})
			if n := f.dials.Load(); each < 1<<30 && n < 6 {
				t.Errorf("connections were made again %d times", n-3)
			}
		})
	}
}

// TestBranchesEnd: the streams of a session end together, whichever does first, for whatever
// reason; what is kept is given back.
func TestBranchesEnd(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(f *forked)
		want error
		says []string
	}{
		"closed": {func(f *forked) { _ = f.client.Close() }, io.EOF, nil},
		"a branch says more than was sent": {func(f *forked) {
			f.client.mu.Lock()
			f.client.now = 100 * time.Millisecond // for a server that ends without a word
			f.client.mu.Unlock()
			_, _ = f.near[1].up.Write(frame.Header{Kind: frame.Ack, Arg: 7}.Append(nil))
		}, remote.ErrProtocol, nil},
		"a branch is lost": {func(f *forked) {
			f.near[0].mu.Lock()
			f.client.branches.dial = func(context.Context, error) (net.Conn, error) { return nil, errors.New("no way") }
			f.near[0].now = 100 * time.Millisecond
			f.near[0].mu.Unlock()
			f.server.mu.Lock()
			f.server.now = 100 * time.Millisecond // for a client that ends without a word
			f.server.mu.Unlock()
			f.cut(0)
		}, ErrLost, []string{"connection 0 for copies", "no way"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newForked(t, 2, minute, nil)
			ended := make(chan error, 8)
			for _, b := range append(append([]*Conn{f.client}, f.near...), f.far...) {
				go func() {
					_, err := b.Read(make([]byte, 1))
					ended <- err
				}()
			}
			c.do(f)
			_ = f.server.SetReadDeadline(time.Now().Add(minute))
			if _, err := f.server.Read(make([]byte, 1)); !errors.Is(err, c.want) && !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			for _, says := range c.says {
				if err := f.client.ended(); err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("%v says nothing of %q", err, says)
				}
			}
			if err := f.server.ended(); c.want != ErrLost && !errors.Is(err, c.want) {
				t.Error(err)
			}
			for range 5 {
				if err := <-ended; err == nil {
					t.Error("a stream goes on")
				}
			}
		})
	}
}

// TestBranchesRefused: who does not know the session's secret, shows a branch that the server does
// not take, or another's, begins none; nor does one begin that the budget has no room for. Each is
// told why. The session goes on.
func TestBranchesRefused(t *testing.T) {
	r := newRig(t, minute, nil)
	r.server.branches.kept = &budget{limit: 1}
	begins := func(what string, secret digest, from string, want, told error) {
		t.Helper()
		s, accepted := r.stranger(t)
		bind, err := derived(s, labelBind)
		if err != nil {
			t.Fatal(err)
		}
		g := greeting{Attempt: 1}
		g.Proof = g.proof(secret, bind, from)
		if _, err := s.Write(g.encode()); err != nil {
			t.Fatal(err)
		}
		if err := <-accepted; !errors.Is(err, want) {
			t.Errorf("%s: %v", what, err)
		}
		if far, err := readGreeting(s); err != nil || far.Attempt != 0 || !errors.Is(refusal(far.Got), told) {
			t.Errorf("%s: the client is told %+v, %v", what, far, err)
		}
	}
	first := branchSecret(r.server.secret, 0)
	begins("none are taken", first, fromClient, ErrBranch, ErrBranch)
	r.server.TakeBranches(2, func(n int, _ frame.Branch) { t.Errorf("branch %d begins", n) })
	begins("one too many", branchSecret(r.server.secret, 2), fromClient, ErrBranch, ErrBranch)
	begins("another session's", branchSecret(digest{1}, 0), fromClient, ErrProof, ErrProof)
	begins("a branch's branch", branchSecret(first, 0), fromClient, ErrProof, ErrProof)
	begins("the server's proof", first, fromServer, ErrProof, ErrProof)
	begins("no room", first, fromClient, ErrBudget, errFarBudget)
	exchange(t, r.client, r.server, 10_000)
	if r.dials.Load() != 0 {
		t.Error("the session's connection was lost")
	}
}

// TestBranchesSilent: of connections that say nothing there are no more than the session has
// streams; the oldest gives way.
func TestBranchesSilent(t *testing.T) {
	f := newForked(t, 2, minute, nil)
	var silent []chan error
	for range 5 {
		_, accepted := f.stranger(t)
		silent = append(silent, accepted)
	}
	for _, accepted := range silent[:2] {
		if err := <-accepted; err == nil {
			t.Error("a connection that said nothing was taken")
		}
	}
	f.server.mu.Lock()
	if n := len(f.server.pending); n > 3 {
		t.Errorf("%d connections shake hands", n)
	}
	f.server.mu.Unlock()
	exchange(t, f.near[1], f.far[1], 10_000)
}

// TestBranchesNeverMade: branches that the other end refuses, or that no connection can be made
// for, are given up, for the reason that there is, and the session goes on.
func TestBranchesNeverMade(t *testing.T) {
	for name, c := range map[string]struct {
		begin func(r *rig)
		want  error
	}{
		"none are taken": {func(*rig) {}, ErrBranch},
		"no room there": {func(r *rig) {
			r.server.branches.kept = &budget{limit: 1}
			r.server.TakeBranches(2, func(n int, _ frame.Branch) { t.Errorf("branch %d begins", n) })
		}, errFarBudget},
		"no way": {func(r *rig) {
			r.client.limit = 50 * time.Millisecond // branches take theirs from it
			r.client.branches.dial = func(context.Context, error) (net.Conn, error) { return nil, errors.New("no way") }
		}, ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, minute, nil)
			r.client.branches.cfg, r.client.branches.dial = r.clientAgain, r.dial(t)
			c.begin(r)
			list, err := r.client.Branch(2)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range list {
				if err := b.Ready(t.Context()); !errors.Is(err, c.want) {
					t.Error(err)
				}
				if b.Backlog() != frame.Away {
					t.Error("it can send")
				}
			}
			exchange(t, r.client, r.server, 10_000)
			if err := r.client.Hold(); err != nil {
				t.Fatal(err)
			}
			st, err := r.client.Export()
			if err != nil || len(st.Branches) != 2 {
				t.Error(len(st.Branches), err)
			}
			r.client.Release()
			exchange(t, r.client, r.server, 10_000)
		})
	}
}

// TestBranchAway: a branch that no connection can be made for has the session go on over the
// others, and for longer than its first stream would; what it had on its way comes when there is
// one.
func TestBranchAway(t *testing.T) {
	f := newForked(t, 2, minute, nil)
	dial := f.client.branches.dial
	tries, open := make(chan struct{}), make(chan struct{})
	f.client.branches.dials.Lock()
	f.client.branches.dial = func(ctx context.Context, why error) (net.Conn, error) {
		select {
		case <-open:
			return dial(ctx, why)
		case tries <- struct{}{}:
			return nil, errors.New("no way")
		}
	}
	f.client.branches.dials.Unlock()
	f.near[0].broken(f.near[0].up, errors.New("cut"))
	<-tries
	for _, b := range []*Conn{f.near[0], f.far[0]} {
		b.mu.Lock()
		now := b.now
		b.mu.Unlock()
		if now != time.Duration(branchPatience)*minute || b.Backlog() != frame.Away && b.client {
			t.Errorf("it waits %v, with %d bytes to send", now, b.Backlog())
		}
	}
	up, down := frames(1, 100_000), frames(2, 100_000)
	write(t, f.near[0], up)
	write(t, f.far[0], down)
	for range 3 {
		<-tries
		exchange(t, f.near[1], f.far[1], 10_000)
		exchange(t, f.client, f.server, 10_000)
	}
	close(open)
	read(t, f.far[0], up)
	read(t, f.near[0], down)
}

// TestBranchesHeld: a client's stream and its branches go from process to process, in the middle of
// what comes, and a server waits for all of them.
func TestBranchesHeld(t *testing.T) {
	f := newForked(t, 2, minute, nil)
	client, near := f.client, f.near
	down := frames(2, 300_000)
	write(t, f.far[0], down)
	for round, end := range []int{100_003, 200_001, len(down)} {
		begin := []int{0, 100_003, 200_001}[round]
		read(t, near[0], down[begin:end]) // within a frame
		up := frames(uint64(round), 50_000)
		write(t, near[1], up)
		if err := client.Hold(); err != nil {
			t.Fatal(err)
		}
		if _, err := near[1].Read(make([]byte, 1)); !errors.Is(err, ErrHeld) {
			t.Errorf("read: %v", err)
		}
		if _, err := client.Branch(3); !errors.Is(err, ErrHeld) {
			t.Errorf("a branch begins of what is held: %v", err)
		}
		st, err := client.Export()
		if err != nil {
			t.Fatal(err)
		}
		next, err := Import(st, f.clientAgain, f.dial(t), f.budget)
		if err != nil {
			t.Fatal(err)
		}
		next.Release()
		client.cancel() // its process is gone
		client, near = next, nil
		for _, b := range next.Branches() {
			if err := b.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			near = append(near, b.(*Conn))
		}
		read(t, f.far[1], up)
	}
	exchange(t, near[0], f.far[0], 10_000)
	exchange(t, client, f.server, 10_000)
	_ = client.Close()
	for name, list := range map[string][]State{"too many": make([]State, MostBranches+1), "a branch's": {{Branches: make([]State, 1)}}, "what is none": {{Left: frame.Max + 1}}} {
		if _, err := Import(State{Branches: list}, nil, nil, nil); !errors.Is(err, ErrState) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBranchesLeak: sessions that end with their branches, that refused some, or have some half
// made, leave no goroutine and no descriptor.
func TestBranchesLeak(t *testing.T) {
	count := func() (goroutines, files int) {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return runtime.NumGoroutine(), len(list)
	}
	round := func(t *testing.T) {
		f := newForked(t, 2, minute, nil)
		exchange(t, f.near[0], f.far[0], 300_000)
		silent, silenced := f.stranger(t) // which says nothing until the session has ended
		t.Cleanup(silent.Abort)
		s, accepted := f.stranger(t)
		bind, err := derived(s, labelBind)
		if err != nil {
			t.Fatal(err)
		}
		g := greeting{Attempt: 1}
		g.Proof = g.proof(branchSecret(f.server.secret, MostBranches-1), bind, fromClient)
		if _, err := s.Write(g.encode()); err != nil {
			t.Fatal(err)
		}
		if err := <-accepted; !errors.Is(err, ErrBranch) {
			t.Error(err)
		}
		f.near[1].broken(f.near[1].up, errors.New("cut")) // which is made again, or begins to be
		_, _ = f.client.Close(), f.server.Close()
		if err := <-silenced; err == nil {
			t.Error("a connection that said nothing was taken")
		}
	}
	t.Run("", round)
	settled := func(goroutines, files int) bool {
		g, n := count()
		return g <= goroutines && n <= files
	}
	goroutines, files := count()
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		// Of what went before.
		if g, n := count(); g < goroutines || n < files {
			goroutines, files = min(g, goroutines), min(n, files)
		}
	}
	for range 5 {
		t.Run("", round)
	}
	for end := time.Now().Add(minute); !settled(goroutines, files); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			g, n := count()
			t.Fatalf("%d goroutines and %d descriptors, %d and %d before", g, n, goroutines, files)
		}
	}
}

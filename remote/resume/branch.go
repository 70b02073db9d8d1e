package resume

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"causeway/remote/frame"
)

/*
A session may have more streams than one: beside its first, the trunk, branches for what is much,
each over connections of its own, so that calls do not stand behind copies, and each has a core for
its TLS. A branch is a stream as the trunk is, with its own positions, and is sent again as that is.
It begins without a connection: the client makes the first as it makes all that follow one that is
lost, and shows a secret that both ends derive from the trunk's. So a server needs no other door for
branches, and who cannot go on with the session cannot have one.

The streams of a session end together: all with the trunk, and the trunk with any that was lost for
too long or whose other end breaks a rule. A branch may be lost for longer than the trunk: while
that has a connection the other end is there, and what is missing is a way to make one more. What is
new goes by the others meanwhile (Backlog says so); what that connection had on its way waits, as
nothing else knows how much of it came.
*/

// MostBranches is how many branches a stream can have, DefaultBranches how many it has where nobody
// says.
const (
	MostBranches    = 8
	DefaultBranches = 4
)

// BranchWindow is the Window of a branch, MostBranchKept what of one may be kept in its State, and
// branchPatience for how many times as long as its trunk it goes on without a connection: for
// HoldLimit. One that has had none yet is given up after branchFirst times as long, as it waits for
// the trunk's first.
const (
	BranchWindow   = Window / 2
	MostBranchKept = mostKept * BranchWindow
	branchPatience = int(HoldLimit / Limit)
	branchFirst    = 2
)

// ErrBranch says that the other end takes no such branch.
var ErrBranch = errors.New("the other end takes no more connections for copies")

// branches are what a trunk has of them, and what a branch has beside a stream's. Conn.mu guards
// list, most, begun and fresh.
type branches struct {
	list [MostBranches]*Conn // the client's have no holes
	kept Budget              // for what all of them keep

	// The server's: how many the client may begin, and who hears of each.
	most  int
	begun func(n int, b frame.Branch)

	// The client's connections. One branch asks for one at a time.
	cfg   *tls.Config
	dial  Dialer
	dials sync.Mutex

	// A branch's.
	n      int    // which it is
	fresh  bool   // it has had no connection
	joined func() // is told of the first; nil: nobody is
}

var (
	_ frame.Branching = (*Conn)(nil)
	_ frame.Branch    = (*Conn)(nil)
)

// ErrFresh says why a branch that begins has no connection.
var ErrFresh = errors.New("it has had no connection yet")

// branchSecret is what the two ends of a branch know, and nobody else.
func branchSecret(trunk digest, n int) digest {
	m := hmac.New(sha256.New, trunk[:])
	fmt.Fprintf(m, "branch %d", n)
	return digest(m.Sum(nil))
}

// bareBranch is a branch without a connection, which ends with its trunk.
func (c *Conn) bareBranch(n int) (*Conn, error) {
	b := bareConn(branchSecret(c.secret, n), time.Duration(branchPatience)*c.limit)
	b.trunk, b.client, b.window, b.patient, b.now = c, c.client, BranchWindow, c.patient, branchFirst*c.limit
	b.branches.n, b.branches.fresh = n, true
	if err := b.kept.begin(c.branches.kept); err != nil {
		b.cancel()
		return nil, err
	}
	context.AfterFunc(c.ctx, func() { b.end(c.ended()) })
	return b, nil
}

// ended is why the stream has ended.
func (c *Conn) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Branch implements frame.Branching: the client's end begins n branches, which connect aside.
func (c *Conn) Branch(n int) ([]frame.Branch, error) {
	var list []frame.Branch
	for i := range min(n, MostBranches) {
		b, err := c.bareBranch(i)
		if err != nil {
			return list, err // with as many as there is room for
		}
		c.mu.Lock()
		if c.hold.on || c.err != nil { // what is held is held with its branches
			c.mu.Unlock()
			b.end(ErrHeld)
			return list, ErrHeld
		}
		b.mu.Lock()
		b.loseLocked(ErrFresh)
		b.mu.Unlock()
		c.branches.list[i] = b
		c.mu.Unlock()
		go b.routineSend()
		go b.routineRedial(c.branches.cfg, c.branches.dialer(c))
		list = append(list, b)
	}
	return list, nil
}

// dialer is a branch's way to a connection: behind the trunk's, and one at a time, so that a link
// that is gone keeps no more than one attempt from the trunk.
func (s *branches) dialer(trunk *Conn) Dialer {
	return func(ctx context.Context, why error) (net.Conn, error) {
		if err := trunk.Ready(ctx); err != nil {
			return nil, err
		}
		s.dials.Lock()
		defer s.dials.Unlock()
		return s.dial(ctx, why)
	}
}

// TakeBranches implements frame.Branching: the client may begin up to most from now on.
func (c *Conn) TakeBranches(most int, begun func(n int, b frame.Branch)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.branches.most, c.branches.begun = min(most, MostBranches), begun
}

// shown is the stream whose secret a greeting shows: this one, or a branch, which may begin so.
func (c *Conn) shown(far greeting, bind digest) (*Conn, error) {
	if far.proven(c.secret, bind, fromClient) {
		return c, nil
	}
	for n := range MostBranches {
		if far.proven(branchSecret(c.secret, n), bind, fromClient) {
			return c.branch(n)
		}
	}
	return nil, ErrProof
}

// branch is the server's end of a branch, which begins now if it has not.
func (c *Conn) branch(n int) (*Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch most := c.branches.most; {
	case c.err != nil:
		return nil, c.err
	case n >= most:
		return nil, fmt.Errorf("%w: branch %d, where %d are taken", ErrBranch, n, most)
	case c.branches.list[n] != nil:
		return c.branches.list[n], nil
	}
	b, err := c.bareBranch(n)
	if err != nil {
		return nil, fmt.Errorf("branch %d: %w", n, err)
	}
	begun := c.branches.begun
	b.branches.joined = func() { begun(n, b) }
	c.branches.list[n] = b
	go b.routineSend()
	return b, nil
}

// connectedLocked notes a branch's first connection.
func (c *Conn) connectedLocked() {
	if c.trunk == nil || !c.branches.fresh {
		return
	}
	c.branches.fresh = false
	if c.branches.joined != nil {
		go c.branches.joined()
	}
}

// Ready implements frame.Branch.
func (c *Conn) Ready(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && ctx.Err() == nil && c.writableLocked() == nil {
		c.changed.Wait()
	}
	if c.err != nil {
		return c.err
	}
	return ctx.Err()
}

// Backlog implements frame.Branch.
func (c *Conn) Backlog() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writableLocked() == nil {
		return frame.Away
	}
	return c.kept.end - c.sent + c.leaving
}

// alongLocked has the trunk end with a branch, but for one that was never used.
func (c *Conn) alongLocked() {
	if c.trunk != nil && !c.branches.fresh && !errors.Is(c.err, net.ErrClosed) {
		go c.trunk.end(fmt.Errorf("connection %d for copies: %w", c.branches.n, c.err))
	}
}

// all are the branches that there are.
func (c *Conn) all() (list []*Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.branches.list {
		if b != nil {
			list = append(list, b)
		}
	}
	return list
}

// settle waits until what branches were given has left, for as long as Close does.
func (c *Conn) settle() {
	var wg sync.WaitGroup
	for _, b := range c.all() {
		wg.Go(func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.writableLocked() != nil {
				b.settleLocked()
			}
		})
	}
	wg.Wait()
}

// awaitBranches waits, for as long as Close does, until branches that have been used have a
// connection: without one they cannot be held, and after a move, or a cut, theirs come behind the
// trunk's.
func (c *Conn) awaitBranches() {
	ctx, cancel := context.WithTimeout(c.ctx, goodbyeLimit)
	defer cancel()
	for _, b := range c.all() {
		b.mu.Lock()
		used := b.err == nil && !b.hold.on && !b.branches.fresh
		b.mu.Unlock()
		if used {
			_ = b.Ready(ctx) // if there is none Hold says so
		}
	}
}

// holdBranches holds them behind their trunk. Behind an error they stand still all the same:
// whoever reads and writes them waits for nothing any more.
func (c *Conn) holdBranches(failed error) error {
	for n, b := range c.all() {
		if failed != nil {
			b.stand()
			continue
		}
		b.mu.Lock()
		fresh := b.branches.fresh && b.up == nil
		if fresh && b.err == nil {
			b.hold = hold{on: true, told: true}
			b.changed.Broadcast()
			b.stopTimerLocked()
		}
		b.mu.Unlock()
		if fresh {
			continue
		}
		if err := b.Hold(); err != nil {
			failed = fmt.Errorf("connection %d for copies: %w", n, err)
		}
	}
	return failed
}

// exportBranches describes branches that are held.
func (c *Conn) exportBranches() (list []State, err error) {
	for n, b := range c.all() {
		s, err := b.Export()
		b.mu.Lock()
		unused := b.branches.fresh && b.err != nil
		b.mu.Unlock()
		if unused { // it keeps its number
			s, err = State{}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("branch %d: %w", n, err)
		}
		list = append(list, s)
	}
	return list, nil
}

// importBranches makes branches of what exportBranches described.
func (c *Conn) importBranches(list []State) error {
	if len(list) > MostBranches {
		return fmt.Errorf("%w: %d branches", ErrState, len(list))
	}
	for n, s := range list {
		if len(s.Branches) > 0 {
			return fmt.Errorf("%w: branches of a branch", ErrState)
		}
		b, err := c.bareBranch(n)
		if err == nil {
			err = b.adoptState(s)
		}
		if err != nil {
			return fmt.Errorf("branch %d: %w", n, err)
		}
		if s.Got > 0 || s.Start > 0 || len(s.Kept) > 0 {
			b.branches.fresh, b.now = false, b.limit
		}
		c.mu.Lock()
		c.branches.list[n] = b
		c.mu.Unlock()
		go b.routineSend()
		go b.routineRedial(c.branches.cfg, c.branches.dialer(c))
	}
	return nil
}

// Branches are the client's, of a stream that Import made.
func (c *Conn) Branches() (list []frame.Branch) {
	for _, b := range c.all() {
		list = append(list, b)
	}
	return list
}

func (c *Conn) stopTimerLocked() {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

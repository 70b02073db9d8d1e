package verbs

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"causeway/remote"
)

// Of a queue pair for copies: pieces of pieceSize under way at once; and the least copy, in bytes,
// that goes by several.
const (
	railPieces = 4
	railLeast  = 2 * pieceSize
)

// railLost tells the other end that a queue pair for copies is given up, by its number: the server
// says it, and the client answers with it when it has done the same.
const railLost = "CWVRAIL\x02"

// rail is a queue pair that copies go by, beside that of the frames. At the client it is its
// adapter's to serve, and nothing more.
type rail struct {
	place  place
	number int // of the client's adapter
	queue  Queue
	land   *buffer // the server's, of pieces
	spin   time.Duration

	// mu is held by the transfer that uses it: only that posts and takes completions.
	mu           sync.Mutex
	posted, done uint64
	free         []uint64 // pieces that nothing uses

	// Conn.mu guards these.
	dead bool  // nothing uses it any more
	gone bool  // the other end has given it up, too
	why  error // it is not used
}

func (r *rail) String() string { return r.place.String() }

// lay makes the memory that bytes pass through.
func (r *rail) lay(a Adapter) (err error) {
	if r.land, err = newBuffer(a, railPieces*pieceSize, 0); err != nil {
		return err
	}
	for at := uint64(0); at < uint64(len(r.land.mem)); at += pieceSize {
		r.free = append(r.free, at)
	}
	return nil
}

// close gives back what it has. The adapter does nothing for it afterwards.
func (r *rail) close() error { return errors.Join(r.queue.Close(), r.land.close()) }

// post posts a work request of n bytes between the memory at a place here and the other end's.
func (r *rail) post(op Op, at uint64, n int, remote uint64, key uint32) error {
	r.posted++
	return r.queue.Post([]Work{{
		ID: r.posted, Op: op, Signaled: true, Local: r.land.reg.Address() + at, LocalKey: r.land.reg.LocalKey(), Length: uint32(n), Remote: remote, RemoteKey: key,
	}})
}

// await waits until a work request is done, or over says that nothing is to be waited for any more;
// who changes what it says kicks the queue. What has come counts, however late this thread looks.
func (r *rail) await(id uint64, over func() error) error {
	var cs [32]Completion
	take := func() (int, error) {
		n, err := r.queue.Poll(cs[:])
		if err == nil {
			err = r.apply(cs[:n])
		}
		return n, err
	}
	for start := time.Now(); r.done < id; {
		n, err := take()
		if err == nil && n == 0 {
			if err := over(); err != nil {
				return err
			}
		}
		if err == nil && n == 0 && time.Since(start) >= r.spin {
			if err = r.queue.Arm(); err == nil {
				n, err = take()
			}
			if err == nil && n == 0 {
				err = r.queue.Wait()
			}
		}
		if err != nil {
			return r.cause(err)
		}
	}
	return nil
}

// apply notes what completions say. The first of a failure that is no consequence of another is its
// cause.
func (r *rail) apply(cs []Completion) error {
	var failed *QueueError
	for _, x := range cs {
		switch {
		case x.Status != Success:
			if failed == nil || failed.Status == Flushed {
				failed = &QueueError{x.Status, x.Vendor}
			}
		case x.Received:
			return remote.Violation("a message on a queue pair for copies")
		case failed == nil:
			r.done = x.ID
		}
	}
	if failed != nil {
		return failed
	}
	return nil
}

// cause looks, when work was flushed, for what made it so: that may be told a little later.
func (r *rail) cause(err error) error {
	var q *QueueError
	var cs [32]Completion
	for start := time.Now(); errors.As(err, &q) && q.Status == Flushed && time.Since(start) < causeLimit; {
		n, polled := r.queue.Poll(cs[:])
		if polled != nil {
			break
		}
		if other := r.apply(cs[:n]); other != nil {
			err = other
		}
	}
	return err
}

// railOver is why a rail is to be left alone.
func (c *Conn) railOver(r *rail) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return c.err
	case c.closed:
		return net.ErrClosed
	case r.dead:
		return r.why
	}
	return nil
}

// haul does parts of a transfer by a rail until there are none left. What a rail that fails has not
// done comes back.
func (c *Conn) haul(r *rail, x *spread) {
	undone, err := r.haul(x, func() error { return c.railOver(r) })
	if err == nil {
		return
	}
	if err := c.lose(r, err, x.op == Write && len(undone) > 0); err != nil {
		x.fail(err)
		return
	}
	x.giveBack(undone)
}

func (r *rail) haul(x *spread, over func() error) (undone []span, err error) {
	key := x.g.By(r.number)
	remote := func(at int) uint64 { return key.Address + x.off + uint64(at) }
	type one struct {
		piece
		span
	}
	var under []one    // oldest first
	var written []span // with a completion, and not known to be in the other end's memory
	fail := func(err error) ([]span, error) {
		for _, u := range under {
			written = append(written, u.span)
		}
		return written, err
	}
	for {
		for len(r.free) > 0 {
			s, ok := x.take()
			if !ok {
				break
			}
			u := one{piece{at: r.free[len(r.free)-1], id: r.posted + 1}, s}
			r.free = r.free[:len(r.free)-1]
			under = append(under, u)
			if x.op == Write {
				copy(r.land.mem[u.piece.at:], x.p[s.at:][:s.n])
			}
			if err := r.post(x.op, u.piece.at, s.n, remote(s.at), key.Key); err != nil {
				return fail(err)
			}
		}
		if len(under) == 0 {
			break
		}
		u := under[0]
		if err := r.await(u.id, over); err != nil {
			return fail(err)
		}
		if x.op == Read {
			copy(x.p[u.span.at:][:u.n], r.land.mem[u.piece.at:])
		} else {
			written = append(written, u.span)
		}
		under, r.free = under[1:], append(r.free, u.piece.at)
	}
	if len(written) == 0 {
		return nil, nil
	}
	// What is said next goes by another adapter there, which may be ahead of this one's writes to
	// memory; a read is not.
	err = r.post(Read, 0, 1, remote(written[len(written)-1].at), key.Key)
	if err == nil {
		err = r.await(r.posted, over)
	}
	if err != nil {
		return fail(err)
	}
	return nil, nil
}

// goneLimit is how long the other end may take to give a rail up, too.
const goneLimit = 15 * time.Second

// lose gives a rail up: nothing uses it any more. wrote: writes of it may be on their way, so the
// other end has given it up, too, when it returns. An error is the connection's.
func (c *Conn) lose(r *rail, why error, wrote bool) error {
	c.mu.Lock()
	r.dead, r.why = true, why
	c.mu.Unlock()
	if err := r.close(); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.failLocked(fmt.Errorf("a queue pair for copies does not end: %w", err))
	}
	c.mu.Lock()
	err, told := c.err, c.reach.told
	if c.closed && err == nil {
		err = net.ErrClosed
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	for i, x := range c.reach.rails {
		if x == r {
			c.writeWord(railLost, uint64(i))
		}
	}
	if told != nil {
		told(c.String())
	}
	if !wrote {
		return nil
	}
	end := deadline{at: time.Now().Add(goneLimit)}
	timer := time.AfterFunc(goneLimit, c.wake)
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	err = c.awaitLocked(&end, func() bool { return r.gone || c.cut })
	if err == nil && !r.gone || errors.Is(err, errDeadline) {
		// What it wrote may still be on its way: the parts are nobody's to write again.
		err = c.failLocked(errors.New("the other end does not give up a queue pair for copies that has failed"))
	}
	return err
}

// railWord follows word that a rail is given up, and answers it at the client's end.
func (c *Conn) railWord(n uint64) {
	c.mu.Lock()
	client := c.Grants()
	var r *rail
	if n < uint64(len(c.reach.rails)) {
		r = c.reach.rails[n]
	}
	if r == nil || client == r.dead || r.gone {
		c.cut = true
		c.failLocked(remote.Violation("queue pair %d for copies is given up", n))
		c.mu.Unlock()
		return
	}
	r.gone = true
	if client {
		r.dead, r.why = true, errors.New("the other end has given it up")
	}
	told := c.reach.told
	c.mu.Unlock()
	if !client {
		return
	}
	if err := r.close(); err != nil {
		c.mu.Lock()
		c.failLocked(fmt.Errorf("a queue pair for copies does not end: %w", err))
		c.mu.Unlock()
		return
	}
	c.writeWord(railLost, n)
	if told != nil {
		told(c.String())
	}
}

// kickRailsLocked has those who wait at rails look again.
func (c *Conn) kickRailsLocked() {
	for _, r := range c.reach.rails {
		if !r.dead {
			r.queue.Kick()
		}
	}
}

// closeRails gives back those that are left. Nothing uses them any more, but what mu guards may be
// looked at.
func closeRails(mu sync.Locker, rails []*rail) error {
	var err error
	for _, r := range rails {
		mu.Lock()
		dead := r.dead
		if !dead {
			r.dead, r.why = true, net.ErrClosed
		}
		mu.Unlock()
		if !dead {
			err = errors.Join(err, r.close())
		}
	}
	return err
}

// Watch has told called with what String says, whenever a queue pair for copies is lost.
func (c *Conn) Watch(told func(about string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reach.told = told
}

// Pairs is how many queue pairs copies go by.
func (c *Conn) Pairs() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 1
	for _, r := range c.reach.rails {
		if !r.dead {
			n++
		}
	}
	return n
}

// railsText says what copies go by, where there was more to agree on than the queue pair of the
// frames.
func railsText(first string, rails []*rail) string {
	if len(rails) == 0 {
		return ""
	}
	used, not := []string{first}, ""
	for _, r := range rails {
		if r.dead {
			why := fmt.Sprint(r.why)
			not += fmt.Sprintf("; not by %v: %s", r, why[:min(len(why), maxRefusal)])
		} else {
			used = append(used, r.String())
		}
	}
	what := "queue pairs"
	if len(used) == 1 {
		what = "queue pair"
	}
	return fmt.Sprintf(", %d %s for them: %s", len(used), what, strings.Join(used, ", ")) + not
}

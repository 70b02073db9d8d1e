package verbs

import (
	"errors"
	"fmt"

	"causeway/remote"
	"causeway/remote/frame"
)

// Pieces of registered memory through which an end reads and writes the other's: as many bytes may
// be under way, in so many work requests.
const (
	pieces    = 8
	pieceSize = 128 << 10
)

// reach is a connection's part in memory that the client has registered and the server reads and
// writes by itself. Conn.mu guards it, but not the bytes of pieces, which are whoever's that took
// them.
type reach struct {
	// The client's, if the server reaches memory: that of the frames, and those of rails, by their
	// numbers; nil: none has the number.
	granters []Adapter
	land     *buffer // the server's, of pieces; nil: it reaches none
	rails    []*rail // further queue pairs for copies, by their numbers: these are told of
	told     func(string)

	free   []uint64 // offsets of pieces in land
	stored []piece  // whose WRITEs are under way, in the order in which they were posted
	last   uint64   // the newest WRITE's work request
	wanted int      // goroutines that wait for a piece
	users  int      // goroutines in Fetch or Store
}

// piece is one that is under way, until the work request id is done.
type piece struct {
	at uint64
	id uint64
	to []byte // where its bytes go, of a READ
}

var (
	_ frame.Granting = (*Conn)(nil)
	_ frame.Reaching = (*Conn)(nil)
)

func (r *reach) begin(land *buffer, granters []Adapter, rails []*rail) {
	r.land, r.granters, r.rails = land, granters, rails
	if land != nil {
		for at := uint64(0); at < uint64(len(land.mem)); at += pieceSize {
			r.free = append(r.free, at)
		}
	}
}

// Grants implements frame.Granting.
func (c *Conn) Grants() bool { return len(c.reach.granters) > 0 }

// Grant implements frame.Granting. The key that it makes opens these bytes, and nothing beside
// them, to the queue pairs of this process, of which the server's end has one.
func (c *Conn) Grant(mem []byte) (frame.Granted, func(), error) {
	m, err := c.reach.granters[0].Register(mem, RemoteRead|RemoteWrite)
	if err != nil {
		return frame.Granted{}, nil, fmt.Errorf("memory for RDMA: %w", err)
	}
	g, all := frame.Granted{Address: m.Address(), Size: uint64(len(mem)), Key: m.RemoteKey()}, []Memory{m}
	for i, a := range c.reach.granters[1:] {
		if a == nil {
			continue
		}
		if m, err := a.Register(mem, RemoteRead|RemoteWrite); err == nil {
			// Else these bytes go by the others.
			g.More[i], all = frame.Key{Is: true, Address: m.Address(), Key: m.RemoteKey()}, append(all, m)
		}
	}
	return g, func() { c.revoke(all) }, nil
}

// revoke ends registrations. If that cannot be done, the queue pairs end that could use them.
func (c *Conn) revoke(all []Memory) {
	var err error
	for _, m := range all {
		err = errors.Join(err, m.Close())
	}
	if err == nil {
		return
	}
	c.mu.Lock()
	c.failLocked(fmt.Errorf("memory that the other end reaches is not taken back: %w", err))
	c.mu.Unlock()
	go c.Abort() // which may wait for what holds the caller's memory
}

// Reaches implements frame.Reaching.
func (c *Conn) Reaches() bool { return c.reach.land != nil }

// enter has Close wait until leave.
func (c *Conn) enter(n int, g frame.Granted, off uint64) error {
	if off > g.Size || uint64(n) > g.Size-off {
		return remote.ErrOutOfBounds
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reach.users++
	return nil
}

func (c *Conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reach.users--; c.reach.users == 0 {
		c.cond.Broadcast() // for Close, which takes no completions
	}
}

// Fetch implements frame.Reaching: by RDMA READs, as many at once as there are pieces for.
func (c *Conn) Fetch(p []byte, from frame.Granted, off uint64) error {
	return c.transfer(Read, p, from, off, c.fetchParts)
}

// Store implements frame.Reaching: by RDMA WRITEs, behind which the stream's own go.
func (c *Conn) Store(p []byte, to frame.Granted, off uint64) error {
	return c.transfer(Write, p, to, off, c.storeParts)
}

// transfer has all parts of a transfer done, by the queue pair of the frames, and by rails if it is
// a large one. Nothing of a rail's is under way any more when it returns.
func (c *Conn) transfer(op Op, p []byte, g frame.Granted, off uint64, parts func(*spread) error) error {
	if err := c.enter(len(p), g, off); err != nil {
		return err
	}
	defer c.leave()
	x := &spread{op: op, p: p, g: g, off: off, wide: len(p) >= railLeast && len(c.reach.rails) > 0}
	if x.wide {
		// What was written before, by the queue pair of the frames, is not overtaken by another.
		if err := c.Settle(); err != nil {
			return err
		}
	}
	for x.left() {
		err := parts(x)
		if err != nil {
			x.stop()
		}
		x.wg.Wait()
		if err != nil {
			return err
		}
	}
	return x.failed()
}

// fetchParts reads parts until there are none left.
func (c *Conn) fetchParts(x *spread) error {
	var under []piece // oldest first
	for more := true; more || len(under) > 0; {
		if c.engage(x); more {
			if more = x.left(); !more {
				continue
			}
			y, ok, err := c.claim(len(under) == 0)
			if err != nil {
				return err
			}
			if ok {
				s, has := x.take()
				if more = has; !has {
					c.put(y)
					continue
				}
				y.to = x.p[s.at:][:s.n]
				if y.id, err = c.pass(Read, y, s.n, x.g, x.off+uint64(s.at)); err != nil {
					return err
				}
				under = append(under, y)
				continue
			}
		}
		y := under[0]
		if err := c.settle(y.id); err != nil {
			return err
		}
		copy(y.to, c.reach.land.mem[y.at:])
		c.put(y)
		under = under[1:]
	}
	return nil
}

// storeParts writes parts until there are none left.
func (c *Conn) storeParts(x *spread) error {
	for x.left() {
		c.engage(x)
		y, _, err := c.claim(true)
		if err != nil {
			return err
		}
		s, has := x.take()
		if !has {
			c.put(y)
			return nil
		}
		n := copy(c.reach.land.mem[y.at:][:pieceSize], x.p[s.at:][:s.n])
		if _, err := c.pass(Write, y, n, x.g, x.off+uint64(s.at)); err != nil {
			return err
		}
	}
	return nil
}

// claim is a piece that nothing uses, with room for its work request; without waiting for one, if
// there is any. Who waits has none.
func (c *Conn) claim(wait bool) (x piece, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &c.reach
	if !c.pieceLocked() && !wait {
		return x, false, nil
	}
	r.wanted++
	err = c.awaitLocked(&deadline{}, c.pieceLocked)
	r.wanted--
	if err != nil {
		return x, false, err
	}
	x.at, r.free = r.free[len(r.free)-1], r.free[:len(r.free)-1]
	return x, true, nil
}

// pieceLocked takes back pieces whose bytes have left, and reports whether one can be used.
func (c *Conn) pieceLocked() bool {
	r := &c.reach
	for len(r.stored) > 0 && r.stored[0].id <= c.done {
		r.free, r.stored = append(r.free, r.stored[0].at), r.stored[1:]
	}
	return len(r.free) > 0 && c.posted-c.done < sends-reserved
}

// put gives a piece back. Who waits for one may be who takes completions, and none may come any
// more.
func (c *Conn) put(x piece) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reach.free = append(c.reach.free, x.at)
	if c.reach.wanted > 0 {
		c.changedLocked()
	}
}

// pass posts the work request of a piece. It is the request's until that is done.
func (c *Conn) pass(op Op, x piece, n int, g frame.Granted, off uint64) (id uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	land := c.reach.land.reg
	w := Work{
		Op: op, Signaled: true, Local: land.Address() + x.at, LocalKey: land.LocalKey(), Length: uint32(n), Remote: g.Address + off, RemoteKey: g.Key,
	}
	if err := c.postLocked([]Work{w}); err != nil {
		return 0, err
	}
	if x.id = c.posted; op == Write {
		c.reach.stored, c.reach.last = append(c.reach.stored, x), x.id
	}
	return x.id, nil
}

// Settle waits until what Store has written is there.
func (c *Conn) Settle() error {
	c.mu.Lock()
	last := c.reach.last
	c.mu.Unlock()
	return c.settle(last)
}

// settle waits until a work request is done.
func (c *Conn) settle(id uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.awaitLocked(&deadline{}, func() bool { return c.done >= id })
}

package verbs

import (
	"fmt"

	"causeway/remote"
	"causeway/remote/frame"
)

// Pieces of registered memory through which an end reads and writes the other's: as many bytes may be under way, in so many work requests.
const (
	pieces    = 8
	pieceSize = 128 << 10
)

// reach is a connection's part in memory that the client has registered and the server reads and writes by itself. Conn.mu guards it, but not the bytes of pieces, which are whoever's that took them.
type reach struct {
	granter Adapter // the client's, if the server reaches memory
	land    *buffer // the server's, of pieces; nil: it reaches none

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

func (r *reach) begin(land *buffer, granter Adapter) {
	r.land, r.granter = land, granter
	if land != nil {
		for at := uint64(0); at < uint64(len(land.mem)); at += pieceSize {
			r.free = append(r.free, at)
		}
	}
}

// Grants implements frame.Granting.
func (c *Conn) Grants() bool { return c.reach.granter != nil }

// Grant implements frame.Granting. The key that it makes opens these bytes, and nothing beside them, to the queue pairs of this process, of which the server's end has one.
func (c *Conn) Grant(mem []byte) (frame.Granted, func(), error) {
	m, err := c.reach.granter.Register(mem, RemoteRead|RemoteWrite)
	if err != nil {
		return frame.Granted{}, nil, fmt.Errorf("memory for RDMA: %w", err)
	}
	return frame.Granted{Address: m.Address(), Size: uint64(len(mem)), Key: m.RemoteKey()}, func() { c.revoke(m) }, nil
}

// revoke ends a registration. If that cannot be done, the queue pair ends that could use it.
func (c *Conn) revoke(m Memory) {
	err := m.Close()
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
	if err := c.enter(len(p), from, off); err != nil {
		return err
	}
	defer c.leave()
	var under []piece // oldest first
	for len(p) > 0 || len(under) > 0 {
		if len(p) > 0 {
			x, ok, err := c.claim(len(under) == 0)
			if err != nil {
				return err
			}
			if ok {
				x.to = p[:min(len(p), pieceSize)]
				if x.id, err = c.pass(Read, x, len(x.to), from, off); err != nil {
					return err
				}
				p, off = p[len(x.to):], off+uint64(len(x.to))
				under = append(under, x)
				continue
			}
		}
		x := under[0]
		if err := c.settle(x.id); err != nil {
			return err
		}
		copy(x.to, c.reach.land.mem[x.at:])
		c.put(x)
		under = under[1:]
	}
	return nil
}

// Store implements frame.Reaching: by RDMA WRITEs, behind which the stream's own go.
func (c *Conn) Store(p []byte, to frame.Granted, off uint64) error {
	if err := c.enter(len(p), to, off); err != nil {
		return err
	}
	defer c.leave()
	for len(p) > 0 {
		x, _, err := c.claim(true)
		if err != nil {
			return err
		}
		n := copy(c.reach.land.mem[x.at:][:pieceSize], p)
		if _, err := c.pass(Write, x, n, to, off); err != nil {
			return err
		}
		p, off = p[n:], off+uint64(n)
	}
	return nil
}

// claim is a piece that nothing uses, with room for its work request; without waiting for one, if there is any. Who waits has none.
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

// put gives a piece back. Who waits for one may be who takes completions, and none may come any more.
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

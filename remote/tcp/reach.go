package tcp

import (
	"bufio"
	"errors"
	"io"

	"causeway/remote"
	"causeway/remote/frame"
)

/*
A relay over RDMA may grant its guest's regions, one by one: then this end reads and writes them by
itself, and the relay has no part in it. What is granted is recalled when the guest's pages are to
go; a RECALLED frame answers once nothing is under way. Meanwhile, and for regions that are not
granted, READ and WRITE frames do the same.
*/

// storeLeast is what leaves beside frames, in bytes: with less a frame, which goes with the next,
// costs less.
const storeLeast = 4 << 10

// reach is what this end reaches by itself. memory.mu guards it.
type reach struct {
	by      frame.Reaching // nil: nothing
	granted map[uint32]frame.Granted
	under   int  // transfers under way
	owed    bool // a RECALL waits for its answer, or that for its turn to be sent
}

func newReach(conn frame.Stream) reach {
	r := reach{granted: map[uint32]frame.Granted{}}
	if by, ok := conn.(frame.Reaching); ok && by.Reaches() {
		r.by = by
	}
	return r
}

// grantFrame follows a GRANT.
func (c *Carrier) grantFrame(h frame.Header, in *bufio.Reader) error {
	if h.Len > frame.MostGrantSize {
		return remote.Violation("GRANT frame of %d bytes", h.Len)
	}
	var b [frame.MostGrantSize]byte
	if _, err := io.ReadFull(in, b[:h.Len]); err != nil {
		return err
	}
	g, err := frame.ParseGranted(b[:h.Len])
	if err != nil {
		return err
	}
	return c.mem.grant(h.Arg, g)
}

func (m *memory) grant(id uint64, g frame.Granted) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.regions[uint32(id)]
	_, twice := m.reach.granted[uint32(id)]
	switch {
	case m.reach.by == nil || m.reach.owed:
		return remote.Violation("GRANT frame where nothing can be granted")
	case id>>32 != 0 || id == 0 || !ok || twice || g.Size != d.Size || g.Address+g.Size < g.Address:
		return remote.Violation("GRANT frame for %#x bytes of region %d", g.Size, id)
	}
	m.reach.granted[uint32(id)] = g
	return nil
}

// recallFrame follows a RECALL. What is under way is not waited for here.
func (c *Carrier) recallFrame(h frame.Header) error {
	m := c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.Len != 0 || h.Arg != 0 || m.reach.by == nil || m.reach.owed {
		return remote.Violation("RECALL frame of %d bytes", h.Len)
	}
	clear(m.reach.granted)
	if m.reach.owed = true; m.reach.under == 0 {
		c.wg.Go(c.recalled) // the receiver sends nothing itself
	}
	return nil
}

// recalled answers a RECALL. Until it is its turn there can be no other one: a guest's end that
// does not read would have as many wait as it likes. An error is the receiver's to notice.
func (c *Carrier) recalled() {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.mem.mu.Lock()
	c.mem.reach.owed = false // ahead of the word, behind which there may be
	c.mem.mu.Unlock()
	if c.putLocked(frame.Header{Kind: frame.Recalled}, nil, nil) == nil {
		_ = c.out.Flush()
	}
}

// enter begins a transfer, of a region that is granted; false: it is not.
func (m *memory) enter(id uint32) (g frame.Granted, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g, ok = m.reach.granted[id]; ok {
		m.reach.under++
	}
	return g, ok
}

// leave ends it.
func (m *memory) leave() {
	m.mu.Lock()
	m.reach.under--
	answer := m.reach.owed && m.reach.under == 0 // once: nothing is granted meanwhile
	m.mu.Unlock()
	if answer {
		go m.c.recalled() // who has transferred need not wait for the stream
	}
}

// fetch reads by itself, if that is granted.
func (m *memory) fetch(id uint32, p []byte, off uint64) (ok bool, err error) {
	g, ok := m.enter(id)
	if !ok {
		return false, nil
	}
	defer m.leave()
	err = m.reach.by.Fetch(p, g, off)
	return !errors.Is(err, frame.ErrUnreached), err
}

// store writes by itself, if that is granted and worth it.
func (m *memory) store(id uint32, p []byte, off uint64) (ok bool, err error) {
	if len(p) < storeLeast {
		return false, nil
	}
	g, ok := m.enter(id)
	if !ok {
		return false, nil
	}
	defer m.leave()
	err = m.reach.by.Store(p, g, off)
	return !errors.Is(err, frame.ErrUnreached), err
}

var _ remote.DirectMemory = (*memory)(nil)

// MoveDirect implements remote.DirectMemory, for regions that are granted.
func (m *memory) MoveDirect(id uint32, off uint64, to remote.Registered, at, n uint64, in bool) (ok bool, err error) {
	d, direct := m.reach.by.(frame.Direct)
	if !direct {
		return false, nil
	}
	if err := m.check(id, off, n, !in); err != nil {
		return false, err
	}
	g, ok := m.enter(id)
	if !ok {
		return false, nil
	}
	defer m.leave()
	if in {
		err = d.FetchTo(to, at, n, g, off)
	} else {
		err = d.StoreFrom(to, at, n, g, off)
	}
	if errors.Is(err, frame.ErrUnreached) {
		return false, nil
	}
	return err == nil, err
}

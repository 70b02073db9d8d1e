package tcp

import (
	"bufio"
	"errors"
	"sync"
	"sync/atomic"

	"causeway/remote"
	"causeway/remote/frame"
)

/*
A relay's session may have branches beside its first stream (frame.Branching), which the relay
begins once there is something to copy. Then copies go by them, cut into parts: READs are answered
over whichever the relay has free, WRITEs go over the one that has least to send, or over the trunk
while none has a connection. Calls stay on the trunk, where they wait for nothing but, if a WRITE
may be what they are about, that one: a frame BEHIND goes ahead of them.

What two WRITEs, or a WRITE and a READ, of the same bytes leave is not said where no such frame went
between them. None does: guest memory that is copied from or to is a chunk of the guest's library,
which it does not use again before it has seen the copy's completion word.
*/

// trunk is the session's first stream, for who brings a READ's answer. Branches count from behind
// it.
const trunk = 1

// Parts of what goes by branches, in bytes: so many parts of a copy, but none so small.
const (
	wideParts = 16
	wideLeast = 256 << 10
)

// wide is the branches of a carrier.
type wide struct {
	most int // set before Welcome

	mu     sync.Mutex
	closed bool
	list   []*branch
	all    atomic.Pointer[[]*branch] // a copy of list
	turn   atomic.Uint32             // where least begins
}

// branch is one that the relay has begun.
type branch struct {
	n  uint32
	up frame.Branch

	mu    sync.Mutex // orders frames
	wrote atomic.Uint32
	told  uint32 // of them, those that the trunk says; Carrier.writeMu is held
}

// AcceptWide is Accept on a stream beside which the guest's end may begin up to most branches.
func AcceptWide(conn frame.Branching, most int) (*Carrier, error) {
	c, err := Accept(conn)
	if err != nil || most <= 0 {
		return c, err
	}
	c.mem.mu.Lock()
	c.wide.most = most
	c.mem.mu.Unlock()
	conn.TakeBranches(most, c.branch)
	return c, nil
}

// branch has what comes by one more stream followed.
func (c *Carrier) branch(n int, up frame.Branch) {
	w := &c.wide
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.list = append(w.list, &branch{n: uint32(n), up: up})
	list := append([]*branch(nil), w.list...)
	w.all.Store(&list)
	c.wg.Go(func() { c.routineBranch(n, up) })
}

// close has no more branches come.
func (w *wide) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
}

// routineBranch follows a branch to its end, which is the session's: only what breaks a rule is
// said here.
func (c *Carrier) routineBranch(n int, up frame.Branch) {
	in := bufio.NewReaderSize(up, 64<<10)
	for {
		h, err := frame.ReadHeader(in)
		if err == nil && h.Kind != frame.Data {
			err = remote.Violation("frame of type %d beside the first connection", h.Kind)
		}
		if err == nil {
			if frame.Awake(up) {
				c.mem.rung.Use()
			}
			err = c.mem.data(h, in, trunk+1+n)
		}
		if err != nil {
			if errors.Is(err, remote.ErrProtocol) {
				c.failed(err)
				_ = c.conn.Close() // the receiver ends
			}
			return
		}
	}
}

// part is how much of n bytes is asked for at once.
func (w *wide) part(n int) int {
	if w.most == 0 {
		return frame.MaxRead
	}
	return min(max((n+wideParts-1)/wideParts, wideLeast), frame.MaxRead)
}

// least is the branch that has least to send; nil: none has a connection. Of several it is another
// each time: what one has sent the other end may have yet to decrypt.
func (w *wide) least() (b *branch) {
	list := w.all.Load()
	if list == nil {
		return nil
	}
	least, from := uint64(frame.Away), int(w.turn.Load())
	for i := range *list {
		x := (*list)[(from+i)%len(*list)]
		if n := x.up.Backlog(); n < least {
			b, least = x, n
			w.turn.Store(uint32((from + i + 1) % len(*list)))
		}
	}
	return b
}

// behind appends what is to precede a frame that may be about WRITEs that went by branches.
// Carrier.writeMu is held.
func (w *wide) behind(b []byte, kind frame.Kind) []byte {
	list := w.all.Load()
	if list == nil || kind != frame.Slot && kind != frame.Word && kind != frame.Control && kind != frame.State {
		return b
	}
	for _, x := range *list {
		if n := x.wrote.Load(); n != x.told {
			x.told = n
			b = frame.Header{Kind: frame.Behind, Arg: frame.Pair(x.n, n)}.Append(b)
		}
	}
	return b
}

// write gives a WRITE to the branch.
func (b *branch) write(id uint32, p []byte, off uint64) error {
	e := frame.Extent{Region: id, Offset: off, Size: uint64(len(p))}.Append(nil)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrote.Add(1)
	return b.up.Fill(frame.Header{Kind: frame.Write, Len: uint32(len(e) + len(p))}, func(room []byte, at int) error {
		if at < len(e) {
			n := copy(room, e[at:])
			room, at = room[n:], at+n
		}
		if at >= len(e) {
			copy(room, p[at-len(e):])
		}
		return nil
	})
}

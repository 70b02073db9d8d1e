package verbs

import (
	"sync"

	"causeway/remote/frame"
)

// span is a part of a transfer.
type span struct{ at, n int }

// spread is a transfer that several queue pairs do in parts, each of which takes the next when it
// has room. A part that one has taken and has not done comes back when nothing of it can be under
// way any more.
type spread struct {
	op   Op
	p    []byte
	g    frame.Granted
	off  uint64
	wide bool
	wg   sync.WaitGroup

	mu   sync.Mutex
	next int
	back []span
	over bool  // no part is taken any more
	err  error // a part is lost: the connection has ended
}

// take is the next part.
func (x *spread) take() (span, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.over:
		return span{}, false
	case len(x.back) > 0:
		s := x.back[len(x.back)-1]
		x.back = x.back[:len(x.back)-1]
		return s, true
	case x.next < len(x.p):
		s := span{x.next, min(len(x.p)-x.next, pieceSize)}
		x.next += s.n
		return s, true
	}
	return span{}, false
}

// left reports whether there are parts that nobody has.
func (x *spread) left() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.over && (len(x.back) > 0 || x.next < len(x.p))
}

func (x *spread) giveBack(parts []span) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.back = append(x.back, parts...)
}

// stop has nobody take another part.
func (x *spread) stop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
}

// fail ends it: a part is not done, and the connection has ended.
func (x *spread) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over, x.err = true, err
}

func (x *spread) failed() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err
}

// engage has rails that nothing uses take part in a transfer.
func (c *Conn) engage(x *spread) {
	if !x.wide || !x.left() {
		return
	}
	for _, r := range c.reach.rails {
		if !x.g.By(r.number).Is || !r.mu.TryLock() {
			continue
		}
		if c.railOver(r) != nil {
			r.mu.Unlock()
			continue
		}
		x.wg.Go(func() {
			defer r.mu.Unlock()
			c.haul(r, x)
		})
	}
}

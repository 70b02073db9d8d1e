package cuda

import (
	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

// maxPlaceholders is how much a pool is filled with, piece by piece, until memory comes out where it was.
const maxPlaceholders = 1024

// room is where the driver chooses the places: a pool.
type room interface {
	// take is a piece of that size, false if there is none.
	take(size uint64) (at uint64, ok bool)
	give(at uint64)
}

// placeAt has a room choose want for a piece of size bytes. Rooms take the first of their holes, or the one that fits best, and a new process's lacks the pieces that lay
// before this one and were freed since: holes that are chosen instead are filled until none is, and the one that want lies in, up to there. What fills them
// is given back at the end.
func placeAt(r room, want, size uint64) bool {
	var held []uint64
	defer func() {
		for _, at := range held {
			r.give(at)
		}
	}()
	for len(held) < maxPlaceholders {
		at, ok := r.take(size)
		if at == want || !ok {
			return ok
		}
		n := size
		if at < want && want-at < n {
			r.give(at)
			n = want - at
			if at, ok = r.take(n); !ok {
				return false
			}
		}
		if at, ok = widen(r, at, n, want); !ok {
			return false
		}
		held = append(held, at)
	}
	return false
}

// widen exchanges a piece of n bytes for one that fills most of its hole, or the hole up to want.
func widen(r room, at, n, want uint64) (uint64, bool) {
	for m := n; m <= 1<<62; {
		m *= 2
		if at < want {
			m = min(m, want-at)
		}
		if m <= n {
			break
		}
		r.give(at)
		wide, ok := r.take(m)
		if ok && wide == at {
			n = m
			continue
		}
		if ok {
			r.give(wide)
		}
		return r.take(n)
	}
	return at, true
}

// poolRoom is a pool of the driver's, in the order of a stream's work. What it hands out is booked.
type poolRoom struct {
	s     *session
	st    *stream
	alloc func(size uint64) (bind.Address, cuda.Result)
	took  map[uint64]pooledPiece
}

type pooledPiece struct {
	at   bind.Address
	size uint64
}

func (p *poolRoom) take(size uint64) (uint64, bool) {
	if p.s.charge(size) != cuda.Success {
		return 0, false
	}
	at, res := p.alloc(size)
	if p.s.note(res) != cuda.Success {
		p.s.refund(size)
		return 0, false
	}
	p.took[at.Value()] = pooledPiece{at, size}
	return at.Value(), true
}

func (p *poolRoom) give(at uint64) {
	p.s.drv.MemFreeAsync(p.took[at].at, p.st.handle)
	p.s.refund(p.took[at].size)
	delete(p.took, at)
}

// pooledAgain allocates from a pool in stream order what another process had at want.
func (s *session) pooledAgain(st *stream, want, size uint64, alloc func(size uint64) (bind.Address, cuda.Result)) (bind.Address, bool) {
	r := &poolRoom{s: s, st: st, alloc: alloc, took: map[uint64]pooledPiece{}}
	ok := placeAt(r, want, size)
	s.drv.StreamSynchronize(st.handle) // what was given back is for other streams too
	return r.took[want].at, ok
}

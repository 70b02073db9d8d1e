package soft

import (
	"fmt"
	"io"

	"causeway/cuda"
	"causeway/host/driver"
)

var _ driver.Expecter = (*session)(nil)

// Memory that is expected is live as any other, of nobody. The operation that allocates it takes it
// as it is; one that allocates anything else at these addresses, or around them, takes its place.

// Expects implements driver.Expecter.
func (*session) Expects() bool { return true }

// Expect implements driver.Expecter.
func (s *session) Expect(addr, size uint64) error {
	if res := s.space.expect(addr, size); res != cuda.Success {
		return fmt.Errorf("no room for %d bytes that are to come to %#x: %w", size, addr, res)
	}
	return nil
}

func (s *space) expect(addr, size uint64) cuda.Result {
	device := deviceAt(addr)
	if addr < arenaBase || device >= len(s.arenas) {
		return cuda.ErrorInvalidValue
	}
	a, res := s.alloc(request{device: device, size: size, at: addr, kind: expectedMemory})
	if res != cuda.Success {
		return res
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expected == nil {
		s.expected = map[uint64]*allocation{}
	}
	s.expected[addr] = a
	return cuda.Success
}

// takeExpectedLocked is what was expected at the addresses of a request, which is in use from now
// on; nil: just that was not, and what was is gone.
func (s *space) takeExpectedLocked(r *request) *allocation {
	if len(s.expected) == 0 || r.at == 0 {
		return nil
	}
	if a := s.expected[r.at]; a != nil && a.kind == expectedMemory && a.size == r.size && a.device == r.device && r.kind != expectedMemory {
		s.serials++
		a.kind, a.ctx, a.readOnly, a.serial, a.came = r.kind, r.ctx, r.readOnly, s.serials, true
		return a
	}
	if r.kind != expectedMemory {
		s.makeWayLocked(r.at, r.size)
	}
	return nil
}

// makeWayLocked ends what is still expected at any of these addresses.
func (s *space) makeWayLocked(lo, size uint64) {
	if len(s.expected) == 0 {
		return
	}
	gone := map[*allocation]bool{}
	list := *s.intervals.Load()
	for i := s.firstEndingAfter(lo); i < len(list) && list[i].lo < lo+size; i++ {
		if list[i].a.kind == expectedMemory {
			gone[list[i].a] = true
		}
	}
	s.forgetLocked(gone)
}

// forgetLocked ends what is still expected.
func (s *space) forgetLocked(gone map[*allocation]bool) {
	if len(gone) == 0 {
		return
	}
	for a := range gone {
		delete(s.expected, a.lo)
		s.unbookLocked(a.device, a.size)
	}
	s.removeLocked(func(a *allocation) bool { return gone[a] })
	for a := range gone {
		s.decommitLocked(a)
	}
}

// awaited is a part of what was expected.
func (s *space) awaited(addr, size uint64) ([]byte, error) {
	a := s.lookup(addr)
	if a == nil || s.expected[a.lo] != a || size > a.size-(addr-a.lo) {
		return nil, fmt.Errorf("%d bytes at %#x are not expected", size, addr)
	}
	return a.mem[addr-a.lo:][:size], nil
}

// Fill implements driver.Expecter.
func (s *session) Fill(addr, size uint64, r io.Reader) error {
	mem, err := s.space.awaited(addr, size)
	if err == nil {
		_, err = io.ReadFull(r, mem)
	}
	return err
}

// Zero implements driver.Expecter.
func (s *session) Zero(addr, size uint64) error {
	mem, err := s.space.awaited(addr, size)
	if err == nil {
		err = takeIn(mem, io.LimitReader(zeros{}, int64(size)))
	}
	return err
}

// zeros are without end.
type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// Forget implements driver.Expecter.
func (s *session) Forget(addr, size uint64) error {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	a := s.space.expected[addr]
	if a == nil || a.size != size || a.kind != expectedMemory {
		return fmt.Errorf("%d bytes at %#x are not expected", size, addr)
	}
	s.space.forgetLocked(map[*allocation]bool{a: true})
	return nil
}

// Landed implements driver.Expecter.
func (s *session) Landed(addr, size uint64) error {
	a := s.space.expected[addr]
	if a == nil || a.size != size || a.kind == expectedMemory {
		return fmt.Errorf("import: no allocation of %d bytes at %#x", size, addr)
	}
	if m := s.graphMem[addr]; m != nil {
		m.live.Store(true)
	}
	return nil
}

// Settle implements driver.Expecter.
func (s *session) Settle() error {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	gone := map[*allocation]bool{}
	for _, a := range s.space.expected {
		if a.kind == expectedMemory {
			gone[a] = true
		}
	}
	s.space.forgetLocked(gone)
	s.space.expected = nil
	return nil
}

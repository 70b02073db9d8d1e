package soft

import (
	"context"

	"causeway/cuda"
)

// take books memory without an address.
func (s *space) take(size uint64) cuda.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.roomLocked(size) {
		return cuda.ErrorOutOfMemory
	}
	s.live += size
	return cuda.Success
}

// give ends take.
func (s *space) give(size uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live -= size
}

// mapped makes a mapping reachable.
func (s *space) mapped(m *mapping, readOnly bool) *allocation {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serials++
	a := &allocation{
		lo: addressOf(m.mem), size: uint64(len(m.mem)), mem: m.mem, device: m.of.device, readOnly: readOnly,
		serial: s.serials, kind: mappedMemory, around: m.in.mem,
	}
	s.insertLocked(a)
	return a
}

// unmap ends mapped.
func (s *space) unmap(gone *allocation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(func(a *allocation) bool { return a == gone })
}

// awaitIdle waits for queued work, at most dropWait.
func (s *session) awaitIdle() {
	ctx, cancel := context.WithTimeout(s.running, dropWait)
	defer cancel()
	_ = s.queue.wait(ctx, func() bool { return s.queue.tasks == 0 })
}

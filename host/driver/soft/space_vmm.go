package soft

import (
	"context"
	"fmt"

	"causeway/cuda"
)

// take books memory without an address.
func (s *space) take(device int, size uint64) cuda.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.bookLocked(device, size) {
		return cuda.ErrorOutOfMemory
	}
	return cuda.Success
}

// give ends take.
func (s *space) give(device int, size uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unbookLocked(device, size)
}

// mapped makes a mapping reachable by a device.
func (s *space) mapped(m *mapping, by uint32, readOnly bool) *allocation {
	dev := m.of.device
	if dev == notShown {
		dev = int(by)
	}
	return s.add(&allocation{mem: m.mem, device: dev, readOnly: readOnly, kind: mappedMemory, around: m.in.mem})
}

// foreign makes another session's memory reachable.
func (s *space) foreign(mem []byte, device int, ctx *gpuContext, kind allocKind) *allocation {
	return s.add(&allocation{mem: mem, device: device, ctx: ctx, kind: kind})
}

func (s *space) add(a *allocation) *allocation {
	a.lo, a.size = addressOf(a.mem), uint64(len(a.mem))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serials++
	a.serial = s.serials
	s.insertLocked(a)
	return a
}

// unmap ends mapped and foreign.
func (s *space) unmap(gone *allocation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(func(a *allocation) bool { return a == gone })
}

// publish makes an allocation's memory part of a file that other processes can map: its chunks are
// copied there, and the file is mapped over them. What lies in the same chunks goes along. Nothing
// may run.
func (s *space) publish(a *allocation) (*memoryFile, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ar := s.arenas[a.device]
	if ar.file == nil {
		f, err := newMemoryFile(arenaSize)
		if err != nil {
			return nil, 0, err
		}
		ar.file, ar.public = f, map[uint64]struct{}{}
	}
	off := a.lo - ar.base
	for at := off &^ (chunkSize - 1); at < off+a.size; at += chunkSize {
		if _, done := ar.public[at]; done {
			continue
		}
		chunk := ar.mem[at : at+chunkSize : at+chunkSize]
		if _, err := ar.file.f.WriteAt(chunk, int64(at)); err != nil {
			return nil, 0, fmt.Errorf("share %d bytes: %w", a.size, err)
		}
		if err := ar.file.mapAt(chunk, at); err != nil {
			return nil, 0, fmt.Errorf("share %d bytes: %w", a.size, err)
		}
		ar.public[at] = struct{}{}
	}
	return ar.file, off, nil
}

// unpublish gives back the memory of public chunks in a range that becomes inaccessible. Importers
// keep zeros.
func (ar *arena) unpublish(from, to uint64) {
	for at := from; at < to && len(ar.public) > 0; at += chunkSize {
		if _, ok := ar.public[at-ar.base]; ok {
			ar.file.punch(at-ar.base, chunkSize)
			delete(ar.public, at-ar.base)
		}
	}
}

// awaitIdle waits for queued work, at most dropWait.
func (s *session) awaitIdle() {
	ctx, cancel := context.WithTimeout(s.running, dropWait)
	defer cancel()
	_ = s.queue.wait(ctx, func() bool { return s.queue.tasks == 0 })
}

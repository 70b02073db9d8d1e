package soft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"causeway/host/driver"
)

// Quiesce implements driver.Snapshotter.
func (s *session) Quiesce(ctx context.Context) error {
	if err := s.queue.idle(ctx); err != nil {
		return fmt.Errorf("software GPU is still working: %w", err)
	}
	return nil
}

// ExportMemory implements driver.Snapshotter. The session must be quiescent.
func (s *session) ExportMemory(fn func(addr, size uint64, r io.Reader) error) error {
	if err := s.Movable(); err != nil {
		return err
	}
	if times := s.eventTimes(); len(times) > 0 {
		if err := fn(ofEvents, uint64(len(times)), bytes.NewReader(times)); err != nil {
			return fmt.Errorf("export times of events: %w", err)
		}
	}
	for _, e := range *s.space.intervals.Load() {
		if m := s.graphMem[e.a.lo]; e.a.kind == pinnedRegion || e.a.kind == mappedMemory || e.a.kind == ipcMemory || e.a.freed || m != nil && !m.live.Load() {
			// What is not live of graphs holds nothing; what is mapped follows once, however often
			// it is; what others share goes with them.
			continue
		}
		if err := fn(e.a.lo, e.a.size, bytes.NewReader(e.a.mem)); err != nil {
			return fmt.Errorf("export %d bytes at %#x: %w", e.a.size, e.a.lo, err)
		}
	}
	for id, p := range s.mems {
		if p.foreign {
			continue
		}
		if err := fn(ofPhysical|uint64(id)<<physicalBits, p.size, io.NewSectionReader(p.file.f, 0, int64(p.size))); err != nil {
			return fmt.Errorf("export memory %d of cuMemCreate: %w", id, err)
		}
	}
	return nil
}

// ofPhysical names memory of cuMemCreate to ExportMemory, with its number behind it: it may have no
// address, or several.
const (
	ofPhysical   = 1<<63 | 1<<62
	physicalBits = 8
)

// importPhysical fills memory of cuMemCreate. It is new: zeros stay holes of its file.
func (s *session) importPhysical(id uint32, size uint64, r io.Reader) error {
	p := s.mems[id]
	if p == nil || p.foreign || p.size != size {
		return fmt.Errorf("import: no memory %d of %d bytes", id, size)
	}
	b := make([]byte, pieceSize)
	zeros := make([]byte, pieceSize)
	for at := uint64(0); at < size; at += uint64(len(b)) {
		b = b[:min(pieceSize, size-at)]
		if _, err := io.ReadFull(r, b); err != nil {
			return fmt.Errorf("import memory %d of cuMemCreate: %w", id, err)
		}
		if bytes.Equal(b, zeros[:len(b)]) {
			continue
		}
		if _, err := p.file.f.WriteAt(b, int64(at)); err != nil {
			return fmt.Errorf("import memory %d of cuMemCreate: %w", id, err)
		}
	}
	return nil
}

// pieceSize is how much of it is looked at together.
const pieceSize = 64 << 10

// ExportRunning implements driver.Precopier. Memory of cuMemMap is left to ExportMemory: its
// mappings come and go without the space's lock.
func (s *session) ExportRunning(fn func(addr, size uint64, r io.Reader) error) error {
	for _, e := range *s.space.intervals.Load() {
		switch e.a.kind {
		case plainMemory, pooledMemory, variable:
			if err := fn(e.a.lo, e.a.size, &liveReader{s.space, e.a, 0}); err != nil {
				return err
			}
		}
	}
	return nil
}

// liveReader reads an allocation that may be written, or freed, meanwhile.
type liveReader struct {
	space *space
	a     *allocation
	off   uint64
}

// Read implements io.Reader.
func (r *liveReader) Read(p []byte) (int, error) {
	if r.off == r.a.size {
		return 0, io.EOF
	}
	r.space.mu.Lock() // its pages go under it
	defer r.space.mu.Unlock()
	if r.space.lookup(r.a.lo) != r.a {
		return 0, driver.ErrGone
	}
	n := copy(p, r.a.mem[r.off:])
	r.off += uint64(n)
	return n, nil
}

// Movable implements driver.Movable.
func (s *session) Movable() error {
	if s.capturing() {
		return errors.New("a stream captures")
	}
	if at, ok := s.strayGraphMemory(); ok {
		return fmt.Errorf("memory at %#x is of a graph that is gone", at)
	}
	if err := s.strayNode(); err != nil {
		return err
	}
	for _, g := range s.ctxs {
		if g.heap != nil {
			return errors.New("kernels may have allocated memory (malloc in kernels)")
		}
	}
	for _, o := range s.opened {
		if o.of != nil && !s.has(o.of) {
			return fmt.Errorf("memory at %#x is of another process's pool that was destroyed here", o.a.lo)
		}
	}
	return nil
}

// ImportMemory implements driver.Snapshotter.
func (s *session) ImportMemory(addr, size uint64, r io.Reader) error {
	if addr == ofEvents {
		return s.setEventTimes(size, r)
	}
	if addr&ofPhysical == ofPhysical {
		return s.importPhysical(uint32(addr>>physicalBits), size, r)
	}
	a := s.space.lookup(addr)
	if a == nil || a.lo != addr || a.size != size || a.kind == pinnedRegion || a.kind == mappedMemory || a.kind == ipcMemory {
		return fmt.Errorf("import: no allocation of %d bytes at %#x", size, addr)
	}
	if err := takeIn(a.mem, r); err != nil {
		return fmt.Errorf("import %d bytes at %#x: %w", size, addr, err)
	}
	if m := s.graphMem[addr]; m != nil {
		m.live.Store(true)
	}
	return nil
}

// takeIn reads mem. Pages that hold the bytes already, zeros that nothing has touched above all,
// are not written.
func takeIn(mem []byte, r io.Reader) error {
	to := &untouched{mem}
	if _, err := io.Copy(to, r); err != nil {
		return err
	}
	if len(to.mem) > 0 {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// untouched is memory of which only what differs is written.
type untouched struct{ mem []byte }

// Write implements io.Writer.
func (u *untouched) Write(p []byte) (int, error) {
	if len(p) > len(u.mem) {
		return 0, io.ErrShortWrite
	}
	for rest := p; len(rest) > 0; {
		n := min(len(rest), pageSize)
		if !bytes.Equal(u.mem[:n], rest[:n]) {
			copy(u.mem, rest[:n])
		}
		u.mem, rest = u.mem[n:], rest[n:]
	}
	return len(p), nil
}

package tcp

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"sync"

	"causeway/remote"
	"causeway/remote/frame"
)

const (
	maxRegions    = 4096
	maxRegionSize = 64 << 30
	writePart     = 512 << 10 // bytes of one WRITE frame
)

// memory is the guest's regions, read and written by frames.
type memory struct {
	c *Carrier

	orderMu sync.Mutex // taken before mu and writeMu

	mu      sync.Mutex
	err     error // the connection has ended
	changed chan struct{}
	regions map[uint32]remote.Declared
	lastID  uint64
	reads   []*read // unanswered, oldest first
}

// read is a READ in flight. The receiver fills p.
type read struct {
	id   uint64
	p    []byte
	done chan error // buffered: one answer
}

var (
	_ remote.GuestMemory = (*memory)(nil)
	_ remote.EarlyMemory = (*memory)(nil)
)

func newMemory(c *Carrier) *memory {
	return &memory{c: c, changed: make(chan struct{}), regions: map[uint32]remote.Declared{}}
}

func (m *memory) declare(id uint32, d remote.Declared) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.regions[id]; ok || len(m.regions) >= maxRegions || d.Size == 0 || d.Size > maxRegionSize || d.VA+d.Size < d.VA {
		return remote.Violation("region %d: %#x bytes at %#x", id, d.Size, d.VA)
	}
	m.regions[id] = d
	close(m.changed)
	m.changed = make(chan struct{})
	return nil
}

func (m *memory) end(id uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.regions[uint32(id)]; !ok || id>>32 != 0 {
		return remote.Violation("end of region %d, which is not declared", id)
	}
	delete(m.regions, uint32(id))
	return nil
}

// fail ends everything that waits.
func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
	for _, r := range m.reads {
		r.done <- err
	}
	m.reads = nil
	close(m.changed)
	m.changed = make(chan struct{})
}

// Await implements remote.GuestMemory.
func (m *memory) Await(ctx context.Context, id uint32) (remote.Declared, error) {
	for {
		m.mu.Lock()
		d, ok := m.regions[id]
		changed, err := m.changed, m.err
		m.mu.Unlock()
		switch {
		case ok:
			return d, nil
		case err != nil:
			return d, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return d, fmt.Errorf("region %d: %w", id, remote.ErrUnknownRegion)
		}
	}
}

// check finds out whether an extent lies in a declared region: the guest would end the session otherwise. Region 0 can be
// read, not written.
func (m *memory) check(id uint32, off, n uint64, write bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.regions[id]
	switch {
	case m.err != nil:
		return m.err
	case !ok || write && id == 0:
		return fmt.Errorf("region %d: %w", id, remote.ErrUnknownRegion)
	case off > d.Size || n > d.Size-off:
		return fmt.Errorf("region %d, %#x+%#x of %#x bytes: %w", id, off, n, d.Size, remote.ErrOutOfBounds)
	}
	return nil
}

// ReadAt implements remote.GuestMemory. All parts are asked for before the first is awaited.
func (m *memory) ReadAt(id uint32, p []byte, off uint64) error {
	if err := m.check(id, off, uint64(len(p)), false); err != nil {
		return err
	}
	var reads []*read
	var err error
	for len(p) > 0 && err == nil {
		part := p[:min(len(p), frame.MaxRead)]
		r := &read{p: part, done: make(chan error, 1)}
		if err = m.request(r, id, off); err == nil {
			reads = append(reads, r)
		}
		p, off = p[len(part):], off+uint64(len(part))
	}
	for _, r := range reads {
		if e := <-r.done; err == nil {
			err = e
		}
	}
	if err != nil {
		return fmt.Errorf("read region %d: %w", id, err)
	}
	return nil
}

// Begin implements remote.EarlyMemory.
func (m *memory) Begin(id uint32, p []byte, off uint64) (<-chan error, error) {
	if err := m.check(id, off, uint64(len(p)), false); err != nil {
		return nil, err
	}
	if len(p) == 0 || len(p) > frame.MaxRead {
		return nil, fmt.Errorf("read region %d: %d bytes at once", id, len(p))
	}
	r := &read{p: p, done: make(chan error, 1)}
	if err := m.request(r, id, off); err != nil {
		return nil, fmt.Errorf("read region %d: %w", id, err)
	}
	return r.done, nil
}

// request sends a READ. The list and the connection have the same order, which orderMu keeps: mu must not be held while
// sending, because the receiver takes it. Once listed, r is answered, by fail if need be.
func (m *memory) request(r *read, id uint32, off uint64) error {
	m.orderMu.Lock()
	defer m.orderMu.Unlock()
	m.mu.Lock()
	if m.err != nil {
		m.mu.Unlock()
		return m.err
	}
	m.lastID++
	r.id = m.lastID
	m.reads = append(m.reads, r)
	m.mu.Unlock()
	if err := m.c.send(frame.Header{Kind: frame.Read, Arg: r.id}, frame.Extent{Region: id, Offset: off, Size: uint64(len(r.p))}.Append(nil), nil); err != nil {
		_ = m.c.conn.Close() // the receiver ends, and answers
	}
	return nil
}

// data takes a DATA frame. It runs on the receiver.
func (m *memory) data(h frame.Header, in *bufio.Reader) error {
	m.mu.Lock()
	var r *read
	if len(m.reads) > 0 {
		r = m.reads[0]
	}
	m.mu.Unlock()
	refused := h.Flags&frame.Refused != 0
	switch {
	case r == nil || r.id != h.Arg:
		return remote.Violation("DATA frame for request %d, which is not next", h.Arg)
	case refused != (h.Len == 0) || uint64(h.Len) > uint64(len(r.p)):
		return remote.Violation("DATA frame of %d bytes where %d are due", h.Len, len(r.p))
	case refused:
		m.pop()
		r.done <- fmt.Errorf("guest refused: %w", remote.ErrOutOfBounds)
		return nil
	}
	if _, err := io.ReadFull(in, r.p[:h.Len]); err != nil {
		return err
	}
	if r.p = r.p[h.Len:]; len(r.p) == 0 {
		m.pop()
		r.done <- nil
	}
	return nil
}

func (m *memory) pop() {
	m.mu.Lock()
	m.reads = m.reads[1:]
	m.mu.Unlock()
}

// WriteAt implements remote.GuestMemory. A Reply or Complete that follows arrives after it, and takes along what is not sent yet.
func (m *memory) WriteAt(id uint32, p []byte, off uint64) error {
	if err := m.check(id, off, uint64(len(p)), true); err != nil {
		return err
	}
	for len(p) > 0 {
		part := p[:min(len(p), writePart)]
		if err := m.c.put(frame.Header{Kind: frame.Write}, frame.Extent{Region: id, Offset: off, Size: uint64(len(part))}.Append(nil), part); err != nil {
			return fmt.Errorf("write region %d: %w", id, err)
		}
		p, off = p[len(part):], off+uint64(len(part))
	}
	return nil
}

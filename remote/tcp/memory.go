package tcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
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
	reach   reach

	rung remote.Alarm // of answers, once branches bring them
}

// read is a READ in flight. The receiver of one stream fills p.
type read struct {
	id    uint64
	p     []byte
	by    int  // the stream that brings it; 0: none does yet
	fills bool // at this moment: nobody else answers it
	whole *whole
}

// whole is what several READs bring together.
type whole struct {
	mu   sync.Mutex
	left int
	err  error
	done chan error // buffered: one answer
	rung *remote.Alarm
}

// answer counts a READ that has ended.
func (w *whole) answer(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left--; w.err == nil {
		w.err = err
	}
	if w.left == 0 {
		w.done <- w.err
		w.rung.RingAll()
	}
}

var (
	_ remote.GuestMemory = (*memory)(nil)
	_ remote.EarlyMemory = (*memory)(nil)
)

func newMemory(c *Carrier) *memory {
	return &memory{c: c, changed: make(chan struct{}), regions: map[uint32]remote.Declared{}, reach: newReach(c.conn)}
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
	delete(m.reach.granted, uint32(id))
	return nil
}

// fail ends everything that waits.
func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
	for _, r := range m.reads {
		if !r.fills { // else whoever fills it finds the error, and touches its memory no more
			r.whole.answer(err)
		}
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

// check finds out whether an extent lies in a declared region: the guest would end the session
// otherwise. Region 0 can be read, not written.
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
	if err := m.check(id, off, uint64(len(p)), false); err != nil || len(p) == 0 {
		return err
	}
	done, err := m.fetch(id, p, off)
	if !done {
		err = m.read(id, p, off)
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
	if g, ok := m.enter(id); ok {
		done := make(chan error, 1)
		go func() {
			err := m.reach.by.Fetch(p, g, off)
			m.leave()
			if errors.Is(err, frame.ErrUnreached) {
				err = m.read(id, p, off)
			}
			done <- err
		}()
		return done, nil
	}
	return m.request(id, p, off), nil
}

// read asks for p, and waits for it.
func (m *memory) read(id uint32, p []byte, off uint64) error {
	answer := m.request(id, p, off)
	m.Ask()
	return m.Answer(answer)
}

// Answer implements remote.EarlyMemory.
func (m *memory) Answer(answer <-chan error) error {
	m.rung.Await(context.Background(), func() bool { return len(answer) > 0 })
	return <-answer
}

// Ask implements remote.EarlyMemory.
func (m *memory) Ask() {
	if err := m.c.flush(); err != nil {
		_ = m.c.conn.Close() // the receiver ends, and answers
	}
}

// request puts READs of p, which is not empty, for Ask to send. The list and the connection have
// the same order, which orderMu keeps: mu must not be held while putting, because the receiver
// takes it. Once listed, each is answered, by fail if need be.
func (m *memory) request(id uint32, p []byte, off uint64) <-chan error {
	part := m.c.wide.part(len(p))
	w := &whole{left: (len(p) + part - 1) / part, done: make(chan error, 1), rung: &m.rung}
	m.orderMu.Lock()
	defer m.orderMu.Unlock()
	for len(p) > 0 {
		r := &read{p: p[:min(part, len(p))], whole: w}
		n := uint64(len(r.p))
		m.mu.Lock()
		if m.err != nil {
			err := m.err
			m.mu.Unlock()
			for ; len(p) > 0; p = p[min(part, len(p)):] {
				w.answer(err)
			}
			break
		}
		m.lastID++
		r.id = m.lastID
		m.reads = append(m.reads, r)
		m.mu.Unlock()
		p = p[n:]
		if err := m.c.put(frame.Header{Kind: frame.Read, Arg: r.id}, frame.Extent{Region: id, Offset: off, Size: n}.Append(nil), nil); err != nil {
			_ = m.c.conn.Close() // the receiver ends, and answers
		}
		off += n
	}
	return w.done
}

// data takes a DATA frame. It runs on the receiver of a stream, by its number. READs are answered
// in their order, by the trunk; where there are branches in any, each by one stream.
func (m *memory) data(h frame.Header, in *bufio.Reader, by int) error {
	r, err := m.due(h, by)
	if err != nil {
		return err
	}
	if h.Flags&frame.Refused == 0 {
		if _, err = io.ReadFull(in, r.p[:h.Len]); err == nil {
			r.p = r.p[h.Len:]
		}
	}
	m.mu.Lock()
	r.fills = false
	over := m.err
	done := over == nil && err == nil && (len(r.p) == 0 || h.Flags&frame.Refused != 0)
	if done {
		i := slices.Index(m.reads, r)
		m.reads = slices.Delete(m.reads, i, i+1)
	}
	m.mu.Unlock()
	switch {
	case over != nil:
		r.whole.answer(over)
	case done && len(r.p) > 0:
		r.whole.answer(fmt.Errorf("guest refused: %w", remote.ErrOutOfBounds))
	case done:
		r.whole.answer(nil)
	}
	return err
}

// due is the READ that a DATA frame answers, which is its stream's to fill.
func (m *memory) due(h frame.Header, by int) (*read, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.reads, func(r *read) bool { return r.id == h.Arg })
	switch {
	case m.err != nil: // which is why nothing is due
		return nil, m.err
	case i < 0 || i > 0 && m.c.wide.most == 0:
		return nil, remote.Violation("DATA frame for request %d, which is not next", h.Arg)
	case m.reads[i].by != 0 && m.reads[i].by != by:
		return nil, remote.Violation("DATA frame for request %d, which another connection brings", h.Arg)
	case (h.Flags&frame.Refused != 0) != (h.Len == 0) || uint64(h.Len) > uint64(len(m.reads[i].p)):
		return nil, remote.Violation("DATA frame of %d bytes where %d are due", h.Len, len(m.reads[i].p))
	}
	r := m.reads[i]
	r.by, r.fills = by, true
	return r, nil
}

// WriteAt implements remote.GuestMemory. A Reply or Complete that follows arrives after it, and
// takes along what is not sent yet.
func (m *memory) WriteAt(id uint32, p []byte, off uint64) error {
	if err := m.check(id, off, uint64(len(p)), true); err != nil {
		return err
	}
	if done, err := m.store(id, p, off); done {
		if err != nil {
			return fmt.Errorf("write region %d: %w", id, err)
		}
		return nil
	}
	wide := len(p) >= frame.Bulk
	for len(p) > 0 {
		var b *branch
		if wide {
			b = m.c.wide.least()
		}
		part, err := p[:min(len(p), writePart)], error(nil)
		if b != nil {
			part = p[:min(len(p), wideLeast)]
			err = b.write(id, part, off)
		} else {
			err = m.c.put(frame.Header{Kind: frame.Write}, frame.Extent{Region: id, Offset: off, Size: uint64(len(part))}.Append(nil), part)
		}
		if err != nil {
			return fmt.Errorf("write region %d: %w", id, err)
		}
		p, off = p[len(part):], off+uint64(len(part))
	}
	return nil
}

package precopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"causeway/host/driver"
)

// MostHeld is how many bytes a receiver that puts memory in its place as it comes keeps beside, of
// what cannot be there yet.
const MostHeld = 256 << 20

// Receiver follows a sender, and puts what the rounds bring in its place, or keeps it until the
// last one does. One goroutine owns it.
type Receiver struct {
	limit  uint64 // bytes of ranges
	most   int    // ranges
	sum    uint64 // bytes of ranges
	kept   uint64 // of those that wait here
	ranges rangeList
	round  uint64
	buf    []byte // for a block of the last round
	win    *Window
	into   driver.Expecter // nil: all memory waits here
}

// held is a range as the rounds have left it.
type held struct {
	Range
	mem   []byte // nil: it is in its place
	ended bool   // the last round has named it
}

// ErrHeld says that more is to be kept than a Receiver does.
var ErrHeld = errors.New("more memory than waits for its session")

// NewReceiver keeps at most most ranges of limit bytes together.
func NewReceiver(limit uint64, most int) *Receiver {
	return &Receiver{limit: limit, most: most}
}

// Through has blocks lie in a window that the sender maps, too.
func (v *Receiver) Through(w *Window) { v.win = w }

// Into has memory put in its place from now on, as far as it can be there before its session.
func (v *Receiver) Into(e driver.Expecter) { v.into = e }

// Rounds follows rounds until the session stands still. It reads no byte beyond that. After an
// error v is of no use.
func (v *Receiver) Rounds(ctx context.Context, r io.Reader) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		f, err := readFrame(r)
		if err != nil || f.kind == frameStill {
			return err
		}
		if err := v.follow(f, r); err != nil {
			return err
		}
	}
}

func (v *Receiver) follow(f frame, r io.Reader) error {
	at := Range{f.addr, f.len}
	switch f.kind {
	case frameEnd:
		return v.ends(f)
	case frameAdd:
		return v.add(at)
	case frameGone:
		return v.remove(at)
	case frameRange:
		return fmt.Errorf("%w: the last round before its time", ErrStream)
	}
	h := v.ranges.at(at.Addr)
	if h == nil || at.end() > h.end() {
		return fmt.Errorf("%w: %#x+%#x lies in no range", ErrStream, at.Addr, at.Size)
	}
	return v.put(h, f, r)
}

// put has a block where it belongs.
func (v *Receiver) put(h *held, f frame, r io.Reader) error {
	var there []byte
	if f.kind == frameThere {
		var err error
		if there, err = v.win.block(f); err != nil {
			return err
		}
		r = bytes.NewReader(there)
	}
	if h.mem == nil {
		if f.kind == frameZero {
			return v.into.Zero(f.addr, f.len)
		}
		return v.into.Fill(f.addr, f.len, r)
	}
	p := h.mem[f.addr-h.Addr:][:f.len]
	if f.kind == frameZero {
		clear(p)
		return nil
	}
	_, err := io.ReadFull(r, p)
	return err
}

func (v *Receiver) ends(f frame) error {
	if err := v.win.done(); err != nil {
		return err
	}
	if v.round++; f.addr != v.round {
		return fmt.Errorf("%w: round %d follows %d", ErrStream, f.addr, v.round-1)
	}
	return nil
}

func (v *Receiver) add(r Range) error {
	next := v.ranges.next(r.Addr)
	switch {
	case next != nil && next.Addr < r.end():
		return fmt.Errorf("%w: %#x+%#x overlaps %#x+%#x", ErrStream, r.Addr, r.Size, next.Addr, next.Size)
	case v.ranges.n >= v.most:
		return fmt.Errorf("more than %d allocations", v.most)
	case r.Size > v.limit-v.sum:
		return fmt.Errorf("more than %d bytes", v.limit)
	}
	h := held{Range: r}
	err := errors.ErrUnsupported
	if v.into != nil {
		err = v.into.Expect(r.Addr, r.Size)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		if v.into != nil && r.Size > MostHeld-v.kept {
			return fmt.Errorf("%w: %d bytes at %#x beside %d: %w", ErrHeld, r.Size, r.Addr, v.kept, err)
		}
		h.mem, err = make([]byte, r.Size), nil
		v.kept += r.Size
	}
	if err != nil {
		return err
	}
	v.ranges.insert(h)
	v.sum += r.Size
	return nil
}

func (v *Receiver) remove(r Range) error {
	h := v.ranges.exactly(r)
	if h == nil {
		return fmt.Errorf("%w: %#x+%#x is no range", ErrStream, r.Addr, r.Size)
	}
	if h.mem == nil {
		if err := v.into.Forget(r.Addr, r.Size); err != nil {
			return err
		}
	}
	v.kept -= uint64(len(h.mem))
	v.ranges.remove(r.Addr)
	v.sum -= r.Size
	return nil
}

// Last follows the last round: fill gets the bytes of each range that is not in its place, and
// refuses what is no allocation. Nothing is kept or expected afterwards.
func (v *Receiver) Last(ctx context.Context, r io.Reader, fill func(addr, size uint64, r io.Reader) error) (err error) {
	defer func() {
		if v.ranges, v.sum, v.kept = (rangeList{}), 0, 0; v.into != nil {
			err = errors.Join(err, v.into.Settle())
		}
	}()
	f, err := readFrame(r)
	for err == nil && f.kind == frameRange {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := Range{f.addr, f.len}
		h := v.ranges.exactly(at)
		switch {
		case h == nil:
			f, err = v.fill(at, nil, r, fill)
			continue
		case h.ended:
			return fmt.Errorf("%w: %#x+%#x comes twice", ErrStream, at.Addr, at.Size)
		case h.mem == nil:
			f, err = v.complete(h, r)
		default:
			f, err = v.fill(at, h.mem, r, fill)
			h.mem = nothing[:0] // it can go
		}
		h.ended = true
	}
	switch {
	case err != nil:
		return err
	case f.kind != frameEnd:
		return fmt.Errorf("%w: kind %d in the last round", ErrStream, f.kind)
	}
	return v.ends(f)
}

// fill hands on a range, with base under the blocks that come now. The frame is the one behind it.
func (v *Receiver) fill(at Range, base []byte, r io.Reader, fill func(addr, size uint64, r io.Reader) error) (frame, error) {
	m := &merged{at: at, pos: at.Addr, base: base, in: r, v: v}
	if m.advance(); m.err != nil {
		return m.next, m.err
	}
	if err := fill(at.Addr, at.Size, m); err != nil {
		return m.next, fmt.Errorf("memory at %#x: %w", at.Addr, err)
	}
	if m.err != nil || m.pos != at.end() {
		return m.next, fmt.Errorf("%w: %#x+%#x was not taken whole", ErrStream, at.Addr, at.Size)
	}
	return m.next, nil
}

// complete follows the blocks of a range that is in its place, if the session has it. The frame is
// the one behind them.
func (v *Receiver) complete(h *held, r io.Reader) (frame, error) {
	if err := v.into.Landed(h.Addr, h.Size); err != nil {
		return frame{}, fmt.Errorf("memory at %#x: %w", h.Addr, err)
	}
	for pos := h.Addr; ; {
		f, err := readFrame(r)
		if err != nil || !f.inside() {
			return f, err
		}
		if err := f.fits(h.Range, pos); err != nil {
			return f, err
		}
		if err := v.put(h, f, r); err != nil {
			return f, fmt.Errorf("memory at %#x: %w", f.addr, err)
		}
		pos = f.addr + f.len
	}
}

// fits says that a block is out of order in a range, of which pos is next.
func (f frame) fits(at Range, pos uint64) error {
	if f.addr < pos || f.addr >= at.end() || f.len > at.end()-f.addr {
		return fmt.Errorf("%w: %#x+%#x is out of order", ErrStream, f.addr, f.len)
	}
	return nil
}

// merged is a range as the last round leaves it: what was held, under the blocks that come now.
type merged struct {
	at    Range
	pos   uint64
	base  []byte // nil: zeros
	in    io.Reader
	v     *Receiver
	next  frame  // that was read and is not done with
	block []byte // what is left of its bytes
	err   error
}

// advance reads the next frame, with its bytes.
func (m *merged) advance() {
	if m.next, m.err = readFrame(m.in); m.err != nil || !m.next.inside() {
		return
	}
	if m.err = m.next.fits(m.at, m.pos); m.err != nil {
		return
	}
	switch m.next.kind {
	case frameBlock:
		m.block = m.v.room(int(m.next.size))
		_, m.err = io.ReadFull(m.in, m.block)
	case frameThere:
		m.block, m.err = m.v.win.block(m.next)
	}
}

// room is for the bytes of a block.
func (v *Receiver) room(n int) []byte {
	if n > len(v.buf) {
		v.buf = make([]byte, n)
	}
	return v.buf[:n]
}

// inside reports whether a frame is part of a range, rather than what follows it.
func (f frame) inside() bool { return f.bytes() || f.kind == frameZero }

// bytes reports whether a frame has bytes of its own.
func (f frame) bytes() bool { return f.kind == frameBlock || f.kind == frameThere }

// some is what comes next, as much as lies in one piece.
func (m *merged) some() []byte {
	until := m.at.end()
	if m.next.inside() {
		if m.pos >= m.next.addr {
			if m.next.bytes() {
				return m.block
			}
			return nothing[:min(uint64(len(nothing)), m.next.addr+m.next.len-m.pos)]
		}
		until = m.next.addr
	}
	if m.base == nil {
		return nothing[:min(uint64(len(nothing)), until-m.pos)]
	}
	return m.base[m.pos-m.at.Addr : until-m.at.Addr]
}

// nothing is zeros.
var nothing = make([]byte, Block)

// took goes on behind n bytes of some.
func (m *merged) took(n int) {
	at := m.pos
	m.pos += uint64(n)
	if !m.next.inside() || at < m.next.addr {
		return
	}
	if m.next.bytes() {
		m.block = m.block[n:]
	}
	if m.pos == m.next.addr+m.next.len {
		m.advance()
	}
}

// Read implements io.Reader.
func (m *merged) Read(p []byte) (int, error) {
	if m.err != nil {
		return 0, m.err
	}
	if m.pos == m.at.end() {
		return 0, io.EOF
	}
	n := copy(p, m.some())
	m.took(n)
	return n, m.err
}

// WriteTo implements io.WriterTo, without a copy in between.
func (m *merged) WriteTo(w io.Writer) (written int64, err error) {
	for m.err == nil && m.pos < m.at.end() {
		p := m.some()
		n, err := w.Write(p)
		written += int64(n)
		if err != nil {
			return written, err
		}
		m.took(len(p))
	}
	return written, m.err
}

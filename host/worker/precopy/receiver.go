package precopy

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sort"
)

// Receiver follows a sender, and keeps what the rounds bring until the last one puts it in its place. One goroutine owns it.
type Receiver struct {
	limit  uint64 // bytes of ranges
	most   int    // ranges
	kept   uint64
	ranges []held // sorted, apart
	round  uint64
	buf    []byte // for a block of the last round
	win    *Window
}

// held is a range as the rounds have left it.
type held struct {
	Range
	mem []byte
}

// NewReceiver keeps at most most ranges of limit bytes together.
func NewReceiver(limit uint64, most int) *Receiver {
	return &Receiver{limit: limit, most: most}
}

// Through has blocks lie in a window that the sender maps, too.
func (v *Receiver) Through(w *Window) { v.win = w }

// Rounds follows rounds until the session stands still. It reads no byte beyond that. After an error v is of no use.
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
	i := v.at(at.Addr)
	if i < 0 || at.end() > v.ranges[i].end() {
		return fmt.Errorf("%w: %#x+%#x lies in no range", ErrStream, at.Addr, at.Size)
	}
	p := v.ranges[i].mem[at.Addr-v.ranges[i].Addr:][:at.Size]
	if f.kind == frameZero {
		clear(p)
		return nil
	}
	if f.kind == frameThere {
		b, err := v.win.block(f)
		copy(p, b)
		return err
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

// at finds the range that holds an address; -1: none.
func (v *Receiver) at(addr uint64) int {
	i := v.after(addr)
	if i == len(v.ranges) || v.ranges[i].Addr > addr {
		return -1
	}
	return i
}

// after is the first range that ends behind an address.
func (v *Receiver) after(addr uint64) int {
	return sort.Search(len(v.ranges), func(i int) bool { return v.ranges[i].end() > addr })
}

func (v *Receiver) add(r Range) error {
	i := v.after(r.Addr)
	switch {
	case i < len(v.ranges) && v.ranges[i].Addr < r.end():
		return fmt.Errorf("%w: %#x+%#x overlaps %#x+%#x", ErrStream, r.Addr, r.Size, v.ranges[i].Addr, v.ranges[i].Size)
	case len(v.ranges) >= v.most:
		return fmt.Errorf("more than %d allocations", v.most)
	case r.Size > v.limit-v.kept:
		return fmt.Errorf("more than %d bytes", v.limit)
	}
	v.ranges = slices.Insert(v.ranges, i, held{r, make([]byte, r.Size)})
	v.kept += r.Size
	return nil
}

func (v *Receiver) remove(r Range) error {
	i := v.at(r.Addr)
	if i < 0 || v.ranges[i].Range != r {
		return fmt.Errorf("%w: %#x+%#x is no range", ErrStream, r.Addr, r.Size)
	}
	v.ranges = slices.Delete(v.ranges, i, i+1)
	v.kept -= r.Size
	return nil
}

// Last follows the last round: fill gets each range's bytes, and refuses what is no allocation. Nothing is kept afterwards.
func (v *Receiver) Last(ctx context.Context, r io.Reader, fill func(addr, size uint64, r io.Reader) error) error {
	defer func() { v.ranges, v.kept = nil, 0 }()
	f, err := readFrame(r)
	for err == nil && f.kind == frameRange {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := Range{f.addr, f.len}
		m := &merged{at: at, pos: at.Addr, in: r, v: v}
		if i := v.at(at.Addr); i >= 0 && v.ranges[i].Range == at {
			m.base = v.ranges[i].mem
			v.ranges[i].mem = nil // once, and then it can go
		}
		if m.advance(); m.err != nil {
			return m.err
		}
		if err := fill(at.Addr, at.Size, m); err != nil {
			return fmt.Errorf("memory at %#x: %w", at.Addr, err)
		}
		if m.err != nil || m.pos != at.end() {
			return fmt.Errorf("%w: %#x+%#x was not taken whole", ErrStream, at.Addr, at.Size)
		}
		f = m.next
	}
	switch {
	case err != nil:
		return err
	case f.kind != frameEnd:
		return fmt.Errorf("%w: kind %d in the last round", ErrStream, f.kind)
	}
	return v.ends(f)
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
	if m.next, m.err = readFrame(m.in); m.err != nil || !m.inside() {
		return
	}
	if m.next.addr < m.pos || m.next.addr >= m.at.end() || m.next.len > m.at.end()-m.next.addr {
		m.err = fmt.Errorf("%w: %#x+%#x is out of order", ErrStream, m.next.addr, m.next.len)
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

// inside reports whether next is part of this range, rather than what follows it.
func (m *merged) inside() bool { return m.bytes() || m.next.kind == frameZero }

// bytes reports whether next has bytes of its own.
func (m *merged) bytes() bool { return m.next.kind == frameBlock || m.next.kind == frameThere }

// some is what comes next, as much as lies in one piece.
func (m *merged) some() []byte {
	until := m.at.end()
	if m.inside() {
		if m.pos >= m.next.addr {
			if m.bytes() {
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
	if !m.inside() || at < m.next.addr {
		return
	}
	if m.bytes() {
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

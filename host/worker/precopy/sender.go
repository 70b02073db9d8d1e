package precopy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"

	"causeway/host/driver"
)

// Round says what a round did, in bytes.
type Round struct {
	Looked uint64 // at
	Sent   uint64 // blocks, without those that are all zeros
	// The context ended before the round did: what was not looked at is as in the round before.
	Cut bool
}

// Sender remembers what the receiver has. One goroutine owns it.
type Sender struct {
	seed  [2]maphash.Seed
	key   [2]uint64          // of the GPU's sums
	known map[uint64]*copied // by address
	round uint64
	buf   []byte  // for what is looked at
	win   *Window // instead of buf; nil: blocks are in the stream
	same  bool
	head  []byte
}

// copied is a range that the receiver knows, and the sums of its blocks there.
type copied struct {
	Range
	sums   []sum
	looked bool // all of it, once
	byGPU  bool // the sums are the GPU's
}

// sum stands for a block's bytes: 128 bits under seeds that nobody knows. Zero: all zeros.
type sum = [2]uint64

// NewSender begins with a receiver that has nothing.
func NewSender() *Sender {
	return &Sender{seed: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, key: [2]uint64{rand.Uint64(), rand.Uint64()}, known: map[uint64]*copied{}}
}

// Through has blocks lie in a window that the receiver maps, too, from now on.
func (s *Sender) Through(w *Window) { s.win = w }

// Same says that nothing can have been written since the last whole round began: the next round, or
// Last, need not read what that one read.
func (s *Sender) Same() { s.same = true }

// Round sends what changed of a session that may be running: what is freed meanwhile, and reads as
// driver.ErrGone, the next round drops, as it adds what is new. When ctx ends so does the round, as
// a short one. After an error the stream is of no use, and neither is s.
func (s *Sender) Round(ctx context.Context, export Export, w io.Writer) (Round, error) {
	var done Round
	s.round++
	there := map[Range]bool{}
	err := export(func(addr, size uint64, _ io.Reader) error {
		there[Range{addr, size}] = true
		return nil
	})
	if err != nil {
		return done, err
	}
	// First those that are gone: others may lie where they lay.
	if err := s.forget(there, w); err != nil {
		return done, err
	}
	err = export(func(addr, size uint64, r io.Reader) error {
		at := Range{addr, size}
		if !there[at] {
			return nil
		}
		c := s.known[addr]
		if c == nil {
			c = &copied{Range: at, sums: make([]sum, (size+Block-1)/Block)}
			s.known[addr] = c
			if err := s.write(w, frame{kind: frameAdd, addr: addr, len: size}, nil); err != nil {
				return err
			}
		}
		if s.same && c.looked {
			return nil
		}
		gone, err := s.look(ctx, at, c, r, w, &done)
		c.looked = err == nil && !gone
		return err
	})
	s.same = false
	done.Cut = err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err())
	if err != nil && !done.Cut {
		return done, err
	}
	return done, s.write(w, frame{kind: frameEnd, addr: s.round}, nil)
}

// Still ends the rounds.
func (s *Sender) Still(w io.Writer) error { return s.write(w, frame{kind: frameStill}, nil) }

// Last sends all that the receiver lacks of a session that stands still, after Still or without any
// round.
func (s *Sender) Last(ctx context.Context, export Export, w io.Writer) (Round, error) {
	var done Round
	s.round++
	err := export(func(addr, size uint64, r io.Reader) error {
		at := Range{addr, size}
		c := s.known[addr]
		if c == nil || c.Range != at {
			// Nothing comes after this round that would want sums of a range that it is the first
			// to see.
			c = &copied{Range: at}
		}
		if err := s.write(w, frame{kind: frameRange, addr: addr, len: size}, nil); err != nil || s.same && c.looked {
			return err
		}
		_, err := s.look(ctx, at, c, r, w, &done)
		return err
	})
	if err != nil {
		return done, err
	}
	return done, s.write(w, frame{kind: frameEnd, addr: s.round}, nil)
}

// forget tells of ranges that are there no longer, or are others now.
func (s *Sender) forget(there map[Range]bool, w io.Writer) error {
	var gone []Range
	for addr, c := range s.known {
		if !there[c.Range] {
			gone = append(gone, c.Range)
			delete(s.known, addr)
		}
	}
	slices.SortFunc(gone, func(a, b Range) int { return cmp.Compare(a.Addr, b.Addr) })
	for _, r := range gone {
		if err := s.write(w, frame{kind: frameGone, addr: r.Addr, len: r.Size}, nil); err != nil {
			return err
		}
	}
	return nil
}

// look sends the blocks of a range that changed: whose sums are others than those of what the
// receiver has, which it keeps up to date. Without sums the receiver has zeros. gone: the range was
// freed meanwhile, as the next round says.
func (s *Sender) look(ctx context.Context, at Range, c *copied, r io.Reader, w io.Writer, done *Round) (gone bool, err error) {
	if g, ok := r.(driver.Summer); ok && c.sums != nil {
		now := make([]sum, len(c.sums))
		err := g.Sums(ctx, Block, s.key, now)
		if errors.Is(err, driver.ErrGone) {
			return true, nil
		}
		if err == nil {
			c.of(true)
			return s.lookAt(ctx, at, c, now, g, w, done)
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			return false, fmt.Errorf("sums of memory at %#x: %w", at.Addr, err)
		}
	}
	c.of(false)
	sums := c.sums
	for off := uint64(0); off < at.Size; off += Slot {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		p, err := s.place(w)
		if err != nil {
			return false, err
		}
		p = p[:min(Slot, at.Size-off)]
		if _, err := io.ReadFull(r, p); errors.Is(err, driver.ErrGone) {
			return true, nil
		} else if err != nil {
			return false, fmt.Errorf("memory at %#x: %w", at.Addr+off, err)
		}
		done.Looked += uint64(len(p))
		var old []sum
		if sums != nil {
			old = sums[off/Block:][:(len(p)+Block-1)/Block]
		}
		if err := s.tell(at.Addr+off, uint64(len(p)), p, s.compare(p, old), w, done); err != nil {
			return false, err
		}
	}
	return false, nil
}

// unknown is what no block's sum is: of what the receiver has nothing is known.
var unknown = sum{1, 0}

// of has the sums be the GPU's or not. Those of the other kind tell nothing, but for blocks of
// zeros.
func (c *copied) of(gpu bool) {
	if c.byGPU != gpu {
		for i, x := range c.sums {
			if x != (sum{}) {
				c.sums[i] = unknown
			}
		}
	}
	c.byGPU = gpu
}

// lookAt does so where the GPU has summed up what there is now: only pieces in which something
// changed are read. What is kept are the sums of what was read.
func (s *Sender) lookAt(ctx context.Context, at Range, c *copied, now []sum, g driver.Summer, w io.Writer, done *Round) (gone bool, err error) {
	for off := uint64(0); off < at.Size; off += Slot {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		n := min(Slot, at.Size-off)
		from, to := off/Block, (off+n+Block-1)/Block
		sums, now := c.sums[from:to], now[from:to]
		done.Looked += n
		kinds, read := against(sums, now)
		var p []byte
		if read {
			if p, err = s.place(w); err != nil {
				return false, err
			}
			p = p[:n]
			if err := g.ReadSums(p, Block, s.key, now); errors.Is(err, driver.ErrGone) {
				return true, nil
			} else if err != nil {
				return false, fmt.Errorf("memory at %#x: %w", at.Addr+off, err)
			}
			kinds, _ = against(sums, now)
		} else {
			g.Skip(n)
		}
		copy(sums, now)
		if err := s.tell(at.Addr+off, n, p, kinds, w, done); err != nil {
			return false, err
		}
	}
	return false, nil
}

// against finds what blocks are from the sums of what the receiver has and of what there is. read:
// there are bytes to send.
func against(old, now []sum) (kinds []byte, read bool) {
	kinds = make([]byte, len(old))
	for i := range old {
		switch {
		case old[i] == now[i]:
			kinds[i] = same
		case now[i] == sum{}:
			kinds[i] = zero
		default:
			kinds[i], read = changed, true
		}
	}
	return kinds, read
}

// place is where the next piece is read to.
func (s *Sender) place(w io.Writer) ([]byte, error) {
	if s.win == nil {
		if s.buf == nil {
			s.buf = make([]byte, Slot)
		}
		return s.buf, nil
	}
	return s.win.next(func() error {
		if b, ok := w.(interface{ Flush() error }); ok {
			return b.Flush()
		}
		return nil
	})
}

// What is known of a block.
const (
	same = iota // as the receiver has it
	zero
	changed
)

// compare finds what blocks are, and keeps their sums, by several goroutines if there is much to
// sum up.
func (s *Sender) compare(p []byte, sums []sum) []byte {
	kinds := make([]byte, (len(p)+Block-1)/Block)
	some := func(from, to int) {
		for i := from; i < to; i++ {
			b := p[i*Block : min((i+1)*Block, len(p))]
			now := sum{}
			if kinds[i] = zero; !bytes.Equal(b, nothing[:len(b)]) {
				kinds[i] = changed
				if sums != nil {
					now = s.sumOf(b)
				}
			}
			switch {
			case sums == nil && kinds[i] == zero, sums != nil && sums[i] == now:
				kinds[i] = same
			case sums != nil:
				sums[i] = now
			}
		}
	}
	parts := 1
	if sums != nil {
		parts = max(1, min(runtime.GOMAXPROCS(0), mostSummers, len(kinds)/8))
	}
	var wg sync.WaitGroup
	for i := 1; i < parts; i++ {
		wg.Go(func() { some(i*len(kinds)/parts, (i+1)*len(kinds)/parts) })
	}
	some(0, len(kinds)/parts)
	wg.Wait()
	return kinds
}

// mostSummers is how many goroutines sum a piece up: as many as keep up with what a GPU copies.
const mostSummers = 8

// tell sends what is not the same of size bytes at an address, blocks beside each other as one. p
// has them, if any block changed.
func (s *Sender) tell(addr, size uint64, p []byte, kinds []byte, w io.Writer, done *Round) error {
	named := false
	for i := 0; i < len(kinds); {
		next := i + 1
		for next < len(kinds) && kinds[next] == kinds[i] {
			next++
		}
		from, to := i*Block, min(next*Block, int(size))
		f := frame{addr: addr + uint64(from), len: uint64(to - from)}
		var b []byte
		switch {
		case kinds[i] == same:
			i = next
			continue
		case kinds[i] == zero:
			f.kind = frameZero
		case s.win != nil:
			f.kind, f.size, named = frameThere, s.win.offset()+uint32(from), true
		default:
			b = p[from:to]
			f.kind, f.size = frameBlock, uint32(len(b))
		}
		if kinds[i] == changed {
			done.Sent += f.len
		}
		if err := s.write(w, f, b); err != nil {
			return err
		}
		i = next
	}
	if named {
		s.win.named()
	}
	return nil
}

// sumOf is the sum of a block that is not all zeros.
func (s *Sender) sumOf(p []byte) sum {
	return sum{maphash.Bytes(s.seed[0], p), maphash.Bytes(s.seed[1], p) | 1}
}

func (s *Sender) write(w io.Writer, f frame, p []byte) error {
	s.head = f.append(s.head[:0])
	if _, err := w.Write(s.head); err != nil {
		return err
	}
	if len(p) == 0 {
		return nil
	}
	_, err := w.Write(p)
	return err
}

package precopy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"

	"causeway/host/driver"
)

// Round says what a round did, in bytes.
type Round struct {
	Looked uint64 // at
	Sent   uint64 // blocks, without those that are all zeros
}

// Sender remembers what the receiver has. One goroutine owns it.
type Sender struct {
	seed  [2]maphash.Seed
	known map[uint64]*copied // by address
	round uint64
	buf   []byte
	head  []byte
}

// copied is a range that the receiver knows, and the sums of its blocks there.
type copied struct {
	Range
	sums []sum
	seen uint64 // the last round that found it
}

// sum stands for a block's bytes: 128 bits under seeds that nobody knows. Zero: all zeros.
type sum [2]uint64

// NewSender begins with a receiver that has nothing.
func NewSender() *Sender {
	return &Sender{seed: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, known: map[uint64]*copied{}, buf: make([]byte, Block)}
}

// Round sends what changed of a session that may be running: what is freed meanwhile, and reads as driver.ErrGone, the next round drops, as it adds what
// is new. After an error the stream is of no use, and neither is s.
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
			c = s.meet(at)
			if err := s.write(w, frame{kind: frameAdd, addr: addr, len: size}, nil); err != nil {
				return err
			}
		}
		return s.look(ctx, c, r, w, &done)
	})
	if err != nil {
		return done, err
	}
	return done, s.write(w, frame{kind: frameEnd, addr: s.round}, nil)
}

// Still ends the rounds.
func (s *Sender) Still(w io.Writer) error { return s.write(w, frame{kind: frameStill}, nil) }

// Last sends all that the receiver lacks of a session that stands still, after Still or without any round.
func (s *Sender) Last(ctx context.Context, export Export, w io.Writer) (Round, error) {
	var done Round
	s.round++
	err := export(func(addr, size uint64, r io.Reader) error {
		c := s.known[addr]
		if c == nil || c.Size != size {
			c = s.meet(Range{addr, size})
		}
		if err := s.write(w, frame{kind: frameRange, addr: addr, len: size}, nil); err != nil {
			return err
		}
		return s.look(ctx, c, r, w, &done)
	})
	if err != nil {
		return done, err
	}
	return done, s.write(w, frame{kind: frameEnd, addr: s.round}, nil)
}

// meet begins with a range of which the receiver has nothing, which is zeros.
func (s *Sender) meet(r Range) *copied {
	c := &copied{Range: r, sums: make([]sum, (r.Size+Block-1)/Block), seen: s.round}
	s.known[r.Addr] = c
	return c
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

// look sends the blocks of a range that changed.
func (s *Sender) look(ctx context.Context, c *copied, r io.Reader, w io.Writer, done *Round) error {
	for i := range c.sums {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := c.Addr + uint64(i)*Block
		p := s.buf[:min(Block, c.end()-at)]
		if _, err := io.ReadFull(r, p); errors.Is(err, driver.ErrGone) {
			return nil // the next round says so
		} else if err != nil {
			return fmt.Errorf("memory at %#x: %w", at, err)
		}
		done.Looked += uint64(len(p))
		now := s.sumOf(p)
		if now == c.sums[i] {
			continue
		}
		c.sums[i] = now
		f := frame{kind: frameZero, addr: at, len: uint64(len(p))}
		if now == (sum{}) {
			p = nil
		} else {
			f.kind, f.size = frameBlock, uint32(len(p))
			done.Sent += f.len
		}
		if err := s.write(w, f, p); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sender) sumOf(p []byte) sum {
	if AllZero(p) {
		return sum{}
	}
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

// AllZero reports whether p holds nothing but zeros.
func AllZero(p []byte) bool {
	for len(p) >= len(zeros) {
		if string(p[:len(zeros)]) != zeros {
			return false
		}
		p = p[len(zeros):]
	}
	return string(p) == zeros[:len(p)]
}

const zeros = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
	"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

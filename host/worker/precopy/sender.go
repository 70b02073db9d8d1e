package precopy

import (
	"bytes"
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
	Cut    bool   // the context ended before the round did: what was not looked at is as in the round before
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
}

// sum stands for a block's bytes: 128 bits under seeds that nobody knows. Zero: all zeros.
type sum [2]uint64

// NewSender begins with a receiver that has nothing.
func NewSender() *Sender {
	return &Sender{seed: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, known: map[uint64]*copied{}, buf: make([]byte, Block)}
}

// Round sends what changed of a session that may be running: what is freed meanwhile, and reads as driver.ErrGone, the next round drops, as it adds what
// is new. When ctx ends so does the round, as a short one. After an error the stream is of no use, and neither is s.
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
		return s.look(ctx, at, c.sums, r, w, &done)
	})
	done.Cut = err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err())
	if err != nil && !done.Cut {
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
		at := Range{addr, size}
		var sums []sum // nothing comes after this round that would want those of a range that it is the first to see
		if c := s.known[addr]; c != nil && c.Range == at {
			sums = c.sums
		}
		if err := s.write(w, frame{kind: frameRange, addr: addr, len: size}, nil); err != nil {
			return err
		}
		return s.look(ctx, at, sums, r, w, &done)
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

// look sends the blocks of a range that changed: whose sums are others than those of what the receiver has, which it keeps up to date. Without sums
// the receiver has zeros.
func (s *Sender) look(ctx context.Context, at Range, sums []sum, r io.Reader, w io.Writer, done *Round) error {
	for off := uint64(0); off < at.Size; off += Block {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := s.buf[:min(Block, at.Size-off)]
		if _, err := io.ReadFull(r, p); errors.Is(err, driver.ErrGone) {
			return nil // the next round says so
		} else if err != nil {
			return fmt.Errorf("memory at %#x: %w", at.Addr+off, err)
		}
		done.Looked += uint64(len(p))
		zero := bytes.Equal(p, nothing[:len(p)])
		changed := !zero
		if sums != nil {
			now := sum{}
			if !zero {
				now = s.sumOf(p)
			}
			old := &sums[off/Block]
			changed, *old = now != *old, now
		}
		if !changed {
			continue
		}
		f := frame{kind: frameZero, addr: at.Addr + off, len: uint64(len(p))}
		if zero {
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

package precopy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"causeway/host/driver"
)

// summing is memory of a GPU that sums up, now and then, what lies there, and of a program that
// writes meanwhile and takes back what it has written.
type summing struct {
	memory
	rng   *rand.Rand
	still bool
	never bool // it does not sum up
	read  uint64
}

func (m *summing) export(fn func(addr, size uint64, r io.Reader) error) error {
	return m.memory.export(func(addr, size uint64, _ io.Reader) error {
		return fn(addr, size, &summed{m: m, mem: m.memory[addr]})
	})
}

type summed struct {
	m    *summing
	mem  []byte
	done int
}

func (r *summed) Read(p []byte) (int, error) {
	n := copy(p, r.mem[r.done:])
	r.done += n
	r.m.read += uint64(n)
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// sumsOf is a sum that another key, or another byte, makes another one.
func sumsOf(p []byte, block int, key [2]uint64, sums [][2]uint64) {
	for i := range sums {
		b := p[i*block : min((i+1)*block, len(p))]
		sums[i] = [2]uint64{}
		for j, c := range b {
			if c != 0 {
				sums[i][0] += (uint64(c) + key[0]) * (2*uint64(j) + 1) * 0x9e3779b97f4a7c15
				sums[i][1] |= 1
			}
		}
	}
}

func (r *summed) Sums(_ context.Context, block uint64, key [2]uint64, sums [][2]uint64) error {
	if r.m.never || !r.m.still && r.m.rng.IntN(4) == 0 {
		return errors.ErrUnsupported
	}
	if !r.m.still && r.m.rng.IntN(8) == 0 {
		return driver.ErrGone
	}
	sumsOf(r.mem, int(block), key, sums)
	return nil
}

func (r *summed) ReadSums(p []byte, block uint64, key [2]uint64, sums [][2]uint64) error {
	if at := r.done + r.m.rng.IntN(len(p)); !r.m.still && r.m.rng.IntN(2) == 0 {
		was := r.mem[at]
		r.mem[at] ^= 0x55
		defer func() { r.mem[at] = was }()
	}
	if _, err := io.ReadFull(r, p); err != nil {
		return err
	}
	if !r.m.still {
		sumsOf(p, int(block), key, sums)
	}
	return nil
}

func (r *summed) Skip(n uint64) { r.done += int(n) }

// TestSummedRounds: the copy is exact where a GPU sums up, in all rounds or in some, also of what
// changes between the sums and the reading and is then as it was.
func TestSummedRounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 150 {
		m := &summing{memory: memory{}, rng: rng}
		s, v := NewSender(), NewReceiver(1<<30, 100)
		if rng.IntN(3) > 0 {
			v.Into(&places{t: t, session: m.memory})
		}
		var wire bytes.Buffer
		for range rng.IntN(5) {
			change(rng, m.memory)
			if _, err := s.Round(context.Background(), m.export, &wire); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Still(&wire); err != nil {
			t.Fatal(err)
		}
		m.still, m.never = true, rng.IntN(3) == 0
		if _, err := s.Last(context.Background(), m.export, &wire); err != nil {
			t.Fatal(err)
		}
		if copied := receive(t, v, &wire); !equal(m.memory, copied) {
			t.Fatal("the copy is another")
		}
	}
}

// TestSumsSpareReading: of what did not change nothing is read, and of what did one piece.
func TestSumsSpareReading(t *testing.T) {
	m := &summing{memory: memory{0x1000: bytes.Repeat([]byte{7}, 3*Slot+100), 0x9000000: make([]byte, 2*Slot)}, rng: rand.New(rand.NewPCG(5, 6)), still: true}
	s := NewSender()
	var wire bytes.Buffer
	for _, want := range []struct{ sent, read uint64 }{{3*Slot + 100, 3*Slot + 100}, {0, 0}, {Block, Slot}} {
		m.read = 0
		if want.sent == Block {
			m.memory[0x1000][Slot+5]++
		}
		done, err := s.Round(context.Background(), m.export, &wire)
		if err != nil {
			t.Fatal(err)
		}
		if done.Sent != want.sent || m.read != want.read || done.Looked != 5*Slot+100 {
			t.Errorf("%+v, %d bytes read; want %d sent, %d read", done, m.read, want.sent, want.read)
		}
	}
}

package precopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/iotest"

	"causeway/host/driver"
)

// memory is a session's, by address.
type memory map[uint64][]byte

// export implements Export.
func (m memory) export(fn func(addr, size uint64, r io.Reader) error) error {
	for _, addr := range slices.Sorted(maps.Keys(m)) {
		if err := fn(addr, uint64(len(m[addr])), bytes.NewReader(m[addr])); err != nil {
			return err
		}
	}
	return nil
}

// fill takes in a range of the last round.
func (m memory) fill(addr, size uint64, r io.Reader) error {
	if size > 4*Slot || m[addr] != nil {
		return errors.New("no such allocation")
	}
	var b []byte
	var err error
	if addr%3 == 0 {
		b, err = io.ReadAll(iotest.HalfReader(r))
	} else {
		var to bytes.Buffer
		_, err = r.(io.WriterTo).WriteTo(&to)
		b = to.Bytes()
	}
	if err == nil && uint64(len(b)) != size {
		err = fmt.Errorf("%d bytes of %d", len(b), size)
	}
	m[addr] = b
	return err
}

func equal(a, b memory) bool { return maps.EqualFunc(a, b, bytes.Equal) }

// TestRounds: whatever a program does between rounds and during them, the last round makes the copy
// exact, and brings no more than changed.
func TestRounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		m := memory{}
		s, v := NewSender(), NewReceiver(1<<30, 100)
		if rng.IntN(3) > 0 {
			v.Into(&places{t: t, session: m})
		}
		var wire bytes.Buffer
		for range rng.IntN(5) {
			change(rng, m)
			if _, err := s.Round(context.Background(), (&restless{m, rng}).export, &wire); err != nil {
				t.Fatal(err)
			}
		}
		quiet := rng.IntN(2) == 0
		if quiet {
			round(t, s, m, &wire)
		}
		if err := s.Still(&wire); err != nil {
			t.Fatal(err)
		}
		if !quiet {
			change(rng, m)
		}
		last, err := s.Last(context.Background(), m.export, &wire)
		if err != nil {
			t.Fatal(err)
		}
		if quiet && last.Sent != 0 {
			t.Fatalf("%+v, but nothing changed", last)
		}
		if copied := receive(t, v, &wire); !equal(m, copied) {
			t.Fatal("the copy is another")
		}
	}
}

// receive follows all rounds, and the last.
func receive(t *testing.T, v *Receiver, wire *bytes.Buffer) memory {
	t.Helper()
	copied := memory{}
	if err := v.Rounds(context.Background(), wire); err != nil {
		t.Fatal(err)
	}
	p, _ := v.into.(*places)
	if err := v.Last(context.Background(), wire, copied.fill); err != nil {
		t.Fatal(err)
	}
	if p != nil {
		maps.Copy(copied, p.landed)
	}
	if wire.Len() != 0 {
		t.Fatalf("%d bytes behind the last round", wire.Len())
	}
	return copied
}

func round(t *testing.T, s *Sender, m memory, wire *bytes.Buffer) Round {
	t.Helper()
	before := uint64(wire.Len())
	r, err := s.Round(context.Background(), m.export, wire)
	if err != nil {
		t.Fatal(err)
	}
	if sent := uint64(wire.Len()) - before; sent < r.Sent || sent > r.Sent+(r.Looked/512+1000)*frameSize {
		t.Fatalf("%d bytes for %+v", sent, r)
	}
	return r
}

// restless memory changes while it is read: bytes, and which allocations there are.
type restless struct {
	memory
	rng *rand.Rand
}

func (l *restless) export(fn func(addr, size uint64, r io.Reader) error) error {
	for _, addr := range slices.Sorted(maps.Keys(l.memory)) {
		b := l.memory[addr]
		if b == nil {
			continue // gone since
		}
		r := readerFunc(func(p []byte) (int, error) {
			if l.rng.IntN(3) == 0 {
				change(l.rng, l.memory)
			}
			if now := l.memory[addr]; now == nil || &now[0] != &b[0] {
				return 0, driver.ErrGone
			}
			n := copy(p, b)
			b = b[n:]
			return n, nil
		})
		if err := fn(addr, uint64(len(b)), r); err != nil {
			return err
		}
	}
	return nil
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// change allocates, frees and writes a little.
func change(rng *rand.Rand, m memory) {
	for range 1 + rng.IntN(4) {
		// Few places, so that ranges come to lie where others lay.
		addr := 0x700000000000 + uint64(rng.IntN(6))<<19
		switch b := m[addr]; {
		case b == nil:
			m[addr] = make([]byte, []int{1, 512, Block - 1, Block, Block + 1, 3*Block + 77}[rng.IntN(6)])
		case rng.IntN(6) == 0:
			delete(m, addr)
		case rng.IntN(4) == 0:
			clear(b[rng.IntN(len(b)):])
		default:
			b[rng.IntN(len(b))] = byte(rng.Uint32())
		}
	}
}

// TestChangedBlocksOnly: a byte costs a block.
func TestChangedBlocksOnly(t *testing.T) {
	m := memory{0x1000: make([]byte, 10*Block)}
	s, v := NewSender(), NewReceiver(1<<30, 1)
	var wire bytes.Buffer
	for step, want := range []uint64{0, Block, 2 * Block, 0, 0} {
		switch step {
		case 1:
			m[0x1000][3*Block+5] = 1
		case 2:
			m[0x1000][0], m[0x1000][10*Block-1] = 1, 1
		case 3:
			clear(m[0x1000]) // zeros are said, not sent
		}
		if r := round(t, s, m, &wire); r.Sent != want || r.Looked != 10*Block {
			t.Errorf("step %d: %+v", step, r)
		}
	}
	m[0x1000][Block] = 5
	_ = s.Still(&wire)
	if last, err := s.Last(context.Background(), m.export, &wire); err != nil || last.Sent != Block {
		t.Errorf("the last round sent %+v, %v", last, err)
	}
	if !equal(m, receive(t, v, &wire)) {
		t.Error("the copy is another")
	}
}

// TestSame: what cannot have changed is not read again, but for what no whole round has seen.
func TestSame(t *testing.T) {
	m := memory{0x1000: bytes.Repeat([]byte{1}, Block)}
	s, v := NewSender(), NewReceiver(1<<30, 10)
	var wire bytes.Buffer
	round(t, s, m, &wire)
	s.Same()
	if r := round(t, s, m, &wire); r.Looked != 0 {
		t.Errorf("%+v", r)
	}
	if r := round(t, s, m, &wire); r.Looked != Block {
		t.Errorf("not the same any more: %+v", r)
	}
	m[0x100000] = bytes.Repeat([]byte{2}, 100) // which only the last round brings
	_ = s.Still(&wire)
	s.Same()
	if last, err := s.Last(context.Background(), m.export, &wire); err != nil || last.Looked != 100 || last.Sent != 100 {
		t.Errorf("the last round: %+v, %v", last, err)
	}
	if !equal(m, receive(t, v, &wire)) {
		t.Error("the copy is another")
	}
}

// TestLies: what is no stream of a sender is refused by name.
func TestLies(t *testing.T) {
	add := frame{kind: frameAdd, addr: 0x1000, len: 100}
	end := frame{kind: frameEnd, addr: 1}
	still, of := frame{kind: frameStill}, frame{kind: frameRange, addr: 0x1000, len: 100}
	for name, c := range map[string]struct {
		frames []frame
		body   int
		want   error // nil: any
	}{
		"overlap":            {[]frame{add, {kind: frameAdd, addr: 0x1063, len: 1}}, 0, ErrStream},
		"around":             {[]frame{add, {kind: frameAdd, addr: 0xfff, len: 200}}, 0, ErrStream},
		"twice":              {[]frame{add, add}, 0, ErrStream},
		"too many":           {[]frame{add, {kind: frameAdd, addr: 0x2000, len: 1}, {kind: frameAdd, addr: 0x3000, len: 1}}, 0, nil},
		"too much":           {[]frame{add, {kind: frameAdd, addr: 0x2000, len: 925}}, 0, nil},
		"wraps":              {[]frame{{kind: frameAdd, addr: ^uint64(0), len: 2}}, 0, ErrStream},
		"nothing":            {[]frame{{kind: frameAdd, addr: 0x1000}}, 0, ErrStream},
		"gone, another size": {[]frame{add, {kind: frameGone, addr: 0x1000, len: 99}}, 0, ErrStream},
		"gone, unknown":      {[]frame{add, {kind: frameGone, addr: 0x1001, len: 99}}, 0, ErrStream},
		"block outside":      {[]frame{add, {kind: frameBlock, addr: 0x1064, len: 1, size: 1}}, 1, ErrStream},
		"block past the end": {[]frame{add, {kind: frameBlock, addr: 0x1063, len: 2, size: 2}}, 2, ErrStream},
		"zeros outside":      {[]frame{add, {kind: frameZero, addr: 0x1000, len: 101}}, 0, ErrStream},
		"huge block":         {[]frame{add, {kind: frameBlock, addr: 0x1000, len: Block + 1, size: Block + 1}}, 0, ErrStream},
		"two lengths":        {[]frame{add, {kind: frameBlock, addr: 0x1000, len: 2, size: 1}}, 0, ErrStream},
		"cut":                {[]frame{add, {kind: frameBlock, addr: 0x1000, len: 2, size: 2}}, 1, io.ErrUnexpectedEOF},
		"no end":             {[]frame{add}, 0, io.EOF},
		"another round":      {[]frame{{kind: frameEnd, addr: 2}}, 0, ErrStream},
		"round with a size":  {[]frame{{kind: frameEnd, addr: 1, len: 1}}, 0, ErrStream},
		"unknown":            {[]frame{{kind: 77}}, 0, ErrStream},
		"one too few":        {[]frame{end, {kind: frameEnd, addr: 1}}, 0, ErrStream},
		"last too early":     {[]frame{{kind: frameRange, addr: 0x1000, len: 1}}, 0, ErrStream},
		"last, rounds again": {[]frame{still, add}, 0, ErrStream},
		"last, not there":    {[]frame{still, {kind: frameRange, addr: 0x1000, len: 2 << 20}}, 0, nil},
		"last, twice":        {[]frame{still, of, of}, 0, nil},
		"last, outside":      {[]frame{still, of, {kind: frameZero, addr: 0x1064, len: 1}}, 0, ErrStream},
		"last, past the end": {[]frame{still, of, {kind: frameZero, addr: 0x1063, len: 2}}, 0, ErrStream},
		"last, before":       {[]frame{still, of, {kind: frameZero, addr: 0xfff, len: 2}}, 0, ErrStream},
		"last, backwards":    {[]frame{still, of, {kind: frameZero, addr: 0x1010, len: 2}, {kind: frameZero, addr: 0x1000, len: 2}}, 0, ErrStream},
		"last, over another": {[]frame{still, of, {kind: frameZero, addr: 0x1010, len: 2}, {kind: frameZero, addr: 0x1011, len: 2}}, 0, ErrStream},
		"last, no range":     {[]frame{still, {kind: frameZero, addr: 0x1000, len: 2}}, 0, ErrStream},
		"last, cut":          {[]frame{still, of, {kind: frameBlock, addr: 0x1000, len: 2, size: 2}}, 1, io.ErrUnexpectedEOF},
		"last, no end":       {[]frame{still, of}, 0, io.EOF},
		"last, another":      {[]frame{still, of, {kind: frameEnd, addr: 3}}, 0, ErrStream},
	} {
		t.Run(name, func(t *testing.T) {
			var b []byte
			for _, f := range c.frames {
				b = f.append(b)
			}
			r := bytes.NewReader(append(b, make([]byte, c.body)...))
			v := NewReceiver(1024, 2)
			err := v.Rounds(context.Background(), r)
			if err == nil {
				err = v.Last(context.Background(), r, memory{}.fill)
			}
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestCancelled: the sender ends its round at once, and what follows makes up for it; the receiver
// stops.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	m := memory{1: {1}, 0x1000: {2}}
	s, v := NewSender(), NewReceiver(1<<20, 10)
	var wire bytes.Buffer
	if r, err := s.Round(ctx, m.export, &wire); err != nil || r != (Round{Cut: true}) {
		t.Errorf("sender: %+v, %v", r, err)
	}
	round(t, s, m, &wire)
	if err := s.Still(&wire); err != nil {
		t.Fatal(err)
	}
	if last, err := s.Last(context.Background(), m.export, &wire); err != nil || last.Sent != 0 {
		t.Errorf("the last round sent %+v, %v", last, err)
	}
	if !equal(m, receive(t, v, &wire)) {
		t.Error("the copy is another")
	}
	if err := NewReceiver(1, 1).Rounds(ctx, bytes.NewReader(nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("receiver: %v", err)
	}
}

// FuzzReceiver: bytes from anywhere neither reach outside what they declared nor make it hold more
// than its limit.
func FuzzReceiver(f *testing.F) {
	var b bytes.Buffer
	m := memory{0x1000: bytes.Repeat([]byte{7}, 700), 0x2000: make([]byte, 10)}
	s := NewSender()
	_, _ = s.Round(context.Background(), m.export, &b)
	delete(m, 0x2000)
	clear(m[0x1000][:100])
	_, _ = s.Round(context.Background(), m.export, &b)
	_ = s.Still(&b)
	m[0x1000][3] = 1
	m[0x5000] = []byte("more")
	_, _ = s.Last(context.Background(), m.export, &b)
	f.Add(b.Bytes())
	f.Add(frame{kind: frameAdd, addr: ^uint64(0) - 5, len: 5}.append(nil))
	f.Add(frame{kind: frameThere, size: Slot, addr: 0x1000, len: 9}.append(frame{kind: frameAdd, addr: 0x1000, len: 10}.append(nil)))
	mem := make([]byte, 2*Slot)
	f.Fuzz(func(t *testing.T, b []byte) {
		v := NewReceiver(1<<12, 4)
		w, err := NewWindow(mem, &bytes.Buffer{})
		if err != nil {
			t.Fatal(err)
		}
		v.Through(w)
		p := &places{t: t, none: len(b)%2 == 0}
		v.Into(p)
		r := bytes.NewReader(b)
		err = v.Rounds(context.Background(), r)
		total, kept := uint64(0), uint64(0)
		ranges, end := slices.Concat(v.ranges.parts...), uint64(0)
		for _, h := range ranges {
			_, there := p.expected[h.Addr]
			if h.mem != nil {
				kept += h.Size
			}
			if total += h.Size; there == (h.mem != nil) || h.mem != nil && uint64(len(h.mem)) != h.Size || end > h.Addr {
				t.Errorf("%v", ranges)
			}
			end = h.end()
		}
		if total > 1<<12 || total != v.sum || kept != v.kept || len(ranges) != v.ranges.n || len(ranges) > 4 {
			t.Errorf("%d bytes, %d kept, in %d ranges", total, kept, len(ranges))
		}
		if err != nil {
			return
		}
		filled := memory{}
		if v.Last(context.Background(), r, filled.fill) == nil {
			for addr, b := range p.landed {
				if filled[addr] != nil {
					t.Errorf("%#x comes twice", addr)
				}
				filled[addr] = b
			}
			var again bytes.Buffer // what came whole goes whole
			if _, err := NewSender().Last(context.Background(), filled.export, &again); err != nil {
				t.Error(err)
			}
			back := memory{}
			if err := NewReceiver(0, 0).Last(context.Background(), &again, back.fill); err != nil || !equal(filled, back) {
				t.Errorf("%v", err)
			}
		}
	})
}

// BenchmarkRound prints what a round over unchanged memory costs, which bounds how fast rounds can
// be.
func BenchmarkRound(b *testing.B) {
	m := memory{0x1000: make([]byte, 64<<20)}
	rng := rand.NewChaCha8([32]byte{})
	_, _ = rng.Read(m[0x1000])
	s := NewSender()
	if _, err := s.Round(context.Background(), m.export, io.Discard); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(64 << 20)
	for b.Loop() {
		if r, err := s.Round(context.Background(), m.export, io.Discard); err != nil || r.Sent != 0 {
			b.Fatal(r, err)
		}
	}
}

// TestSumsOfAnotherKind: when the GPU sums up what was summed up here, or the other way round, what
// was zeros is known to be zeros, and of the rest nothing is known.
func TestSumsOfAnotherKind(t *testing.T) {
	c := copied{sums: []sum{{}, {7, 8}, {}, {9, 1}}}
	for _, gpu := range []bool{false, true, true, false} {
		had, by := slices.Clone(c.sums), c.byGPU
		c.of(gpu)
		for i, x := range c.sums {
			want := had[i]
			if by != gpu && want != (sum{}) {
				want = unknown
			}
			if x != want || c.byGPU != gpu {
				t.Errorf("block %d: %v, which was %v; by the GPU: %v, of %v", i, x, had[i], gpu, by)
			}
		}
		c.sums[1] = sum{5, 5}
	}
}

// TestGoneWhileItIsRead: a range that was freed while it was read is read again if there is one
// like it in the next round, whatever stood still since.
func TestGoneWhileItIsRead(t *testing.T) {
	m, gone := bytes.Repeat([]byte{3}, Block), false
	export := func(fn func(addr, size uint64, r io.Reader) error) error {
		if gone {
			return fn(0x10000, Block, iotest.ErrReader(driver.ErrGone))
		}
		return fn(0x10000, Block, bytes.NewReader(m))
	}
	s, v := NewSender(), NewReceiver(1<<20, 4)
	var b bytes.Buffer
	for _, gone = range []bool{true, false} {
		s.Same()
		if _, err := s.Round(context.Background(), export, &b); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Still(&b); err != nil {
		t.Fatal(err)
	}
	s.Same()
	if _, err := s.Last(context.Background(), export, &b); err != nil {
		t.Fatal(err)
	}
	err := v.Rounds(context.Background(), &b)
	var got []byte
	if err == nil {
		err = v.Last(context.Background(), &b, func(_, _ uint64, r io.Reader) (err error) {
			got, err = io.ReadAll(r)
			return err
		})
	}
	if err != nil || !bytes.Equal(got, m) {
		t.Errorf("%v, %d bytes that are as they should be: %v", err, len(got), bytes.Equal(got, m))
	}
}

package bind

import (
	"math/big"
	"math/rand/v2"
	"testing"
)

// TestSpan compares how far a box reaches with the furthest of its rows, reckoned without bounds:
// rows at least as far apart as they are long, slices as they have rows.
func TestSpan(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	number := func() uint64 {
		switch r.IntN(4) {
		case 0:
			return r.Uint64N(5)
		case 1:
			return r.Uint64N(1 << 20)
		case 2:
			return 1<<r.IntN(64) - r.Uint64N(3)
		}
		return r.Uint64()
	}
	fits, wraps := 0, 0
	for range 200000 {
		b, e := Placement{number(), number(), number(), number(), number()}, Box{number(), number(), number()}
		if r.IntN(2) == 0 { // more that fit
			b, e = Placement{b.X % 99, b.Y % 99, b.Z % 9, b.Pitch % 4096, b.Height % 99}, Box{e.Width % 999, e.Height % 99, e.Depth % 9}
		}
		span, ok := b.span(e)
		want := furthest(b, e)
		if want.IsUint64() != ok && (want.BitLen() <= 64 || ok) {
			t.Fatalf("%+v %+v: %v, want %v", b, e, ok, want)
		}
		if ok && span != want.Uint64() {
			t.Fatalf("%+v %+v: %d, want %v", b, e, span, want)
		}
		if fits++; !ok {
			wraps++
		}
	}
	if wraps < fits/20 || wraps > fits/20*19 {
		t.Errorf("%d of %d do not fit", wraps, fits)
	}
}

// TestFirst: a box begins behind the slices, rows and bytes before it, all of which are as far
// apart as span takes them for.
func TestFirst(t *testing.T) {
	for _, c := range []struct {
		p    Placement
		b    Box
		want uint64
	}{
		{Placement{X: 3}, Box{5, 1, 1}, 3},
		{Placement{X: 3, Y: 2, Pitch: 100}, Box{5, 1, 1}, 203},
		{Placement{X: 3, Y: 2}, Box{5, 4, 1}, 2*8 + 3}, // no pitch: rows of 3 + 5 bytes
		{Placement{X: 3, Y: 2, Z: 7, Pitch: 100, Height: 10}, Box{5, 4, 1}, 7203},
		// No height: slices of 2 + 4 rows.
		{Placement{X: 3, Y: 2, Z: 7, Pitch: 100}, Box{5, 4, 1}, (7*6+2)*100 + 3},
	} {
		if got := c.p.first(c.b); got != c.want {
			t.Errorf("%+v %+v begins at %d, not %d", c.p, c.b, got, c.want)
		}
		if span, _ := c.p.span(c.b); span < c.want+c.b.Width {
			t.Errorf("%+v %+v begins at %d and reaches to %d", c.p, c.b, c.want, span)
		}
	}
}

// TestSetMemset: rows are whole elements of sizes that the driver fills.
func TestSetMemset(t *testing.T) {
	for _, c := range []struct {
		width   uint64
		element uint32
		ok      bool
	}{{8, 1, true}, {8, 2, true}, {8, 4, true}, {8, 8, false}, {8, 0, false}, {8, 3, false}, {6, 4, false}, {7, 2, false}, {7, 1, true}} {
		n := NewNode(2)
		r := Rect{mem: Mem{at: 1 << 20, size: c.width}, pitch: 16, width: c.width, height: 1}
		if ok := n.SetMemset(Context{}, r, c.element, 5); ok != c.ok {
			t.Errorf("%d bytes of elements of %d: %v", c.width, c.element, ok)
		}
		if p := n.params.union.Memset().v1; c.ok && (p.width != c.width/uint64(c.element) || p.element != c.element || p.pitch != 16) {
			t.Errorf("%d bytes of elements of %d are %+v", c.width, c.element, p)
		}
		n.Free()
	}
}

// furthest is the end of the last row of the last slice.
func furthest(b Placement, e Box) *big.Int {
	n := func(v uint64) *big.Int { return new(big.Int).SetUint64(v) }
	if e.Width == 0 || e.Height == 0 || e.Depth == 0 {
		return n(0)
	}
	most := func(a, b *big.Int) *big.Int {
		if a.Cmp(b) > 0 {
			return a
		}
		return b
	}
	add := func(a, b *big.Int) *big.Int { return new(big.Int).Add(a, b) }
	mul := func(a, b *big.Int) *big.Int { return new(big.Int).Mul(a, b) }
	row, rows := add(n(b.X), n(e.Width)), add(n(b.Y), n(e.Height))
	slice := add(n(b.Z), n(e.Depth-1))
	last := add(add(mul(slice, most(n(b.Height), rows)), rows), big.NewInt(-1))
	return add(mul(last, most(n(b.Pitch), row)), row)
}

// TestPieces: pieces of memory lie within it.
func TestPieces(t *testing.T) {
	m := Mem{at: 1 << 20, size: 4096}
	for _, c := range []struct {
		offset, size uint64
		ok           bool
	}{{0, 4096, true}, {4096, 0, true}, {0, 4097, false}, {4097, 0, false}, {1, 1<<64 - 1, false}, {1<<64 - 1, 2, false}, {4095, 1, true}} {
		p, ok := m.Slice(c.offset, c.size)
		if ok != c.ok || ok && (p.at != m.at+c.offset || p.size != c.size) {
			t.Errorf("%d bytes from %d: %+v %v", c.size, c.offset, p, ok)
		}
		if q, ok := m.From(m.at+c.offset, c.size); ok != c.ok || q != p {
			t.Errorf("%d bytes from address %d: %+v %v", c.size, m.at+c.offset, q, ok)
		}
	}
	if _, ok := m.From(m.at-1, 1); ok {
		t.Error("memory before it")
	}
	if n, ok := Bytes(1<<32, 1<<32); ok {
		t.Errorf("2^64 bytes are %d", n)
	}
}

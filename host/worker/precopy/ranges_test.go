package precopy

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestRangesByChance: ranges that come and go in any order are found by each of their addresses,
// and by no other.
func TestRangesByChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	const slots, width = 4 * partMost, 16
	var l rangeList
	sizes := map[uint64]uint64{}
	for step := range 40_000 {
		at := rng.Uint64N(slots) * width
		if step < 3*slots && rng.IntN(4) > 0 { // at first more come than go
			at = uint64(step%slots) * width
		}
		if size, ok := sizes[at]; ok {
			l.remove(at + rng.Uint64N(size))
			delete(sizes, at)
		} else {
			sizes[at] = 1 + rng.Uint64N(width)
			l.insert(held{Range: Range{at, sizes[at]}})
		}
		probe := rng.Uint64N(slots * width)
		size := sizes[probe/width*width]
		h := l.at(probe)
		if in := probe%width < size; in != (h != nil) || in && h.Range != (Range{probe / width * width, size}) {
			t.Fatalf("step %d: %#x is in %v, of a range of %d bytes", step, probe, h, size)
		}
		if l.n != len(sizes) || l.exactly(Range{probe / width * width, size + 1}) != nil {
			t.Fatalf("step %d: %d ranges are %d", step, len(sizes), l.n)
		}
	}
	var all []uint64
	for _, p := range l.parts {
		if len(p) == 0 || len(p) > partMost {
			t.Errorf("a part of %d", len(p))
		}
		for _, h := range p {
			all = append(all, h.Addr)
		}
	}
	if len(all) != len(sizes) || !slices.IsSorted(all) {
		t.Errorf("%d of %d ranges, in order: %v", len(all), len(sizes), slices.IsSorted(all))
	}
}

// TestManyRanges: as many allocations as a session may have are received from the last to the
// first, and go and come again in front of all others, in no time: moved one by one in one piece
// they took minutes, in which a stream of some MiB kept a processor busy.
func TestManyRanges(t *testing.T) {
	const n = 1 << 18
	v := NewReceiver(1<<40, n)
	v.Into(&nowhere{})
	for i := range uint64(n) {
		if err := v.add(Range{(n - i) << 12, 16}); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.add(Range{1, 1}); err == nil {
		t.Error("more than may be")
	}
	for range n {
		if err := errors.Join(v.remove(Range{1 << 12, 16}), v.add(Range{1 << 12, 16})); err != nil {
			t.Fatal(err)
		}
	}
}

// nowhere takes everything and has nothing.
type nowhere struct{ places }

// Expect implements driver.Expecter.
func (*nowhere) Expect(uint64, uint64) error { return nil }

// Forget implements driver.Expecter.
func (*nowhere) Forget(uint64, uint64) error { return nil }

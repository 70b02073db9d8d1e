package worker

import (
	"math/rand/v2"
	"testing"

	"causeway/cuda"
)

// TestBlobsByChance: what was promised of blobs is what is open, and what is booked is that and
// what the current request has taken, whether it is settled or comes again.
func TestBlobsByChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	w, _ := newFake(t, nil)
	// Of so many bytes so many are there.
	b, open, taken := &w.blobs, map[uint32][2]uint64{}, map[uint32][2]uint64{}
	for step := range 5000 {
		id := rng.Uint32N(6)
		x, ok := open[id]
		_, gone := taken[id]
		switch k := rng.IntN(8); {
		case k == 0:
			b.settle()
			clear(taken)
		case k == 1:
			b.putBack()
			for id, x := range taken {
				open[id] = x
			}
			clear(taken)
		case k == 2 && ok:
			if _, got := b.Take(id, uint32(x[0])); got != (x[0] == x[1]) {
				t.Fatalf("step %d: taken %v, with %d of %d bytes", step, got, x[1], x[0])
			} else if got {
				taken[id] = x
				delete(open, id)
			}
		case k == 3 && ok:
			if res := b.append(id, x[0], make([]byte, x[0]-x[1]+1)); res != cuda.ErrorInvalidValue {
				t.Fatalf("step %d: more than there may be: %v", step, res)
			}
			delete(open, id)
		case !gone:
			if !ok {
				x[0] = 1 + rng.Uint64N(1000)
			}
			n := min(x[0]-x[1], rng.Uint64N(600))
			if res := b.append(id, x[0], make([]byte, n)); res != cuda.Success {
				t.Fatalf("step %d: %v", step, res)
			}
			open[id] = [2]uint64{x[0], x[1] + n}
		}
		promised, all := uint64(0), uint64(0)
		for _, x := range open {
			promised += x[0]
		}
		for _, x := range taken {
			all += x[0]
		}
		if all += promised; b.bytes != promised || len(b.open) != len(open) || w.host.used != all {
			t.Fatalf("step %d: %d blobs of %d bytes, %d are booked; there are %d of %d, %d", step, len(b.open), b.bytes, w.host.used, len(open), promised, all)
		}
	}
}

// TestWatchMoves: a guest that wants to be told of its limit is told by the next worker, too, and
// not again of what it knows.
func TestWatchMoves(t *testing.T) {
	s := newRecorded(t)
	want := watchState{Wanted: true, Over: true, Limit: 77}
	s.w.watch.restore(want)
	if got := s.moved().w.watch.state(); got != want {
		t.Errorf("%+v, was %+v", got, want)
	}
}

package cuda

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// holes is a room of chunks, which takes the first hole or the one that fits best, and has a new chunk when there is none.
type holes struct {
	best  bool
	taken map[uint64]uint64 // address, size
	end   uint64            // of the last chunk
}

const holesBegin, holesChunk, holesUnit = 0x302000000, 32 << 20, 512

func (h *holes) take(size uint64) (uint64, bool) {
	size = (size + holesUnit - 1) / holesUnit * holesUnit
	from := uint64(holesBegin)
	var at, room uint64
	look := func(begin, end uint64) {
		if n := end - begin; n >= size && (at == 0 || h.best && n < room) {
			at, room = begin, n
		}
	}
	for _, p := range slices.Sorted(maps.Keys(h.taken)) {
		look(from, p)
		from = p + h.taken[p]
	}
	h.end = max(h.end, holesBegin)
	look(from, h.end)
	if at == 0 {
		at = from
		h.end = from + (size+holesChunk-1)/holesChunk*holesChunk
	}
	h.taken[at] = size
	return at, true
}

func (h *holes) give(at uint64) { delete(h.taken, at) }

// TestPlaceAt has memory come out where it was in a room that has seen other pieces before.
func TestPlaceAt(t *testing.T) {
	type piece struct{ at, size uint64 }
	for _, best := range []bool{false, true} {
		for seed := range uint64(200) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			old := &holes{best: best, taken: map[uint64]uint64{}}
			var alive []piece
			for range 300 {
				if len(alive) > 0 && rnd.IntN(100) < 48 {
					i := rnd.IntN(len(alive))
					old.give(alive[i].at)
					alive = slices.Delete(alive, i, i+1)
					continue
				}
				size := uint64(1) << rnd.IntN(24)
				at, _ := old.take(size)
				alive = append(alive, piece{at, size})
			}
			again := &holes{best: best, taken: map[uint64]uint64{}}
			for i, p := range alive {
				if !placeAt(again, p.at, p.size) {
					t.Fatalf("best fit %v, seed %d: piece %d of %d does not come out at %#x", best, seed, i, len(alive), p.at)
				}
			}
			if !maps.Equal(again.taken, old.taken) {
				t.Fatalf("best fit %v, seed %d: other pieces are taken than before", best, seed)
			}
		}
	}
}

// full has no room.
type full struct{ given int }

func (f *full) take(uint64) (uint64, bool) { return 0, false }
func (f *full) give(uint64)                { f.given++ }

// TestPlaceAtGivesBack: what does not come out leaves nothing taken.
func TestPlaceAtGivesBack(t *testing.T) {
	h := &holes{taken: map[uint64]uint64{}}
	if placeAt(h, holesBegin-holesUnit, 100) {
		t.Error("a place below the room was found")
	}
	if len(h.taken) != 0 {
		t.Errorf("%d pieces are still taken", len(h.taken))
	}
	if placeAt(&full{}, holesBegin, 100) {
		t.Error("a place in a full room was found")
	}
}

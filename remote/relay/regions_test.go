package relay

import (
	"errors"
	"maps"
	"math/rand/v2"
	"testing"

	"causeway/remote"
	"causeway/remote/frame"
)

// TestRegionsByChance: regions come and go, and the server is told of each change once, in order;
// what is known of them is what there is, so that a guest whose regions have other numbers every
// time makes it no larger. Of a session that came from elsewhere the server knows those that are
// declared again as they were.
func TestRegionsByChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var r regions
	pokes := 0
	r.init(func() { pokes++ })
	there, untold, changes := map[uint32]uint64{0: remote.Region0Size}, []change(nil), 0
	r.again = map[uint32]bool{}
	away := map[uint32]bool{} // declared before the session came, and not since
	vas := map[uint32]uint64{}
	for id := uint32(1); id < 20; id++ {
		there[id], r.sizes[id], away[id], r.again[id] = uint64(id%8+1)*4096, uint64(id%8+1)*4096, true, true
	}
	for range 5000 {
		id := 1 + rng.Uint32N(40)
		size, ok := there[id]
		switch {
		case rng.IntN(3) == 0:
			c, more, err := r.next()
			if err != nil || more != (len(untold) > 0) || more && c != untold[0] {
				t.Fatalf("told %+v, %v, %v; %d are to be told", c, more, err, len(untold))
			}
			untold = untold[min(1, len(untold)):]
			continue
		case away[id] && rng.IntN(2) == 0:
			r.Declared(id, remote.Declared{VA: uint64(id) << 32, Size: size})
			delete(away, id)
			vas[id] = uint64(id) << 32
			if !maps.Equal(r.sizes, there) || !maps.Equal(r.again, away) || pokes != changes {
				t.Fatalf("%v are to come again, of %v; %d pokes for %d changes", r.again, away, pokes, changes)
			}
			continue
		case ok:
			r.Dropped(id)
			delete(there, id)
			delete(away, id)
			delete(vas, id)
			untold = append(untold, change{id: id})
		default:
			size = uint64(1+rng.IntN(8)) * 4096
			r.Declared(id, remote.Declared{VA: uint64(id) << 32, Size: size})
			there[id], vas[id] = size, uint64(id)<<32
			untold = append(untold, change{id: id, va: uint64(id) << 32, size: size})
		}
		changes++
		if !maps.Equal(r.sizes, there) || !maps.Equal(r.again, away) || pokes != changes {
			t.Fatalf("%v, of %v; %d pokes for %d changes", r.sizes, there, pokes, changes)
		}
		if all, ok := r.settled(); ok || all != nil {
			t.Fatalf("%d regions are settled while %d are to be told", len(all), len(untold))
		}
		if in, whole := r.has(frame.Extent{Region: id, Offset: size, Size: 1}), r.has(frame.Extent{Region: id, Size: size}); in || whole == ok {
			t.Fatalf("region %d: %v behind its end, %v for all of it", id, in, whole)
		}
		if len(untold) > 50 {
			for range untold {
				_, _, _ = r.next()
			}
			untold = nil
			all, ok := r.settled()
			if !ok || len(all) != len(there)-1 {
				t.Fatalf("%d regions are settled, %v, of %d", len(all), ok, len(there)-1)
			}
			for _, c := range all {
				if c.ID == 0 || c != (Change{c.ID, vas[c.ID], there[c.ID]}) {
					t.Fatalf("%+v is settled, not %#x+%#x", c, vas[c.ID], there[c.ID])
				}
			}
		}
	}
	for r.changes = nil; len(r.changes) < mostChanges; {
		r.Dropped(7)
	}
	if _, ok, err := r.next(); !ok || err != nil {
		t.Errorf("at the bound: %v, %v", ok, err)
	}
	r.Dropped(7)
	r.Dropped(7)
	if _, _, err := r.next(); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("beyond the bound: %v", err)
	}
}

package resume

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestKept holds what is kept to a plain copy of all that was added, while pieces of it are being sent: those stay as they are until they are sent, whatever is dropped and added meanwhile.
func TestKept(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		k := kept{pin: noPin}
		var all, want []byte
		var flight [][]byte
		landed := func() {
			if got := bytes.Join(flight, nil); !bytes.Equal(got, want) {
				t.Fatalf("seed %d: %d bytes that were being sent have changed", seed, len(got))
			}
			flight, want, k.pin = nil, nil, noPin
		}
		for range 300 {
			switch rnd.IntN(4) {
			case 0, 1:
				p := make([]byte, rnd.IntN(1<<rnd.IntN(19)))
				for i := range p {
					p[i] = byte(rnd.Uint32())
				}
				room := k.grow(nil, len(p))
				if rnd.IntN(4) == 0 { // what is dropped meanwhile leaves the room alone
					k.drop(k.start + rnd.Uint64N(k.size()+1))
				}
				rest, filled := p, rnd.IntN(8) > 0
				for _, r := range room {
					rest = rest[copy(r, rest):]
				}
				if len(rest) > 0 {
					t.Fatalf("seed %d: room for %d of %d bytes", seed, len(p)-len(rest), len(p))
				}
				if k.added(room, filled); filled {
					all = append(all, p...)
				}
			case 2:
				landed()
				from, most := k.start+rnd.Uint64N(k.size()+1), rnd.Uint64N(batch+1)
				most = min(most, k.end-from)
				var n uint64
				flight, n = k.take(nil, from, most)
				if want = bytes.Clone(all[from : from+most]); n != most {
					t.Fatalf("seed %d: %d bytes instead of %d", seed, n, most)
				}
			case 3:
				k.drop(k.start + rnd.Uint64N(k.size()+1))
			}
			if k.end != uint64(len(all)) || len(k.free) > keptFree {
				t.Fatalf("seed %d: %d bytes of %d, %d free", seed, k.end, len(all), len(k.free))
			}
		}
		landed()
		rest, n := k.take(nil, k.start, k.size())
		if !bytes.Equal(bytes.Join(rest, nil), all[k.start:]) || n != k.size() {
			t.Fatalf("seed %d: other bytes are kept", seed)
		}
	}
}

package resume

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"causeway/remote/frame"
)

// budget is one of a test.
type budget struct {
	mu           sync.Mutex
	limit, n, at uint64 // at: the most so far
}

func (b *budget) Reserve(n uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n+n > b.limit {
		return false
	}
	b.n += n
	b.at = max(b.at, b.n)
	return true
}

func (b *budget) Book(n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n += n
	b.at = max(b.at, b.n)
}

func (b *budget) Release(n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.n {
		panic("more is given back than was booked")
	}
	b.n -= n
}

func (b *budget) used() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// TestKept holds what is kept to a plain copy of all that was added, while pieces of it are being
// sent: those stay as they are until they are sent, whatever is dropped and added meanwhile.
func TestKept(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		// From the least up.
		k, b := kept{pin: noPin}, &budget{limit: keptLeast*keptChunk + rnd.Uint64N(1<<rnd.IntN(25))}
		if err := k.begin(b); err != nil {
			t.Fatal(err)
		}
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
				p := make([]byte, rnd.IntN(1<<rnd.IntN(19+2*int(seed%2))))
				for i := range p {
					p[i] = byte(rnd.Uint32())
				}
				before := b.used()
				switch now := rnd.IntN(4) == 0; {
				case k.fits(len(p), now):
					if !now && b.used() > max(b.limit, before) {
						t.Fatalf("seed %d: %d bytes are booked for what can wait, of %d", seed, b.used(), b.limit)
					}
				case now || b.used() != before:
					t.Fatalf("seed %d: what has to be kept (%v) is not, with %d bytes booked, %d before", seed, now, b.used(), before)
				case !k.fits(len(p), true):
					t.Fatalf("seed %d: what waits no longer is not kept", seed)
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
			if k.have != len(k.chunks)+len(k.free) || k.booked < max(k.have, keptLeast) || b.used() != uint64(k.booked)*keptChunk {
				t.Fatalf("seed %d: %d chunks and %d, %d in memory, %d booked, %d bytes", seed, len(k.chunks), len(k.free), k.have, k.booked, b.used())
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
		if k.finish(); b.used() != 0 {
			t.Fatalf("seed %d: %d bytes stay booked", seed, b.used())
		}
	}
}

// TestBudget: what streams keep stays within a budget, in which they go on however little it has
// for each, also when a connection is lost; one that has no room for the least does not begin, and
// says so.
func TestBudget(t *testing.T) {
	const least = keptLeast * keptChunk
	tight := &budget{limit: 2*least + 3*keptChunk}
	cut := make(chan net.Conn, 1)
	r := newRigIn(t, minute, func(n int, c net.Conn, server bool) net.Conn {
		if n == 0 && !server {
			cut <- c
		}
		return c
	}, tight)
	if tight.used() != 2*least {
		t.Errorf("%d bytes are booked before anything is kept", tight.used())
	}
	go func() {
		for c := range cut {
			time.Sleep(20 * time.Millisecond)
			_ = c.Close()
		}
	}()
	exchange(t, r.client, r.server, 12<<20)
	close(cut)
	if rest := uint64(2 * 2 * keptChunk); tight.at > tight.limit+rest || tight.at < 2*least {
		t.Errorf("%d bytes were booked, of %d", tight.at, tight.limit)
	}
	if r.dials.Load() == 0 {
		t.Error("no connection was lost")
	}
	none := &budget{limit: least - 1}
	k := newKeys(t)
	near, far := pair(t)
	go func() { _, _ = frame.Server(context.Background(), far, k.server) }()
	first, err := frame.Client(context.Background(), near, k.client)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewClient(first, k.clientAgain, nil, none); !errors.Is(err, ErrBudget) {
		t.Errorf("it begins without room: %v", err)
	}
	st := State{Kept: make([]byte, 3<<20), Reached: 3 << 20}
	if _, err := Import(st, k.clientAgain, nil, &budget{limit: 2 << 20}); !errors.Is(err, ErrBudget) {
		t.Errorf("it is taken over without room: %v", err)
	}
}

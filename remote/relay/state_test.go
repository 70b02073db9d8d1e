package relay

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"testing"

	"causeway/remote"
	"causeway/remote/frame"
)

// here is a carrier of which nothing is used before its session goes on.
type here struct{ remote.Carrier }

type hereMemory struct{ remote.GuestMemory }

func (here) Ring() remote.Ring          { return nil }
func (here) Doorbell() remote.Doorbell  { return noBell{} }
func (here) Memory() remote.GuestMemory { return hereMemory{} }
func (hereMemory) Watch(remote.Watcher) {}

// heldStream is a stream that stands still.
type heldStream struct{ net.Conn }

func (heldStream) Hold() error { return nil }
func (heldStream) Release()    {}

// TestStateByChance: a session that is made of what another was described as is described as the
// same, and its server may have done what the other had sent, and nothing beyond.
func TestStateByChance(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 4))
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	for i := range 300 {
		st := State{Head: rnd.Uint64N(1 << 40)}
		st.Sent = st.Head + rnd.Uint64N(remote.RingSize+1)
		for range rnd.IntN(2000) {
			st.Unread = append(st.Unread, byte(rnd.Uint32()))
		}
		for range rnd.IntN(4) {
			st.Reads = append(st.Reads, Asked{rnd.Uint64(), frame.Extent{Region: rnd.Uint32(), Offset: rnd.Uint64(), Size: 1 + rnd.Uint64N(frame.MaxRead)}})
		}
		st.Regions = []Change{{Size: remote.Region0Size}}
		for id := range uint32(rnd.IntN(5)) {
			st.Regions = append(st.Regions, Change{ID: 1 + 3*id, Size: 1 + rnd.Uint64N(1<<30)})
			if rnd.IntN(2) == 0 {
				st.Untold = append(st.Untold, Change{rnd.Uint32(), rnd.Uint64(), rnd.Uint64N(1 << 30)})
			}
		}
		s, err := Adopt(here{}, heldStream{near}, st, "gpu1", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // it is as often as one asks
			again, err := s.StandStill()
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(again.Unread, st.Unread) {
				t.Fatalf("%d: %d bytes are unread, not %d", i, len(again.Unread), len(st.Unread))
			}
			again.Unread = st.Unread
			if !reflect.DeepEqual(again, st) {
				st.Unread, again.Unread = nil, nil
				t.Fatalf("%d: %+v is described as %+v", i, st, again)
			}
		}
		for _, c := range []struct {
			head uint64
			ok   bool
		}{{st.Head - 1, false}, {st.Head, true}, {st.Sent + 1, false}, {st.Sent, true}} {
			if err := s.headFrame(c.head); (err == nil) != c.ok || err != nil && !errors.Is(err, remote.ErrProtocol) {
				t.Fatalf("%d: the server says %d, of %d to %d: %v", i, c.head, st.Head, st.Sent, err)
			}
		}
	}
}

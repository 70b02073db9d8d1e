package worker

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"causeway/host/worker/state"
	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/relay"
	"causeway/remote/resume"
	"causeway/remote/shm"
)

func relayedBytes(t testing.TB, s *relayedState) []byte {
	t.Helper()
	var b bytes.Buffer
	w := state.NewWriter(&b)
	s.write(w)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// someRelayed has something of everything.
func someRelayed() *relayedState {
	return &relayedState{
		Lease: remote.LeaseID{1}, Session: remote.SessionID{2}, Head: 4096,
		Regions: []shm.RegionState{{ID: 0, VA: 1 << 30, Size: remote.Region0Size}, {ID: 3, VA: 1 << 31, Size: 1 << 20}},
		Stream:  resume.State{Secret: [32]byte{7}, Attempt: 1<<32 + 1, Got: 99, Head: []byte{1, 2}, Start: 40, Kept: []byte("kept"), Lifted: true, Branches: []resume.State{{Secret: [32]byte{8}, Attempt: 1 << 32, Got: 7, Head: []byte{3}, Start: 9, Kept: []byte("more"), Reached: 13}}},
		Relay: relay.State{
			Sent: 4096, Head: 4000, Unread: []byte("unread"), Reads: []relay.Asked{{ID: 5, Extent: frame.Extent{Region: 3, Offset: 8, Size: 16}}},
			Regions: []relay.Change{{Size: remote.Region0Size}, {ID: 3, Size: 1 << 20}}, Untold: []relay.Change{{ID: 3, VA: 1 << 31, Size: 1 << 20}}, Wanted: 4, Rounds: true,
			Branches: []relay.Branch{{Unread: []byte("some"), Wrote: 3, Answering: []relay.Asked{{ID: 6, Extent: frame.Extent{Region: 3, Size: 1 << 17}}}}},
		},
	}
}

// TestRelayedState: a session that is passed on is read as it was written, and refused cut
// anywhere, or with what cannot be.
func TestRelayedState(t *testing.T) {
	want := someRelayed()
	b := relayedBytes(t, want)
	got, err := readRelayed(state.NewReader(bytes.NewReader(b), mostRelayed))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v", got, err)
	}
	for n := range b {
		if _, err := readRelayed(state.NewReader(bytes.NewReader(b[:n]), mostRelayed)); !errors.Is(err, state.ErrState) {
			t.Fatalf("%d bytes of %d: %v", n, len(b), err)
		}
	}
	for name, spoil := range map[string]func(*relayedState){
		"another position of the ring": func(s *relayedState) { s.Head++ },
		"no name":                      func(s *relayedState) { s.Session = remote.SessionID{} },
		"a long header":                func(s *relayedState) { s.Stream.Head = make([]byte, frame.HeaderSize+1) },
		"much unread":                  func(s *relayedState) { s.Relay.Unread = make([]byte, relay.MostUnread+1) },
		"many branches": func(s *relayedState) {
			s.Stream.Branches, s.Relay.Branches = make([]resume.State, resume.MostBranches+1), make([]relay.Branch, resume.MostBranches+1)
		},
		"two READs answered at once": func(s *relayedState) {
			s.Relay.Branches[0].Answering = append(s.Relay.Branches[0].Answering, relay.Asked{ID: 7})
		},
		"many READs": func(s *relayedState) { s.Relay.Reads = make([]relay.Asked, mostReads+1) },
	} {
		s := someRelayed()
		spoil(s)
		if _, err := readRelayed(state.NewReader(bytes.NewReader(relayedBytes(t, s)), mostRelayed)); !errors.Is(err, state.ErrState) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzRelayedState: whatever comes is refused, or is a state that is written as it was read.
func FuzzRelayedState(f *testing.F) {
	f.Add(relayedBytes(f, someRelayed()))
	f.Add(relayedBytes(f, &relayedState{Session: remote.SessionID{1}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := readRelayed(state.NewReader(bytes.NewReader(b), mostRelayed))
		if err != nil {
			if !errors.Is(err, state.ErrState) {
				t.Error(err)
			}
			return
		}
		if out := relayedBytes(t, s); !bytes.HasPrefix(b, out) {
			t.Errorf("%x is not %x", out, b)
		}
	})
}

package frame

import (
	"bytes"
	"errors"
	"testing"

	"causeway/remote"
)

// TestRound: what was said of a round is what is heard, and what no round did is refused.
func TestRound(t *testing.T) {
	for _, r := range []Round{{}, {Looked: 1 << 40, Sent: 1 << 39}, {Looked: 7, Sent: 7, Cut: true}} {
		if got, err := ParseRound(r.Append(nil)); got != r || err != nil {
			t.Errorf("%+v became %+v, %v", r, got, err)
		}
	}
	good := Round{Looked: 2, Sent: 1}.Append(nil)
	flagged := bytes.Clone(good)
	flagged[16] = 2
	for name, b := range map[string][]byte{"nothing": nil, "short": good[1:], "long": append(bytes.Clone(good), 0), "flags": flagged, "more sent than there is": Round{Looked: 1, Sent: 2}.Append(nil)} {
		if r, err := ParseRound(b); !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// FuzzRound: what is taken for a round is said in no other way.
func FuzzRound(f *testing.F) {
	f.Add(Round{Looked: 2, Sent: 1}.Append(nil))
	f.Add(Round{Looked: 2, Sent: 1, Cut: true}.Append(nil))
	f.Add(Round{Sent: 1}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := ParseRound(b); err == nil && !bytes.Equal(r.Append(nil), b) {
			t.Errorf("%x is %+v", b, r)
		}
	})
}

package frame_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"causeway/remote"
	"causeway/remote/frame"
)

var (
	granted = frame.Granted{Address: 1 << 41, Size: 1 << 20, Key: 7}
	more    = frame.Granted{Address: 1 << 41, Size: 1 << 20, Key: 7, More: [3]frame.Key{{}, {Is: true, Address: 4096, Key: 3}, {Is: true, Key: 9}}}
)

// TestGranted: a grant is read as it was said, with the keys of each adapter; without further ones
// it is what it was before there were any.
func TestGranted(t *testing.T) {
	for _, g := range []frame.Granted{granted, more} {
		if got, err := frame.ParseGranted(g.Append(nil)); err != nil || got != g {
			t.Errorf("%+v is read as %+v, %v", g, got, err)
		}
	}
	if b := granted.Append(nil); len(b) != frame.GrantSize {
		t.Errorf("%d bytes", len(b))
	}
	for number, want := range []frame.Key{{Is: true, Address: 1 << 41, Key: 7}, {}, {Is: true, Address: 4096, Key: 3}, {Is: true, Key: 9}} {
		if got := more.By(number); got != want {
			t.Errorf("by adapter %d it is %+v", number, got)
		}
	}
	number := func(at int, n uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint32(b[frame.GrantSize+16*at+12:], n); return b }
	}
	for name, change := range map[string]func(b []byte) []byte{
		"nothing":       func(b []byte) []byte { return nil },
		"short":         func(b []byte) []byte { return b[:frame.GrantSize-1] },
		"half a key":    func(b []byte) []byte { return b[:len(b)-8] },
		"too many":      func(b []byte) []byte { return append(b, b[frame.GrantSize:]...) },
		"twice":         number(1, 2),
		"backwards":     number(0, 3),
		"the first":     number(0, 0),
		"beyond":        number(1, 4),
		"memory around": func(b []byte) []byte { binary.LittleEndian.PutUint64(b[frame.GrantSize:], ^uint64(0)); return b },
	} {
		if g, err := frame.ParseGranted(change(more.Append(nil))); !errors.Is(err, remote.ErrProtocol) || g != (frame.Granted{}) {
			t.Errorf("%s: %+v, %v", name, g, err)
		}
	}
}

// FuzzGranted: what is taken is what can be said again.
func FuzzGranted(f *testing.F) {
	f.Add(granted.Append(nil))
	f.Add(more.Append(nil))
	f.Add(append(more.Append(nil), make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := frame.ParseGranted(b)
		if err != nil {
			return
		}
		if again, err := frame.ParseGranted(g.Append(nil)); err != nil || again != g {
			t.Errorf("%+v is read as %+v, %v", g, again, err)
		}
	})
}

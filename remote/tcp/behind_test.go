package tcp

import (
	"testing"

	"causeway/remote/frame"
)

// TestAnswersComeBehindWrites: a frame by which a program may learn that a copy is done names,
// once, how many WRITEs went before it by each branch; no other does.
func TestAnswersComeBehindWrites(t *testing.T) {
	for _, kind := range []frame.Kind{frame.Slot, frame.Word, frame.Control, frame.State} {
		w := &wide{}
		if b := w.behind(nil, kind); b != nil {
			t.Errorf("kind %d, without branches: %d bytes", kind, len(b))
		}
		one, two := &branch{n: 1}, &branch{n: 2}
		w.all.Store(&[]*branch{one, two})
		one.wrote.Store(3)
		for _, other := range []frame.Kind{frame.Head, frame.Data, frame.Write} {
			if b := w.behind(nil, other); b != nil {
				t.Errorf("kind %d: %d bytes", other, len(b))
			}
		}
		is := func(what string, want ...uint64) {
			t.Helper()
			b := w.behind([]byte("before"), kind)
			if string(b[:6]) != "before" || len(b) != 6+len(want)*frame.HeaderSize {
				t.Fatalf("kind %d, %s: %d bytes", kind, what, len(b))
			}
			for i, arg := range want {
				if h := frame.ParseHeader(b[6+i*frame.HeaderSize:]); h.Kind != frame.Behind || h.Arg != arg || h.Len != 0 {
					t.Errorf("kind %d, %s: %+v", kind, what, h)
				}
			}
		}
		is("at first", frame.Pair(1, 3))
		is("again")
		one.wrote.Add(1)
		two.wrote.Add(1)
		is("after more", frame.Pair(1, 4), frame.Pair(2, 1))
	}
}

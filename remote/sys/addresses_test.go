package sys

import "testing"

// TestHoldBelow: the room that a mapping would have had next is taken and given back, each range
// once.
func TestHoldBelow(t *testing.T) {
	const least = 1 << 30 // others of this process find room all the same
	next := func() Span {
		t.Helper()
		s, err := Reserve(least)
		if err != nil {
			t.Fatal(err)
		}
		s.Release()
		return s
	}
	first := next()
	held := HoldBelow(first.At+least, least)
	taken := false
	for i, s := range held {
		if s.At+s.Size > first.At+least || s.Size < least {
			t.Errorf("%#x+%#x is held", s.At, s.Size)
		}
		taken = taken || s.At <= first.At && first.At < s.At+s.Size
		for _, o := range held[:i] {
			if s.At < o.At+o.Size && o.At < s.At+s.Size {
				t.Errorf("%#x is held twice", s.At)
			}
		}
	}
	if now := next(); !taken || now.At == first.At {
		t.Errorf("a mapping comes at %#x still; held are %d spans", now.At, len(held))
	}
	for _, s := range held {
		s.Release()
	}
	again := HoldBelow(first.At+least, least)
	for _, s := range again {
		s.Release()
	}
	// What Go's runtime maps meanwhile may cut a span, of which up to two of the least size are
	// lost.
	if was, now := total(held), total(again); now+16*least < was {
		t.Errorf("%d GiB are held again, not %d", now>>30, was>>30)
	}
}

func total(spans []Span) (size uintptr) {
	for _, s := range spans {
		size += s.Size
	}
	return size
}

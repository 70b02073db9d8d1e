package resume

import (
	"context"
	"errors"
	"testing"

	"causeway/remote/frame"
)

// TestLiftsElsewhere: a stream whose ends agree on what it goes over says so to who goes on with
// it, who has to be able to; there memory is granted from the first way on that grants any, of
// which is told once.
func TestLiftsElsewhere(t *testing.T) {
	c, up := bareConn(digest{}, minute), &reachingWay{fakeWay: newWay(), grants: true}
	c.client, c.up = true, up
	c.lift = Lifted{Way: up, Again: func(context.Context, *frame.Secure) (Way, error) { return up, nil }}
	c.hold = hold{on: true, told: true}
	st, err := c.exportAlone()
	if err != nil || !st.Lifted {
		t.Fatal(st.Lifted, err)
	}
	if _, err := Import(st, nil, nil, nil); !errors.Is(err, ErrState) {
		t.Errorf("by who cannot agree: %v", err)
	}
	ways, asked := []Way{newWay(), &reachingWay{fakeWay: newWay()}, &reachingWay{fakeWay: newWay(), grants: true}, &reachingWay{fakeWay: newWay(), grants: true}}, 0
	next, err := ImportOver(st, Lifted{Again: func(context.Context, *frame.Secure) (Way, error) {
		asked++
		return ways[asked-1], nil
	}}, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer next.end(ErrLost)
	told := 0
	if !next.Lifted() || next.Grants() || !next.Lifts(func() { told++ }) {
		t.Error("it grants memory, or never will")
	}
	if _, _, err := next.Grant(nil); !errors.Is(err, frame.ErrUnreached) {
		t.Errorf("without a way: %v", err)
	}
	for i := range ways {
		// Nobody has it go on.
		if err := next.goOver(nil, next.attempt, st.Start); !errors.Is(err, ErrHeld) {
			t.Error(err)
		}
		if is := i >= 2; next.Grants() != is || told != map[bool]int{true: 1}[is] {
			t.Errorf("way %d: grants %v, told %d times", i, next.Grants(), told)
		}
	}
	if next.lift.Way != ways[2] {
		t.Error("memory is another way's to grant than the first one's")
	}
	if _, _, err := next.Grant(nil); !errors.Is(err, errTest) {
		t.Error(err)
	}
	st.Lifted = false
	plain, err := ImportOver(st, Lifted{Again: func(context.Context, *frame.Secure) (Way, error) { return nil, errTest }}, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.end(ErrLost)
	if again, err := plain.exportAlone(); err != nil || again.Lifted || plain.Lifted() || plain.Lifts(func() {}) {
		t.Errorf("what its ends agree on nothing for is agreed on: %v", err)
	}
	server := bareConn(digest{}, minute)
	server.lift.Again = c.lift.Again
	if server.Lifts(func() {}) {
		t.Error("a server grants memory")
	}
}

package soft

import (
	"bytes"
	"io"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// TestEventTimesMove: what lies between two events is the same after a move, and what comes later
// is later.
func TestEventTimesMove(t *testing.T) {
	old := newRig(t, driver.Options{})
	first, second, untimed := old.event(0), old.event(0), old.event(cuda.EventDisableTiming)
	flags := map[wire.ID]uint32{untimed: cuda.EventDisableTiming}
	record := func(r *rig, id wire.ID) { r.ok(r.recordEvent(id, 1)) }
	elapsed := func(r *rig, from, to wire.ID) time.Duration {
		var reply wire.EventElapsedTimeReply
		r.ok(r.s.EventElapsedTime(r.call(wire.OpEventElapsedTime), &wire.EventElapsedTimeArgs{Start: from, End: to}, &reply))
		return time.Duration(float64(reply.Ms) * float64(time.Millisecond))
	}
	for _, id := range []wire.ID{first, second, untimed} {
		record(old, id)
	}
	if err := old.s.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	old.s.events[first].mark.at = old.s.events[second].mark.at.Add(-time.Minute)
	var table []byte
	if err := old.s.ExportMemory(func(addr, _ uint64, r io.Reader) (err error) {
		if addr == ofEvents {
			table, err = io.ReadAll(r)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if want := 8 + 2*timeEntry; len(table) != want {
		t.Fatalf("a table of %d bytes, want %d", len(table), want)
	}

	old.close()
	r := newRig(t, driver.Options{})
	put := func(b []byte) error { return r.s.ImportMemory(ofEvents, uint64(len(b)), bytes.NewReader(b)) }
	if put(table) == nil {
		t.Error("times of events that are not there are taken")
	}
	for _, id := range []wire.ID{first, second, untimed} {
		if got := r.event(flags[id]); got != id {
			t.Fatalf("event %d is %d now", id, got)
		}
		record(r, id)
	}
	for n := range len(table) {
		if (n-8)%timeEntry != 0 && put(table[:n]) == nil {
			t.Errorf("%d bytes of %d are taken", n, len(table))
		}
	}
	if put(append(table, table[8:]...)) == nil {
		t.Error("more times than events are taken")
	}
	if err := put(table); err != nil {
		t.Fatal(err)
	}
	if d := elapsed(r, first, second); d != time.Minute {
		t.Errorf("%v between two events, a minute before the move", d)
	}
	record(r, untimed)
	later := r.event(0)
	record(r, later)
	if err := r.s.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := elapsed(r, first, later); d < time.Minute || d > 2*time.Minute {
		t.Errorf("%v from an event of a minute ago", d)
	}
}

package spawn

import (
	"testing"

	"causeway/host/worker/link"
	"causeway/host/worker/offer"
)

// TestLastWant: of several questions for room that nobody has looked at the last one counts, and
// the link goes on meanwhile.
func TestLastWant(t *testing.T) {
	var shared offer.Broker
	w, p, _ := end(t, &shared)
	woken := make(chan uint32)
	wake := func(slot uint32) { woken <- slot }
	p.wake.Store(&wake)
	last := link.Want{}
	for n := range uint64(3) {
		last.Number = n + 1
		if err := w.Send(last); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Send(link.Wake{Slot: 7}); err != nil { // which is followed after them
		t.Fatal(err)
	}
	if slot := <-woken; slot != 7 {
		t.Errorf("slot %d was woken", slot)
	}
	if got := <-p.Wants(); got != last {
		t.Errorf("%+v, want %+v", got, last)
	}
	select {
	case got := <-p.Wants():
		t.Errorf("%+v is there, too", got)
	default:
	}
}

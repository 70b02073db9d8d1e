package shm

import "testing"

// TestRoomAtTheBound: when there are as many vacated ranges as there may be, there is room for one
// that touches another, on either side, and for no other.
func TestRoomAtTheBound(t *testing.T) {
	const first, step, size = 1 << 40, 4 << 20, 1 << 20
	var v vacated
	for i := range uintptr(maxVacated) {
		v.add(span{first + i*step, size})
	}
	if len(v.spans) != maxVacated {
		t.Fatalf("%d ranges", len(v.spans))
	}
	const at = first + 7*step
	for what, c := range map[string]struct {
		span
		ok bool
	}{
		"apart": {span{at + 2*size, size}, false}, "a page behind": {span{at + size + pageSize, pageSize}, false}, "a page before": {span{at - 2*pageSize, pageSize}, false},
		"right behind": {span{at + size, pageSize}, true}, "right before": {span{at - pageSize, pageSize}, true}, "between two": {span{at + size, step - size}, true},
		"behind all": {span{first + maxVacated*step, size}, false}, "before all": {span{first - 2*size, size}, false}, "right before all": {span{first - size, size}, true},
	} {
		if v.room(c.span) != c.ok {
			t.Errorf("%s: room: %v", what, !c.ok)
		}
	}
	if v.spans = v.spans[1:]; !v.room(span{first, size}) {
		t.Error("no room below the bound")
	}
}

package device

import "testing"

// TestLookingAgain: a migration that begins while who looked at the last one is about to stop is
// looked at, by one and no more.
func TestLookingAgain(t *testing.T) {
	var l looking
	for range 2 { // also when nobody looks any more
		if !l.begin() {
			t.Fatal("nobody looks")
		}
		at := l.last()
		if l.begin() {
			t.Error("two look")
		}
		if l.over(at) {
			t.Error("nobody looks at the migration that began meanwhile")
		}
		if !l.over(l.last()) {
			t.Error("who has looked at all looks again")
		}
	}
}

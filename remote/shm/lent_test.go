package shm

import "testing"

// TestLent: addresses at which regions have lain go to who reserves them in their place, and are
// kept again afterwards; no others do.
func TestLent(t *testing.T) {
	const at = 0x6b1000000000
	m := NewMemory()
	t.Cleanup(func() { _ = m.Close() })
	s, err := reserve(at, 4*pageSize)
	if err != nil {
		t.Fatal(err)
	}
	m.vacated.add(s)
	mine, err := reserve(at+5*pageSize, pageSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mine.release)
	for _, r := range [][2]uint64{{at, 6}, {at, 4 + block/pageSize}, {at - pageSize, 2}, {at + 4*pageSize, 1}, {at - pageSize, 1}, {at, 0}, {^uint64(0) - pageSize, 2}} {
		if m.Lend(r[0], r[1]*pageSize) {
			t.Errorf("%d pages at %#x, of which not all have been a region's, are lent", r[1], r[0])
		}
	}
	if free(t, at, pageSize) {
		t.Fatal("what was refused is free")
	}
	if !m.Lend(at+pageSize, 2*pageSize) {
		t.Fatal("what was a region's is not lent")
	}
	if free(t, at, pageSize) || !free(t, at+pageSize, 2*pageSize) || free(t, at+3*pageSize, pageSize) {
		t.Error("other addresses are free than were lent")
	}
	if m.Lend(at+pageSize, 2*pageSize) {
		t.Error("lent twice")
	}
	if err := m.Keep(at+pageSize, 2*pageSize); err != nil || free(t, at+pageSize, 2*pageSize) {
		t.Errorf("not kept again: %v", err)
	}
	if n := len(m.vacated.spans); n != 1 {
		t.Errorf("%d ranges are kept, want one again", n)
	}
	if err := m.Keep(at+2*pageSize, pageSize); err == nil {
		t.Error("what is reserved is kept once more")
	}
	if !m.Lend(at+pageSize, 4*pageSize) || free(t, at, pageSize) || !free(t, at+pageSize, 4*pageSize) {
		t.Error("a region's place with what is free behind it, to a block's end, is not lent")
	}
	if err := m.Keep(at+pageSize, 4*pageSize); err != nil || free(t, at+pageSize, 4*pageSize) {
		t.Errorf("not kept again, with what was free: %v", err)
	}
}

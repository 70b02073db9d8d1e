package shm

import "testing"

// TestPlacesAside: regions for which the guest has chosen no addresses lie one behind the other in
// a part of the address space that nobody else's choices fall into, from a place of this process's
// on and around its end.
func TestPlacesAside(t *testing.T) {
	was := asideNext.Load()
	defer asideNext.Store(was)
	place := func(what string, size, want uintptr) {
		t.Helper()
		s, err := reserve(0, size)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.release)
		if s.addr != want || s.size != size {
			t.Errorf("%s: %#x bytes at %#x, want %#x", what, s.size, s.addr, want)
		}
	}
	if asideStart() >= asideSize || asideStart()%(2<<20) != 0 {
		t.Errorf("they begin at %#x", asideStart())
	}
	at := asideFrom + (asideStart()+was)%asideSize
	for _, size := range []uintptr{2 * pageSize, 5 * pageSize, pageSize, 3 * pageSize} {
		place("the next", size, at)
		at += size
	}
	asideNext.Store(asideSize - asideStart())
	place("around the end", pageSize, asideFrom)
	place("and behind", 2*pageSize, asideFrom+pageSize)
}

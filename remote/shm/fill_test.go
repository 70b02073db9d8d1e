package shm

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFillStaysInside: what leaves a span is refused before anything is mapped, however its end is
// computed.
func TestFillStaysInside(t *testing.T) {
	const page = 4096
	s, err := reserve(0, 4*page)
	if err != nil {
		t.Fatal(err)
	}
	defer s.release()
	for _, c := range []struct {
		off, n uintptr
		inside bool
	}{
		{0, 4 * page, true}, {3 * page, page, true}, {page, 2 * page, true},
		{0, 5 * page, false}, {page, 4 * page, false}, {3 * page, 2 * page, false}, {4 * page, page, false}, {5 * page, page, false},
		{^uintptr(page) + 1, page, false}, {page, ^uintptr(page) + 1, false},
	} {
		// There is no file, so that nothing is mapped either way.
		if err := s.fill(c.off, c.n, -1, 0); err == nil || errors.Is(err, unix.EBADF) != c.inside {
			t.Errorf("%#x+%#x: %v", c.off, c.n, err)
		}
	}
}

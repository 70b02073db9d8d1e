package shm

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/remote"
)

// free reports whether something could come to lie at addresses of this process.
func free(t *testing.T, at, size uintptr) bool {
	t.Helper()
	s, err := reserve(at, size)
	if err != nil {
		if !errors.Is(err, unix.EEXIST) {
			t.Fatal(err)
		}
		return false
	}
	s.release()
	return true
}

// TestPlacesStayEmpty: where a region lay at an address that the guest chose nothing else comes to
// lie, but another such region.
func TestPlacesStayEmpty(t *testing.T) {
	const at = 0x6a0000400000
	m := NewMemory()
	fd := testFile(t, 4)
	place := func(id uint32, page, n uint64) {
		t.Helper()
		if err := m.Declare(id, remote.Declared{VA: at + page*pageSize, Size: n * pageSize}, nil); err != nil {
			t.Fatal(err)
		}
		if err := m.SetRuns(id, []Run{{FD: fd, Size: n * pageSize}}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Await(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		mem, err := m.Map(id, at+page*pageSize)
		if err != nil {
			t.Fatal(err)
		}
		if mem[0] != 'a' || uint64(len(mem)) != n*pageSize {
			t.Fatalf("%c, %d bytes", mem[0], len(mem))
		}
	}
	leave := func(id uint32) {
		t.Helper()
		if err := m.Unmap(id); err != nil {
			t.Fatal(err)
		}
		if err := m.End(id); err != nil {
			t.Fatal(err)
		}
	}
	place(1, 0, 2)
	leave(1)
	if free(t, at, 2*pageSize) {
		t.Fatal("the place of a region that is gone can be had")
	}
	place(2, 1, 4) // half of it on new addresses
	place(3, 0, 1)
	leave(3)
	leave(2)
	if n := len(m.vacated.spans); n != 1 || free(t, at, pageSize) || free(t, at+4*pageSize, pageSize) || !free(t, at+5*pageSize, pageSize) {
		t.Fatalf("%d vacated: %#x", n, m.vacated.spans)
	}
	taken, err := reserve(at+6*pageSize, pageSize)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.vacated.take(at+4*pageSize, 4*pageSize); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a region over memory of this process: %v", err)
	}
	taken.release()
	if free(t, at+4*pageSize, pageSize) || !free(t, at+5*pageSize, pageSize) {
		t.Error("a refused region changed what is reserved")
	}
	if err := m.Close(); err != nil || !free(t, at, 8*pageSize) {
		t.Errorf("after the end: %v", err)
	}
}

// TestVacated holds the ranges against a list of pages.
func TestVacated(t *testing.T) {
	const at, pages = 0x6b0000000000, 24
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var v vacated
		var held []span
		var mine, empty [pages]bool // by page: lies in a region that is there; is reserved for one
		for range 30 {
			i, n := rng.IntN(pages), 1+rng.IntN(5)
			n = min(n, pages-i)
			clash := false
			for p := i; p < i+n; p++ {
				clash = clash || mine[p]
			}
			if s, err := v.take(at+uintptr(i)*pageSize, uintptr(n)*pageSize); (err != nil) != clash {
				t.Fatalf("%d+%d: %v, %v", i, n, err, mine)
			} else if err == nil {
				held = append(held, s)
				for p := i; p < i+n; p++ {
					mine[p], empty[p] = true, false
				}
			}
			if k := rng.IntN(len(held) + 1); k < len(held) {
				s := held[k]
				held = append(held[:k], held[k+1:]...)
				v.add(s)
				for p := (s.addr - at) / pageSize; p < (s.addr-at+s.size)/pageSize; p++ {
					mine[p], empty[p] = false, true
				}
			}
			var got [pages]bool
			for k, s := range v.spans {
				if s.size == 0 || k > 0 && v.spans[k-1].addr+v.spans[k-1].size >= s.addr {
					t.Fatalf("not apart: %#x", v.spans)
				}
				for p := (s.addr - at) / pageSize; p < (s.addr-at+s.size)/pageSize; p++ {
					got[p] = true
				}
			}
			if got != empty {
				t.Fatalf("vacated %v, want %v", got, empty)
			}
		}
		for p := range mine {
			if reserved := !free(t, at+uintptr(p)*pageSize, pageSize); reserved != (mine[p] || empty[p]) {
				t.Fatalf("page %d: reserved %v", p, reserved)
			}
		}
		v.release()
		for _, s := range held {
			s.release()
		}
	}
}

// TestPlacesAreBounded: the mappings of a process are few. At the bound free addresses between
// places are reserved too; a region at one place too many stays.
func TestPlacesAreBounded(t *testing.T) {
	const at = 0x6c0000000000
	var v vacated
	defer v.release()
	for i := range uintptr(maxVacated) {
		s := span{at + 2*i*pageSize, pageSize}
		if !v.room(s) {
			t.Fatal(i)
		}
		v.add(s) // only noted: nothing lies there
	}
	last := span{at + 2*maxVacated*pageSize, pageSize}
	if v.room(last) {
		t.Error("no bound")
	}
	if !v.room(span{at + pageSize, pageSize}) {
		t.Error("a place between two others makes one of three")
	}
	between, err := reserve(at+101*pageSize, pageSize) // this process's own
	if err != nil {
		t.Fatal(err)
	}
	if !v.makeRoom(last) {
		t.Fatal("no room although nearly everything between is free")
	}
	if len(v.spans) != 2 || v.spans[0] != (span{at, 101 * pageSize}) || v.spans[1].addr != at+102*pageSize {
		t.Errorf("now %#x", v.spans[:min(len(v.spans), 4)])
	}
	if free(t, at+pageSize, pageSize) || free(t, at+(2*maxVacated-3)*pageSize, pageSize) {
		t.Error("what makes one of two is not reserved")
	}
	v.add(last)
	s, err := v.take(at+pageSize, 3*pageSize)
	if err != nil || s.size != 3*pageSize {
		t.Errorf("a region where free addresses were reserved: %v", err)
	}
	if err == nil {
		s.release()
	}
	between.release()
}

// TestNoRoom: where nothing between the places is free, the bound holds.
func TestNoRoom(t *testing.T) {
	var v vacated
	for i := range uintptr(maxVacated) {
		v.add(span{0x100000000000 + 2*i*widestGap, pageSize})
	}
	if v.makeRoom(span{0x100000, pageSize}) {
		t.Error("room")
	}
}

// TestPlacesAtTheBound: where no place more can be kept a region at one stays mapped, and addresses
// are not kept that nobody could give back; regions that lie aside come and go as before.
func TestPlacesAtTheBound(t *testing.T) {
	const at = 0x6d0100000000 // which touches none of them
	m := NewMemory()
	fd := testFile(t, 1)
	for id, where := range []uint64{0, at} {
		if err := errors.Join(m.Declare(uint32(id), remote.Declared{VA: at, Size: pageSize}, nil), m.SetRuns(uint32(id), []Run{{FD: fd, Size: pageSize}})); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Map(uint32(id), where); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uintptr(maxVacated) {
		m.vacated.add(span{0x100000000000 + 2*i*widestGap, pageSize}) // only noted
	}
	if err := m.Unmap(0); err != nil {
		t.Errorf("aside: %v", err)
	}
	if err := m.Unmap(1); err == nil || !m.regions[1].mapped || !reachable(m.regions[1].mem) {
		t.Errorf("at a place of its own: %v", err)
	}
	if err := m.Keep(at+pageSize*4, pageSize); err == nil || !free(t, at+pageSize*4, pageSize) {
		t.Errorf("addresses are kept: %v", err)
	}
	m.vacated.spans = m.vacated.spans[1:]
	if err := errors.Join(m.Unmap(1), m.Keep(at+pageSize, pageSize)); err != nil || free(t, at, pageSize) || free(t, at+pageSize, pageSize) {
		t.Errorf("below the bound: %v", err)
	}
	m.vacated.spans = slices.DeleteFunc(m.vacated.spans, func(s span) bool { return s.addr != at })
	if err := m.Close(); err != nil || !free(t, at, 2*pageSize) {
		t.Error(err)
	}
}

// TestNearlyVacated: what is vacated but for less than a block at its end, and begins within one
// range; nothing that is empty, lies behind all of them, or wraps around.
func TestNearlyVacated(t *testing.T) {
	const at, size = 0x6b0000000000, 4 * block
	v := vacated{spans: []span{{at, size}, {at + size + block, size}}}
	for what, c := range map[string]struct {
		at, size uintptr
		nearly   bool
	}{
		"all of one":               {at, size, true},
		"a part":                   {at + pageSize, pageSize, true},
		"and less than a block":    {at, size + block - 1, true},
		"and a block":              {at, size + block, false},
		"all of the other":         {at + size + block, size, true},
		"behind the first":         {at + size, pageSize, false},
		"below the first":          {at - pageSize, 2 * pageSize, false},
		"behind the last":          {at + 2*size + block, pageSize, false},
		"nothing":                  {at, 0, false},
		"to the end of all":        {at, ^uintptr(0) - at + 1, false},
		"around it":                {at, ^uintptr(0) - at + 2*pageSize, false},
		"around it, from the last": {at + size + block, ^uintptr(0) - at, false},
	} {
		if got := v.nearly(c.at, c.size); got != c.nearly {
			t.Errorf("%s: %v", what, got)
		}
	}
	if (&vacated{}).nearly(at, pageSize) {
		t.Error("nothing is vacated")
	}
}

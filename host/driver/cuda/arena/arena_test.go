package arena

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

const base = 0x600000000000

// memory is what is backed.
type memory struct {
	t      testing.TB
	pages  map[uint64]bool
	refuse error
	calls  int
}

func (m *memory) Back(at, size uint64) error {
	m.calls++
	if m.refuse != nil {
		return m.refuse
	}
	if at%Page != 0 || size%Page != 0 || size == 0 {
		m.t.Fatalf("back %d bytes at %#x", size, at)
	}
	for p := at; p < at+size; p += Page {
		if m.pages[p] {
			m.t.Fatalf("%#x is backed twice", p)
		}
		m.pages[p] = true
	}
	return nil
}

func (m *memory) Unback(at, size uint64) {
	for p := at; p < at+size; p += Page {
		if !m.pages[p] {
			m.t.Fatalf("%#x is not backed", p)
		}
		delete(m.pages, p)
	}
}

func newMemory(t testing.TB) *memory { return &memory{t: t, pages: map[uint64]bool{}} }

type block struct{ at, size uint64 }

// check: blocks are apart, backed, and found by every address in them.
func check(t *testing.T, a *Arena, m *memory, blocks []block) {
	t.Helper()
	sorted := slices.Clone(blocks)
	slices.SortFunc(sorted, func(x, y block) int { return int(int64(x.at) - int64(y.at)) })
	end := uint64(0)
	for _, b := range sorted {
		if b.at < end || b.at%Unit != 0 {
			t.Fatalf("block at %#x, the one before ends at %#x", b.at, end)
		}
		end = b.at + b.size
		for _, addr := range []uint64{b.at, b.at + b.size/2, b.at + b.size - 1} {
			if at, ok := a.Block(addr); !ok || at != b.at {
				t.Fatalf("%#x of the block at %#x is found at %#x, %v", addr, b.at, at, ok)
			}
			if !m.pages[addr&^(Page-1)] {
				t.Fatalf("%#x is not backed", addr)
			}
		}
	}
	if a.Backed() != uint64(len(m.pages))*Page {
		t.Fatalf("%d bytes are said to be backed, %d are", a.Backed(), len(m.pages)*Page)
	}
}

// TestByChance allocates and frees by chance, and builds the same again elsewhere, in any order:
// every block comes to its address.
func TestByChance(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := newMemory(t)
		a := New(base, 1<<39, m)
		var blocks []block
		for range 3000 {
			if len(blocks) > 0 && r.IntN(5) < 2 {
				i := r.IntN(len(blocks))
				if !a.Free(blocks[i].at) {
					t.Fatalf("the block at %#x is not there", blocks[i].at)
				}
				if _, ok := a.Block(blocks[i].at); ok {
					t.Fatalf("the block at %#x is still there", blocks[i].at)
				}
				blocks = slices.Delete(blocks, i, i+1)
				continue
			}
			size := uint64(1) << r.IntN(24)
			size += r.Uint64N(size)
			at, err := a.Alloc(size)
			if err != nil {
				t.Fatal(err)
			}
			blocks = append(blocks, block{at, size})
		}
		check(t, a, m, blocks)
		r.Shuffle(len(blocks), func(i, j int) { blocks[i], blocks[j] = blocks[j], blocks[i] })
		n := newMemory(t)
		b := New(base, 1<<39, n)
		for _, x := range blocks {
			if err := b.AllocAt(x.at, x.size); err != nil {
				t.Fatalf("%d bytes at %#x: %v", x.size, x.at, err)
			}
		}
		check(t, b, n, blocks)
		for _, x := range blocks {
			if err := b.AllocAt(x.at, x.size); !errors.Is(err, ErrTaken) {
				t.Fatalf("%#x twice: %v", x.at, err)
			}
		}
		for _, list := range []*Arena{a, b} {
			for _, x := range blocks {
				list.Free(x.at)
			}
			list.Trim()
		}
		if len(m.pages)+len(n.pages) != 0 || a.Backed()+b.Backed() != 0 {
			t.Fatalf("of nothing %d and %d pages are backed", len(m.pages), len(n.pages))
		}
	}
}

// TestSmallBlocksShare: what is small does not take a page each, and one page is kept for the next.
func TestSmallBlocksShare(t *testing.T) {
	m := newMemory(t)
	a := New(base, 1<<39, m)
	var list []uint64
	for range units + 1 {
		at, err := a.Alloc(1)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, at)
	}
	if len(m.pages) != 2 {
		t.Errorf("%d blocks have %d pages", len(list), len(m.pages))
	}
	for _, at := range list {
		a.Free(at)
	}
	if len(m.pages) != 1 {
		t.Errorf("%d pages are kept", len(m.pages))
	}
	calls := m.calls
	for range 100 {
		at, err := a.Alloc(4096)
		if err != nil || !a.Free(at) {
			t.Fatal(err)
		}
	}
	if m.calls != calls {
		t.Errorf("%d pages were backed for one block that comes and goes", m.calls-calls)
	}
}

// TestRefused: what is no block is not freed, nor found, and what cannot be had is an error that
// leaves nothing behind.
func TestRefused(t *testing.T) {
	m := newMemory(t)
	a := New(base, 16*Page, m)
	small, _ := a.Alloc(3 * Unit)
	large, err := a.Alloc(3 * Page)
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []uint64{0, base - 1, small + 1, small + Unit, small + 3*Unit, large + Page, large + 3*Page, base + 16*Page} {
		if a.Free(addr) {
			t.Errorf("%#x was freed", addr)
		}
	}
	for _, addr := range []uint64{0, base - 1, small + 3*Unit, large + 3*Page, base + 16*Page, ^uint64(0)} {
		if at, ok := a.Block(addr); ok {
			t.Errorf("%#x is in the block at %#x", addr, at)
		}
	}
	for _, x := range []block{{small, Unit}, {small + Unit, Unit}, {small + 3*Unit + 1, Unit}, {base + Page - Unit, 2 * Unit}, {large, Page}, {large + Unit, Page}, {large + Page, 8},
		{base + 16*Page, Unit}, {base + 15*Page, 2 * Page}, {base - Page, Page}, {base + 8*Page, ^uint64(0)}} {
		if err := a.AllocAt(x.at, x.size); !errors.Is(err, ErrTaken) {
			t.Errorf("%d bytes at %#x: %v", x.size, x.at, err)
		}
	}
	for _, size := range []uint64{13 * Page, 17 * Page, ^uint64(0)} {
		if at, err := a.Alloc(size); !errors.Is(err, ErrNoAddresses) {
			t.Errorf("%d bytes: %#x, %v", size, at, err)
		}
	}
	m.refuse = errors.New("no memory")
	for _, size := range []uint64{Page, Large - 1} {
		if _, err := a.Alloc(size); size == Page && !errors.Is(err, m.refuse) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	check(t, a, m, []block{{small, 3 * Unit}, {large, 3 * Page}})
}

// FuzzArena has a byte each say what is done, and compares with a plain list.
func FuzzArena(f *testing.F) {
	f.Add([]byte{1, 2, 3, 200, 130, 255, 4, 90, 128})
	f.Fuzz(func(t *testing.T, ops []byte) {
		m := newMemory(t)
		a := New(base, 64*Page, m)
		var blocks []block
		for _, op := range ops {
			if op >= 128 && len(blocks) > 0 {
				i := int(op-128) % len(blocks)
				if !a.Free(blocks[i].at) {
					t.Fatalf("%#x is not there", blocks[i].at)
				}
				blocks = slices.Delete(blocks, i, i+1)
				continue
			}
			size := uint64(op%8+1) << (op / 8)
			if at, err := a.Alloc(size); err == nil {
				blocks = append(blocks, block{at, size})
			}
		}
		check(t, a, m, blocks)
	})
}

// BenchmarkSmall is what the allocator itself adds to a block that comes and goes among many.
func BenchmarkSmall(b *testing.B) {
	m := newMemory(b)
	a := New(base, 1<<39, m)
	r := rand.New(rand.NewPCG(1, 1))
	var list []uint64
	for range 100000 {
		at, _ := a.Alloc(512 << r.IntN(8))
		list = append(list, at)
	}
	for b.Loop() {
		i := r.IntN(len(list))
		a.Free(list[i])
		list[i], _ = a.Alloc(512 << r.IntN(8))
	}
}

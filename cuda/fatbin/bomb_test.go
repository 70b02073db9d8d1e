package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
)

// roomy is machine code of which all but a few bytes are zeros.
func roomy(size int) []byte {
	b := append(bytes.Clone(cubin()), make([]byte, size)...)
	binary.LittleEndian.PutUint64(b[64+16+64+24:], uint64(len(b)-size))
	binary.LittleEndian.PutUint64(b[64+16+64+32:], uint64(size))
	return b
}

// inUse is how much of the heap is in use.
func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestManyEntries: of an image no more is held at once than it is said to unpack to, however many
// of its entries the driver might take.
func TestManyEntries(t *testing.T) {
	const n, size = 64, 8 << 20
	packed := packZstd(t, roomy(size))
	var entries [][]byte
	for range n {
		entries = append(entries, build(KindELF, 90, 0, 0x11|flagZstd, packed, size+len(cubin())))
	}
	image := container(entries...)
	before := inUse()
	c, err := Check(image, func(int) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	held, said := inUse()-before, Unpacked(image, 0)
	t.Logf("%d KiB: %d MiB held, %d said", len(image)>>10, held>>20, said>>20)
	if held > said+keptBeside+1<<20 {
		t.Errorf("%d bytes are held of an image of %d that says it unpacks to %d", held, len(image), said)
	}
	if len(c.Parts()) != n {
		t.Errorf("%d parts of %d", len(c.Parts()), n)
	}
	for _, p := range c.Parts() {
		if code, err := p.Code(); err != nil || len(code) != size+len(cubin()) {
			t.Fatalf("a part of %d bytes, %v", len(code), err)
		}
	}
}

// TestTooMuchCode: nobody unpacks for hours what a few MiB say that they hold, neither in one image
// nor in an object that shows it time and again.
func TestTooMuchCode(t *testing.T) {
	defer func(n uint64) { maxUnpacked = n }(maxUnpacked)
	maxUnpacked = 64 << 20
	const size = 8 << 20
	packed := packZstd(t, roomy(size))
	entry := build(KindELF, 90, 0, 0x11|flagZstd, packed, size+len(cubin()))
	all := func(int) bool { return true }
	if _, err := Check(container(bytes.Repeat(entry, 9)), all); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
	if _, err := Check(container(bytes.Repeat(entry, 9)), func(int) bool { return false }); err != nil {
		t.Error(err)
	}
	if _, err := Check(container(bytes.Repeat(entry, 7)), all); err != nil {
		t.Error(err)
	}
	one := container(entry)
	if err := CheckObject(object(false, one, one, one, one, one, one, one)); err != nil {
		t.Error(err)
	}
	if err := CheckObject(object(false, bytes.Repeat(one, 9))); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
}

// TestOneSectionManyTimes: sections of an object that are the same bytes are no code for each.
func TestOneSectionManyTimes(t *testing.T) {
	le := binary.LittleEndian
	one := container(build(KindELF, 90, 0, 0x11, cubin(), 0))
	b := object(true, one, nil, nil, nil)
	first := b[le.Uint64(b[40:])+64:]
	for i := 1; i <= 3; i++ {
		copy(first[64*i:], first[:64])
	}
	if err := CheckObject(b); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
}

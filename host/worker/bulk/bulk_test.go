package bulk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
)

func file(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func index(f *os.File) ([]Range, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return Index(f, info.Size())
}

// TestBulk: ranges of all sizes come back as they were, zeros included, and those take no room.
func TestBulk(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	memory := map[uint64][]byte{}
	var order []uint64
	sum := uint64(0)
	for i, size := range []int{0, 1, Block - 1, Block, Block + 1, 3*Block + 7, 9 << 20, 20<<20 + 5} {
		p := make([]byte, size)
		for at := 0; at < size; at += Block {
			if r.IntN(3) > 0 {
				for j := at; j < min(at+Block, size); j++ {
					p[j] = byte(r.Uint32()) | 1
				}
				sum += uint64(min(at+Block, size) - at)
			}
		}
		addr := uint64(0x7f00_0000_0000) + uint64(i)<<32
		memory[addr], order = p, append(order, addr)
	}
	f := file(t)
	n, err := Write(f, func(fn func(addr, size uint64, r io.Reader) error) error {
		for i, addr := range order {
			var in io.Reader = bytes.NewReader(memory[addr])
			if i%2 == 0 {
				in = struct{ io.Reader }{iotest.HalfReader(in)}
			}
			if err := fn(addr, uint64(len(memory[addr])), in); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || n < sum/2 || n > sum+sum/4 { // half a block of a half read may be none
		t.Fatalf("%d bytes written, %d are no zeros: %v", n, sum, err)
	}
	list, err := index(f)
	if err != nil || len(list) != len(order) {
		t.Fatal(list, err)
	}
	seen := 0
	if err := Export(f, list, func(addr, size uint64, r io.Reader) error {
		got, err := io.ReadAll(r)
		if addr != order[seen] || size != uint64(len(got)) || !bytes.Equal(got, memory[addr]) {
			t.Errorf("range %d at %#x of %d bytes is not what it was", seen, addr, size)
		}
		seen++
		return err
	}); err != nil || seen != len(order) {
		t.Error(seen, err)
	}
}

// TestShort: memory that ends early, or is longer than was said, is an error, not another memory.
func TestShort(t *testing.T) {
	for _, n := range []int{5, 15} {
		if _, err := Write(file(t), func(fn func(addr, size uint64, r io.Reader) error) error {
			return fn(1, 10, bytes.NewReader(make([]byte, n)))
		}); err == nil {
			t.Errorf("%d bytes of 10", n)
		}
	}
	failed := errors.New("the GPU is gone")
	if _, err := Write(file(t), func(fn func(addr, size uint64, r io.Reader) error) error {
		return fn(1, 10, iotest.ErrReader(failed))
	}); !errors.Is(err, failed) {
		t.Error(err)
	}
}

// FuzzIndex reads what others have written: ranges lie in the file, or it is refused, and nothing takes more memory than the file has.
func FuzzIndex(f *testing.F) {
	tail := func(count, m uint64, entries ...uint64) []byte {
		var b []byte
		for _, v := range append(entries, count, m) {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return b
	}
	f.Add([]byte{})
	f.Add(tail(0, magic))
	f.Add(append([]byte("memory.."), tail(1, magic, 0x1000, 8, 0)...))
	f.Add(append([]byte("memory.."), tail(1, magic, 0x1000, 9, 0)...))
	f.Add(tail(1<<60, magic))
	f.Add(tail(1, magic, 1, ^uint64(0), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := Index(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		for _, r := range list {
			if end := uint64(len(b)) - tailBytes - uint64(len(list))*entryBytes; r.At > end || r.Size > end-r.At {
				t.Errorf("%+v is memory, and the index begins at %d", r, end)
			}
		}
		if err := Export(bytes.NewReader(b), list, func(_, size uint64, r io.Reader) error {
			n, err := io.Copy(io.Discard, r)
			if uint64(n) != size {
				t.Errorf("%d bytes of %d", n, size)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	p := bytes.Repeat([]byte{1}, 64<<20)
	f := file(b)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if _, err := Write(f, func(fn func(addr, size uint64, r io.Reader) error) error {
			return fn(0, uint64(len(p)), bytes.NewReader(p))
		}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestMapped: a range that is written into its mapping is the same as one that is written by calls.
func TestMapped(t *testing.T) {
	p := make([]byte, 5<<20+333)
	for i := range p {
		if i/Block%3 > 0 {
			p[i] = byte(i*7) | 1
		}
	}
	for _, mapped := range []bool{false, true} {
		f := file(t)
		w, err := newWriter(f, 2*Block, uint64(len(p)), mapped)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range [][]byte{p[:2<<20], p[2<<20:]} {
			if _, err := w.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.Write([]byte{1}); err == nil {
			t.Error("more than there is room for")
		}
		if err := w.close(); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(p))
		if _, err := f.ReadAt(got, 2*Block); err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(got, p) {
			t.Errorf("mapped %v: not what was written, %v", mapped, err)
		}
	}
}

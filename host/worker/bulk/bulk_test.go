package bulk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"
)

// files are n in this process's memory, as a device process makes them.
func files(t testing.TB, n int) (list Files) {
	t.Helper()
	for range n {
		fd, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, os.NewFile(uintptr(fd), "memory"))
	}
	t.Cleanup(func() {
		if err := list.Close(); err != nil {
			t.Error(err)
		}
	})
	return list
}

// TestBulk: ranges of all sizes come back as they were, zeros included, and those take no room.
func TestBulk(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(strconv.Itoa(n), func(t *testing.T) { testBulk(t, files(t, n)) })
	}
}

func testBulk(t *testing.T, f Files) {
	r := rand.New(rand.NewPCG(1, 2))
	memory := map[uint64][]byte{}
	var order []uint64
	sum := uint64(0)
	for i, size := range []int{0, 1, Block - 1, Block, Block + 1, 3*Block + 7, 2 << 20, 5<<20 + 5} {
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
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	list, err := Index(f, size)
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
		if _, err := Write(files(t, 2), func(fn func(addr, size uint64, r io.Reader) error) error {
			return fn(1, 10, bytes.NewReader(make([]byte, n)))
		}); err == nil {
			t.Errorf("%d bytes of 10", n)
		}
	}
	failed := errors.New("the GPU is gone")
	if _, err := Write(files(t, 2), func(fn func(addr, size uint64, r io.Reader) error) error {
		return fn(1, 10, iotest.ErrReader(failed))
	}); !errors.Is(err, failed) {
		t.Error(err)
	}
}

// FuzzIndex reads what others have written: ranges lie in the file, or it is refused, and nothing
// takes more memory than the file has.
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
	for _, n := range []int{1, Threads()} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				b.StopTimer() // pages are new each time
				f := files(b, n)
				b.StartTimer()
				if _, err := Write(f, func(fn func(addr, size uint64, r io.Reader) error) error {
					return fn(0, uint64(len(p)), bytes.NewReader(p))
				}); err != nil {
					b.Fatal(err)
				}
				for _, f := range f {
					if err := f.Truncate(0); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// TestFiles: several files are to who reads and writes at any place what one is, holes and ends
// included.
func TestFiles(t *testing.T) {
	pattern := make([]byte, 7*stripe)
	for i := range pattern {
		pattern[i] = byte(i * 7)
	}
	for _, n := range []int{1, 3} {
		r := rand.New(rand.NewPCG(uint64(n), 3))
		l, size := files(t, n), 2*n*stripe+stripe/2+77
		want := make([]byte, size)
		for range 8 {
			at := r.IntN(size)
			p := want[at : at+r.IntN(size-at)]
			copy(p, pattern[r.IntN(256):])
			if done, err := l.WriteAt(p, int64(at)); err != nil || done != len(p) {
				t.Fatal(done, err)
			}
		}
		if err := l.end(int64(size)); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Size(); err != nil || got != int64(size) {
			t.Errorf("%d files: %d bytes, not %d: %v", n, got, size, err)
		}
		for range 8 {
			at := r.IntN(size)
			p := make([]byte, r.IntN(size-at))
			if done, err := l.ReadAt(p, int64(at)); err != nil || done != len(p) || !bytes.Equal(p, want[at:at+done]) {
				t.Errorf("%d files: %d bytes of %d at %d, %v, or others", n, done, len(p), at, err)
			}
		}
		if _, err := l.ReadAt(make([]byte, 2), int64(size)-1); !errors.Is(err, io.EOF) {
			t.Errorf("%d files: read past the end: %v", n, err)
		}
	}
}

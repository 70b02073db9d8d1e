/*
Package bulk keeps a session's memory in files as it is, for a session that stays on its host:
nothing is framed, and several threads read and write at the same time, since one is slower than a
GPU's bus.

The files are one stretch of bytes, in turn (Files). In it ranges lie one behind the other, each at
a multiple of Block. What is all zeros is not written, and is a hole. Behind the ranges lies the
index: for each its address, size and place, little-endian, then how many they are, and a magic
number, the last bytes of all. Who reads believes no more of it than that it lies there.
*/
package bulk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
)

// Block is what is looked at together.
const Block = 64 << 10

// Bounds and sizes of the index.
const (
	magic      = 0x4b4c5542 // "BULK"
	entryBytes = 24
	tailBytes  = 16
	mostRanges = 1 << 20
	// portion is what one thread does alone.
	portion = 512 << 10
)

// ErrFile says that files are not this package's.
var ErrFile = errors.New("not the memory of a session")

// Range is memory in files.
type Range struct{ Addr, Size, At uint64 }

var nothing [Block]byte

// MostThreads bounds how many read and write at the same time.
const MostThreads = 16

// Threads are how many read and write at the same time, and so how many files are of use.
func Threads() int { return min(max(runtime.GOMAXPROCS(0), 1), MostThreads) }

// Write writes what export tells of, and the index. It returns how many bytes were not zeros.
func Write(f Files, export func(fn func(addr, size uint64, r io.Reader) error) error) (written uint64, err error) {
	var index []byte
	var count, end uint64
	err = export(func(addr, size uint64, r io.Reader) error {
		if count == mostRanges {
			return fmt.Errorf("more than %d ranges of memory", mostRanges)
		}
		w := &writer{f: f, at: end, size: size}
		if _, err := io.CopyBuffer(w, r, make([]byte, min(size, 4<<20)+1)); err != nil {
			return err
		}
		if w.done != size {
			return fmt.Errorf("memory at %#x: %w after %d bytes of %d", addr, io.ErrUnexpectedEOF, w.done, size)
		}
		for _, v := range []uint64{addr, size, end} {
			index = binary.LittleEndian.AppendUint64(index, v)
		}
		count, end, written = count+1, (end+size+Block-1)/Block*Block, written+w.written
		return nil
	})
	if err != nil {
		return written, err
	}
	index = binary.LittleEndian.AppendUint64(index, count)
	index = binary.LittleEndian.AppendUint64(index, magic)
	if _, err = f.WriteAt(index, int64(end)); err == nil {
		err = f.end(int64(end) + int64(len(index)))
	}
	return written, err
}

// writer is a range, for one who writes it from its beginning.
type writer struct {
	f        io.WriterAt
	at, size uint64
	done     uint64
	written  uint64
}

// Write implements io.Writer. p is nobody's when it returns.
func (w *writer) Write(p []byte) (int, error) {
	if uint64(len(p)) > w.size-w.done {
		return 0, io.ErrShortWrite
	}
	var written atomic.Uint64
	err := parallel(len(p), w.at+w.done, func(from, end int) error {
		n, err := w.blocks(p[from:end], w.done+uint64(from))
		written.Add(n)
		return err
	})
	w.done, w.written = w.done+uint64(len(p)), w.written+written.Load()
	return len(p), err
}

// blocks writes the stretches of blocks that are not all zeros, from a place in the range on: the
// others stay holes.
func (w *writer) blocks(p []byte, at uint64) (written uint64, err error) {
	for from := 0; from < len(p); {
		end := from
		for end < len(p) && !zeros(p[end:min(end+Block, len(p))]) {
			end = min(end+Block, len(p))
		}
		if end > from {
			if _, err := w.f.WriteAt(p[from:end], int64(w.at+at)+int64(from)); err != nil {
				return written, err
			}
			written += uint64(end - from)
		}
		from = end + Block // that one is zeros
	}
	return written, nil
}

func zeros(p []byte) bool { return bytes.Equal(p, nothing[:len(p)]) }

// parallel cuts n bytes, which begin at a place in the files, where one file follows another.
// Threads work on the parts at the same time; each takes those whose turn is its own, so that none
// waits for another at a file, if there are as many files as threads.
func parallel(n int, at uint64, f func(from, to int) error) error {
	if n <= portion {
		return f(0, n)
	}
	threads := uint64(Threads())
	first, last := at/stripe, (at+uint64(n)-1)/stripe
	var all sync.WaitGroup
	errs := make([]error, min(threads, last-first+1))
	for i := range errs {
		all.Go(func() {
			for turn := first + uint64(i); turn <= last && errs[i] == nil; turn += threads {
				from, to := max(turn*stripe, at)-at, min((turn+1)*stripe-at, uint64(n))
				errs[i] = f(int(from), int(to))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Index reads which ranges files have, or one of a size.
func Index(f io.ReaderAt, size int64) ([]Range, error) {
	if size < tailBytes {
		return nil, fmt.Errorf("%w: %d bytes", ErrFile, size)
	}
	var tail [tailBytes]byte
	if _, err := f.ReadAt(tail[:], size-tailBytes); err != nil {
		return nil, err
	}
	count := binary.LittleEndian.Uint64(tail[:])
	if binary.LittleEndian.Uint64(tail[8:]) != magic || count > mostRanges || count*entryBytes > uint64(size-tailBytes) {
		return nil, fmt.Errorf("%w: %d ranges in %d bytes", ErrFile, count, size)
	}
	end := uint64(size) - tailBytes - count*entryBytes
	b := make([]byte, count*entryBytes)
	if _, err := f.ReadAt(b, int64(end)); err != nil {
		return nil, err
	}
	list := make([]Range, 0, count)
	for ; len(b) > 0; b = b[entryBytes:] {
		r := Range{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}
		if r.Size > math.MaxInt64 || r.At > end || r.Size > end-r.At {
			return nil, fmt.Errorf("%w: %d bytes at %d of %d", ErrFile, r.Size, r.At, end)
		}
		list = append(list, r)
	}
	return list, nil
}

// Export tells of ranges as a session does of its memory.
func Export(f io.ReaderAt, list []Range, fn func(addr, size uint64, r io.Reader) error) error {
	for _, r := range list {
		if err := fn(r.Addr, r.Size, &reader{f: f, at: int64(r.At), left: r.Size}); err != nil {
			return err
		}
	}
	return nil
}

// reader is a range.
type reader struct {
	f    io.ReaderAt
	at   int64
	left uint64
}

// Read implements io.Reader: it fills p as far as there is something.
func (r *reader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(uint64(len(p)), r.left)]
	err := parallel(len(p), uint64(r.at), func(from, to int) error {
		n, err := r.f.ReadAt(p[from:to], r.at+int64(from))
		if n == to-from {
			return nil
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	r.at, r.left = r.at+int64(len(p)), r.left-uint64(len(p))
	return len(p), nil
}

// Package state writes what a session is made of as bytes, and reads it with bounds: what is read
// may come from another host, through whoever carries a VM's state. Numbers are little-endian;
// bytes follow their length, items their number. Neither end is safe for several goroutines.
package state

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// ErrState says that what was read is no state, or beyond the bounds of one.
var ErrState = errors.New("bad state")

var le = binary.LittleEndian

// Writer writes. The first error stays, and Flush returns it.
type Writer struct {
	w   *bufio.Writer
	err error
}

// NewWriter makes a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: bufio.NewWriterSize(w, 64<<10)} }

func (w *Writer) raw(b []byte) {
	if w.err == nil {
		_, w.err = w.w.Write(b)
	}
}

// U32 writes a number.
func (w *Writer) U32(v uint32) { w.raw(le.AppendUint32(nil, v)) }

// U64 writes a number.
func (w *Writer) U64(v uint64) { w.raw(le.AppendUint64(nil, v)) }

// Bool writes a flag.
func (w *Writer) Bool(v bool) {
	n := uint32(0)
	if v {
		n = 1
	}
	w.U32(n)
}

// Bytes writes bytes that Reader.Bytes reads.
func (w *Writer) Bytes(b []byte) {
	w.U64(uint64(len(b)))
	w.raw(b)
}

// Copy writes n bytes of r, without their number.
func (w *Writer) Copy(r io.Reader, n uint64) {
	if w.err != nil {
		return
	}
	k, err := io.Copy(w.w, io.LimitReader(r, int64(n)))
	if err == nil && uint64(k) != n {
		err = io.ErrUnexpectedEOF
	}
	w.err = err
}

// Write implements io.Writer: b without its length.
func (w *Writer) Write(b []byte) (int, error) {
	if w.raw(b); w.err != nil {
		return 0, w.err
	}
	return len(b), nil
}

// Err is the first error.
func (w *Writer) Err() error { return w.err }

// Flush sends what was written, and returns the first error.
func (w *Writer) Flush() error {
	if w.err == nil {
		w.err = w.w.Flush()
	}
	return w.err
}

// Reader reads what a Writer wrote. The first error stays; what is read then is zero.
type Reader struct {
	r    *bufio.Reader
	left uint64
	err  error
}

// NewReader reads from r. most is how many bytes the caller is ready to keep of it.
func NewReader(r io.Reader, most uint64) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, 64<<10), left: most}
}

// Refuse makes an error of what was read.
func (r *Reader) Refuse(format string, args ...any) {
	r.fail(fmt.Errorf("%w: %s", ErrState, fmt.Sprintf(format, args...)))
}

func (r *Reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// Err is the first error.
func (r *Reader) Err() error { return r.err }

func (r *Reader) raw(b []byte) []byte {
	if r.err == nil {
		if _, err := io.ReadFull(r.r, b); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			r.fail(fmt.Errorf("%w: %w", ErrState, err))
		}
	}
	if r.err != nil {
		clear(b)
	}
	return b
}

// U32 reads a number.
func (r *Reader) U32() uint32 { return le.Uint32(r.raw(make([]byte, 4))) }

// U64 reads a number.
func (r *Reader) U64() uint64 { return le.Uint64(r.raw(make([]byte, 8))) }

// Bool reads a flag.
func (r *Reader) Bool() bool {
	n := r.U32()
	if n > 1 {
		r.Refuse("a flag of %d", n)
	}
	return n == 1
}

// Keep takes n bytes off what may be kept. False: reading has ended.
func (r *Reader) Keep(n uint64) bool {
	if r.err == nil && n > r.left {
		r.Refuse("more than may be kept of it")
	}
	if r.err != nil {
		return false
	}
	r.left -= n
	return true
}

// Count reads how many items follow, at most that many, each of which takes cost bytes to keep
// besides its bytes.
func (r *Reader) Count(most uint32, cost uint64) int {
	n := r.U32()
	if n > most {
		r.Refuse("%d items where %d may be", n, most)
	}
	if !r.Keep(uint64(n) * cost) {
		return 0
	}
	return int(n)
}

// Bytes reads bytes, at most that many. Memory is taken as they come.
func (r *Reader) Bytes(most uint64) []byte {
	n := r.U64()
	if n > most {
		r.Refuse("%d bytes where %d may be", n, most)
	}
	if !r.Keep(n) {
		return nil
	}
	b := make([]byte, 0, min(n, firstPart))
	for r.err == nil && uint64(len(b)) < n {
		b = slices.Grow(b, int(min(n-uint64(len(b)), max(uint64(len(b)), firstPart))))
		from := len(b)
		b = b[:min(uint64(cap(b)), n)]
		r.raw(b[from:])
	}
	return b
}

// firstPart is what is made room for before more of long bytes has come.
const firstPart = 64 << 10

// Rest is all that follows, which the caller does not keep.
func (r *Reader) Rest() io.Reader { return r.r }

// Stream is the next n bytes, which the caller does not keep.
func (r *Reader) Stream(n uint64) io.Reader {
	if r.err != nil {
		return bytes.NewReader(nil)
	}
	return io.LimitReader(r.r, int64(n))
}

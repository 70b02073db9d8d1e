package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrMalformed is wrapped by every complaint about a record's or a payload's bytes.
var ErrMalformed = errors.New("malformed record")

// RecordSize is the length of a record's header.
const RecordSize = 32

// Args is a request: one of the generated XArgs.
type Args interface {
	Op() Op
	fixed() int
	decode(*reader)
	encode(*writer)
}

// Reply is a reply: one of the generated XReply.
type Reply interface {
	Op() Op
	fixed() int
	decode(*reader)
	encode(*writer)
}

// BlobSource holds bytes that were sent ahead.
type BlobSource interface {
	// Take removes a complete blob of exactly size bytes. ok is false if there is none.
	Take(id uint32, size uint32) (b []byte, ok bool)
}

// reader decodes one request or reply. The fixed part is copied out of shared memory once and read
// from the copy; what spans point to is checked against the private lengths and touched once.
type reader struct {
	fixedCopy [maxFixed]byte
	all       []byte // the whole record or payload; may be shared memory
	low       int    // first offset that a span may name
	blobs     BlobSource
	err       error // the bytes break the protocol
	missing   bool  // a blob is not there: the operation fails, the session lives
	refused   bool  // whoever dispatches does not want the driver to see the request
}

// begin takes the fixed part, n bytes at off.
func (r *reader) begin(all []byte, off, n int, blobs BlobSource) error {
	r.all, r.low, r.blobs, r.err, r.missing, r.refused = all, off+n, blobs, nil, false, false
	if len(all) < off+n {
		return fmt.Errorf("%w: %d bytes where at least %d are due", ErrMalformed, len(all), off+n)
	}
	copy(r.fixedCopy[:n], all[off:off+n])
	return nil
}

func (r *reader) ok() bool { return r.err == nil && !r.missing && !r.refused }

func (r *reader) u32(off int) uint32  { return binary.LittleEndian.Uint32(r.fixedCopy[off:]) }
func (r *reader) i32(off int) int32   { return int32(r.u32(off)) }
func (r *reader) u64(off int) uint64  { return binary.LittleEndian.Uint64(r.fixedCopy[off:]) }
func (r *reader) f32(off int) float32 { return math.Float32frombits(r.u32(off)) }

// data returns the bytes that the span at off names, where they lie.
func (r *reader) data(off int) []byte {
	n, at := r.u32(off), r.u32(off+4)
	if n == 0 {
		return nil
	}
	if at&SpanBlob != 0 {
		r.fail("a blob where bytes must be inline")
		return nil
	}
	return r.inline(n, at)
}

// bytes returns a private copy of the bytes that the span at off names, or the blob itself.
func (r *reader) bytes(off int) []byte {
	n, at := r.u32(off), r.u32(off+4)
	if n == 0 {
		return nil
	}
	if at&SpanBlob == 0 {
		shared := r.inline(n, at)
		if shared == nil {
			return nil
		}
		b := make([]byte, n)
		copy(b, shared)
		return b
	}
	if r.blobs == nil {
		r.missing = true
		return nil
	}
	b, ok := r.blobs.Take(at&^SpanBlob, n)
	if !ok || uint64(len(b)) != uint64(n) {
		r.missing = true
		return nil
	}
	return b
}

func (r *reader) inline(n, at uint32) []byte {
	end := uint64(at) + uint64(n)
	if uint64(at) < uint64(r.low) || end > uint64(len(r.all)) {
		r.fail("bytes %d to %d are not within %d to %d", at, end, r.low, len(r.all))
		return nil
	}
	return r.all[at:end:end]
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
	}
}

// writer encodes one request or reply behind start in b.
type writer struct {
	b     []byte
	start int // of the record or payload
	body  int // of the fixed part, from start
	spans [8]span
	n     int
}

type span struct {
	off  int // of the Span, in the fixed part
	p    []byte
	may  bool // may be sent ahead
	blob uint32
}

func (w *writer) begin(b []byte, body, fixed int) {
	w.b, w.start, w.body, w.n = grow(b, body+fixed), len(b), body, 0
}

// grow appends n zero bytes.
func grow(b []byte, n int) []byte {
	l := len(b)
	if cap(b)-l < n {
		b = append(b, make([]byte, n)...)
		return b
	}
	b = b[:l+n]
	clear(b[l:])
	return b
}

func (w *writer) at(off int) []byte       { return w.b[w.start+w.body+off:] }
func (w *writer) u32(off int, v uint32)   { binary.LittleEndian.PutUint32(w.at(off), v) }
func (w *writer) i32(off int, v int32)    { w.u32(off, uint32(v)) }
func (w *writer) u64(off int, v uint64)   { binary.LittleEndian.PutUint64(w.at(off), v) }
func (w *writer) f32(off int, v float32)  { w.u32(off, math.Float32bits(v)) }
func (w *writer) bytes(off int, p []byte) { w.span(off, p, true) }
func (w *writer) data(off int, p []byte)  { w.span(off, p, false) }
func (w *writer) span(off int, p []byte, may bool) {
	if len(p) > 0 {
		w.spans[w.n] = span{off: off, p: p, may: may}
		w.n++
	}
}

// finish appends what the spans name, each aligned to 8 from the start.
func (w *writer) finish() []byte {
	for i := range w.spans[:w.n] {
		s := &w.spans[i]
		w.u32(s.off, uint32(len(s.p)))
		if s.blob != 0 {
			w.u32(s.off+4, SpanBlob|s.blob)
			continue
		}
		w.b = grow(w.b, -(len(w.b)-w.start)&7)
		w.u32(s.off+4, uint32(len(w.b)-w.start))
		w.b = append(w.b, s.p...)
	}
	w.spans = [8]span{}
	return w.b
}

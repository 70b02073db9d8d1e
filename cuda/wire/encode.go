package wire

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Header is what a record's header says besides its size and operation.
type Header struct {
	Flags  uint16 // RecordReply
	Slot   uint32
	Seq    uint32
	Ctx    ID
	Thread uint32
}

// recordAlign is the multiple that a guest keeps records to, so that an OpSkip header fits whatever
// is left of the ring.
const recordAlign = 32

// Encoder writes records as a guest does; the zero Encoder sends nothing ahead.
type Encoder struct {
	// Blob sends bytes ahead and returns their id (1 to 1<<31-1). nil: records may be of any
	// length.
	Blob func(p []byte) (id uint32, err error)
}

// Record appends the record of one request to b. Bytes that do not fit MaxRecord are sent ahead,
// the longest first.
func (e *Encoder) Record(b []byte, h Header, a Args) ([]byte, error) {
	var w writer
	w.begin(b, RecordSize, a.fixed())
	a.encode(&w)
	for e.Blob != nil && w.size() > MaxRecord {
		s := w.longest()
		if s == nil {
			return b, fmt.Errorf("%s: %d bytes do not fit a record", a.Op(), w.size())
		}
		id, err := e.Blob(s.p)
		if err != nil {
			return b, fmt.Errorf("%s: send %d bytes ahead: %w", a.Op(), len(s.p), err)
		}
		if id == 0 || id&SpanBlob != 0 {
			return b, fmt.Errorf("%s: blob id %d is out of range", a.Op(), id)
		}
		s.blob = id
	}
	if w.size() > math.MaxInt32 {
		return b, fmt.Errorf("%s: %d bytes do not fit a record", a.Op(), w.size())
	}
	start := len(b)
	b = w.finish()
	b = grow(b, -(len(b)-start)&(recordAlign-1))
	putHeader(b[start:], h, a.Op())
	return b, nil
}

// AppendRecord appends a self-contained record of any length: what a recorder keeps. It fails only
// beyond 2 GiB.
func AppendRecord(b []byte, h Header, a Args) ([]byte, error) {
	return (&Encoder{}).Record(b, h, a)
}

func putHeader(b []byte, h Header, op Op) {
	le := binary.LittleEndian
	le.PutUint32(b, uint32(len(b)))
	le.PutUint16(b[4:], uint16(op))
	le.PutUint16(b[6:], h.Flags)
	le.PutUint32(b[8:], h.Slot)
	le.PutUint32(b[12:], h.Seq)
	le.PutUint32(b[16:], h.Ctx)
	le.PutUint32(b[20:], h.Thread)
	le.PutUint64(b[24:], 0)
}

// ParseHeader reads the header of a record that is whole and private: one that a recorder kept.
func ParseHeader(rec []byte) (Header, Op, error) {
	le := binary.LittleEndian
	if len(rec) < RecordSize || uint64(le.Uint32(rec)) != uint64(len(rec)) {
		return Header{}, 0, fmt.Errorf("%w: %d bytes", ErrMalformed, len(rec))
	}
	return Header{
		Flags: le.Uint16(rec[6:]), Slot: le.Uint32(rec[8:]), Seq: le.Uint32(rec[12:]),
		Ctx: le.Uint32(rec[16:]), Thread: le.Uint32(rec[20:]),
	}, Op(le.Uint16(rec[4:])), nil
}

func (w *writer) size() int {
	n := len(w.b) - w.start
	for i := range w.spans[:w.n] {
		if s := &w.spans[i]; s.blob == 0 {
			n = (n+7)&^7 + len(s.p)
		}
	}
	return (n + recordAlign - 1) &^ (recordAlign - 1)
}

func (w *writer) longest() *span {
	var best *span
	for i := range w.spans[:w.n] {
		if s := &w.spans[i]; s.may && s.blob == 0 && (best == nil || len(s.p) > len(best.p)) {
			best = s
		}
	}
	return best
}

// AppendReply appends a reply's payload to b.
func AppendReply(b []byte, r Reply) []byte {
	var w writer
	w.begin(b, 0, r.fixed())
	r.encode(&w)
	return w.finish()
}

// DecodeReply reads a payload into r. Bytes fields are copies.
func DecodeReply(payload []byte, r Reply) error {
	var d reader
	if err := d.begin(payload, 0, r.fixed(), nil); err != nil {
		return fmt.Errorf("reply of %s: %w", r.Op(), err)
	}
	if r.decode(&d); !d.ok() {
		return fmt.Errorf("reply of %s: %w", r.Op(), errOr(d.err))
	}
	return nil
}

// Decode reads one whole record (header included) into new Args, for tools and tests. Data fields
// alias rec.
func Decode(op Op, rec []byte, blobs BlobSource) (Args, error) {
	a := NewArgs(op)
	if a == nil {
		return nil, fmt.Errorf("%w: unknown operation %d", ErrMalformed, uint16(op))
	}
	var d reader
	if err := d.begin(rec, RecordSize, a.fixed(), blobs); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if a.decode(&d); !d.ok() {
		return nil, fmt.Errorf("%s: %w", op, errOr(d.err))
	}
	return a, nil
}

func errOr(err error) error {
	if err == nil {
		return fmt.Errorf("%w: bytes sent ahead are missing", ErrMalformed)
	}
	return err
}

package frame

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"

	"causeway/remote"
)

// Kind is what a frame is.
type Kind uint16

// Kinds of frames (tcp_frames.h).
const (
	Hello     Kind = 1
	Welcome   Kind = 2
	Region    Kind = 3
	RegionEnd Kind = 4
	Ring      Kind = 5
	Head      Kind = 6
	Slot      Kind = 7
	Word      Kind = 8
	Control   Kind = 9
	Read      Kind = 10
	Data      Kind = 11
	Write     Kind = 12
	Ack       Kind = 13
	Hold      Kind = 14
	Behind    Kind = 15
	Grant     Kind = 16
	Recall    Kind = 17
	Recalled  Kind = 18
	Arrive    Kind = 19
	Leave     Kind = 20
	State     Kind = 21
	Stay      Kind = 22
	Ahead     Kind = 23
	More      Kind = 24
	Rehearse  Kind = 25
)

// Sizes, in bytes.
const (
	HeaderSize = 16
	ExtentSize = 24
	SlotHeader = 16        // of a SLOT frame's payload, ahead of the reply
	Max        = 1 << 20   // payload of one frame
	MaxRead    = 16 << 20  // asked for by one READ
	Bulk       = 128 << 10 // what is as much goes by branches, if there are any
)

// Refused is the flag of a DATA frame that refuses a READ, and of a STATE frame that ends with an
// error, whose text it has, of at most MaxWhy bytes.
const (
	Refused = 1
	MaxWhy  = 512
)

// Flags of a WELCOME: the server sends memory ahead of a session; and says what a session is made
// of, for a rehearsal elsewhere.
const (
	Rounds    = 1
	Rehearses = 2
)

// Header is what every frame begins with.
type Header struct {
	Len   uint32
	Kind  Kind
	Flags uint16
	Arg   uint64
}

// Append appends the encoded header to b.
func (h Header) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, h.Len)
	b = binary.LittleEndian.AppendUint16(b, uint16(h.Kind))
	b = binary.LittleEndian.AppendUint16(b, h.Flags)
	return binary.LittleEndian.AppendUint64(b, h.Arg)
}

// Put encodes the header at the start of b.
func (h Header) Put(b []byte) { h.Append(b[:0:HeaderSize]) }

// ParseHeader reads the first HeaderSize bytes of b, and checks nothing.
func ParseHeader(b []byte) Header {
	_ = b[HeaderSize-1]
	le := binary.LittleEndian
	return Header{Len: le.Uint32(b), Kind: Kind(le.Uint16(b[4:])), Flags: le.Uint16(b[6:]), Arg: le.Uint64(b[8:])}
}

// ReadHeader reads and checks the header of the next frame. io.EOF is an orderly end.
func ReadHeader(r *bufio.Reader) (Header, error) {
	b, err := r.Peek(HeaderSize)
	if err != nil {
		if errors.Is(err, io.EOF) && len(b) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return Header{}, err
	}
	h := ParseHeader(b)
	_, _ = r.Discard(HeaderSize) // what was peeked is there
	if h.Len > Max {
		return h, remote.Violation("frame of %d bytes", h.Len)
	}
	return h, nil
}

// Body hands the n bytes of a frame that come next to f, a part at a time, as they lie in the
// buffer. An error of f ends it, with that part unread; a stream that ends is io.ErrUnexpectedEOF.
func Body(r *bufio.Reader, n int, f func(part []byte) error) error {
	for n > 0 {
		if r.Buffered() == 0 {
			if _, err := r.Peek(1); errors.Is(err, io.EOF) {
				return io.ErrUnexpectedEOF
			} else if err != nil {
				return err
			}
		}
		part, _ := r.Peek(min(n, r.Buffered()))
		if err := f(part); err != nil {
			return err
		}
		_, _ = r.Discard(len(part))
		n -= len(part)
	}
	return nil
}

// Pair is an argument of two halves, as WORD and CONTROL frames have it: which, and its value.
func Pair(which, value uint32) uint64 { return uint64(which) | uint64(value)<<32 }

// Halves undoes Pair.
func Halves(arg uint64) (which, value uint32) { return uint32(arg), uint32(arg >> 32) }

// Extent is a range of a region, as READ and WRITE frames name it.
type Extent struct {
	Region       uint32
	Offset, Size uint64
}

// Append appends the encoded extent to b.
func (e Extent) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, e.Region)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, e.Offset)
	return binary.LittleEndian.AppendUint64(b, e.Size)
}

// ParseExtent reads the first ExtentSize bytes of b.
func ParseExtent(b []byte) Extent {
	_ = b[ExtentSize-1]
	return Extent{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}
}

// Within reports whether the extent lies in so many bytes.
func (e Extent) Within(size uint64) bool { return e.Offset <= size && e.Size <= size-e.Offset }

// Reply is what a SLOT frame says ahead of the reply's bytes.
type Reply struct{ Seq, Result, Len, Total uint32 }

// Append appends the encoded reply to b.
func (r Reply) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, r.Seq)
	b = binary.LittleEndian.AppendUint32(b, r.Result)
	b = binary.LittleEndian.AppendUint32(b, r.Len)
	return binary.LittleEndian.AppendUint32(b, r.Total)
}

// ParseReply reads the first SlotHeader bytes of b.
func ParseReply(b []byte) Reply {
	_ = b[SlotHeader-1]
	le := binary.LittleEndian
	return Reply{le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])}
}

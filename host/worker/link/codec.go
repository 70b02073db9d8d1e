package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"causeway/remote/sys"
)

var le = binary.LittleEndian

// Errors of Send and Receive, and of those who handle what was received.
var (
	// ErrMessage says that a packet is no message, or none for the end that it came to.
	ErrMessage = errors.New("bad message on the link")
	// ErrUnexpected says that a message, although good in itself, has no place where it came.
	ErrUnexpected = errors.New("unexpected message on the link")
)

// Message is a message of either direction. The kinds are this package's: nobody else can make one.
type Message interface {
	kind() kind
	encode(*encoder)
}

// ToWorker is a message that a parent sends, ToParent one that a worker sends.
type (
	ToWorker interface {
		Message
		toWorker()
	}
	ToParent interface {
		Message
		toParent()
	}
)

// forWorker and forParent are embedded in the messages of a direction.
type (
	forWorker struct{}
	forParent struct{}
)

func (forWorker) toWorker() {}
func (forParent) toParent() {}

// File is a descriptor that comes along, or none, which is its zero value. Send duplicates it; a received one belongs to whoever handles the
// message.
type File struct{ next int } // one more than the descriptor

// FileOf is a descriptor as a File; a negative one is none.
func FileOf(fd int) File { return File{max(fd, -1) + 1} }

// FD is the descriptor, -1 for none.
func (f File) FD() int { return f.next - 1 }

// Received is a message that came over a link and is within the bounds of its kind. Only the decoder makes one.
type Received[M Message] struct {
	message M
	files   []int
}

// Message is what was received. Its descriptors are the caller's.
func (r Received[M]) Message() M { return r.message }

// Discard closes the descriptors of a message that nobody handles.
func (r Received[M]) Discard() { sys.CloseAll(r.files) }

// Refuse discards a message that does not belong where it came, and is the error that says so.
func (r Received[M]) Refuse() error {
	r.Discard()
	return fmt.Errorf("%w: %s", ErrUnexpected, Name(r.message))
}

// headerSize is that of a kind's number, which begins each packet.
const headerSize = 4

// encode makes a packet of m, and lists its descriptors.
func encode[M Message](t table[M], m M) ([]byte, []int, error) {
	e := encoder{b: le.AppendUint32(nil, uint32(m.kind()))}
	m.encode(&e)
	err := e.err
	if d, ok := t[m.kind()]; err == nil {
		if !ok {
			return nil, nil, fmt.Errorf("%w: kind %d is in no table", ErrMessage, m.kind())
		}
		err = d.fits(len(e.b)-headerSize, len(e.files))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", ErrMessage, Name(m), err)
	}
	return e.b, e.files, nil
}

// decode reads a packet, whose descriptors it takes over. Nothing of the message lies in b.
func decode[M Message](t table[M], b []byte, files []int) (Received[M], error) {
	m, err := decodeMessage(t, b, files)
	if err != nil {
		sys.CloseAll(files)
		return Received[M]{}, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return Received[M]{m, files}, nil
}

func decodeMessage[M Message](t table[M], b []byte, files []int) (m M, err error) {
	if len(b) < headerSize {
		return m, fmt.Errorf("%d bytes", len(b))
	}
	number := kind(le.Uint32(b))
	def, ok := t[number]
	if !ok {
		return m, fmt.Errorf("kind %d is none that this end may be sent", number)
	}
	d := decoder{b: b[headerSize:], files: files}
	if err := def.fits(len(d.b), len(files)); err != nil {
		return m, fmt.Errorf("%s: %w", def.name, err)
	}
	m = def.decode(&d)
	if d.err == nil && len(d.b)+len(d.files) > 0 {
		d.refuse("%d bytes and %d descriptors too many", len(d.b), len(d.files))
	}
	if d.err != nil {
		return m, fmt.Errorf("%s: %w", def.name, d.err)
	}
	return m, nil
}

// encoder appends the fields of a message in their order, that of variable length last.
type encoder struct {
	b     []byte
	files []int
	err   error
}

func (e *encoder) u32(v uint32)   { e.b = le.AppendUint32(e.b, v) }
func (e *encoder) u64(v uint64)   { e.b = le.AppendUint64(e.b, v) }
func (e *encoder) bytes(v []byte) { e.b = append(e.b, v...) }

func (e *encoder) flag(v bool) {
	n := uint32(0)
	if v {
		n = 1
	}
	e.u32(n)
}

// text appends at most the first most bytes of a text that may hold anything.
func (e *encoder) text(s string, most int) {
	e.b = append(e.b, strings.ToValidUTF8(s[:min(len(s), most)], "?")...)
}

func (e *encoder) file(f File) {
	if fd := f.FD(); fd >= 0 {
		e.files = append(e.files, fd)
	}
}

// decoder takes the fields of a message in their order. What is wrong with one is kept in err; what follows then is zero.
type decoder struct {
	b     []byte
	files []int
	err   error
}

func (d *decoder) refuse(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

// take is the next n bytes of the packet itself.
func (d *decoder) take(n int) []byte {
	if len(d.b) < n {
		d.refuse("ends early")
		d.b = nil
		return make([]byte, n)
	}
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) u32() uint32 { return le.Uint32(d.take(4)) }
func (d *decoder) u64() uint64 { return le.Uint64(d.take(8)) }

func (d *decoder) flag() bool {
	n := d.u32()
	if n > 1 {
		d.refuse("a flag of %d", n)
	}
	return n == 1
}

// rest copies what is left.
func (d *decoder) rest() []byte { return bytes.Clone(d.take(len(d.b))) }

func (d *decoder) text() string {
	s := string(d.take(len(d.b)))
	if !utf8.ValidString(s) {
		d.refuse("a text that is not UTF-8")
	}
	return s
}

// file is the next descriptor, if there is one.
func (d *decoder) file() File {
	if len(d.files) == 0 {
		return File{}
	}
	fd := d.files[0]
	d.files = d.files[1:]
	return FileOf(fd)
}

// pageSize is the unit of guest memory that is shared.
const pageSize = 4096

// span is the next two fields: where memory lies in an address space, and its size. It is not empty and does not wrap.
func (d *decoder) span() (start, size uint64) {
	start, size = d.u64(), d.u64()
	if size == 0 || start+size < start {
		d.refuse("%#x bytes at %#x", size, start)
	}
	return start, size
}

// pages is a span of whole pages.
func (d *decoder) pages() (start, size uint64) {
	start, size = d.span()
	if (start|size)%pageSize != 0 {
		d.refuse("%#x bytes at %#x are not whole pages", size, start)
	}
	return start, size
}

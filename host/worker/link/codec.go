package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

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
type Message interface{ message() }

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

func (forWorker) message()  {}
func (forWorker) toWorker() {}
func (forParent) message()  {}
func (forParent) toParent() {}

// File is a descriptor that comes along, or none, which is its zero value. Send duplicates it; a
// received one belongs to whoever handles the message.
type File struct{ next int } // one more than the descriptor

// FileOf is a descriptor as a File; a negative one is none.
func FileOf(fd int) File { return File{max(fd, -1) + 1} }

// FD is the descriptor, -1 for none.
func (f File) FD() int { return f.next - 1 }

// Received is a message that came over a link and is within the bounds of its kind. Only the
// decoder makes one.
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
	d := t.types[reflect.TypeOf(m)]
	if d == nil {
		return nil, nil, fmt.Errorf("%w: %T is in no table", ErrMessage, m)
	}
	c := coder{b: le.AppendUint32(nil, uint32(d.number))}
	d.encode(m, &c)
	if c.err == nil {
		c.err = d.fits(len(c.b)-headerSize, len(c.files))
	}
	if c.err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", ErrMessage, d.name, c.err)
	}
	return c.b, c.files, nil
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
	def, ok := t.numbers[number]
	if !ok {
		return m, fmt.Errorf("kind %d is none that this end may be sent", number)
	}
	c := coder{reading: true, b: b[headerSize:], files: files}
	if err := def.fits(len(c.b), len(files)); err != nil {
		return m, fmt.Errorf("%s: %w", def.name, err)
	}
	m = def.decode(&c)
	c.check(len(c.b)+len(c.files) == 0, "%d bytes and %d descriptors too many", len(c.b), len(c.files))
	if c.err != nil {
		return m, fmt.Errorf("%s: %w", def.name, c.err)
	}
	return m, nil
}

// coder goes through the fields of a message in their order, that of variable length last: it
// appends them to a packet, or takes them from one (reading). What is wrong is kept in err; what is
// read then is zero.
type coder struct {
	reading bool
	b       []byte
	files   []int
	err     error
}

func (c *coder) refuse(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// check holds what was read against a bound.
func (c *coder) check(ok bool, format string, args ...any) {
	if c.reading && !ok {
		c.refuse(format, args...)
	}
}

// take is the next n bytes of the packet that is read.
func (c *coder) take(n int) []byte {
	if len(c.b) < n {
		c.refuse("ends early")
		c.b = nil
		return make([]byte, n)
	}
	b := c.b[:n:n]
	c.b = c.b[n:]
	return b
}

func (c *coder) u32(v *uint32) {
	if c.reading {
		*v = le.Uint32(c.take(4))
	} else {
		c.b = le.AppendUint32(c.b, *v)
	}
}

func (c *coder) u64(v *uint64) {
	if c.reading {
		*v = le.Uint64(c.take(8))
	} else {
		c.b = le.AppendUint64(c.b, *v)
	}
}

func (c *coder) flag(v *bool) {
	n := uint32(0)
	if *v {
		n = 1
	}
	c.u32(&n)
	c.check(n <= 1, "a flag of %d", n)
	*v = n == 1
}

func (c *coder) errno(v *unix.Errno) {
	n := uint32(*v)
	c.u32(&n)
	*v = unix.Errno(n)
}

// array is bytes whose number is fixed.
func (c *coder) array(v []byte) {
	if c.reading {
		copy(v, c.take(len(v)))
	} else {
		c.b = append(c.b, v...)
	}
}

// rest is the bytes that are left, a copy.
func (c *coder) rest(v *[]byte) {
	if c.reading {
		*v = make([]byte, len(c.b))
	}
	c.array(*v)
}

// text is what is left, at most so many bytes of a text that may hold anything.
func (c *coder) text(v *string, most int) {
	b := []byte(strings.ToValidUTF8((*v)[:min(len(*v), most)], "?"))
	c.rest(&b)
	*v = string(b)
	c.check(utf8.Valid(b), "a text that is not UTF-8")
	c.check(len(b) <= most, "a text of %d bytes", len(b))
}

// file is the next descriptor, if there is one.
func (c *coder) file(v *File) {
	fd := v.FD()
	if c.reading && len(c.files) > 0 || !c.reading && fd >= 0 {
		c.descriptor(&fd)
	}
	*v = FileOf(fd)
}

// descriptor is one that must be there.
func (c *coder) descriptor(v *int) {
	switch {
	case !c.reading:
		c.files = append(c.files, *v)
	case len(c.files) == 0:
		c.refuse("a descriptor too few")
	default:
		*v, c.files = c.files[0], c.files[1:]
	}
}

// others are the descriptors that are left.
func (c *coder) others(list *[]File) { elements(c, list, len(c.files), c.file) }

// elements are n of a list, each of which one goes through; what is sent knows how many there are.
func elements[T any](c *coder, list *[]T, n int, one func(*T)) {
	if c.reading {
		*list = make([]T, n)
	}
	for i := range *list {
		if one(&(*list)[i]); c.err != nil {
			return
		}
	}
}

// pageSize is the unit of guest memory that is shared.
const pageSize = 4096

// span is the next two fields: where memory lies in an address space, and its size. It is not empty
// and does not wrap.
func (c *coder) span(start, size *uint64) {
	c.u64(start)
	c.u64(size)
	c.check(*size > 0 && *start+*size >= *start, "%#x bytes at %#x", *size, *start)
}

// pages is a span of whole pages.
func (c *coder) pages(start, size *uint64) {
	c.span(start, size)
	c.check((*start|*size)%pageSize == 0, "%#x bytes at %#x are not whole pages", *size, *start)
}

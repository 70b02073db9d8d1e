package virtio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"causeway/vhostuser"
)

// Errors of descriptor chains; each is returned wrapped in the failing head's number.
var (
	ErrTooLong       = errors.New("descriptor chain is too long or loops")
	ErrBadDescriptor = errors.New("invalid descriptor")
)

// Range is a range of guest-physical memory.
type Range struct {
	GPA uint64
	Len uint32
}

// Segment is a piece of a guest buffer: guest-physical address and the same bytes mapped here.
// Neighbouring descriptors whose bytes are adjacent share a segment; a buffer across two regions
// has two.
type Segment struct {
	GPA  uint64
	Data []byte

	region *vhostuser.Region
}

// Chain is one request of the driver. Its segments may be touched until Complete; the Chain must
// not be used after it.
type Chain struct {
	// Readable holds what the driver sent. The guest may change these bytes at any time: copy, then
	// check.
	Readable []Segment
	// Writable is where the device answers.
	Writable []Segment

	q        *Queue
	view     *vhostuser.View
	head     uint16
	readable uint64
	writable uint64
}

// Live says whether the driver hears of the chain's completion: its queue has not stopped.
func (c *Chain) Live() bool {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	return c.q.ring != nil
}

// Hold keeps the memory of the chain's segments mapped, also past Complete, until the view is
// released.
func (c *Chain) Hold() *vhostuser.View {
	c.view.Hold()
	return c.view
}

// ReadableLen is the number of bytes in Readable.
func (c *Chain) ReadableLen() int { return int(c.readable) }

// WritableLen is the number of bytes in Writable.
func (c *Chain) WritableLen() int { return int(c.writable) }

// ReadAt copies readable bytes from offset off to p and returns how many there were.
func (c *Chain) ReadAt(p []byte, off int) int {
	return CopyFrom(p, c.Readable, off)
}

// WriteAt copies p to the writable bytes at offset off and returns how many fitted.
func (c *Chain) WriteAt(p []byte, off int) int {
	return CopyTo(c.Writable, off, p)
}

// CopyFrom copies bytes of segs from offset off to p.
func CopyFrom(p []byte, segs []Segment, off int) (n int) {
	for _, s := range segs {
		if off >= len(s.Data) {
			off -= len(s.Data)
			continue
		}
		n += copy(p[n:], s.Data[off:])
		off = 0
		if n == len(p) {
			break
		}
	}
	return n
}

// CopyTo copies p to segs at offset off.
func CopyTo(segs []Segment, off int, p []byte) (n int) {
	for _, s := range segs {
		if off >= len(s.Data) {
			off -= len(s.Data)
			continue
		}
		n += copy(s.Data[off:], p[n:])
		off = 0
		if n == len(p) {
			break
		}
	}
	return n
}

// Slice returns the part [off, off+size) of segs, appended to dst.
func Slice(dst, segs []Segment, off, size int) []Segment {
	for _, s := range segs {
		if off >= len(s.Data) {
			off -= len(s.Data)
			continue
		}
		if size <= 0 {
			break
		}
		d := s.Data[off:]
		if len(d) > size {
			d = d[:size]
		}
		dst = append(dst, Segment{GPA: s.GPA + uint64(off), Data: d, region: s.region})
		size -= len(d)
		off = 0
	}
	return dst
}

// walk fills c from the descriptors that start at c.head. It reads each descriptor once.
func (q *Queue) walk(c *Chain) error {
	var indirect []byte // private copy of the indirect table, once inside it
	next := c.head
	for budget := q.maxDescs; ; budget-- {
		if budget == 0 {
			return ErrTooLong
		}
		var d descriptor
		if indirect == nil {
			if int(next) >= q.ring.size {
				return fmt.Errorf("index %d: %w", next, ErrBadDescriptor)
			}
			d = q.ring.load(next)
		} else {
			off := int(next) * descSize
			if off >= len(indirect) {
				return fmt.Errorf("indirect index %d: %w", next, ErrBadDescriptor)
			}
			d = unpack(binary.LittleEndian.Uint64(indirect[off:]), binary.LittleEndian.Uint64(indirect[off+8:]))
		}
		if d.flags&descIndirect != 0 {
			if indirect != nil || d.flags&descNext != 0 {
				return fmt.Errorf("nested or continued indirect table: %w", ErrBadDescriptor)
			}
			var err error
			if indirect, err = q.loadIndirect(c.view, d); err != nil {
				return err
			}
			next = 0
			continue
		}
		if err := c.add(d); err != nil {
			return err
		}
		if d.flags&descNext == 0 {
			return nil
		}
		next = d.next
	}
}

// loadIndirect copies an indirect table to the queue's scratch memory.
func (q *Queue) loadIndirect(v *vhostuser.View, d descriptor) ([]byte, error) {
	if !q.indirect {
		return nil, fmt.Errorf("indirect table without negotiation: %w", ErrBadDescriptor)
	}
	if d.len%descSize != 0 { // one of no bytes has no descriptor that walk could follow
		return nil, fmt.Errorf("indirect table of %d bytes: %w", d.len, ErrBadDescriptor)
	}
	if int64(d.len) > int64(q.maxDescs)*descSize {
		return nil, ErrTooLong
	}
	if q.scratch == nil {
		q.scratch = make([]byte, q.maxDescs*descSize)
	}
	table := q.scratch[:d.len]
	for n := 0; n < len(table); {
		b, err := v.Bytes(d.addr+uint64(n), uint64(len(table)-n))
		if err != nil {
			return nil, fmt.Errorf("indirect table at %#x+%#x: %w", d.addr, d.len, err)
		}
		n += copy(table[n:], b)
	}
	return table, nil
}

// add appends the buffer of d. An empty buffer is legal and adds nothing.
func (c *Chain) add(d descriptor) error {
	segs, total := &c.Readable, &c.readable
	if d.flags&descWrite != 0 {
		segs, total = &c.Writable, &c.writable
	} else if len(c.Writable) > 0 {
		return fmt.Errorf("readable buffer after a writable one: %w", ErrBadDescriptor)
	}
	// Virtio 1.2, 2.7.5: no more than 2^32 bytes in all.
	if c.readable+c.writable+uint64(d.len) > math.MaxUint32 {
		return fmt.Errorf("more than 4 GiB in one chain: %w", ErrBadDescriptor)
	}
	if d.addr+uint64(d.len) < d.addr {
		return fmt.Errorf("buffer %#x+%#x wraps around: %w", d.addr, d.len, ErrBadDescriptor)
	}
	*total += uint64(d.len)
	for gpa, left := d.addr, uint64(d.len); left > 0; {
		r := c.view.Region(gpa)
		if r == nil {
			return fmt.Errorf("buffer %#x+%#x: %w", d.addr, d.len, vhostuser.ErrNotMapped)
		}
		off := gpa - r.GPA()
		n := min(left, r.Size()-off)
		if k := len(*segs) - 1; k >= 0 && (*segs)[k].region == r && (*segs)[k].GPA+uint64(len((*segs)[k].Data)) == gpa {
			s := &(*segs)[k]
			s.Data = r.Bytes()[s.GPA-r.GPA() : off+n : off+n]
		} else {
			*segs = append(*segs, Segment{GPA: gpa, Data: r.Bytes()[off : off+n : off+n], region: r})
		}
		gpa, left = gpa+n, left-n
	}
	return nil
}

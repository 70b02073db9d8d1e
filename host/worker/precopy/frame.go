package precopy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Block is the unit that is compared, in bytes. The last one of a range may be shorter. Those
// beside each other are sent as one, up to a Slot.
const Block = 64 << 10

// Kinds of frames.
const (
	frameAdd   = 1 + iota // a range begins to exist, all zeros
	frameGone             // and is gone
	frameBlock            // bytes at an address
	frameZero             // zeros at an address
	frameEnd              // of a round
	frameStill            // of the rounds: the session stands still
	frameRange            // in the last round: what follows is of this range
	frameThere            // bytes at an address, which lie in the window
)

const frameSize = 24

// ErrStream says that a stream is none of this package's, or lies.
var ErrStream = errors.New("bad stream of memory")

// Range is memory of a session: an allocation.
type Range struct{ Addr, Size uint64 }

func (r Range) end() uint64 { return r.Addr + r.Size }

// Export calls fn for each allocation, as driver.Snapshotter's ExportMemory does. fn need not read.
type Export func(fn func(addr, size uint64, r io.Reader) error) error

type frame struct {
	kind, size uint32
	addr, len  uint64
}

func (f frame) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, f.kind)
	b = binary.LittleEndian.AppendUint32(b, f.size)
	b = binary.LittleEndian.AppendUint64(b, f.addr)
	return binary.LittleEndian.AppendUint64(b, f.len)
}

// readFrame reads a header and checks what it says of itself.
func readFrame(r io.Reader) (frame, error) {
	var b [frameSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return frame{}, err
	}
	f := frame{
		kind: binary.LittleEndian.Uint32(b[0:]), size: binary.LittleEndian.Uint32(b[4:]),
		addr: binary.LittleEndian.Uint64(b[8:]), len: binary.LittleEndian.Uint64(b[16:]),
	}
	bytes := uint64(0)
	switch f.kind {
	case frameAdd, frameGone, frameZero, frameRange:
		if f.len == 0 || f.addr+f.len < f.addr {
			return f, fmt.Errorf("%w: range %#x+%#x", ErrStream, f.addr, f.len)
		}
	case frameBlock, frameThere:
		if f.len == 0 || f.len > Slot || f.addr+f.len < f.addr {
			return f, fmt.Errorf("%w: block %#x+%#x", ErrStream, f.addr, f.len)
		}
		if bytes = f.len; f.kind == frameThere {
			return f, nil // size is where in the window, which knows its own
		}
	case frameEnd, frameStill:
		if f.len != 0 {
			return f, fmt.Errorf("%w: an end of %d bytes", ErrStream, f.len)
		}
	default:
		return f, fmt.Errorf("%w: kind %d", ErrStream, f.kind)
	}
	if uint64(f.size) != bytes {
		return f, fmt.Errorf("%w: kind %d with %d bytes", ErrStream, f.kind, f.size)
	}
	return f, nil
}

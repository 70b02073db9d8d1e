package tcp

import (
	"bufio"
	"encoding/binary"
	"io"

	"causeway/remote"
)

// Frame types (tcp_frames.h).
const (
	frameHello     = 1
	frameWelcome   = 2
	frameRegion    = 3
	frameRegionEnd = 4
	frameRing      = 5
	frameHead      = 6
	frameSlot      = 7
	frameWord      = 8
	frameControl   = 9
	frameRead      = 10
	frameData      = 11
	frameWrite     = 12
)

const (
	headerSize = 16
	extentSize = 24
	frameMax   = 1 << 20  // payload of one frame
	extentMax  = 16 << 20 // bytes asked for by one READ
	flagError  = 1
)

// HeaderSize precedes the Hello that a guest says first, for those who look before they Accept.
const HeaderSize = headerSize

// header is what every frame begins with.
type header struct {
	len   uint32
	kind  uint16
	flags uint16
	arg   uint64
}

func (h header) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, h.len)
	b = binary.LittleEndian.AppendUint16(b, h.kind)
	b = binary.LittleEndian.AppendUint16(b, h.flags)
	return binary.LittleEndian.AppendUint64(b, h.arg)
}

// readHeader reads and checks the header of the next frame. io.EOF is an orderly end.
func readHeader(r *bufio.Reader) (header, error) {
	var b [headerSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return header{}, err
	}
	h := header{
		len: binary.LittleEndian.Uint32(b[:]), kind: binary.LittleEndian.Uint16(b[4:]),
		flags: binary.LittleEndian.Uint16(b[6:]), arg: binary.LittleEndian.Uint64(b[8:]),
	}
	if h.len > frameMax {
		return h, remote.Violation("frame of %d bytes", h.len)
	}
	return h, nil
}

// extent is a range of a region, as READ and WRITE frames name it.
func appendExtent(b []byte, region uint32, off, size uint64) []byte {
	b = binary.LittleEndian.AppendUint32(b, region)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, off)
	return binary.LittleEndian.AppendUint64(b, size)
}

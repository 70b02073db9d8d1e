package soft

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// Memset fills rows with elements of 1, 2 or 4 bytes.
func (s *session) Memset(c *wire.Call, a *wire.MemsetArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	unit := uint64(a.Element)
	if unit != 1 && unit != 2 && unit != 4 || a.Dst%unit != 0 {
		return cuda.ErrorInvalidValue
	}
	if a.Width == 0 || a.Height == 0 {
		return cuda.Success
	}
	var m checked
	row := m.mul(a.Width, unit)
	pitch := a.Pitch
	if a.Height == 1 {
		pitch = row
	}
	span := m.add(m.mul(pitch, a.Height-1), row)
	if m.overflow || pitch < row || pitch%unit != 0 {
		return cuda.ErrorInvalidValue
	}
	mem, ok := s.space.bytes(a.Dst, span)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	var pattern [4]byte
	binary.LittleEndian.PutUint32(pattern[:], a.Value)
	return s.do(st, span, func() cuda.Result {
		for at := uint64(0); at < span; at += pitch {
			fill(mem[at:at+row], pattern[:unit])
		}
		return cuda.Success
	})
}

// fill repeats pattern over dst, whose length is a multiple of it.
func fill(dst, pattern []byte) {
	if n := copy(dst, pattern); pattern[0] == 0 && len(pattern) == 1 {
		clear(dst[n:])
		return
	}
	for n := len(pattern); n < len(dst); n *= 2 {
		copy(dst[n:], dst[:n])
	}
}

package resume

import "causeway/remote/frame"

// boundary follows a stream from frame to frame.
type boundary struct {
	have int // bytes of a header
	head [frame.HeaderSize]byte
	left uint64 // bytes of the payload that follows
}

// whole reports whether the last frame is complete.
func (b *boundary) whole() bool { return b.rest() == 0 }

// rest is how many bytes follow until the header is complete that has begun, or else the frame.
func (b *boundary) rest() uint64 {
	if b.have > 0 {
		return uint64(frame.HeaderSize - b.have)
	}
	return b.left
}

// pass goes over the next bytes.
func (b *boundary) pass(p []byte) {
	for len(p) > 0 {
		if b.left > 0 {
			n := min(b.left, uint64(len(p)))
			b.left -= n
			p = p[n:]
			continue
		}
		n := copy(b.head[b.have:], p)
		p = p[n:]
		if b.have += n; b.have == len(b.head) {
			b.have, b.left = 0, uint64(frame.ParseHeader(b.head[:]).Len)
		}
	}
}

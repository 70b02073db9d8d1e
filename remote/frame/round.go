package frame

import (
	"encoding/binary"

	"causeway/remote"
)

// Whole is the flag of the STATE frame that ends a round of memory, which has what the round did.
const Whole = 2

// AheadWindow is how many bytes of a round may be under way that the guest's end has not taken:
// calls of the program, which runs on, stand behind no more.
const AheadWindow = 2 << 20

// RoundSize is how long an encoded Round is.
const RoundSize = 24

// Round is what a round of memory did, in bytes.
type Round struct {
	Looked, Sent uint64
	Cut          bool // it ended early
}

// Append appends the encoded round to b.
func (r Round) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, r.Looked)
	b = binary.LittleEndian.AppendUint64(b, r.Sent)
	cut := uint64(0)
	if r.Cut {
		cut = 1
	}
	return binary.LittleEndian.AppendUint64(b, cut)
}

// ParseRound reads and checks an encoded round.
func ParseRound(b []byte) (Round, error) {
	if len(b) != RoundSize {
		return Round{}, remote.Violation("a round in %d bytes", len(b))
	}
	le := binary.LittleEndian
	r, cut := Round{Looked: le.Uint64(b), Sent: le.Uint64(b[8:])}, le.Uint64(b[16:])
	if cut > 1 || r.Sent > r.Looked {
		return Round{}, remote.Violation("a round that looked at %d bytes and sent %d, with flags %#x", r.Looked, r.Sent, cut)
	}
	r.Cut = cut == 1
	return r, nil
}

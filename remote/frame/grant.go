package frame

import (
	"encoding/binary"
	"errors"

	"causeway/remote"
)

// Granted is memory of a stream's client that the server's end reaches by itself (one-sided), in the terms of what carries the stream.
type Granted struct {
	Address uint64
	Size    uint64
	Key     uint32
}

// GrantSize is the length of an encoded Granted, a GRANT frame's payload.
const GrantSize = 24

// Append appends the encoded grant to b.
func (g Granted) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, g.Address)
	b = binary.LittleEndian.AppendUint64(b, g.Size)
	b = binary.LittleEndian.AppendUint32(b, g.Key)
	return binary.LittleEndian.AppendUint32(b, 0)
}

// ParseGranted reads the first GrantSize bytes of b, and checks nothing.
func ParseGranted(b []byte) Granted {
	_ = b[GrantSize-1]
	le := binary.LittleEndian
	return Granted{le.Uint64(b), le.Uint64(b[8:]), le.Uint32(b[16:])}
}

// Granting is a Stream whose client's end may have memory reached by the server's.
type Granting interface {
	Stream
	// Grants reports whether the server's end reaches memory.
	Grants() bool
	// Grant registers memory, which stays where it is until revoke has returned: then nobody reaches it any more, and who tries has ended the stream.
	Grant(mem []byte) (g Granted, revoke func(), err error)
}

// ErrUnreached says that memory was not reached, and the stream goes on: frames do it.
var ErrUnreached = errors.New("the other end's memory is not reached now")

// Reaching is a Stream whose server's end may reach memory that the client's has granted.
type Reaching interface {
	Stream
	// Reaches reports whether it does.
	Reaches() bool
	// Fetch reads memory. ErrUnreached: nothing touches p any more. Another error is the stream's.
	Fetch(p []byte, from Granted, off uint64) error
	// Store writes memory. The bytes are there before anything is that is written to the stream afterwards; p is the caller's again. ErrUnreached: some of them may be. Another error is the stream's.
	Store(p []byte, to Granted, off uint64) error
}

// Direct is a Reaching whose adapter moves bytes between the client's memory and other memory that it knows, which need not be this process's.
type Direct interface {
	Reaching
	// FetchTo has n bytes of the client's memory copied to m, from at on. ErrUnreached: nothing of it is under way any more. Another error is the stream's.
	FetchTo(m remote.Registered, at, n uint64, from Granted, off uint64) error
	// StoreFrom has n bytes of m, from at on, copied to the client's memory. They are there when it returns; errors as FetchTo's.
	StoreFrom(m remote.Registered, at, n uint64, to Granted, off uint64) error
}

package frame

import (
	"encoding/binary"
	"errors"

	"causeway/remote"
)

// Granted is memory of a stream's client that the server's end reaches by itself (one-sided), in
// the terms of what carries the stream.
type Granted struct {
	Address uint64
	Size    uint64
	Key     uint32
	// More is how further adapters name it, where copies go by several: their numbers are those
	// that both ends have agreed on, of which the first is 1.
	More [MostKeys - 1]Key
}

// MostKeys is how many adapters may have memory of their own names, the first one's included.
const MostKeys = 4

// Key is how one adapter names memory. The zero value: it does not.
type Key struct {
	Is      bool
	Address uint64
	Key     uint32
}

// By is how an adapter names the memory, by its number; 0 is the first.
func (g Granted) By(adapter int) Key {
	if adapter == 0 {
		return Key{true, g.Address, g.Key}
	}
	return g.More[adapter-1]
}

// GrantSize is the length of an encoded Granted, a GRANT frame's payload, without further keys;
// keySize is that of each of those.
const (
	GrantSize     = 24
	MostGrantSize = GrantSize + (MostKeys-1)*keySize
	keySize       = 16
)

// Append appends the encoded grant to b: address and size, u64 each; key and padding, u32 each;
// then for each further adapter that names it address, u64, key and the adapter's number, u32 each.
// Little-endian.
func (g Granted) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, g.Address)
	b = le.AppendUint64(b, g.Size)
	b = le.AppendUint32(b, g.Key)
	b = le.AppendUint32(b, 0)
	for i, k := range g.More {
		if k.Is {
			b = le.AppendUint64(b, k.Address)
			b = le.AppendUint32(b, k.Key)
			b = le.AppendUint32(b, uint32(i+1))
		}
	}
	return b
}

// ParseGranted reads what Append wrote. The numbers of adapters rise, and there are so many at
// most; whether the memory is there is not looked at.
func ParseGranted(b []byte) (Granted, error) {
	if len(b) < GrantSize || len(b) > MostGrantSize || (len(b)-GrantSize)%keySize != 0 {
		return Granted{}, remote.Violation("GRANT frame of %d bytes", len(b))
	}
	le := binary.LittleEndian
	g := Granted{Address: le.Uint64(b), Size: le.Uint64(b[8:]), Key: le.Uint32(b[16:])}
	last := uint32(0)
	for b = b[GrantSize:]; len(b) > 0; b = b[keySize:] {
		k, n := Key{true, le.Uint64(b), le.Uint32(b[8:])}, le.Uint32(b[12:])
		if n <= last || n >= MostKeys || k.Address+g.Size < k.Address {
			return Granted{}, remote.Violation("GRANT frame with a key of adapter %d behind one of %d", n, last)
		}
		g.More[n-1], last = k, n
	}
	return g, nil
}

// Granting is a Stream whose client's end may have memory reached by the server's.
type Granting interface {
	Stream
	// Grants reports whether the server's end reaches memory.
	Grants() bool
	// Grant registers memory, which stays where it is until revoke has returned: then nobody
	// reaches it any more, and who tries has ended the stream.
	Grant(mem []byte) (g Granted, revoke func(), err error)
}

// Lifting is a Granting whose server's end may come to reach memory after the stream has begun.
type Lifting interface {
	Granting
	// Lifts has f called when Grants comes to be true, and reports whether it may. f waits for
	// nothing.
	Lifts(f func()) bool
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
	// Store writes memory. The bytes are there before anything is that is written to the stream
	// afterwards; p is the caller's again. ErrUnreached: some of them may be. Another error is the
	// stream's.
	Store(p []byte, to Granted, off uint64) error
}

// Direct is a Reaching whose adapter moves bytes between the client's memory and other memory that
// it knows, which need not be this process's.
type Direct interface {
	Reaching
	// FetchTo has n bytes of the client's memory copied to m, from at on. ErrUnreached: nothing of
	// it is under way any more. Another error is the stream's.
	FetchTo(m remote.Registered, at, n uint64, from Granted, off uint64) error
	// StoreFrom has n bytes of m, from at on, copied to the client's memory. They are there when it
	// returns; errors as FetchTo's.
	StoreFrom(m remote.Registered, at, n uint64, to Granted, off uint64) error
}

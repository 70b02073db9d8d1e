package verbs

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"causeway/remote"
)

// Offer is what an end says of itself over TLS: a queue pair, its address, and a window. Declined,
// if not empty, is why there is none.
type Offer struct {
	Declined string
	Link     Link
	MTU      MTU
	LID      uint16
	Queue    uint32 // number of the queue pair
	PSN      uint32 // of the first packet that it sends
	GID      [16]byte
	Window   Window
	// Reach: it reads and writes memory of the other end that this grants.
	Reach bool
	// Alone: the end has no other way than its adapter, so that both have patience with the
	// connection. Pass says so for its client.
	Alone bool
	// Rails is how many queue pairs it would have for copies beside this one (rails.go).
	Rails int
}

// Window is memory that the other end writes to.
type Window struct {
	Address uint64
	Key     uint32
	Size    uint32
}

// Peer is an Offer of the other end that was checked. Only ParseOffer makes one.
type Peer struct{ offer Offer }

// Offer is what it says.
func (p Peer) Offer() Offer { return p.offer }

// Sizes of windows, in bytes: powers of two.
const (
	LeastWindow = 64 << 10
	MostWindow  = 1 << 20
)

const (
	offerMagic = "CWVERBS\x01"
	offerSize  = 64
	maxReason  = 400
)

// Append appends the encoded offer to b: 64 bytes (magic; length of the reason, u16; link; MTU;
// LID, u16; 1 if it reaches memory; 1 if it is alone; queue, PSN, key and size, u32 each; address,
// u64; GID; how many rails, u8; padding), then the reason. Little-endian.
func (o Offer) Append(b []byte) []byte {
	reason := o.Declined
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	le, start := binary.LittleEndian, len(b)
	b = append(b, offerMagic...)
	b = le.AppendUint16(b, uint16(len(reason)))
	b = append(b, byte(o.Link), byte(o.MTU))
	b = le.AppendUint16(b, o.LID)
	b = append(b, flag(o.Reach), flag(o.Alone))
	for _, v := range []uint32{o.Queue, o.PSN, o.Window.Key, o.Window.Size} {
		b = le.AppendUint32(b, v)
	}
	b = le.AppendUint64(b, o.Window.Address)
	b = append(b, o.GID[:]...)
	b = append(b, byte(o.Rails))
	b = append(b, make([]byte, start+offerSize-len(b))...)
	return append(b, reason...)
}

func flag(is bool) byte {
	if is {
		return 1
	}
	return 0
}

// ReadOffer reads the other end's offer, and nothing behind it.
func ReadOffer(r io.Reader) (Peer, error) {
	var b [offerSize + maxReason]byte
	if _, err := io.ReadFull(r, b[:offerSize]); err != nil {
		return Peer{}, fmt.Errorf("the other end's RDMA offer: %w", err)
	}
	n := int(binary.LittleEndian.Uint16(b[8:]))
	if n > maxReason {
		return Peer{}, remote.Violation("RDMA offer with a reason of %d bytes", n)
	}
	if _, err := io.ReadFull(r, b[offerSize:][:n]); err != nil {
		return Peer{}, fmt.Errorf("the other end's RDMA offer: %w", err)
	}
	return ParseOffer(b[:offerSize+n])
}

// ParseOffer reads what Append wrote, and checks it.
func ParseOffer(b []byte) (Peer, error) {
	if len(b) < offerSize || string(b[:8]) != offerMagic {
		return Peer{}, remote.Violation("no RDMA offer of this version")
	}
	le := binary.LittleEndian
	o := Offer{
		Link: Link(b[10]), MTU: MTU(b[11]), LID: le.Uint16(b[12:]), Queue: le.Uint32(b[16:]), PSN: le.Uint32(b[20:]),
		Window: Window{Key: le.Uint32(b[24:]), Size: le.Uint32(b[28:]), Address: le.Uint64(b[32:])},
		GID:    [16]byte(b[40:56]),
		Reach:  b[14] == 1,
		Alone:  b[15] == 1,
		Rails:  int(b[56]),
	}
	reason := b[offerSize:]
	if len(reason) != int(le.Uint16(b[8:])) || len(reason) > maxReason {
		return Peer{}, remote.Violation("RDMA offer of %d bytes with a reason of %d", len(b), le.Uint16(b[8:]))
	}
	if len(reason) > 0 {
		return Peer{Offer{Declined: strings.ToValidUTF8(string(reason), "?")}}, nil
	}
	if err := o.check(); err != nil {
		return Peer{}, err
	}
	return Peer{o}, nil
}

func (o Offer) check() error {
	w := o.Window
	switch {
	case o.Rails > mostRails:
		return remote.Violation("RDMA offer with %d queue pairs for copies, of at most %d", o.Rails, mostRails)
	case w.Size < LeastWindow || w.Size > MostWindow || w.Size&(w.Size-1) != 0 || w.Address+uint64(w.Size) < w.Address:
		return remote.Violation("RDMA offer of a window of %d bytes at %#x", w.Size, w.Address)
	}
	return o.checkPair()
}

// checkPair looks at a queue pair and its address.
func (o Offer) checkPair() error {
	switch {
	case o.Link != InfiniBand && o.Link != Ethernet, !o.MTU.valid():
		return remote.Violation("RDMA offer of link %d with MTU %d", o.Link, o.MTU)
	case o.Queue == 0 || o.Queue >= 1<<24 || o.PSN >= 1<<24:
		return remote.Violation("RDMA offer of queue pair %#x, packet %#x", o.Queue, o.PSN)
	case o.Link == Ethernet && o.GID == [16]byte{}:
		return remote.Violation("RDMA offer without address")
	case o.Link == InfiniBand && o.LID == 0 && o.GID == [16]byte{}:
		return remote.Violation("RDMA offer without address")
	}
	return nil
}

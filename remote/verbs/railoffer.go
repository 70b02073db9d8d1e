package verbs

import (
	"encoding/binary"
	"fmt"
	"io"

	"causeway/remote"
	"causeway/remote/frame"
)

// MostPairs is how many queue pairs a session's copies may have, that of its frames included.
const MostPairs = 8

// mostRails is how many there are beside that.
const mostRails = MostPairs - 1

// RailOffer is what an end says of a queue pair for copies. Queue 0: it has none there, which only
// who answers may say.
type RailOffer struct {
	Link  Link
	MTU   MTU
	LID   uint16
	Queue uint32
	PSN   uint32
	GID   [16]byte
	// Adapter is the client's by which its memory is reached there, by the number of the key
	// (frame.Granted).
	Adapter int
}

// RailPeer is a RailOffer of the other end that was checked. Only ReadRails makes one.
type RailPeer struct{ offer RailOffer }

// Offer is what it says.
func (p RailPeer) Offer() RailOffer { return p.offer }

// peer is the other end as a queue pair is connected to it.
func (p RailPeer) peer() Peer { return Peer{p.offer.pair()} }

func (o RailOffer) pair() Offer {
	return Offer{Link: o.Link, MTU: o.MTU, LID: o.LID, Queue: o.Queue, PSN: o.PSN, GID: o.GID}
}

const (
	railsMagic = "CWVRAIL\x01"
	railsHead  = 16
	railSize   = 32
)

// AppendRails appends what an end says of its queue pairs for copies: 16 bytes (magic; how many,
// u8; padding), then 32 for each (link; MTU; LID, u16; queue and PSN, u32 each; number of the
// adapter, u8; padding; GID). Little-endian.
func AppendRails(b []byte, rails []RailOffer) []byte {
	le := binary.LittleEndian
	b = append(b, railsMagic...)
	b = append(b, byte(len(rails)), 0, 0, 0, 0, 0, 0, 0)
	for _, o := range rails {
		b = append(b, byte(o.Link), byte(o.MTU))
		b = le.AppendUint16(b, o.LID)
		b = le.AppendUint32(b, o.Queue)
		b = le.AppendUint32(b, o.PSN)
		b = append(b, byte(o.Adapter), 0, 0, 0)
		b = append(b, o.GID[:]...)
	}
	return b
}

// ReadRails reads what AppendRails wrote, and nothing behind it, and checks it: at most so many,
// none of them twice, nor the queue pair of the frames. answers: it is an answer to so many, any of
// which may be none.
func ReadRails(r io.Reader, most int, answers bool, frames Peer) ([]RailPeer, error) {
	var b [railsHead + mostRails*railSize]byte
	if _, err := io.ReadFull(r, b[:railsHead]); err != nil {
		return nil, fmt.Errorf("the other end's queue pairs for copies: %w", err)
	}
	n := int(b[8])
	if string(b[:8]) != railsMagic || n > mostRails || n > most || answers && n != most {
		return nil, remote.Violation("%x, of %d queue pairs for copies at most", b[:railsHead], most)
	}
	if _, err := io.ReadFull(r, b[railsHead:][:n*railSize]); err != nil {
		return nil, fmt.Errorf("the other end's queue pairs for copies: %w", err)
	}
	known := map[[20]byte]bool{frames.offer.name(): true}
	rails := make([]RailPeer, n)
	for i := range rails {
		o, err := parseRail(b[railsHead+i*railSize:][:railSize], answers)
		if err != nil {
			return nil, err
		}
		if name := o.pair().name(); o.Queue != 0 {
			if known[name] {
				return nil, remote.Violation("queue pair %#x for copies twice", o.Queue)
			}
			known[name] = true
		}
		rails[i] = RailPeer{o}
	}
	return rails, nil
}

// parseRail reads one.
func parseRail(b []byte, answers bool) (RailOffer, error) {
	le := binary.LittleEndian
	o := RailOffer{
		Link: Link(b[0]), MTU: MTU(b[1]), LID: le.Uint16(b[2:]), Queue: le.Uint32(b[4:]), PSN: le.Uint32(b[8:]), Adapter: int(b[12]), GID: [16]byte(b[16:]),
	}
	if answers && o.Queue == 0 {
		return RailOffer{}, nil
	}
	if o.Adapter >= frame.MostKeys {
		return o, remote.Violation("queue pair for copies of adapter %d", o.Adapter)
	}
	return o, o.pair().checkPair()
}

// name is what no other queue pair has: InfiniBand's subnets have its GIDs unique, too, where they
// are told.
func (o Offer) name() [20]byte {
	var b [20]byte
	copy(b[:], o.GID[:])
	if o.GID == [16]byte{} {
		binary.LittleEndian.PutUint16(b[:], o.LID)
	}
	binary.LittleEndian.PutUint32(b[16:], o.Queue)
	return b
}

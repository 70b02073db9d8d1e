package verbs

import (
	"errors"
	"fmt"
	"net/netip"
)

// MTU is the most bytes of a packet, by libibverbs' numbers (enum ibv_mtu): 1 is 256 bytes, 5 is
// 4096.
type MTU uint8

// Bytes is how many.
func (m MTU) Bytes() int { return 128 << m }

func (m MTU) valid() bool { return m >= 1 && m <= 5 }

// Link is what a port is connected by.
type Link uint8

// Links.
const (
	InfiniBand Link = 1
	Ethernet   Link = 2 // RoCE version 2
)

// String is its name.
func (l Link) String() string {
	switch l {
	case InfiniBand:
		return "InfiniBand"
	case Ethernet:
		return "RoCE v2"
	}
	return fmt.Sprintf("link %d", uint8(l))
}

// GID is an address of a port on its fabric.
type GID struct {
	Index  int
	Addr   [16]byte // on Ethernet an IPv6 address, or an IPv4 address mapped into one
	RoCEv2 bool     // on Ethernet: of packets in UDP, which routers know
}

// Port is a port of an adapter, as it was when it was opened.
type Port struct {
	Device string // mlx5_0
	Number int
	Link   Link
	LID    uint16 // InfiniBand's address within a subnet
	MTU    MTU    // in use
	GIDs   []GID
	// PKey is where in the port's table the partition of its queue pairs stands, and Partition what
	// stands there; 0: the kernel shows no table.
	PKey      int
	Partition Partition
	// Software: there is no adapter, the kernel makes its packets (soft RoCE). Each post is then a
	// write(2), which it takes only with the very credentials that opened the device: from threads
	// that have confined themselves since it does not.
	Software bool
}

// String names it.
func (p Port) String() string {
	in := ""
	if p.PKey != 0 {
		in = ", partition " + p.Partition.String()
	}
	return fmt.Sprintf("%s port %d (%v, MTU %d%s)", p.Device, p.Number, p.Link, p.MTU.Bytes(), in)
}

// ErrNoPort: no RDMA port goes where a connection goes.
var ErrNoPort = errors.New("no RDMA port is on the connection's network")

// Choose finds the port and its GID for a connection that has the address local here: on Ethernet
// the RoCE v2 GID which is that address, so that the bytes go the way that the connection goes, and
// to the end that it proved; failing that an InfiniBand port, whose addresses are of another kind.
// The first that does is taken.
func Choose(adapters []Adapter, local netip.Addr) (Adapter, GID, error) {
	want := local.Unmap().As16()
	for _, a := range adapters {
		p := a.Port()
		for _, g := range p.GIDs {
			if p.Link == Ethernet && g.RoCEv2 && local.IsValid() && g.Addr == want {
				return a, g, nil
			}
		}
	}
	for _, a := range adapters {
		if p := a.Port(); p.Link == InfiniBand && len(p.GIDs) > 0 {
			return a, p.GIDs[0], nil
		}
	}
	return nil, GID{}, fmt.Errorf("%w: none has the address %v", ErrNoPort, local)
}

package cuda

import (
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// vmmState is what a session keeps for virtual memory, pools and sharing. Its zero value is ready.
type vmmState struct {
	resvs    table[bind.Mem]
	mems     table[*physical]
	mappings table[*mapping]
	created  uint64 // bytes charged for mems, which outlive contexts
	poolDev  map[uint32]uint32
	// Pools learn at synchronisations through the driver that memory is free again: freedAsync says
	// that they have to; poolsKeep that some are to keep it back anyway.
	freedAsync, poolsKeep bool
	opened                map[uint64]opened // memory of other sessions
	offers                driver.Offers
	avoided               int // address ranges kept from the driver
	apart                 uint64
	apartRefused          bool // addresses are the driver's choice (reserveApart)
}

// physical is memory without an address.
type physical struct {
	handle  bind.MemGenericAllocationHandle
	size    uint64
	host    bool   // of the host's memory
	dev     uint32 // on which it is, or whose GPU reaches it
	handles uint32 // types as which it may be shared
	flags   uint32 // as a guest asks for them
	foreign bool   // another session's, which it is charged to
	token   driver.ShareToken
	awaited bool // foreign, and not here yet (rejoin.go)
	mapped  int  // mappings of it
	tiles   int  // operations that map it into sparse arrays, and count
}

// mapping is memory without an address at reserved ones.
type mapping struct {
	mem    bind.Mem
	of     *physical
	offset uint64
	access map[uint32]uint32 // what devices may do with it, while it is awaited
}

// forTiles reports whether it is meant to lie behind tiles: what else a driver does with it is not
// written anywhere.
func (p *physical) forTiles() bool { return p.flags>>16&1 != 0 }

// charged is what a session pays for it.
func (p *physical) charged() uint64 {
	if p.foreign || p.host {
		return 0
	}
	return p.size
}

// opened is memory of another session, and how often it was opened.
type opened struct {
	at  bind.Address
	n   int
	ctx uint32

	tokens []driver.ShareToken // by which it was opened, each time; not of a page, which has one

	// of a session that may move
	size uint64
	dev  uint32
	page *sharedPage
}

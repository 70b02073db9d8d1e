package cuda

import "causeway/host/driver"

// vmmState is what a session keeps for virtual memory, pools and sharing. Its zero value is ready.
type vmmState struct {
	resvs    table[reservation]
	mems     table[*physical]
	mappings table[mapping]
	created  uint64 // bytes charged for mems, which outlive contexts
	poolDev  map[uint32]uint32
	// Pools learn at synchronisations through the driver that memory is free again: freedAsync says that they have to; poolsKeep
	// that some are to keep it back anyway.
	freedAsync, poolsKeep bool
	opened                map[uint64]int // memory of other sessions: how often it was opened
	offers                driver.Offers
	avoided               int // address ranges kept from the driver
}

// reservation is a range of device addresses.
type reservation struct{ base, size uint64 }

// physical is memory without an address.
type physical struct {
	handle, size uint64
	foreign      bool // another session's, which it is charged to
}

// charged is what a session pays for it.
func (p *physical) charged() uint64 {
	if p.foreign {
		return 0
	}
	return p.size
}

// mapping is memory at an address.
type mapping struct{ base, size uint64 }

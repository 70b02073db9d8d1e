package cuda

// vmmState is what a session keeps for virtual memory, pools and sharing. Its zero value is ready.
type vmmState struct {
	resvs    table[reservation]
	mems     table[*physical]
	mappings table[mapping]
	created  uint64 // bytes of mems, which outlive contexts
}

// reservation is a range of device addresses.
type reservation struct{ base, size uint64 }

// physical is memory without an address.
type physical struct {
	handle uint64
	size   uint64 // charged; 0: another session's
}

// mapping is memory at an address.
type mapping struct{ base, size uint64 }

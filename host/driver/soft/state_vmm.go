package soft

import "causeway/host/driver"

// vmmState is what a session keeps for virtual memory, pools and sharing. Its zero value is ready.
type vmmState struct {
	resvs    map[uint32]*reservation
	mems     map[uint32]*physical
	mappings map[uint32]*mapping
	window   uint64 // where the search for free addresses goes on
	peers    map[peerPair]bool
	name     [16]byte // of this session, among those that share
	offers   driver.Offers
	opened   map[uint64]*opened // memory of other sessions
}

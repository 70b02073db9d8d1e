package api

import "time"

// RoomStatus is what a device process says of its GPU's memory where more is promised than there
// is.
type RoomStatus struct {
	// Bytes that its sessions may hold now; 0: all that the limit allows.
	Room     uint64        `json:"room"`
	Used     uint64        `json:"used"` // that they hold
	Away     uint64        `json:"away"` // that suspended ones held, and want again
	Limit    uint64        `json:"limit"`
	Sessions []RoomSession `json:"sessions"`
	Needs    []Need        `json:"needs"`
}

// RoomSession is a session that has memory of the GPU.
type RoomSession struct {
	ID    uint64 `json:"id"`
	Bytes uint64 `json:"bytes"`
	// Since its program last did something, as far as it was looked at.
	Idle  time.Duration `json:"idle"`
	Here  time.Duration `json:"here"` // since it was brought to the GPU
	Waits bool          `json:"waits,omitempty"`
	Stays bool          `json:"stays,omitempty"` // it could not be suspended a moment ago
}

// Need is a session that waits for room: for an allocation, or to come back.
type Need struct {
	Session uint64        `json:"session"`
	Bytes   uint64        `json:"bytes"`
	Waited  time.Duration `json:"waited"`
	Back    bool          `json:"back,omitempty"` // it is suspended
}

// RoomChange gives room or takes it, and tells sessions that there is none to be had.
type RoomChange struct {
	Room *uint64  `json:"room,omitempty"`
	Deny []uint64 `json:"deny,omitempty"` // sessions
	Why  string   `json:"why,omitempty"`
}

// Swaps count sessions that left a GPU for others and came back.
type Swaps struct {
	Out      uint64 `json:"out"`
	In       uint64 `json:"in"`
	OutBytes uint64 `json:"out_bytes"` // of the GPU's memory
	InBytes  uint64 `json:"in_bytes"`
	Denied   uint64 `json:"denied"`  // allocations for which there was no room
	WaitNS   uint64 `json:"wait_ns"` // that sessions waited for room
}

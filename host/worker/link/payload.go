package link

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// Carriers of a session.
const (
	CarrierUnix   = "unix"   // the guest's SOCK_SEQPACKET connection came with Configure
	CarrierTCP    = "tcp"    // the guest's TCP connection came with Configure
	CarrierLeased = "leased" // guest memory comes over the link
)

// Config is what a worker must know before it starts.
type Config struct {
	Carrier string `json:"carrier"`
	GPU     string `json:"gpu"`               // a backend's name
	Devices []int  `json:"devices,omitempty"` // host ordinals; nil: all
	// Visible names Devices for CUDA_VISIBLE_DEVICES by UUID; nil: by number.
	Visible     []string `json:"visible,omitempty"`
	MemoryLimit uint64   `json:"memory_limit,omitempty"`
	// With PageMemory: the session's slot in it, and what a context takes beside allocations, as far as anybody knows.
	MemorySlot   int    `json:"memory_slot,omitempty"`
	ContextBytes uint64 `json:"context_bytes,omitempty"`
	// HostMemory is what the session's requests may make the worker hold of the host's memory, in bytes; 0: no limit. With PageHost: the
	// session's slot in the budget that it shares.
	HostMemory uint64 `json:"host_memory,omitempty"`
	HostSlot   int    `json:"host_slot,omitempty"`
	Cores      int    `json:"cores,omitempty"`
	// ReachWorker permits GPUs whose kernels can address all of the worker's memory.
	ReachWorker bool   `json:"reach_worker,omitempty"`
	LogLevel    string `json:"log_level,omitempty"`
	Peer        string `json:"peer,omitempty"` // who the guest process is, for the log
	// Tied: the worker ends when its link does, unless Leave came before: its parent was killed.
	Tied bool `json:"tied,omitempty"`
	// Adopt: the session comes from another worker over the second file of Configure (or the first, if the carrier
	// brings none), instead of from a handshake.
	Adopt bool `json:"adopt,omitempty"`
	// Shared: a Shared message follows, and the session waits for it. Encode sets it.
	Shared bool `json:"shared,omitempty"`
	// Pages are sent behind the configuration. Their files stay the sender's, and open until then.
	Pages []Page `json:"-"`
}

// Encode is Config as a payload.
func (c Config) Encode() ([]byte, error) {
	c.Shared = c.Shared || len(c.Pages) > 0
	return json.Marshal(c)
}

// DecodeConfig reads a Configure payload.
func DecodeConfig(b []byte) (Config, error) {
	var c Config
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("worker configuration: %w", err)
	}
	return c, nil
}

// MemoryRegion is a part of a VM's memory: Size bytes at GPA, at Offset of the file that comes along.
type MemoryRegion struct {
	GPA, Size, Offset uint64
}

// EncodeMemory is a Memory payload.
func EncodeMemory(rs []MemoryRegion) []byte {
	b := make([]byte, 0, len(rs)*24)
	for _, r := range rs {
		b = binary.LittleEndian.AppendUint64(b, r.GPA)
		b = binary.LittleEndian.AppendUint64(b, r.Size)
		b = binary.LittleEndian.AppendUint64(b, r.Offset)
	}
	return b
}

// DecodeMemory reads a Memory payload.
func DecodeMemory(b []byte) ([]MemoryRegion, error) {
	if len(b)%24 != 0 {
		return nil, fmt.Errorf("memory table of %d bytes", len(b))
	}
	rs := make([]MemoryRegion, len(b)/24)
	for i := range rs {
		p := b[i*24:]
		rs[i] = MemoryRegion{binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:]), binary.LittleEndian.Uint64(p[16:])}
	}
	return rs, nil
}

// Extent is a range of guest-physical memory.
type Extent struct{ GPA, Size uint64 }

// EncodeExtents is a Piece payload.
func EncodeExtents(es []Extent) []byte {
	b := make([]byte, 0, len(es)*16)
	for _, e := range es {
		b = binary.LittleEndian.AppendUint64(b, e.GPA)
		b = binary.LittleEndian.AppendUint64(b, e.Size)
	}
	return b
}

// DecodeExtents reads a Piece payload.
func DecodeExtents(b []byte) ([]Extent, error) {
	if len(b)%16 != 0 {
		return nil, fmt.Errorf("page list of %d bytes", len(b))
	}
	es := make([]Extent, len(b)/16)
	for i := range es {
		p := b[i*16:]
		es[i] = Extent{binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])}
	}
	return es, nil
}

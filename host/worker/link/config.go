package link

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"causeway/remote"
	"causeway/remote/mtls"
)

// Carriers of a session.
const (
	CarrierUnix     = "unix"   // the guest's SOCK_SEQPACKET connection came with Configure
	CarrierTCP      = "tcp"    // the guest's TCP connection came with Configure
	CarrierVirtiofs = "leased" // guest memory comes over the link
)

// RDMAAuto is Config.RDMA that leaves the port to the connection's address.
const RDMAAuto = "auto"

// takesConnection reports whether a guest's or a worker's connection goes with a configuration.
func (c Config) takesConnection() (bool, error) {
	switch c.Carrier {
	case CarrierUnix, CarrierTCP:
		return true, nil
	case CarrierVirtiofs:
		return c.Adopt, nil
	}
	return false, fmt.Errorf("unknown carrier %q", c.Carrier)
}

// Config is what a worker must know before it starts.
type Config struct {
	Carrier string `json:"carrier"`
	GPU     string `json:"gpu"`               // a backend's name
	Devices []int  `json:"devices,omitempty"` // host ordinals; nil: all
	// Visible names Devices for CUDA_VISIBLE_DEVICES by UUID; nil: by number.
	Visible     []string `json:"visible,omitempty"`
	MemoryLimit uint64   `json:"memory_limit,omitempty"`
	// With PageMemory: the session's slot in it, and what a context takes beside allocations, as
	// far as anybody knows.
	MemorySlot   int    `json:"memory_slot,omitempty"`
	ContextBytes uint64 `json:"context_bytes,omitempty"`
	// HostMemory is what the session's requests may make the worker hold of the host's memory, in
	// bytes; 0: no limit. With PageHost: the session's slot in the budget that it shares.
	HostMemory uint64 `json:"host_memory,omitempty"`
	HostSlot   int    `json:"host_slot,omitempty"`
	Cores      int    `json:"cores,omitempty"`
	// ReachWorker permits GPUs whose kernels can address all of the worker's memory.
	ReachWorker bool `json:"reach_worker,omitempty"`
	// Migratable: the session's memory gets addresses that another worker can give out again.
	Migratable bool `json:"migratable,omitempty"`
	// Base is where mappings that wish no address are to begin in the worker, of its vGPU (BaseOf,
	// DrawBase); 0: anywhere.
	Base     uint64 `json:"base,omitempty"`
	LogLevel string `json:"log_level,omitempty"`
	Peer     string `json:"peer,omitempty"` // who the guest process is, for the log
	// Tenant, with CarrierUnix: the guest process is not this user's.
	Tenant bool `json:"tenant,omitempty"`
	// Tied: the worker ends when its link does, unless Leave came before: its parent was killed.
	Tied bool `json:"tied,omitempty"`
	// Adopt: the session, and its guest's connection, come from another worker over Configure's
	// connection, instead of from a handshake.
	Adopt bool `json:"adopt,omitempty"`
	// Elsewhere, with Adopt: the worker that has the session is on another GPU, whose memory stays
	// there.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// Parked, with Adopt: the session comes as bytes, without guest memory and connection, and
	// stands until Resume. Start brings its doorbell.
	Parked bool `json:"parked,omitempty"`
	// Brings, with Parked: the session comes from another host, and its memory waits for no room.
	Brings bool `json:"brings,omitempty"`
	// Rehearsal, with Parked: what comes of the session makes all of its objects again, without
	// memory behind the addresses of its own, and then ends. Adopted says whether it could, and
	// EADDRNOTAVAIL that something cannot be what it was.
	Rehearsal bool `json:"rehearsal,omitempty"`
	// Shared: SharePages follows, and the session waits for it. Encode sets it.
	Shared bool `json:"shared,omitempty"`
	// Spare: who starts the worker has found that the guest process can do with a driver that has
	// started (Fits).
	Spare bool `json:"spare,omitempty"`
	// Relay: the session runs on a GPU server. The worker has no GPU, and forwards.
	Relay *Relay `json:"relay,omitempty"`
	// TLS, with CarrierTCP: the connection is TLS, and a lease's. The worker shakes hands with the
	// keys of its side.
	TLS *mtls.Pinned `json:"tls,omitempty"`
	// Session, with TLS, is what the other side calls the session, which goes on over other
	// connections (Reconnected).
	Session remote.SessionID `json:"session,omitzero"`
	// RDMA, with Relay or TLS: frames go by RDMA if both ends can; RDMAAuto, or a device, or one
	// port of it as in mlx5_0/1. Empty: they do not.
	RDMA string `json:"rdma,omitempty"`
	// Partition, with RDMA: the P_Key of InfiniBand's partition that queue pairs are of; 0: the
	// first of each port's table.
	Partition uint16 `json:"partition,omitempty"`
	// Pairs, with RDMA: how many queue pairs copies may have, if the other end takes as many; 0:
	// one for each port of the adapters.
	Pairs int `json:"pairs,omitempty"`
	// Direct, with Relay: a guest process may be the RDMA end itself, with an adapter of the VM's;
	// the worker passes on no more than the handshake.
	Direct bool `json:"direct,omitempty"`
	// GPUDirect, with TLS and RDMA: the adapter is told of the GPU's memory, where that can be, and
	// copies go between it and guest memory without this host's.
	GPUDirect bool `json:"gpuDirect,omitempty"`
	// Branches, with Relay or TLS: how many connections beside its first a session may have for its
	// copies, if the other end takes them; 0: none.
	Branches int `json:"branches,omitempty"`
	// Pages are sent behind the configuration. Their files stay the sender's, and open until then.
	Pages []Page `json:"-"`
}

// Relay says where a session goes that runs on a GPU server.
type Relay struct {
	Server    string         `json:"server"`    // its name, for the log and the user
	Addresses []string       `json:"addresses"` // HOST:PORT, tried in their order
	Lease     remote.LeaseID `json:"lease"`
	Identity  mtls.Pinned    `json:"identity"`
}

// Where bases may lie: above the libraries of a worker, which the kernel places by chance, and
// below those of programs.
const (
	lowBase, baseUnit = 0x3000_0000_0000, 2 << 20
	baseChoices       = 1 << 23
)

// DrawBase draws a Base.
func DrawBase() uint64 { return lowBase + baseUnit*rand.Uint64N(baseChoices) }

// BaseOf is the Base of a vGPU of that name, the same on all hosts: workers that wait for its
// sessions where they go begin where theirs did. It is no secret: a guest sees it by the addresses
// of its variables.
func BaseOf(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return lowBase + baseUnit*(binary.LittleEndian.Uint64(sum[:])%baseChoices)
}

// ValidBase reports whether a base is one of those that DrawBase draws from.
func ValidBase(base uint64) bool {
	return base >= lowBase && base%baseUnit == 0 && (base-lowBase)/baseUnit < baseChoices
}

// Encode is Config as JSON.
func (c Config) Encode() ([]byte, error) {
	c.Shared = c.Shared || len(c.Pages) > 0
	return json.Marshal(c)
}

// DecodeConfig reads what Encode wrote.
func DecodeConfig(b []byte) (Config, error) {
	var c Config
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("worker configuration: %w", err)
	}
	return c, nil
}

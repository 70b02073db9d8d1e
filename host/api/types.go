package api

import (
	"time"

	"causeway/host/limit"
	"causeway/remote"
)

// Places on a host. Tests use others.
const (
	RunDir       = "/run/causeway"
	StateDir     = "/var/lib/causeway"
	ConfigFile   = "/etc/causeway/causewayd.toml"
	DaemonSocket = "causewayd.sock" // below RunDir
)

// Spec is what a vGPU is: what was wished of it, what the configuration filled in, and what was
// changed since.
type Spec struct {
	VM     string `json:"vm"`   // the domain's name
	Name   string `json:"name"` // of the vGPU within the VM: gpu0
	GPU    string `json:"gpu"`  // as in Wish
	MIG    string `json:"mig,omitempty"`
	Remote string `json:"remote,omitempty"` // the GPU server, as the configuration names it
	Lease  string `json:"lease,omitempty"`  // the host that has it by a lease, for a VM of its own
	NUMA   *int   `json:"numa,omitempty"`
	// Migratable: as in Wish.
	Migratable bool `json:"migratable,omitempty"`
	// MovesAs: as in Wish.
	MovesAs string `json:"moves_as,omitempty"`
	// Programs: as in Wish.
	Programs bool `json:"programs,omitempty"`
	// Profile is where the limits come from; empty: from nowhere in particular, or one of them was
	// changed since.
	Profile string `json:"profile,omitempty"`
	Limits
	Owner string `json:"owner,omitempty"`
}

// State of a vGPU.
type State string

// States.
const (
	Waiting   State = "waiting"   // its socket takes connections, no VM is connected
	Connected State = "connected" // a VM is connected
	// Its device process ended by itself; the VM has to be restarted, or the vGPU attached again.
	Lost State = "lost"
)

// VGPU is a vGPU as causewayd knows it.
type VGPU struct {
	Spec    Spec      `json:"spec"`
	State   State     `json:"state"`
	GPU     string    `json:"gpu"`     // UUID of the GPU it was placed on; empty: remote
	Socket  string    `json:"socket"`  // vhost-user, or where Programs connect
	Control string    `json:"control"` // the device process's API
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Why     string    `json:"why,omitempty"`     // of Lost
	Created bool      `json:"created,omitempty"` // in the answer to a wish: it was made for it
	Status  *Status   `json:"status,omitempty"`
	// Upstream is how its GPU server is reached; nil: its GPU is this host's.
	Upstream *Upstream `json:"upstream,omitempty"`
}

// Status is a device process's own account.
type Status struct {
	Version   string    `json:"version"`
	PID       int       `json:"pid"`
	Started   time.Time `json:"started"`
	Connected bool      `json:"connected"` // a front end (QEMU) is connected
	GPU       string    `json:"gpu"`       // name
	UUID      string    `json:"uuid"`
	Limits    Limits    `json:"limits"`
	// Bytes of device memory that its sessions use, contexts included.
	Memory uint64 `json:"memory"`
	// Bytes of the host's memory that its sessions' requests hold.
	Host     uint64    `json:"host_memory"`
	Sessions []Session `json:"sessions"`
	Past     Counters  `json:"past"`    // of sessions that have ended
	Opened   uint64    `json:"opened"`  // sessions so far
	Refused  uint64    `json:"refused"` // sessions refused by a limit
	// Room is for how much of Memory there is room now, where more is promised than there is; 0:
	// for all of it.
	Room uint64 `json:"room,omitempty"`
	// Away is what sessions held that are suspended for others' sake.
	Away  uint64 `json:"away,omitempty"`
	Swaps Swaps  `json:"swaps"`
	// Relocation is how far the virtual GPU's move to another GPU is; nil: there is none.
	Relocation *Progress `json:"relocation,omitempty"`
	// Card is the driver's account of the vGPU's GPU time.
	Card Card `json:"card"`
	// Unheld says why share and cap do not hold now; empty: they do.
	Unheld string `json:"unheld,omitempty"`
	// Copy is the pre-copy that is under way.
	Copy *Copy `json:"copy,omitempty"`
	// CopyEnd is why the last one ended.
	CopyEnd string `json:"copy_end,omitempty"`
	// SaveEnd is why the VM's state could not be saved last, for another host or a file; empty: it
	// could.
	SaveEnd string `json:"save_end,omitempty"`
	// Copied is how many bytes of GPU memory went ahead to other hosts so far, as they travelled.
	Copied uint64 `json:"copied,omitempty"`
	// CopySaved is how many more it would be, had nothing been compressed.
	CopySaved uint64 `json:"copy_saved,omitempty"`
	// Migrating: QEMU logs what is written to the VM's memory, as it does while it sends it to
	// another host, or into a file.
	Migrating bool `json:"migrating,omitempty"`
	// Runs: the VM's rings run. They stand while it is paused, and from the moment at which it
	// leaves.
	Runs bool `json:"runs,omitempty"`
	// Heir is the host that may take over the lease of the GPU server with the VM; empty: none.
	Heir string `json:"heir,omitempty"`
	// Lease is that of the GPU server by which its programs go, Next that to which they are on
	// their way, which is not decided yet; zero: none.
	Lease remote.LeaseID `json:"lease,omitzero"`
	Next  remote.LeaseID `json:"next,omitzero"`
}

// CopyRound is one round: what it looked at, sent and took.
type CopyRound struct {
	Looked uint64        `json:"looked"`
	Sent   uint64        `json:"sent"`
	Took   time.Duration `json:"took_ns"`
}

// CopyPast is how many rounds are told of.
const CopyPast = 32

// Ways of a Copy.
const (
	CopyOut = "out"
	CopyIn  = "in"
)

// Copy is a pre-copy of GPU memory between two hosts.
type Copy struct {
	Way      string    `json:"way"`
	Since    time.Time `json:"since"`
	Sessions int       `json:"sessions"`
	Total    uint64    `json:"total"` // bytes on the wire so far
	// Saved is how many bytes more it would be, had nothing been compressed.
	Saved uint64 `json:"saved,omitempty"`
	// Connections is over how many they go.
	Connections int `json:"connections,omitempty"`
	// Of the source: whole rounds, and what the last one looked at, sent and took.
	Rounds int           `json:"rounds,omitempty"`
	Looked uint64        `json:"looked,omitempty"`
	Sent   uint64        `json:"sent,omitempty"`
	Took   time.Duration `json:"took_ns,omitempty"`
	// Past are the rounds so far, the newest last, of which only the last CopyPast are kept.
	Past []CopyRound `json:"past,omitempty"`
	// Throttled is for how many hundredths of the time programs are held back.
	Throttled int `json:"throttled,omitempty"`
	// Ready: what is left fits the pause, or does not become less, which is Stuck.
	Ready bool   `json:"ready,omitempty"`
	Stuck bool   `json:"stuck,omitempty"`
	Why   string `json:"why,omitempty"` // the memory of a session does not go ahead
	// Unmovable: what of a session the other host has found it cannot make. It will never be Ready.
	Unmovable string `json:"unmovable,omitempty"`
}

// Progress is how many programs of how many have been taken care of.
type Progress struct {
	Done int `json:"done"`
	Of   int `json:"of"`
	// Rounds are those in which memory has gone ahead to another GPU server while programs run, and
	// Last the newest.
	Rounds int       `json:"rounds,omitempty"`
	Last   CopyRound `json:"last,omitzero"`
	// Throttled is for how many hundredths of the time programs are held back meanwhile.
	Throttled int `json:"throttled,omitempty"`
	// Rehearsing: programs are rehearsed at the other GPU server, of which Done have been.
	Rehearsing bool `json:"rehearsing,omitempty"`
}

// Card is what a GPU's driver says of the time that it worked for a vGPU, which its guest cannot
// forge.
type Card struct {
	// It tells of single processes; not on MIG slices and software GPUs.
	Known   bool   `json:"known"`
	Nanos   uint64 `json:"ns"`         // of the vGPU's sessions together
	Charged uint64 `json:"charged_ns"` // what the vGPU was charged for because far less was counted
}

// Session is one CUDA process of the guest.
type Session struct {
	ID       uint64 `json:"id"`
	GuestPID uint32 `json:"guest_pid"`
	GuestUID uint32 `json:"guest_uid"`
	// Who made its connection, by this host's word; GuestPID and Program are the program's own.
	Peer    string    `json:"peer,omitempty"`
	Program string    `json:"program"`
	Worker  int       `json:"worker"` // process id on the host
	State   string    `json:"state"`
	Started time.Time `json:"started"`
	Memory  uint64    `json:"memory"`
	// Bytes of the host's memory that its requests hold.
	Host uint64 `json:"host_memory"`
	// Bytes that hold it: it is suspended, and has no worker.
	Stored   uint64   `json:"stored,omitempty"`
	StoredIn string   `json:"stored_in,omitempty"` // the folder where; "": in the host's memory
	Counters Counters `json:"counters"`
	// Managed memory of which there is more than the GPU has room for, in bytes by the guest's
	// word; 0 both: there never was.
	ManagedAtGPU uint64 `json:"managed_at_gpu,omitempty"`
	// Or on a GPU server in that host's memory; reached by kernels over the link.
	ManagedHere uint64 `json:"managed_in_guest,omitempty"`
	// Unmovable is why a VM with this session cannot be saved or migrated now, as far as is known;
	// "": it can.
	Unmovable string `json:"unmovable,omitempty"`
	// Carrier is what its bytes go over between this host and another; "": they do not, or it has
	// not begun.
	Carrier string `json:"carrier,omitempty"`
}

// Counters only grow. Rates are differences of two readings.
type Counters struct {
	Calls       uint64 `json:"calls"` // records consumed
	Launches    uint64 `json:"launches"`
	BytesIn     uint64 `json:"bytes_in"`     // copied to the device
	BytesOut    uint64 `json:"bytes_out"`    // copied from the device
	BusyNanos   uint64 `json:"busy_ns"`      // the GPU had work of the session
	WaitNanos   uint64 `json:"wait_ns"`      // work was held back for the sake of limits
	WorkerNanos uint64 `json:"worker_ns"`    // CPU time of the worker
	OutOfMemory uint64 `json:"oom"`          // allocations refused by the limit
	HostRefused uint64 `json:"host_refused"` // requests refused by the budget of host memory
	FailedCalls uint64 `json:"failed"`
	// Bytes of managed memory that moved to the GPU because it had not room for all of it.
	ManagedIn    uint64 `json:"managed_in,omitempty"`
	ManagedOut   uint64 `json:"managed_out,omitempty"` // and to the guest
	Evicted      uint64 `json:"evicted,omitempty"`     // pieces of it that left the GPU
	Returned     uint64 `json:"returned,omitempty"`    // and came back
	MemoryPeak   uint64 `json:"memory_peak"`
	ThrottledNow bool   `json:"throttled,omitempty"`
}

// Add adds what others counted.
func (c *Counters) Add(o Counters) {
	c.Calls += o.Calls
	c.Launches += o.Launches
	c.BytesIn += o.BytesIn
	c.BytesOut += o.BytesOut
	c.BusyNanos += o.BusyNanos
	c.WaitNanos += o.WaitNanos
	c.WorkerNanos += o.WorkerNanos
	c.OutOfMemory += o.OutOfMemory
	c.HostRefused += o.HostRefused
	c.FailedCalls += o.FailedCalls
	c.ManagedIn += o.ManagedIn
	c.ManagedOut += o.ManagedOut
	c.Evicted += o.Evicted
	c.Returned += o.Returned
	c.MemoryPeak = max(c.MemoryPeak, o.MemoryPeak)
	c.ThrottledNow = c.ThrottledNow || o.ThrottledNow
}

// GPU is a GPU of the host.
type GPU struct {
	ID          string   `json:"id"` // UUID
	Index       int      `json:"index"`
	Backend     string   `json:"backend"` // cuda or soft
	Name        string   `json:"name"`
	Memory      uint64   `json:"memory"`
	Used        uint64   `json:"used"`     // by anybody
	Promised    uint64   `json:"promised"` // sum of its vGPUs' memory limits
	Utilization int      `json:"utilization"`
	Temperature int      `json:"temperature,omitempty"`
	PowerMW     int      `json:"power_mw,omitempty"`
	NUMA        int      `json:"numa"` // -1: unknown
	Driver      string   `json:"driver,omitempty"`
	MIG         []string `json:"mig,omitempty"` // UUIDs of its slices
	Drained     bool     `json:"drained"`
	Why         string   `json:"why,omitempty"` // it is drained
	VGPUs       []string `json:"vgpus,omitempty"`
}

// Profile is limits under a name, and what they are on each GPU.
type Profile struct {
	Name string `json:"name"`
	limit.Profile
	On []ProfileOn `json:"on"`
}

// ProfileOn is a profile on one GPU.
type ProfileOn struct {
	GPU    string `json:"gpu"`           // UUID
	Memory uint64 `json:"memory"`        // bytes
	Room   int    `json:"room"`          // so many more vGPUs of it find room there now
	Why    string `json:"why,omitempty"` // it cannot be had there at all
}

// Version of a daemon.
type Version struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	// Ports are those of the network that its configuration names.
	Ports []Port `json:"ports,omitempty"`
}

// Port is one, by its key of the configuration.
type Port struct {
	Key     string `json:"key"`
	Address string `json:"address"`
	Error   string `json:"error,omitempty"` // why it is not served now
}

// Stays is what keeps a VM from the migration that is under way.
type Stays struct {
	Number uint64 `json:"number"` // of such migrations so far
	Why    string `json:"why"`    // objects and processes, by name
}

// Error is what went wrong, for people.
type Error struct {
	Status int    `json:"-"`
	Text   string `json:"error"`
	Remedy string `json:"remedy,omitempty"`
}

func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Text
	}
	return e.Text + ": " + e.Remedy
}

package api

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"
)

// Places on a host. Tests use others.
const (
	RunDir        = "/run/causeway"
	StateDir      = "/var/lib/causeway"
	ConfigFile    = "/etc/causeway/causewayd.toml"
	DaemonSocket  = "causewayd.sock" // below RunDir
	MostCap       = 100
	DefaultWeight = 100
	MostWeight    = 10000
)

// Spec is what somebody wishes of a vGPU.
type Spec struct {
	VM   string `json:"vm"`   // the domain's name
	Name string `json:"name"` // of the vGPU within the VM: gpu0
	// GPU is any, an ordinal, a list of ordinals, a UUID (of a GPU or a MIG slice), a part of a model's name such as H200, or soft.
	GPU string `json:"gpu"`
	// MIG is the profile of the slice wanted, as in 1g.18gb; empty: a whole GPU, or what GPU names.
	MIG    string `json:"mig,omitempty"`
	Remote string `json:"remote,omitempty"` // HOST:PORT of a GPU server, in place of a GPU of this host
	NUMA   *int   `json:"numa,omitempty"`   // host node of the VM's memory; among GPUs that will do, one of that node is taken
	Limits
	// Owner may open the vhost-user socket, as USER or USER:GROUP; empty: the configuration's.
	Owner string `json:"owner,omitempty"`
}

// Limits of a vGPU. They may change while programs run.
type Limits struct {
	Memory uint64 `json:"memory,omitempty"` // bytes of device memory, contexts included; 0: the whole GPU
	Weight uint32 `json:"weight,omitempty"` // share of GPU time when several want it, relative to others'; 0: DefaultWeight
	Cap    uint32 `json:"cap,omitempty"`    // most per cent of GPU time; 0: no cap
	// Sessions is how many CUDA processes may run at once; 0: the configuration's.
	Sessions uint32 `json:"sessions,omitempty"`
}

// State of a vGPU.
type State string

// States.
const (
	Waiting   State = "waiting"   // its socket takes connections, no VM is connected
	Connected State = "connected" // a VM is connected
	Lost      State = "lost"      // its device process ended by itself; the VM has to be restarted, or the vGPU attached again
)

// VGPU is a vGPU as causewayd knows it.
type VGPU struct {
	Spec    Spec      `json:"spec"`
	State   State     `json:"state"`
	GPU     string    `json:"gpu"`     // UUID of the GPU it was placed on; empty: remote
	Socket  string    `json:"socket"`  // vhost-user
	Control string    `json:"control"` // the device process's API
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Why     string    `json:"why,omitempty"` // of Lost
	Status  *Status   `json:"status,omitempty"`
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
	Memory    uint64    `json:"memory"` // bytes of device memory that its sessions use, contexts included
	Sessions  []Session `json:"sessions"`
	Past      Counters  `json:"past"`    // of sessions that have ended
	Opened    uint64    `json:"opened"`  // sessions so far
	Refused   uint64    `json:"refused"` // sessions refused by a limit
}

// Session is one CUDA process of the guest.
type Session struct {
	ID       uint64    `json:"id"`
	GuestPID uint32    `json:"guest_pid"`
	GuestUID uint32    `json:"guest_uid"`
	Program  string    `json:"program"`
	Worker   int       `json:"worker"` // process id on the host
	State    string    `json:"state"`
	Started  time.Time `json:"started"`
	Memory   uint64    `json:"memory"`
	Counters Counters  `json:"counters"`
}

// Counters only grow. Rates are differences of two readings.
type Counters struct {
	Calls        uint64 `json:"calls"` // records consumed
	Launches     uint64 `json:"launches"`
	BytesIn      uint64 `json:"bytes_in"`  // copied to the device
	BytesOut     uint64 `json:"bytes_out"` // copied from the device
	BusyNanos    uint64 `json:"busy_ns"`   // the GPU had work of the session
	WaitNanos    uint64 `json:"wait_ns"`   // work was held back for the sake of limits
	WorkerNanos  uint64 `json:"worker_ns"` // CPU time of the worker
	OutOfMemory  uint64 `json:"oom"`       // allocations refused by the limit
	FailedCalls  uint64 `json:"failed"`
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
	c.FailedCalls += o.FailedCalls
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

// Version of a daemon.
type Version struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
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

// isName: a name is part of paths and units. No regular expression: every process of ours would compile it at its start.
func isName(n string) bool {
	for i, c := range []byte(n) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
		if !letter && (i == 0 || !strings.ContainsRune("._+:@-", rune(c))) {
			return false
		}
	}
	return n != "" && len(n) <= 63
}

// Errors of Spec.Check.
var (
	ErrName  = errors.New("not a name")
	ErrLimit = errors.New("limit out of range")
)

// Check says what is wrong with a Spec in itself.
func (s *Spec) Check() error {
	for _, n := range []string{s.VM, s.Name} {
		if !isName(n) {
			return fmt.Errorf("%w: %q: use up to 63 letters, digits and ._+:@-, not . or - first", ErrName, n)
		}
	}
	if len(s.SocketPath(RunDir)) > 107 {
		return fmt.Errorf("%w: %q is too long for a socket's path", ErrName, s.VM)
	}
	if s.Remote != "" {
		if _, _, err := net.SplitHostPort(s.Remote); err != nil {
			return fmt.Errorf("remote server: %w", err)
		}
	}
	return s.Limits.Check()
}

// Check says what is wrong with limits in themselves.
func (l *Limits) Check() error {
	switch {
	case l.Cap > MostCap:
		return fmt.Errorf("%w: a cap of %d %%: use 1 to %d, or none", ErrLimit, l.Cap, MostCap)
	case l.Weight > MostWeight:
		return fmt.Errorf("%w: a share of %d: use 1 to %d", ErrLimit, l.Weight, MostWeight)
	}
	return nil
}

// Key is VM/NAME.
func (s *Spec) Key() string { return s.VM + "/" + s.Name }

// SocketPath is where a vGPU's vhost-user socket is: {run}/{vm}/{name}.sock.
func (s *Spec) SocketPath(run string) string { return filepath.Join(run, s.VM, s.Name+".sock") }

// ControlPath is where its device process serves: {run}/{vm}/{name}.ctl.
func (s *Spec) ControlPath(run string) string { return filepath.Join(run, s.VM, s.Name+".ctl") }

// ParseKey splits VM/NAME; NAME alone missing means gpu0.
func ParseKey(key string) (vm, name string) {
	vm, name, ok := strings.Cut(key, "/")
	if !ok {
		name = "gpu0"
	}
	return vm, name
}

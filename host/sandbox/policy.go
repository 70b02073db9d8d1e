package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// Mode says how much is enforced.
type Mode string

// Modes.
const (
	Off Mode = "off" // nothing
	// All that this host can; what it cannot is logged. A real GPU's driver gets some room.
	On     Mode = "on"
	Strict Mode = "strict" // as on without that room; refuses to start where a layer is missing
	Audit  Mode = "audit"  // enforces nothing and logs what strict would deny
)

// ParseMode reads a mode as people write it.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case Off, On, Strict, Audit:
		return m, nil
	}
	return "", fmt.Errorf("%q is no sandbox mode: use on, strict, off or audit", s)
}

// Env names the variable by which a Space tells its workers their policy.
const Env = "CAUSEWAY_WORKER_SANDBOX"

// UIDBase is where users of workers begin by default. Process ids are below 4,194,304, so
// 0x6f000000 to 0x6f3fffff is in use: outside what distributions, systemd and container tools give
// out.
const UIDBase = 0x6f000000

// Policy is what a worker may do. It travels in its environment, from a parent that it trusts.
type Policy struct {
	Mode Mode `json:"mode"`
	// Real: the worker runs a real GPU's driver, not only the software GPU.
	Real bool `json:"real,omitempty"`
	// UIDBase and the process id make the user of a worker that root starts; 0: it stays who it is.
	UIDBase uint32 `json:"uid,omitempty"`
	// User is that of all workers of a virtual GPU, 0: each has its own. libcuda keeps the events
	// that processes share in files of its user below /dev/shm. Set by the Space.
	User uint32 `json:"user,omitempty"`
	// Network: its network namespace is the virtual GPU's own, which bounds abstract sockets too;
	// libcuda connects such between processes that share memory. Set by the Space.
	Network bool `json:"network,omitempty"`
	// Groups are supplementary groups, for device nodes that only a group may open.
	Groups []int `json:"groups,omitempty"`
	// Driver is the branch of the GPU's driver, as 580; "" if it does not tell.
	Driver string `json:"driver,omitempty"`
	// Ioctls says when requests to the driver are held to its list; "" is IoctlsAuto.
	Ioctls Ioctls `json:"ioctls,omitempty"`
	// Nodes are the device nodes of its GPU.
	Nodes []string `json:"nodes,omitempty"`
	// Read are further folders that it may read: the driver's libraries where they are in no usual
	// place.
	Read []string `json:"read,omitempty"`
	// Fabric: it carries a session by RDMA, and opens the adapters of this host.
	Fabric bool `json:"fabric,omitempty"`
	// Told: the parent has logged what its host lacks.
	Told bool `json:"told,omitempty"`
	// Fenced: the parent has restricted files already.
	Fenced bool `json:"fenced,omitempty"`
	// Write are further folders that it may write.
	Write []string `json:"write,omitempty"`
}

func (p *Policy) encode() (string, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("sandbox policy: %w", err)
	}
	return Env + "=" + string(b), nil
}

// FromEnv is the policy in this process's environment; nil if there is none.
func FromEnv() (*Policy, error) {
	text, ok := os.LookupEnv(Env)
	if !ok {
		return nil, nil
	}
	p := new(Policy)
	if err := json.Unmarshal([]byte(text), p); err != nil {
		return nil, fmt.Errorf("%s=%q: %w", Env, text, err)
	}
	if _, err := ParseMode(string(p.Mode)); err != nil {
		return nil, fmt.Errorf("%s: %w", Env, err)
	}
	return p, nil
}

// Enforces reports whether a process of the policy, which may be none, is confined by it.
func (p *Policy) Enforces() bool { return p != nil && p.Mode != Off && p.Mode != Audit }

// sharing: workers of a virtual GPU may share memory and events by their driver's means, as
// processes of one user do.
func (p *Policy) sharing() bool { return p.Real && p.Mode == On }

// tight: nothing beyond what is known to be needed.
func (p *Policy) tight() bool { return !p.Real || p.Mode == Strict || p.Mode == Audit }

// Report says which layers a process got.
type Report struct {
	Has   []string
	Lacks []string // with the reason
	// Surprises are those of Lacks that the parent could not know, and has not logged.
	Surprises []string
}

func (r *Report) note(layer string, err error) {
	if err != nil {
		text := fmt.Sprintf("%s (%v)", layer, err)
		r.Lacks = append(r.Lacks, text)
		if !errors.Is(err, errPartly) && !errors.Is(err, errNoLandlock) {
			r.Surprises = append(r.Surprises, text)
		}
		return
	}
	r.Has = append(r.Has, layer)
}

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"causeway/host/driver/cuda"
	"causeway/host/limit"
	"causeway/host/sandbox"
	"causeway/host/sandbox/cgroup"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
)

// sandboxFlag says how workers are confined.
type sandboxFlag struct {
	mode   string
	ioctls string
	// The MIG slice that workers use, by the name that says whose it is; "": cfg.Visible says all
	// there is to say.
	slice  string
	own    bool // workers serve programs of this user, not of guests
	linked bool // workers that may move get the nodes of all GPUs
}

func (f *sandboxFlag) register(c *cobra.Command) {
	c.Flags().StringVar(&f.mode, "sandbox", string(sandbox.On), "confine workers: on (as far as this host can), strict (all of it, or refuse to start), audit (say what strict would deny), off")
	completeWords(c, "sandbox", "on", "strict", "audit", "off")
	c.Flags().StringVar(&f.ioctls, "ioctls", string(sandbox.IoctlsAuto), "hold workers to the requests that their GPU's driver is known to make: auto (with --sandbox strict, and where the driver's list was confirmed on a GPU), enforce (a driver without a list is refused), audit (others are logged and counted, by a process beside each worker), pass (not)")
	c.Flags().BoolVar(&f.linked, "linked-gpus", false, "give workers of vGPUs that may move (--migratable) the nodes of all GPUs of this host: a move to another goes over what links the two then, and a guest that has taken its worker over reaches the other GPUs' driver, too")
	completeWords(c, "ioctls", "auto", "enforce", "audit", "pass")
}

// space is what workers with a configuration start in. Close it when no more are to start.
func (f *sandboxFlag) space(cfg link.Config, log *slog.Logger) (*sandbox.Space, error) {
	mode, err := sandbox.ParseMode(f.mode)
	if err != nil {
		return nil, fmt.Errorf("--sandbox: %w", err)
	}
	real := !isSoft(cfg.GPU) && cuda.Present()
	p := sandbox.NewPolicy(mode, real, f.shown(cfg), spawn.HostEnv())
	if p.Ioctls, err = sandbox.ParseIoctls(f.ioctls); err != nil {
		return nil, fmt.Errorf("--ioctls: %w", err)
	}
	if f.own {
		p.ShareCache()
	}
	p.Fabric = cfg.RDMA != ""
	return sandbox.New(p, log)
}

// shown names the GPUs whose nodes workers get; nil: all. A user's own programs that may move get
// all that the user has: they go to another GPU in the same space, and read from one to the other,
// as others do whose administrator says so.
func (f *sandboxFlag) shown(cfg link.Config) []string {
	switch {
	case f.slice != "":
		return []string{f.slice}
	case (f.own || f.linked) && cfg.Migratable && !slices.ContainsFunc(cfg.Visible, func(name string) bool { return strings.HasPrefix(name, "MIG-") }):
		return nil
	}
	return cfg.Visible
}

// confine takes from this process what starting workers with a configuration does not need. Its
// space is made.
func (f *sandboxFlag) confine(cfg link.Config, log *slog.Logger) error {
	return sandbox.Confine(sandbox.Mode(f.mode), cfg.Relay != nil, log)
}

// enterSandbox confines this process, a worker, as its parent asks. again: it has been confined
// before it executed itself anew.
func enterSandbox(log *slog.Logger, again bool) (*sandbox.Policy, error) {
	p, err := sandbox.FromEnv()
	if err != nil || p == nil || again {
		return p, err
	}
	r, err := sandbox.Enter(p, log)
	if err != nil {
		return nil, err
	}
	if len(r.Surprises) > 0 && !p.Told {
		log.Warn("sandbox: this worker lacks a layer", "pid", os.Getpid(), "lacks", strings.Join(r.Surprises, "; "))
	}
	if p.Mode != sandbox.Off {
		log.Debug("sandbox", "pid", os.Getpid(), "has", strings.Join(r.Has, ", "), "lacks", strings.Join(r.Lacks, "; "))
	}
	return p, nil
}

// groupFlags bound what a virtual GPU's processes use of the host: this one and its workers.
type groupFlags struct {
	path                   string
	memory, high           *limit.Memory
	weight, cpu, processes uint32
}

func (f *groupFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.path, "cgroup", "", "control group to make and be in, below /sys/fs/cgroup, as in causeway/vm1/gpu0 (default: none)")
	fl.Var(optional[limit.Memory, *limit.Memory]{&f.memory, "SIZE"}, "cgroup-memory", "with --cgroup: most memory of the host, as in 4GiB, besides the VM's own; none: no limit")
	fl.Var(optional[limit.Memory, *limit.Memory]{&f.high, "SIZE"}, "cgroup-memory-high", "with --cgroup: memory of the host from which on processes are slowed down; none: no limit")
	fl.Uint32Var(&f.cpu, "cgroup-cpu", 0, "with --cgroup: most per cent of one processor, 250 is two and a half; 0: no limit")
	fl.Uint32Var(&f.weight, "cgroup-weight", 0, "with --cgroup: share of processor time when several want it, 1 to 10000; 0: the kernel's 100")
	fl.Uint32Var(&f.processes, "cgroup-processes", 0, "with --cgroup: most processes and threads; 0: no limit")
}

// join puts this process into its group. Limits that this host cannot hold are logged; limits
// without a group are an error.
func (f *groupFlags) join(log *slog.Logger) (*cgroup.Group, error) {
	l := cgroup.Limits{CPUWeight: f.weight, CPU: f.cpu, Processes: f.processes}
	if f.memory != nil {
		l.Memory = uint64(*f.memory)
	}
	if f.high != nil {
		l.High = uint64(*f.high)
	}
	if f.path == "" {
		if l != (cgroup.Limits{}) {
			return nil, errors.New("--cgroup-memory, -cpu, -weight and -processes want --cgroup PATH")
		}
		return nil, nil
	}
	if err := l.Check(); err != nil {
		return nil, err
	}
	g, err := cgroup.Make(cgroup.Root, f.path, l)
	if err != nil {
		log.Warn("control group: not all that was asked for", "group", f.path, "error", err)
	}
	return g, nil
}

func leave(g *cgroup.Group, log *slog.Logger) {
	if err := g.Close(); err != nil {
		log.Warn("control group stays", "error", err)
	}
}

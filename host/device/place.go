package device

import (
	"context"
	"strings"

	"causeway/host/api"
	"causeway/host/inventory"
	"causeway/host/limit"
	"causeway/host/schedule"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
)

// Place is a GPU that a virtual GPU has, and what goes with it. It does not change.
type Place struct {
	GPU, UUID string // what users are told: model and UUID
	// OtherModel: the sessions come from another model, for which their code has to be compiled.
	OtherModel bool
	Worker     link.Config
	Spawner    *spawn.Spawner
	Pool       *spawn.Pool // workers that are ready; may be nil
	// Machine says how the GPU is; nil: nobody can tell.
	Machine     func(ctx context.Context) (*inventory.Reading, error)
	CheckMemory func(limit.Memory) error // may be nil
	// Scheduler makes the virtual GPU a member among those that share this GPU's time; may be nil.
	Scheduler func(api.Limits) (*schedule.Membership, error)
	// Leave is called when the virtual GPU has it no more; may be nil.
	Leave func()
}

// place is the one that new sessions get.
func (d *Device) place() *Place {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at
}

// placeAndMember is place, and the membership there.
func (d *Device) placeAndMember() (*Place, *schedule.Membership) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at, d.member
}

// backend is what kind of GPU it is: how many software GPUs a host has is nobody's matter who has
// one of them.
func (p *Place) backend() string {
	if r := p.Worker.Relay; r != nil {
		return "GPU server, lease " + r.Lease.String()
	}
	if strings.HasPrefix(p.Worker.GPU, "soft:") && len(p.Worker.Devices) == 1 {
		return "soft"
	}
	return p.Worker.GPU
}

// software reports whether it is a software GPU. From such sessions of all leases may go to another
// server: what they allocate has the same addresses everywhere, whatever else the process did. Real
// GPUs promise that to workers alone that begin at the same base, as those of migratable leases do.
func (p *Place) software() bool {
	return p.Worker.Relay == nil && (p.Worker.GPU == "soft" || strings.HasPrefix(p.Worker.GPU, "soft:"))
}

// firstPlace is what a device begins with.
func (o *Options) firstPlace() *Place {
	return &Place{GPU: o.Tree.GPU, UUID: o.UUID, Worker: o.Worker, Spawner: o.Spawner, Pool: o.Pool, Machine: o.Machine, CheckMemory: o.CheckMemory, Scheduler: o.Scheduler, Leave: o.Leave}
}

// countKept has memory counted that sessions at a place have of each other, and that who shared it
// has let go of.
func (d *Device) countKept(at *Place) {
	if at.Spawner != nil {
		at.Spawner.Shared.OnKept(func(n int64) { d.budget.AddKept(n) })
	}
}

// Leave ends what belongs to the place of the moment, when nothing is served any more.
func (d *Device) Leave() { d.place().leave() }

// readMachine is Machine of the place of the moment.
func (d *Device) readMachine(ctx context.Context) (*inventory.Reading, error) {
	return d.place().Machine(ctx)
}

// inventory answers questions of programs' management libraries.
func (d *Device) inventory() *inventory.Server {
	return &inventory.Server{Memory: func() (uint64, uint64) { return d.budget.Limit(), d.budget.Used() }, Workers: d.measurable, Machine: d.readMachine}
}

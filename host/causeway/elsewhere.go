package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/driver"
	"causeway/host/limit"
	"causeway/host/sandbox"
	"causeway/host/schedule"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
)

// judgeMove says why sessions of one GPU cannot go on at another; nil: they can, as far as GPUs
// tell. Both are of one host, and driven by one driver unless that was exchanged since.
func judgeMove(from, to *gpuLine, otherModel bool) error {
	switch {
	case from.Backend != to.Backend:
		return fmt.Errorf("%w: %s is no %s: sessions stay with their kind of GPU", device.ErrElsewhere, to.title(), backendName(from.Backend))
	case from.UUID == to.UUID:
		return fmt.Errorf("%w: it is on %s already", device.ErrElsewhere, to.title())
	case to.MIG == "on" || strings.HasPrefix(to.UUID, "MIG-") || strings.HasPrefix(from.UUID, "MIG-"):
		return fmt.Errorf("%w: sessions do not move to or from MIG slices, and %s has them", device.ErrElsewhere, to.title())
	case from.Driver != to.Driver:
		return fmt.Errorf("%w: the driver is another by now: %s here, %s there: end the programs and start them again", device.ErrElsewhere, from.Driver, to.Driver)
	case from.Reach != to.Reach && to.Reach != driver.ReachNone:
		return fmt.Errorf("%w: %w", device.ErrElsewhere, &driver.ReachError{Device: to.Name, Reach: to.Reach})
	case from.Name == to.Name && from.Compute == to.Compute:
		return nil
	case !otherModel:
		return fmt.Errorf("%w: %s is another model than %s: programs whose code is there as PTX can go on with --other-model", device.ErrElsewhere, to.title(), from.title())
	}
	return nil
}

func backendName(backend string) string {
	if backend == "soft" {
		return "software GPU"
	}
	return "NVIDIA GPU"
}

// title is a GPU for an error.
func (g *gpuLine) title() string {
	return fmt.Sprintf("GPU %s (%s, compute capability %d.%d)", g.number(), g.Name, g.Compute/10, g.Compute%10)
}

// number is what --gpu takes for it.
func (g *gpuLine) number() string {
	if g.Backend == "soft" {
		return "soft/" + strconv.Itoa(g.Index)
	}
	return strconv.Itoa(g.Index)
}

// softLine is a software GPU by number; every host has as many as anybody asks for.
func softLine(n int) (gpuLine, error) {
	if n < 0 || n >= maxSoft {
		return gpuLine{}, fmt.Errorf("there is no software GPU %d, they are soft/0 to soft/%d: %w", n, maxSoft-1, errNoGPU)
	}
	b, err := findBackend(softName(n))
	if err != nil {
		return gpuLine{}, err
	}
	list, err := b.Devices()
	if err != nil {
		return gpuLine{}, err
	}
	d := list[n]
	return gpuLine{Backend: b.Name(), Index: d.Index, Name: d.Name, UUID: d.UUID, Memory: d.TotalMem, Driver: softDriver, Compute: d.Compute, Reach: d.Reach}, nil
}

// softName is a backend that has a software GPU of this number.
func softName(n int) string { return fmt.Sprintf("soft:%d", n+1) }

// otherGPU finds the GPU that a move names, beside those of a configuration, and the configuration
// of workers there.
func otherGPU(ctx context.Context, cfg link.Config, from *gpuLine, name string) (link.Config, gpuLine, error) {
	list := []gpuLine{*from}
	if from.Backend != "soft" {
		var err error
		if list, err = askGPUs(ctx, nil); err != nil {
			return cfg, gpuLine{}, err
		}
	}
	if n := offered(cfg, *from, list); n != 1 {
		return cfg, gpuLine{}, fmt.Errorf("%w: it has %d GPUs, and only one can be moved", device.ErrElsewhere, n)
	}
	if from.Backend == "soft" {
		n, err := strconv.Atoi(name)
		ok := err == nil
		if !ok {
			n, ok = softOrdinal(name)
		}
		if !ok && isNVIDIA(name) {
			return cfg, gpuLine{}, fmt.Errorf("%w: %s is no software GPU: sessions stay with their kind of GPU", device.ErrElsewhere, name)
		}
		find := func() (gpuLine, error) { return softByUUID(name) }
		if ok {
			find = func() (gpuLine, error) { return softLine(n) }
		}
		line, err := find()
		if err != nil {
			return cfg, line, err
		}
		cfg.GPU, cfg.Devices = softName(line.Index), []int{line.Index}
		return cfg, line, nil
	}
	i := slices.IndexFunc(list, func(g gpuLine) bool {
		return g.Backend == from.Backend && (strconv.Itoa(g.Index) == name || len(name) > len("GPU-") && strings.HasPrefix(strings.ToLower(g.UUID), strings.ToLower(name)))
	})
	if i < 0 {
		return cfg, gpuLine{}, fmt.Errorf("--gpu %s: %w", name, errNoGPU)
	}
	if cfg.Devices = []int{list[i].Index}; cfg.Visible != nil {
		cfg.Visible = []string{list[i].UUID}
	}
	return cfg, list[i], nil
}

func isNVIDIA(name string) bool { return strings.HasPrefix(name, "MIG-") || name == "cuda" }

// softByUUID finds a software GPU.
func softByUUID(uuid string) (gpuLine, error) {
	for n := range maxSoft {
		if g, err := softLine(n); err == nil && strings.EqualFold(g.UUID, uuid) {
			return g, nil
		}
	}
	return gpuLine{}, fmt.Errorf("--gpu %s: there is no such software GPU: name one as in soft/1, up to soft/%d: %w", uuid, maxSoft-1, errNoGPU)
}

// neighbours are the GPUs to which a device can move. Their workers' sandboxes are made when it
// starts, since it cannot once it is confined.
type neighbours struct {
	f      *deviceFlags
	log    *slog.Logger
	home   *spawn.Spawner
	spaces map[string]*sandbox.Space // by UUID; those that are not there share home's
}

// prepare makes the sandboxes of workers on the other GPUs, where those of one GPU are restricted
// to it.
func (n *neighbours) prepare(cfg link.Config, here *gpuLine, list []gpuLine) error {
	n.spaces = map[string]*sandbox.Space{}
	if here.Backend != "cuda" || len(cfg.Visible) != 1 || here.Slice != "" || strings.HasPrefix(cfg.Visible[0], "MIG-") || !cfg.Migratable {
		return nil
	}
	for i := range list {
		g := &list[i]
		if g.Backend != here.Backend || g.UUID == here.UUID || g.MIG == "on" {
			continue
		}
		there := cfg
		there.Devices, there.Visible = []int{g.Index}, []string{g.UUID}
		space, err := n.f.gpu.sandbox.space(there, n.log)
		if err != nil {
			return err
		}
		n.spaces[g.UUID] = space
	}
	return nil
}

func (n *neighbours) close() {
	for _, s := range n.spaces {
		s.Close()
	}
}

// place is a device's at a GPU.
func (n *neighbours) place(cfg link.Config, g *gpuLine) *device.Place {
	spawner := n.home
	if space, own := n.spaces[g.UUID]; own {
		spawner = &spawn.Spawner{NoNewPrivs: true, Sandbox: space, OneArena: cfg.Base != 0}
	}
	var pool *spawn.Pool
	if n.f.gpu.warm > 0 && g.Backend != "soft" { // the software GPU starts at once
		pool = &spawn.Pool{Spawner: spawner, Config: cfg, Size: n.f.gpu.warm, Log: n.log}
	}
	if g.Backend == remoteBackend {
		return &device.Place{GPU: g.Name, UUID: g.UUID, Worker: cfg, Spawner: spawner, Machine: farMachine(g)}
	}
	machine := inventoryClient(cfg)
	size := g.limits(n.f.gpu.warm)
	return &device.Place{
		GPU: g.Name, UUID: g.UUID, Worker: cfg, Spawner: spawner, Pool: pool, Machine: machine.Read,
		CheckMemory: func(m limit.Memory) error { return size.Fits(m, 1) },
		Scheduler: func(l api.Limits) (*schedule.Membership, error) {
			return joinScheduler(context.Background(), n.f.scheduler, n.f.key(), *g, l, n.log)
		},
		Leave: func() { pool.Close(); machine.Close() },
	}
}

// find implements device.Options.Elsewhere.
func (n *neighbours) find(ctx context.Context, from *device.Place, to api.Relocation) (*device.Place, error) {
	here, err := lineOf(ctx, from)
	if err != nil {
		return nil, err
	}
	cfg, line, err := otherGPU(ctx, from.Worker, &here, to.GPU)
	if err != nil {
		return nil, err
	}
	if err := judgeMove(&here, &line, to.OtherModel); err != nil {
		return nil, err
	}
	at := n.place(cfg, &line)
	at.OtherModel = here.Name != line.Name || here.Compute != line.Compute
	if at.Pool != nil {
		at.Pool.Fill() // the driver starts while it is judged what would be in the way
	}
	return at, nil
}

// lineOf is how the GPU of a place is now.
func lineOf(ctx context.Context, at *device.Place) (gpuLine, error) {
	if isSoft(at.Worker.GPU) {
		n := 0
		if len(at.Worker.Devices) > 0 {
			n = at.Worker.Devices[0]
		}
		return softLine(n)
	}
	list, err := askGPUs(ctx, at.Worker.Visible)
	if err != nil {
		return gpuLine{}, err
	}
	i := slices.IndexFunc(list, func(g gpuLine) bool { return g.UUID == at.UUID })
	if i < 0 {
		return gpuLine{}, fmt.Errorf("%w: its GPU %s is not shown any more", device.ErrElsewhere, at.UUID)
	}
	return list[i], nil
}

package device

import (
	"context"
	"time"

	"causeway/host/inventory"
	"causeway/host/worker/bulk"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/remote"
)

// A workerProcess is what a session needs of its worker: *spawn.Process is one, which documents the
// methods.
type workerProcess interface {
	inventory.Worker

	Send(m link.ToWorker) error
	spawn.Awaiter
	Copied() <-chan link.Copied
	Probe(ctx context.Context, how link.Probe) (link.Probed, error)
	Rehearse(ctx context.Context, to link.Relay) error
	Ahead(ctx context.Context, to link.Relay) error
	Round(ctx context.Context) (link.Copied, error)
	Divert(ctx context.Context, to link.Relay) error
	Settle(ctx context.Context, lease remote.LeaseID, goes bool) error
	Done() <-chan struct{}
	Wants() <-chan link.Want
	Carried() string
	Rehearses() bool
	Err() error
	Stop(grace time.Duration)
	Kill()
	PID() int
	CPU() time.Duration
}

// workers start processes for sessions.
type workers interface {
	// start gives a worker its configuration: one that waits ready at its place, if that says so
	// (Spare).
	start(at *Place, cfg link.Config, wake func(slot uint32)) (workerProcess, error)
	// connect is start for the connection of another host's program, which stays the caller's, too.
	connect(at *Place, cfg link.Config, conn int) (workerProcess, error)
	// rebuild moves a session from old, one of these workers, to the worker that it returns, at a
	// place: see Spawner.Rebuild.
	rebuild(ctx context.Context, old workerProcess, at *Place, cfg link.Config) (workerProcess, error)
	// adopt starts a worker that makes its session of what comes over stream, without guest memory,
	// and answers Adopted: it is parked then. Both descriptors stay the caller's. memory is the
	// session's, if it does not come over the stream; else none.
	adopt(at *Place, cfg link.Config, wake func(slot uint32), stream, bell int, memory bulk.Files) (workerProcess, error)
}

// spawned are workers in processes of their own.
type spawned struct{}

func (spawned) start(at *Place, cfg link.Config, wake func(slot uint32)) (workerProcess, error) {
	return begin(at, cfg, wake, spawn.NoConnection)
}

func (spawned) connect(at *Place, cfg link.Config, conn int) (workerProcess, error) {
	return begin(at, cfg, nil, conn)
}

func begin(at *Place, cfg link.Config, wake func(slot uint32), conn int) (workerProcess, error) {
	if cfg.Spare {
		if p := at.Pool.Take(); p != nil {
			if p.Configure(cfg, wake, conn) == nil {
				return p, nil
			}
			p.Kill() // it has ended
		}
	}
	p, err := at.Spawner.Start(cfg, wake, conn)
	if err != nil {
		return nil, err // not a nil process within an interface
	}
	return p, nil
}

func (spawned) rebuild(ctx context.Context, old workerProcess, at *Place, cfg link.Config) (workerProcess, error) {
	next, err := at.Spawner.Rebuild(ctx, old.(*spawn.Process), cfg)
	if err != nil {
		return nil, err
	}
	return next, nil
}

func (spawned) adopt(at *Place, cfg link.Config, wake func(slot uint32), stream, bell int, memory bulk.Files) (workerProcess, error) {
	cfg.Adopt, cfg.Parked = true, true
	p := ready(at, cfg, wake, stream)
	if p == nil {
		var err error
		if p, err = at.Spawner.Start(cfg, wake, stream); err != nil {
			return nil, err
		}
	}
	if err := p.Send(link.Start{Doorbell: link.FileOf(bell), Memory: passed(memory)}); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

// ready is a worker that waits ready at a place, for a session that comes there: with its driver
// started from the base that the session has, as it would start it. nil: there is none.
func ready(at *Place, cfg link.Config, wake func(slot uint32), stream int) *spawn.Process {
	if at.Pool == nil || cfg.Base == 0 || cfg.Base != at.Pool.Config.Base || cfg.Rehearsal {
		return nil
	}
	p := at.Pool.Take()
	if p == nil || p.Configure(cfg, wake, stream) == nil {
		return p
	}
	p.Kill() // it has ended
	return nil
}

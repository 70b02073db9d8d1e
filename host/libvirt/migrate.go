package libvirt

import (
	"context"
	"errors"
	"time"
)

// Movable is a domain that can be moved to another host's libvirt.
type Movable interface {
	Domain
	// Migrate moves the domain while it runs, with its definition if it has one. With an error it
	// runs on where it was. The end of ctx calls it off.
	Migrate(ctx context.Context, m Migration, progress func(Job)) error
	// CallOff ends the migration, save or snapshot that is under way, whoever has begun it;
	// ErrNoJob: there is none.
	CallOff(ctx context.Context) error
}

// ErrNoJob says that nothing of the domain is under way that could be called off.
var ErrNoJob = errors.New("libvirt has no migration of the domain under way")

// Migration is where and how a domain moves.
type Migration struct {
	To        string        // the other libvirt's URI
	URI       string        // where its QEMU waits; empty: libvirt says
	Bandwidth uint64        // bytes a second; 0: no limit
	Downtime  time.Duration // that QEMU may plan with; 0: libvirt says
}

// Job is how far a migration is, in bytes of the VM's own memory.
type Job struct{ Done, Total uint64 }

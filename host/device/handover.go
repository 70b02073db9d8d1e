package device

import (
	"errors"
	"fmt"

	"causeway/host/api"
	"causeway/host/worker/link"
)

/*
Programs whose GPU is a server's move with their VM if the host to which that goes may take over the lease: the relays there go on with the same workers of the server. Both hosts' causewayds see to that before the VM is sent,
and tell this process. Without, the state of a VM with such programs would be of use to nobody, wherever it is carried, so that none is given out.
*/

// errNotHanded says that the state of a session would be of no use anywhere.
var errNotHanded = errors.New("no other host may take over its lease: `causeway migrate` sees to that")

// SetHandover says which host may take over the lease of the GPU server.
func (d *Device) SetHandover(h api.Handover) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heir = h.Host
}

// handed says why the programs cannot leave this host with their VM now; nil: they have their GPU here, or can.
func (d *Device) handed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.at.Worker.Relay; r != nil && d.heir == "" {
		return fmt.Errorf("%w: a GPU of the server %s", errNotHanded, r.Server)
	}
	return nil
}

// SetRelay has the programs that begin, or come with a VM, go to the GPU server by another lease. None may be here.
func (d *Device) SetRelay(to link.Relay) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.at.Worker.Relay == nil:
		return fmt.Errorf("%w: its GPU is on this host", ErrElsewhere)
	case len(d.sessions) > 0:
		return fmt.Errorf("%w: it has %d programs", ErrElsewhere, len(d.sessions))
	case to.Lease.IsZero() || len(to.Addresses) == 0:
		return fmt.Errorf("%w: no lease of a GPU server", ErrElsewhere)
	}
	at := *d.at
	at.Worker.Relay = &to
	d.at = &at
	return nil
}

// elsewhereRuns reports whether the session's worker is a relay.
func (s *session) elsewhereRuns() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at != nil && s.at.Worker.Relay != nil
}

// bound says why a session cannot leave with a VM; nil: nothing of that kind.
func (s *session) bound() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connected != "" {
		return fmt.Errorf("%w: its program runs on another host", ErrFar)
	}
	return nil
}

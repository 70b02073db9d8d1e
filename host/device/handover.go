package device

import (
	"errors"
	"fmt"
	"time"

	"causeway/host/api"
	"causeway/host/worker/link"
)

/*
Programs whose GPU is a server's move with their VM if the host to which that goes may take over the
lease: the relays there go on with the same workers of the server. Both hosts' causewayds see to
that, before the VM is sent (`causeway migrate`) or while it is (a migration that others begin, of
which they hear from this process), and tell this process. Without, the state of a VM with such
programs would be of use to nobody, wherever it is carried, so that none is given out.
*/

// handing is who may take over the lease, or why nobody may. Device.mu guards it.
type handing struct {
	heir  string
	why   string
	until time.Time     // a migration has begun, and whether a host may is not known before
	told  chan struct{} // closed when something is known; nil: nobody waits
}

// handingPatience is how long causewayd may take to find the host that may take over the lease when
// a migration begins: until then nothing is held against it, and the VM that stands already waits.
// It is found within a few of the hosts' round trips, far sooner than QEMU has sent a VM.
const handingPatience = 5 * time.Second

// Why the state of a session is not given out.
var (
	// errNotHanded says that it would be of no use anywhere.
	errNotHanded = errors.New("no other host may take over its lease: `causeway migrate` sees to that, and for `virsh migrate` causewayd, if migration.peers names that host")
	// errHanding says that this is not known yet.
	errHanding = errors.New("which host may take over its lease is not known yet")
)

// SetHandover says which host may take over the lease of the GPU server, or why none may.
func (d *Device) SetHandover(h api.Handover) {
	under := d.mem.Logging()
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.hand.heir
	d.hand.heir, d.hand.why = h.Host, h.Why
	if h.Host == "" && h.Why == "" { // another host is asked, perhaps
		if was != "" && under {
			// It was taken back for the migration before this one, which has begun since: of this
			// one causewayd hears.
			d.hand.until = time.Now().Add(handingPatience)
		}
		return
	}
	d.hand.until = time.Time{}
	if d.hand.told != nil {
		close(d.hand.told)
		d.hand.told = nil
	}
}

// handingBegins notes that a migration begins, of which causewayd hears now.
func (d *Device) handingBegins() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at.Worker.Relay != nil && d.hand.heir == "" {
		d.hand.why, d.hand.until = "", time.Now().Add(handingPatience)
	}
}

// handed says why the programs cannot leave this host with their VM now; nil: they have their GPU
// here, or can.
func (d *Device) handed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.handedLocked()
}

func (d *Device) handedLocked() error {
	r := d.at.Worker.Relay
	switch {
	case r == nil:
		return nil
	case d.turn.to != nil:
		return fmt.Errorf("%w, %s", ErrDiverting, d.turn.to.Server)
	case d.hand.heir != "":
		return nil
	case time.Now().Before(d.hand.until):
		return errHanding
	case d.hand.why != "":
		return fmt.Errorf("%w: a GPU of the server %s: %s", errNotHanded, r.Server, d.hand.why)
	}
	return fmt.Errorf("%w: a GPU of the server %s", errNotHanded, r.Server)
}

// awaitHanded is handed when that is known. Of a VM that was paused before it is sent, or saved,
// nothing was heard until now.
func (d *Device) awaitHanded() error {
	if !d.mem.Logging() && errors.Is(d.handed(), errNotHanded) {
		d.departing()
	}
	for {
		d.mu.Lock()
		err := d.handedLocked()
		left := time.Until(d.hand.until)
		if d.hand.told == nil {
			d.hand.told = make(chan struct{})
		}
		told := d.hand.told
		d.mu.Unlock()
		if !errors.Is(err, errHanding) {
			return err
		}
		t := time.NewTimer(left)
		select {
		case <-told:
		case <-t.C:
		}
		t.Stop()
	}
}

// SetRelay has the programs that begin, or come with a VM, go to the GPU server by another lease.
// None may be here.
func (d *Device) SetRelay(to link.Relay) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.at.Worker.Relay == nil:
		return fmt.Errorf("%w: its GPU is on this host", ErrElsewhere)
	case d.turn.to != nil:
		return ErrDiverting
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
	if s.direct != nil {
		return ErrDirect
	}
	return nil
}

package device

import (
	"cmp"
	"fmt"
	"os"
	"slices"

	"causeway/host/daemon/api"
	"causeway/host/schedule"
	"causeway/host/schedule/policy"
	"causeway/host/worker/link"
)

// Sessions that one virtual GPU may have at once.
const (
	DefaultSessions = 128
	mostSessions    = 1000 // slots of the memory page
	mostOthers      = 256  // open files besides: those that ask NVML, and sessions on their way out
)

// Limits are the device's, with defaults filled in.
func (d *Device) Limits() api.Limits {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.limits
}

// seat is the device's at the scheduler; nil: none.
func (d *Device) seat() *schedule.Seat {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.place
}

// check says what is wrong with limits in themselves.
func check(l api.Limits) error {
	if err := l.Check(); err != nil {
		return err
	}
	if l.Sessions > mostSessions {
		return fmt.Errorf("%w: %d sessions: use 1 to %d", api.ErrLimit, l.Sessions, mostSessions)
	}
	return nil
}

// withDefaults fills in what was left open.
func withDefaults(l api.Limits) api.Limits {
	l.Weight = cmp.Or(l.Weight, api.DefaultWeight)
	l.Sessions = cmp.Or(l.Sessions, DefaultSessions)
	return l
}

// SetLimits changes the limits while programs run. Memory below what is in use takes nothing away: new allocations fail, and programs
// that asked to be told are (cuDeviceRegisterAsyncNotification).
func (d *Device) SetLimits(l api.Limits) error {
	if err := check(l); err != nil {
		return err
	}
	l = withDefaults(l)
	d.telling.Lock()
	defer d.telling.Unlock()
	d.mu.Lock()
	d.limits = l
	if d.place == nil && d.opts.Scheduler != nil {
		d.place = d.opts.Scheduler(l) // for sessions to come: those that run have no gate
	}
	place := d.place
	d.mu.Unlock()
	d.budget.SetLimit(l.Memory)
	d.tellLimit(l.Memory)
	if place != nil {
		place.SetLimits(policy.Limits{Weight: l.Weight, Cap: l.Cap})
	}
	d.log.Info("limits", "memory", l.Memory, "weight", l.Weight, "cap", l.Cap, "sessions", l.Sessions)
	return nil
}

// tellLimit has the workers compare their memory with the limit. It waits for none of them. telling is held.
func (d *Device) tellLimit(limit uint64) {
	for _, s := range d.all() {
		s.do(func() { s.tell(link.Message{Type: link.Limit, A: limit}) })
	}
}

// Status is the device's own account. It waits for no worker.
func (d *Device) Status() api.Status {
	st := api.Status{
		Version: d.opts.Tree.Version, PID: os.Getpid(), Started: d.began, Connected: d.connected.Load(),
		GPU: d.opts.Tree.GPU, UUID: d.opts.UUID, Sessions: []api.Session{},
	}
	for _, s := range d.all() {
		if e, ok := s.account(); ok {
			st.Sessions = append(st.Sessions, e)
		}
	}
	slices.SortFunc(st.Sessions, func(a, b api.Session) int { return cmp.Compare(a.ID, b.ID) })
	st.Memory = d.budget.Used()
	d.mu.Lock()
	defer d.mu.Unlock()
	st.Limits, st.Past, st.Opened, st.Refused = d.limits, d.past, d.begun, d.refused
	return st
}

// account is the session for Status; false: no worker was started for it.
func (s *session) account() (api.Session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := api.Session{ID: s.id, GuestPID: s.caller.PID, GuestUID: s.caller.UID, State: s.state.String(), Started: s.opened}
	if s.proc == nil {
		return e, false
	}
	e.Worker = s.proc.PID()
	if s.res != nil {
		e.Memory, _ = s.dev.budget.Held(s.res.slot)
		e.Counters = s.countersLocked(s.proc)
		var pid uint32
		if pid, e.Program = s.res.meter.Guest(); pid != 0 {
			e.GuestPID = pid
		}
	}
	return e, true
}

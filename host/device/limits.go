package device

import (
	"cmp"
	"errors"
	"fmt"

	"causeway/host/api"
	"causeway/host/limit"
	"causeway/host/schedule"
	"causeway/host/schedule/policy"
)

// ErrUnheld says that a share or a cap would not hold.
var ErrUnheld = errors.New("the limit would not hold")

// membership is the device's at the scheduler; nil: none.
func (d *Device) membership() *schedule.Membership {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.member
}

// Limits are the device's, with defaults filled in.
func (d *Device) Limits() api.Limits {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.limits
}

// withDefaults fills in what was left open.
func withDefaults(l api.Limits) api.Limits {
	l.Share = cmp.Or(l.Share, limit.DefaultShare)
	l.Sessions = cmp.Or(l.Sessions, DefaultSessions)
	l.HostMemory = cmp.Or(l.HostMemory, limit.DefaultHostMemory)
	return l
}

// SetLimits changes the limits that are named while programs run, and returns all of them. Memory
// below what is in use takes nothing away: new allocations fail, and programs that asked to be told
// are (cuDeviceRegisterAsyncNotification). A share or a cap that could not hold is refused, and
// nothing changes.
func (d *Device) SetLimits(c api.Change) (api.Limits, error) {
	if err := c.Check(); err != nil {
		return api.Limits{}, err
	}
	d.telling.Lock() // one change at a time
	defer d.telling.Unlock()
	old := d.Limits()
	l := c.On(old)
	if err := d.check(l.Memory, old.Memory); err != nil {
		return old, err
	}
	member, err := d.membershipFor(l, old)
	if err != nil {
		return old, err
	}
	if err := hold(member, l, old); err != nil {
		if member != d.membership() { // it began for this
			member.Close()
		}
		return old, err
	}
	d.mu.Lock()
	d.limits, d.member = l, member
	d.mu.Unlock()
	d.budget.SetLimit(l.Memory)
	d.host.SetLimit(l.HostMemory)
	d.apart.limit(l)
	d.sendLimit(l.Memory)
	d.log.Info("limits", "memory", l.Memory, "share", l.Share, "cap", l.Cap, "sessions", l.Sessions, "host_memory", l.HostMemory, "user_sessions", limit.UserSessions(l.UserSessions))
	return l, nil
}

// hold has the scheduler hold share and cap. One that hangs is found by asking it: its socket takes
// requests all the same.
func hold(member *schedule.Membership, l, old api.Limits) error {
	if member == nil {
		return nil
	}
	member.SetLimits(policy.Limits{Weight: l.Share, Cap: l.Cap})
	if !tighter(l, old) || member.Connected() {
		return nil
	}
	member.SetLimits(policy.Limits{Weight: old.Share, Cap: old.Cap})
	return errSilent()
}

// tighter reports whether a scheduler must do something for l that it did not for old.
func tighter(l, old api.Limits) bool { return l.Share != old.Share || l.Cap != old.Cap && l.Cap != 0 }

func errSilent() error {
	return fmt.Errorf("%w: the scheduler of GPU time does not answer: causewayd starts it again, or `causeway scheduler` by hand", ErrUnheld)
}

// check judges another limit of memory, if the device was told how.
func (d *Device) check(memory, old uint64) error {
	judge := d.place().CheckMemory
	if memory == old || judge == nil {
		return nil
	}
	return judge(limit.Memory(memory))
}

// membershipFor is the membership with which limits hold. One that begins now is for sessions to
// come: those that run have no gate.
func (d *Device) membershipFor(l, old api.Limits) (*schedule.Membership, error) {
	member := d.membership()
	switch {
	case !tighter(l, old):
		return member, nil
	case member != nil && !member.Connected():
		return nil, errSilent()
	case member != nil:
		return member, nil
	case d.place().Scheduler == nil:
		return nil, fmt.Errorf("%w: this device knows no scheduler of GPU time", ErrUnheld)
	}
	if n := d.free(); n > 0 {
		return nil, fmt.Errorf("%w: %d CUDA programs run that were started without one, and nothing could hold them back: end them first, or start `causeway device` with --scheduler", ErrUnheld, n)
	}
	member, err := d.place().Scheduler(l)
	if err == nil && member == nil && l.Share != limit.DefaultShare {
		err = fmt.Errorf("%w: a share is relative to other vGPUs', and this device was started without --scheduler", ErrUnheld)
	}
	return member, err
}

// free counts the sessions that nothing can hold back.
func (d *Device) free() (n int) {
	for _, s := range d.all() {
		if s.ungated() {
			n++
		}
	}
	return n
}

// ungated reports whether a session has a worker and no gate.
func (s *session) ungated() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.res != nil && s.res.scheduled == nil
}

// unheld says why share and cap do not hold now; empty: they do. free is how many sessions have no
// gate.
func unheld(l api.Limits, member *schedule.Membership, free int) string {
	switch {
	case member != nil && !member.Connected():
		return "the scheduler of GPU time does not answer"
	case l.Cap != 0 && free > 0:
		return fmt.Sprintf("%d CUDA programs were started before it was set", free)
	}
	return ""
}

package device

import (
	"slices"
	"time"

	"causeway/host/api"
	"causeway/host/limit"
	"causeway/host/schedule"
	"causeway/host/worker/link"
	"causeway/host/worker/meter"
)

// resources are what a session has of its virtual GPU while it has a worker, one after the other of
// which use them. They are made and given back on routine, and read under session.mu.
type resources struct {
	slot      int         // of the memory budget
	host      int         // slot of the budget of host memory
	apart     *apartSlots // of a rehearsal; nil: it is none
	meter     *meter.Page
	scheduled *schedule.Session // nil: GPU time is not shared
	left      []workerProcess   // workers that the session has left, and that are about to end
	cpu       time.Duration     // of those that have ended
	before    timeUse           // at places that the session has left
	sampled   uint64            // nanoseconds of GPU time by the driver's account
	seen      api.Counters      // at the last look: what counters never go below
}

// timeUse is what a scheduler knew of a session.
type timeUse struct{ busy, waited time.Duration }

// add is what a session had at a scheduler that it leaves.
func (u *timeUse) add(s *schedule.Session) {
	if s != nil {
		busy, waited, _ := s.Use()
		u.busy, u.waited = u.busy+busy, u.waited+waited
	}
}

// provide makes the session's resources.
func (s *session) provide() error {
	r := &resources{}
	var err error
	if r.meter, err = meter.New(); err != nil {
		return err
	}
	if r.slot, err = s.dev.budget.Take(); err != nil {
		r.meter.Close()
		return err
	}
	if r.host, err = s.dev.host.Take(); err != nil {
		s.dev.budget.Free(r.slot)
		r.meter.Close()
		return err
	}
	at, membership := s.dev.placeAndMember()
	if membership != nil {
		if r.scheduled, err = membership.Add(); err != nil {
			if s.dev.Limits().Cap != 0 { // which would not hold
				s.dev.host.Free(r.host)
				s.dev.budget.Free(r.slot)
				r.meter.Close()
				return err
			}
			s.log.Warn("session without a place at the scheduler", "error", err)
		}
	}
	s.mu.Lock()
	s.res, s.at = r, at
	s.mu.Unlock()
	return nil
}

// yield gives the resources back; p, the last worker, is gone, or nil. What it held of the memory
// is free again. It runs on routine.
func (s *session) yield(p workerProcess) {
	s.mu.Lock()
	r := s.res
	if r == nil {
		s.mu.Unlock()
		return
	}
	c := s.countersLocked(p)
	s.res = nil
	s.mu.Unlock()
	c.ThrottledNow = false
	defer s.dev.meetNeeds() // what it held may be room for others
	r.scheduled.Close()
	r.meter.Close()
	d := s.dev
	d.budget.Free(r.slot)
	d.host.Free(r.host)
	d.apart.free(r.apart)
	d.mu.Lock()
	d.past.Add(c)
	d.departedLocked(p)
	d.departLocked(s.caller.UID)
	s.counted = false
	d.mu.Unlock()
}

// countersLocked reads what the session has done so far with p as its worker. What workers say is
// believed as far as clocks allow.
func (s *session) countersLocked(p workerProcess) api.Counters {
	r := s.res
	if r == nil {
		return api.Counters{}
	}
	m := r.meter.Counters()
	c := api.Counters{
		Calls: m.Calls, Launches: m.Launches, BytesIn: m.BytesIn, BytesOut: m.BytesOut,
		BusyNanos: m.BusyNanos, FailedCalls: m.FailedCalls, HostRefused: m.HostRefused, OutOfMemory: m.OutOfMemory,
		ManagedIn: m.Managed.In, ManagedOut: m.Managed.Out, Evicted: m.Managed.Evicted, Returned: m.Managed.Returned,
	}
	_, c.MemoryPeak = s.dev.budget.Held(r.slot)
	c.BusyNanos = max(c.BusyNanos, r.sampled)
	if r.scheduled != nil {
		busy, waited, now := r.scheduled.Use()
		c.BusyNanos = max(c.BusyNanos, uint64(r.before.busy+busy))
		c.WaitNanos, c.ThrottledNow = uint64(r.before.waited+waited), now
	}
	age := uint64(time.Since(s.opened))
	c.BusyNanos, c.WaitNanos = min(c.BusyNanos, age), min(c.WaitNanos, age)
	c.WorkerNanos = uint64(r.cpuTime(p))
	// A counter that is lower than before was so for a moment, between two stores of the worker, or
	// is a lie.
	old := &r.seen
	for _, f := range []struct{ now, old *uint64 }{
		{&c.Calls, &old.Calls}, {&c.Launches, &old.Launches}, {&c.BytesIn, &old.BytesIn}, {&c.BytesOut, &old.BytesOut},
		{&c.BusyNanos, &old.BusyNanos}, {&c.WaitNanos, &old.WaitNanos}, {&c.WorkerNanos, &old.WorkerNanos},
		{&c.OutOfMemory, &old.OutOfMemory}, {&c.HostRefused, &old.HostRefused}, {&c.FailedCalls, &old.FailedCalls}, {&c.MemoryPeak, &old.MemoryPeak},
		{&c.ManagedIn, &old.ManagedIn}, {&c.ManagedOut, &old.ManagedOut}, {&c.Evicted, &old.Evicted}, {&c.Returned, &old.Returned},
	} {
		*f.now = max(*f.now, *f.old)
	}
	r.seen = c
	return c
}

// cpuTime is that of all workers so far; p is the last.
func (r *resources) cpuTime(p workerProcess) time.Duration {
	r.left = slices.DeleteFunc(r.left, func(old workerProcess) bool {
		select {
		case <-old.Done():
			r.cpu += old.CPU()
			return true
		default:
			return false
		}
	})
	sum := r.cpu
	for _, old := range r.left {
		sum += old.CPU()
	}
	if p != nil {
		sum += p.CPU()
	}
	return sum
}

// config is what the session's workers are told. It runs on routine.
func (s *session) config() link.Config {
	cfg := s.at.Worker
	cfg.Carrier = link.CarrierVirtiofs
	cfg.Peer = s.peer()
	cfg.MemoryLimit = s.dev.budget.Limit()
	if s.base == 0 && cfg.Base != 0 {
		s.base = cfg.Base
	}
	cfg.Base, cfg.Migratable = s.base, cfg.Migratable || s.base != 0
	if r := s.res; r != nil {
		cfg.Pages = []link.Page{{Kind: link.PageMemory, File: s.dev.budget.File()}, {Kind: link.PageHost, File: s.dev.host.File()},
			{Kind: link.PageMeter, File: r.meter.File()}}
		cfg.HostMemory, cfg.HostSlot = limit.HostMemory(s.dev.host.Limit()).PerSession(), r.host
		cfg.MemorySlot, cfg.ContextBytes = r.slot, s.dev.contextBytes()
		if r.scheduled != nil {
			cfg.Pages = append(cfg.Pages, link.GatePages(r.scheduled.Files())...)
		}
	}
	return cfg
}

package device

import (
	"cmp"
	"os"
	"slices"

	"causeway/host/api"
	"causeway/host/limit"
	"causeway/host/worker/link"
)

// Sessions that one virtual GPU may have at once.
const (
	DefaultSessions = 128
	mostSessions    = limit.MostSessions // slots of the memory page
	// Open files besides: those that ask NVML, and sessions on their way out.
	mostOthers = 256
)

// sendLimit has the workers compare their memory with the limit. It waits for none of them. telling
// is held.
func (d *Device) sendLimit(limit uint64) {
	for _, s := range d.all() {
		s.do(func() { s.send(link.SetLimit{Bytes: limit}) })
	}
}

// Status is the device's own account. It waits for no worker.
func (d *Device) Status() api.Status {
	st := api.Status{
		Version: d.opts.Tree.Version, PID: os.Getpid(), Started: d.began, Connected: d.connected.Load(),
		Sessions: []api.Session{},
	}
	free := 0
	for _, s := range d.all() {
		if e, ok := s.account(); ok {
			st.Sessions = append(st.Sessions, e)
		}
		if s.ungated() {
			free++
		}
	}
	if d.opts.Leased || d.opts.Programs {
		st.Connected = len(st.Sessions) > 0
	}
	slices.SortFunc(st.Sessions, func(a, b api.Session) int { return cmp.Compare(a.ID, b.ID) })
	st.Memory, st.Host = d.budget.Used(), d.host.Used()
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.relocation; p.of > 0 {
		st.Relocation = &api.Progress{Done: p.done, Of: p.of, Rounds: p.rounds, Last: p.last, Throttled: p.held, Rehearsing: p.rehearsing}
	}
	st.Swaps, st.Room, st.Away = d.rooms.counts, d.budget.Room(), d.budget.Away()
	st.GPU, st.UUID = d.at.GPU, d.at.UUID
	st.Limits, st.Past, st.Opened, st.Refused = d.limits, d.past, d.begun, d.refused
	st.Card = api.Card{Known: d.card.known, Nanos: uint64(d.card.total), Charged: uint64(d.card.charged)}
	st.Unheld = unheld(d.limits, d.member, free)
	st.Copied, st.CopySaved, st.CopyEnd, st.SaveEnd, st.Migrating = d.copied, d.copySaved, d.copyEnd, d.saveEnd, d.mem.Logging()
	st.Lease, st.Next = d.leasesLocked()
	st.Runs, st.Heir = d.fs != nil && d.fs.Running(), d.hand.heir
	if o := d.out.Load(); o != nil {
		c := o.status()
		st.Copy, st.Copied, st.CopySaved = &c, st.Copied+c.Total, st.CopySaved+c.Saved
	} else if c, ok := d.in.status(); ok {
		st.Copy = &c
	}
	return st
}

// account is the session for Status; false: it has no worker, and is not suspended.
func (s *session) account() (api.Session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := api.Session{ID: s.id, GuestPID: s.caller.PID, GuestUID: s.caller.UID, State: s.state.String(), Started: s.opened, Peer: s.connected}
	if s.proc == nil {
		if s.stored != nil {
			e.Stored, e.StoredIn = s.stored.size, s.stored.folder
		}
		return e, s.state == suspended
	}
	e.Worker, e.Unmovable, e.Carrier = s.proc.PID(), cmp.Or(s.elsewhere, s.unmovable), s.proc.Carried()
	if s.apart != "" {
		e.Carrier = cmp.Or(e.Carrier, "this host") + "; not by the guest itself: " + s.apart
	}
	if s.state == running && s.proc.Rehearses() {
		e.State = "rehearsing"
	}
	if s.res != nil {
		e.Memory, _ = s.dev.budget.Held(s.res.slot)
		e.Host, _ = s.dev.host.Held(s.res.host)
		e.Counters = s.countersLocked(s.proc)
		m := s.res.meter.Counters().Managed
		e.ManagedAtGPU, e.ManagedHere = m.AtGPU, m.Here
		if s.arrival != nil {
			e.State = "arriving"
			if s.rehearses {
				e.State = "rehearsing"
			}
		}
		var pid uint32
		if pid, e.Program = s.res.meter.Guest(); pid != 0 {
			e.GuestPID = pid
		}
	}
	return e, true
}

package device

import (
	"context"
	"slices"
	"time"

	"causeway/host/api"
	"causeway/host/worker/link"
)

/*
Where more of a GPU's memory is promised than there is, sessions hold no more of it than there is
room for: causewayd gives each virtual GPU room, and takes it from those whose sessions are idle. A
session that lacks room, for an allocation or to come back, has a need. Needs are told to causewayd,
which asks for them (GET /v1/room), and met in the order in which they came as soon as there is
room.
*/

// need is a session's. Device.mu guards it.
type need struct {
	s      *session
	bytes  uint64
	since  time.Time
	p      workerProcess // that asks for an allocation; nil: the session is suspended
	number uint64        // of its question
}

// Times of needs.
const (
	roomPoll   = 5 * time.Second  // how long who asks for needs waits for one
	unattended = 15 * time.Second // without anybody who gives room allocations are refused
	// How long a session that could not be suspended is not asked again.
	staysFor = 2 * time.Second
)

// noRoom is room for nothing; 0 would be no bound.
const noRoom = 1

// rooms is a device's part in giving room. Device.mu guards it.
type rooms struct {
	needs   []*need
	changed chan struct{} // closed when needs come
	asked   time.Time     // when somebody who gives room asked last
	counts  api.Swaps
}

// lacksRoom follows a worker's question.
func (s *session) lacksRoom(p workerProcess, m link.Want) {
	if !s.dev.opts.Swap {
		_ = p.Send(link.Room{Number: m.Number})
		return
	}
	s.dev.addNeed(&need{s: s, bytes: m.Bytes, p: p, number: m.Number})
}

// addNeed notes what a session needs, in place of what it needed before: it keeps its turn.
func (d *Device) addNeed(n *need) {
	d.mu.Lock()
	n.since = time.Now()
	if i := slices.IndexFunc(d.rooms.needs, func(old *need) bool { return old.s == n.s }); i >= 0 {
		n.since = d.rooms.needs[i].since
		d.rooms.needs[i] = n
	} else {
		d.rooms.needs = append(d.rooms.needs, n)
	}
	if d.rooms.changed != nil {
		close(d.rooms.changed)
		d.rooms.changed = nil
	}
	d.mu.Unlock()
	d.meetNeeds()
}

// dropNeed forgets what a session needs.
func (d *Device) dropNeed(s *session) {
	d.mu.Lock()
	d.rooms.needs = slices.DeleteFunc(d.rooms.needs, func(n *need) bool { return n.s == s })
	d.mu.Unlock()
}

// roomFor says whether there is room for so many bytes now.
func (d *Device) roomFor(bytes uint64) bool {
	room, used := d.budget.Room(), d.budget.Used()
	return !d.opts.Swap || room == 0 || used <= room && bytes <= room-used
}

// meetNeeds tells those for whom there is room, in turn: who needs much is not overtaken.
func (d *Device) meetNeeds() {
	d.mu.Lock()
	var met []*need
	spoken := uint64(0)
	for len(d.rooms.needs) > 0 && d.roomFor(spoken+d.rooms.needs[0].bytes) {
		n := d.rooms.needs[0]
		spoken += n.bytes
		d.rooms.needs = d.rooms.needs[1:]
		d.rooms.counts.WaitNS += uint64(time.Since(n.since))
		met = append(met, n)
	}
	d.mu.Unlock()
	for _, n := range met {
		n.answer(true)
	}
}

// answer tells a session that there is room, or, if it waits for an allocation, that there is none.
func (n *need) answer(granted bool) {
	switch {
	case n.p != nil:
		_ = n.p.Send(link.Room{Number: n.number, Granted: granted}) // one that is gone needs none
	case granted:
		n.s.goOn(resumeAgain)
	}
}

// mayComeBack says whether a suspended session has room; else it needs some, and goes on when it is
// there.
func (s *session) mayComeBack() bool {
	s.mu.Lock()
	kept := s.stored
	s.mu.Unlock()
	if kept == nil || s.dev.roomFor(kept.gpu) {
		return true
	}
	s.dev.addNeed(&need{s: s, bytes: kept.gpu})
	return false
}

// unattendedNeeds refuses allocations for which nobody gives room.
func (d *Device) unattendedNeeds(now time.Time) {
	d.mu.Lock()
	var late []*need
	if len(d.rooms.needs) > 0 && now.Sub(d.rooms.asked) > unattended {
		d.rooms.needs = slices.DeleteFunc(d.rooms.needs, func(n *need) bool {
			gone := n.p != nil && now.Sub(n.since) > unattended
			if gone {
				late = append(late, n)
			}
			return gone
		})
		d.rooms.counts.Denied += uint64(len(late))
	}
	d.mu.Unlock()
	d.meetNeeds() // programs free memory without a word
	for _, n := range late {
		n.s.log.Error("no room for an allocation: causewayd, which gives room where more memory is promised than there is, does not answer", "bytes", n.bytes)
		n.answer(false)
	}
}

// AwaitNeed returns when a session lacks room, or after a while.
func (d *Device) AwaitNeed(ctx context.Context) {
	d.mu.Lock()
	d.rooms.asked = time.Now()
	if len(d.rooms.needs) > 0 {
		d.mu.Unlock()
		return
	}
	if d.rooms.changed == nil {
		d.rooms.changed = make(chan struct{})
	}
	changed := d.rooms.changed
	d.mu.Unlock()
	t := time.NewTimer(roomPoll)
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	case <-ctx.Done():
	}
}

// RoomStatus is what there is room for, who has it, and who needs it.
func (d *Device) RoomStatus() api.RoomStatus {
	now := time.Now()
	d.mu.Lock()
	st := api.RoomStatus{Limit: d.limits.Memory, Sessions: []api.RoomSession{}, Needs: []api.Need{}}
	waits := map[*session]bool{}
	for _, n := range d.rooms.needs {
		waits[n.s] = true
		st.Needs = append(st.Needs, api.Need{Session: n.s.id, Bytes: n.bytes, Waited: now.Sub(n.since), Back: n.p == nil})
	}
	d.rooms.asked = now
	d.mu.Unlock()
	for _, s := range d.all() {
		if e, ok := s.inRoom(now); ok {
			e.Waits = waits[s]
			st.Sessions = append(st.Sessions, e)
		}
	}
	st.Room, st.Used, st.Away = d.budget.Room(), d.budget.Used(), d.budget.Away()
	return st
}

// inRoom is the session for RoomStatus; false: it has nothing of the GPU, or is about to have.
func (s *session) inRoom(now time.Time) (api.RoomSession, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != running || s.res == nil {
		return api.RoomSession{}, false
	}
	s.lookLocked(now)
	bytes, _ := s.dev.budget.Held(s.res.slot)
	return api.RoomSession{ID: s.id, Bytes: bytes, Idle: now.Sub(s.active), Here: now.Sub(s.here), Stays: now.Before(s.stays)}, bytes > 0
}

// lookLocked notes whether the program has done something since the last look.
func (s *session) lookLocked(now time.Time) {
	if s.res == nil {
		return
	}
	m := s.res.meter.Counters()
	if did := m.Calls + m.BusyNanos; did != s.did {
		s.did, s.active = did, now
	}
}

// SetRoom gives and takes room, and says what cannot be had.
func (d *Device) SetRoom(c api.RoomChange) api.RoomStatus {
	if c.Room != nil && d.opts.Swap {
		d.budget.SetRoom(max(*c.Room, noRoom))
	}
	for _, id := range c.Deny {
		d.deny(id, c.Why)
	}
	d.meetNeeds()
	return d.RoomStatus()
}

// deny refuses a session's allocation. One that is suspended waits on.
func (d *Device) deny(id uint64, why string) {
	d.mu.Lock()
	i := slices.IndexFunc(d.rooms.needs, func(n *need) bool { return n.s.id == id && n.p != nil })
	if i < 0 {
		d.mu.Unlock()
		return
	}
	n := d.rooms.needs[i]
	d.rooms.needs = slices.Delete(d.rooms.needs, i, i+1)
	d.rooms.counts.Denied++
	d.mu.Unlock()
	n.s.log.Warn("no room for an allocation: its program gets CUDA_ERROR_OUT_OF_MEMORY", "bytes", n.bytes, "why", why)
	n.answer(false)
}

// away counts a session that leaves the GPU for others, or comes back.
func (d *Device) away(kept *stored, leaves bool) {
	n := int64(kept.gpu)
	if !leaves {
		n = -n
	}
	d.budget.AddAway(n)
}

// swapped counts one that left, or came back.
func (d *Device) swapped(kept *stored, out bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &d.rooms.counts
	if out {
		c.Out, c.OutBytes = c.Out+1, c.OutBytes+kept.gpu
	} else {
		c.In, c.InBytes = c.In+1, c.InBytes+kept.gpu
	}
}

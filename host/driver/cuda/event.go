package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

type event struct {
	handle bind.Event
	ctx    uint32
	plain  bool // nobody but this session's EventRecord records it
	timed  bool // it has a time
	taken  bool // it was recorded, or may have been
	// Since when a move has brought it, nil: it was recorded since, or never.
	carried *carried
	token   driver.ShareToken // of another session's event, zero: it is none
	awaited bool              // another session's, which is not here yet (rejoin.go)
	// Its last record was operation at of a stream: once that is known to be done the driver, which
	// takes a microsecond for an event that none of its own waits has seen, need not be asked. Only
	// while nothing else may have recorded it.
	on    *stream
	at    uint64
	epoch uint64
	// Submitters with calls that record it or wait for it, but for those known to be made, a bit
	// each; and the number of each one's last.
	within     uint8
	submitters [maxSubmitters]uint64
}

// EventCreate makes an event.
func (s *session) EventCreate(c *wire.Call, a *wire.EventCreateArgs) cuda.Result {
	h, res := s.drv.EventCreate(a.Flags)
	if res != cuda.Success {
		return res
	}
	e := &event{handle: h, ctx: c.Ctx, plain: a.Flags&cuda.EventInterprocess == 0, timed: a.Flags&cuda.EventDisableTiming == 0}
	return keep(&s.events.table, a.Event, e, e.handle, s.drv.EventDestroy)
}

// EventDestroy gives an event back.
func (s *session) EventDestroy(c *wire.Call, a *wire.EventDestroyArgs) cuda.Result {
	e, ok := s.events.remove(a.Event)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	s.unshare(shareEvent, uint64(a.Event))
	if s.needed(e) {
		s.kept = append(s.kept, e)
		return cuda.Success
	}
	s.users.wait(e.handle)
	return s.drv.EventDestroy(e.handle)
}

// EventRecord marks the work so far of a stream.
func (s *session) EventRecord(c *wire.Call, a *wire.EventRecordArgs) cuda.Result {
	e, ok := s.events.hot(a.Event)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if e.awaited && c.Replay { // what it marked was done before the session moved
		return cuda.Success
	}
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	e.on = nil
	e.recorded()
	if e.plain && a.Flags == 0 && !s.capturing() {
		e.on, e.at, e.epoch = st, st.submitted, s.epoch
	}
	record := s.drv.EventRecord(e.handle, st.handle)
	if a.Flags != 0 {
		s.captured(st, need{event: e}, need{ctx: e.ctx})
		record = s.drv.EventRecordWithFlags(e.handle, st.handle, a.Flags)
	}
	res = s.issueEvent(c, st, e, &record)
	if res != cuda.Success {
		e.on = nil
	}
	return res
}

// EventQuery answers whether the work marked by an event is done.
func (s *session) EventQuery(c *wire.Call, a *wire.EventQueryArgs) cuda.Result {
	e, ok := s.events.get(a.Event)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if e.on != nil && e.epoch == s.epoch && e.on.reached(e.at) && !s.capturing() {
		// Else a capture may forbid the question.
		return cuda.Success
	}
	s.settleEvent(e)
	return s.note(s.drv.EventQuery(e.handle))
}

// EventElapsedTime measures the milliseconds between two events.
func (s *session) EventElapsedTime(c *wire.Call, a *wire.EventElapsedTimeArgs, r *wire.EventElapsedTimeReply) cuda.Result {
	start, ok1 := s.events.get(a.Start)
	end, ok2 := s.events.get(a.End)
	if !ok1 || !ok2 {
		return cuda.ErrorInvalidHandle
	}
	if start.carried != nil || end.carried != nil {
		ms, res := s.elapsed(start, end)
		r.Ms = ms
		return s.note(res)
	}
	ms, res := s.drv.EventElapsedTime(start.handle, end.handle)
	r.Ms = ms
	return s.note(res)
}

// eventHandle is the driver's event behind an id.
func (s *session) eventHandle(id uint32) (bind.Event, bool) {
	e, ok := s.events.get(id)
	if !ok {
		return bind.Event{}, false
	}
	e.recorded()
	return e.handle, true
}

// eventFor is eventHandle for something that keeps the event: a node, whose need it is from then
// on.
func (s *session) eventFor(list *needs) func(id uint32) (bind.Event, bool) {
	return func(id uint32) (bind.Event, bool) {
		if e, ok := s.events.get(id); ok {
			list.add(need{event: e}, need{ctx: e.ctx})
		}
		return s.eventHandle(id)
	}
}

// recorded notes that an event is recorded, or by something that the driver was given may be.
func (e *event) recorded() { e.taken, e.carried = true, nil }

package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

type event struct {
	handle uint64
	ctx    uint32
	plain  bool // nobody but this session's EventRecord records it
	// Its last record was operation at of a stream: once that is known to be done the driver, which takes a microsecond for an
	// event that none of its own waits has seen, need not be asked. Only while nothing else may have recorded it.
	on    *stream
	at    uint64
	epoch uint64
	lanes [maxLanes]uint64 // number of the last call of each lane that records it or waits for it, 0: none, or made
}

// EventCreate makes an event.
func (s *session) EventCreate(c *wire.Call, a *wire.EventCreateArgs) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	if res := s.fn.cuEventCreate.call(s.out.addr(), uint64(a.Flags)); res != cuda.Success {
		return res
	}
	const interprocess = 4
	e := &event{handle: *s.out.u64(0), ctx: c.Ctx, plain: a.Flags&interprocess == 0}
	if !s.events.put(a.Event, e) {
		s.fn.cuEventDestroy_v2.call(e.handle)
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// EventDestroy gives an event back.
func (s *session) EventDestroy(c *wire.Call, a *wire.EventDestroyArgs) cuda.Result {
	e, ok := s.events.remove(a.Event)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	s.unshare(shareEvent, uint64(a.Event))
	if ctx, ok := s.ctxs.get(e.ctx); !ok || ctx.handle == 0 {
		return cuda.ErrorContextIsDestroyed
	}
	return s.fn.cuEventDestroy_v2.call(e.handle)
}

// EventRecord marks the work so far of a stream.
func (s *session) EventRecord(c *wire.Call, a *wire.EventRecordArgs) cuda.Result {
	e, ok := s.events.get(a.Event)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	e.on = nil
	if e.plain && a.Flags == 0 && !s.capturing() {
		e.on, e.at, e.epoch = st, st.submitted, s.epoch
	}
	if a.Flags != 0 {
		res = s.issueEvent(c, st, e, s.fn.cuEventRecordWithFlags, e.handle, st.handle, uint64(a.Flags))
	} else {
		res = s.issueEvent(c, st, e, s.fn.cuEventRecord, e.handle, st.handle)
	}
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
	if e.on != nil && e.epoch == s.epoch && e.on.reached(e.at) && !s.capturing() { // else a capture may forbid the question
		return cuda.Success
	}
	s.settleEvent(e)
	return s.note(s.fn.cuEventQuery.call(e.handle))
}

// EventElapsedTime measures the milliseconds between two events.
func (s *session) EventElapsedTime(c *wire.Call, a *wire.EventElapsedTimeArgs, r *wire.EventElapsedTimeReply) cuda.Result {
	start, ok1 := s.events.get(a.Start)
	end, ok2 := s.events.get(a.End)
	if !ok1 || !ok2 {
		return cuda.ErrorInvalidHandle
	}
	f := s.fn.cuEventElapsedTime_v2
	if f == 0 {
		f = s.fn.cuEventElapsedTime
	}
	res := f.call(s.out.addr(), start.handle, end.handle)
	r.Ms = *s.out.f32(0)
	return s.note(res)
}

package soft

import (
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// event is a CUDA event. The worker owns it.
type event struct {
	ctx    *gpuContext
	flags  uint32
	mark   *mark             // of the last record, nil if there was none
	shared *sharedEvent      // nil unless other processes may have it
	token  driver.ShareToken // of another session's event, else zero
}

// mark is one recording of an event.
type mark struct {
	task *task     // nil: nothing was before it
	at   time.Time // written by task; read when it is done
}

// EventCreate makes an event.
func (s *session) EventCreate(c *wire.Call, a *wire.EventCreateArgs) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	switch {
	case a.Flags&^(cuda.EventBlockingSync|cuda.EventDisableTiming|cuda.EventInterprocess) != 0:
		return cuda.ErrorInvalidValue
	case a.Flags&cuda.EventInterprocess != 0 && a.Flags&cuda.EventDisableTiming == 0:
		return cuda.ErrorInvalidValue
	}
	e := &event{ctx: g, flags: a.Flags}
	if a.Flags&cuda.EventInterprocess != 0 {
		sh, err := newSharedEvent()
		if err != nil {
			return cuda.ErrorOutOfMemory
		}
		e.shared = sh
	}
	return s.events.put(a.Event, e)
}

// EventDestroy forgets an event; what waits for it goes on waiting.
func (s *session) EventDestroy(c *wire.Call, a *wire.EventDestroyArgs) cuda.Result {
	e, ok := s.events[a.Event]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	e.close()
	delete(s.marks, e)
	s.unshare(shareEvent, uint64(a.Event))
	delete(s.events, a.Event)
	return cuda.Success
}

// EventRecord marks a stream's work so far.
func (s *session) EventRecord(c *wire.Call, a *wire.EventRecordArgs) cuda.Result {
	e, ok := s.events[a.Event]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if st.ctx != e.ctx {
		return cuda.ErrorInvalidHandle
	}
	if a.Flags&^cuda.EventRecordExternal != 0 {
		return cuda.ErrorInvalidValue
	}
	delete(s.marks, e)
	s.record(st, e)
	return cuda.Success
}

func (s *session) record(st *stream, e *event) {
	m := &mark{}
	e.mark = m
	reached := func() {}
	if sh := e.shared; sh != nil {
		n := sh.recorded.Add(1)
		sh.seen = n
		sh.users.Add(1)
		reached = func() {
			sh.reached(n)
			sh.release()
		}
	}
	deps := s.before(st)
	if len(deps) == 0 {
		m.at = time.Now()
		reached()
		return
	}
	m.task = &task{always: true, run: func() cuda.Result {
		m.at = time.Now()
		reached()
		return cuda.Success
	}}
	s.enqueue(st, m.task, deps)
}

// EventQuery reports whether what an event marks is done.
func (s *session) EventQuery(c *wire.Call, a *wire.EventQueryArgs) cuda.Result {
	e, ok := s.events[a.Event]
	if ok {
		s.latest(e)
	}
	switch {
	case !ok:
		return cuda.ErrorInvalidHandle
	case e.mark != nil && !e.mark.task.finished():
		return cuda.ErrorNotReady
	}
	return e.ctx.sticky()
}

// EventSynchronize waits for what an event marks.
func (s *session) EventSynchronize(c *wire.Call, a *wire.EventSynchronizeArgs) cuda.Result {
	e, ok := s.events[a.Event]
	if ok {
		s.latest(e)
	}
	switch {
	case !ok:
		return cuda.ErrorInvalidHandle
	case e.mark == nil || e.mark.task.finished():
		return e.ctx.sticky()
	}
	return s.answerBehind(c, e.ctx, []*task{e.mark.task})
}

// EventElapsedTime is the time between two marks.
func (s *session) EventElapsedTime(c *wire.Call, a *wire.EventElapsedTimeArgs, r *wire.EventElapsedTimeReply) cuda.Result {
	from, ok1 := s.events[a.Start]
	to, ok2 := s.events[a.End]
	if !ok1 || !ok2 || from.ctx != to.ctx || from.mark == nil || to.mark == nil ||
		(from.flags|to.flags)&cuda.EventDisableTiming != 0 {
		return cuda.ErrorInvalidHandle
	}
	if res := from.ctx.sticky(); res != cuda.Success {
		return res
	}
	if !from.mark.task.finished() || !to.mark.task.finished() {
		return cuda.ErrorNotReady
	}
	r.Ms = float32(float64(to.mark.at.Sub(from.mark.at)) / float64(time.Millisecond))
	return cuda.Success
}

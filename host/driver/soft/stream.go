package soft

import (
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// maxThreadStreams bounds the per-thread default streams of a context.
const maxThreadStreams = 1 << 16

// stream orders tasks: each runs after the one before. Tasks of the legacy stream also run after
// those of all blocking streams of their context, and the other way round. The worker owns it.
type stream struct {
	ctx      *gpuContext
	blocking bool
	flags    uint32
	priority int32
	last     *task
	listed   bool              // in ctx.busy
	attrs    map[uint32][]byte // what StreamSetAttribute set
	own      bool              // it has attributes of the guest's
	used     bool              // since it was last looked at, a thread's
}

// findStream finds the stream that an operation names, if its context works.
func (s *session) findStream(c *wire.Call, id wire.Stream) (*stream, cuda.Result) {
	if id != wire.StreamLegacy && id != wire.StreamPerThread {
		st, ok := s.streams[id]
		if !ok {
			return nil, cuda.ErrorInvalidHandle
		}
		return st, st.ctx.sticky()
	}
	g, res := s.context(c)
	if res != cuda.Success {
		return nil, res
	}
	if id == wire.StreamLegacy {
		return g.legacy, cuda.Success
	}
	st := g.threads[c.Thread]
	if st == nil {
		if st = s.threadStream(g, c.Thread); st == nil {
			return nil, cuda.ErrorOutOfMemory
		}
		g.threads[c.Thread] = st
	}
	st.used = true
	return st, cuda.Success
}

// threadStream is a default stream for a thread that has none: one that is spare, if there are
// enough, or a new one. nil: there is no room.
func (s *session) threadStream(g *gpuContext, thread uint32) *stream {
	if len(g.threads) >= driver.EnoughThreads {
		if st := s.spareStream(g, thread, false); st != nil {
			return st
		}
	}
	if len(g.threads) >= maxThreadStreams || !driver.ReserveStream(s.host) {
		return s.spareStream(g, thread, true)
	}
	g.ofThreads.Add(thread)
	return &stream{ctx: g, blocking: true}
}

// spareStream takes a stream from a thread that has no work on it, nil: there is none. all: however
// long that takes.
func (s *session) spareStream(g *gpuContext, thread uint32, all bool) *stream {
	if s.capturing() {
		return nil
	}
	st, _ := g.ofThreads.Take(g.threads, thread, all, func(_ uint32, st *stream) driver.Look {
		switch {
		case st.used:
			st.used = false
			return driver.Recent
		case !st.own && (st.last == nil || st.last.finished()):
			return driver.Spare
		}
		return driver.Kept
	})
	return st
}

// working prunes the busy streams and reports whether any is left.
func (g *gpuContext) working() bool {
	if len(g.busy) == 0 {
		return false
	}
	g.busy = slices.DeleteFunc(g.busy, func(st *stream) bool {
		if st.last.finished() {
			st.last, st.listed = nil, false
			return true
		}
		return false
	})
	return len(g.busy) > 0
}

// before are the unfinished tasks that a new one on st must follow. The result is valid until the
// next call.
func (s *session) before(st *stream) []*task {
	if s.recording != nil {
		return s.recording.hold
	}
	s.deps = s.deps[:0]
	g := st.ctx
	if !g.working() {
		return nil
	}
	if st == g.legacy {
		for _, o := range g.busy {
			if o.blocking {
				s.deps = append(s.deps, o.last)
			}
		}
		return s.deps
	}
	if !st.last.finished() {
		s.deps = append(s.deps, st.last)
	}
	if st.blocking && !g.legacy.last.finished() {
		s.deps = append(s.deps, g.legacy.last)
	}
	return s.deps
}

// lastOf appends the last tasks of all busy streams of g to deps.
func (s *session) lastOf(g *gpuContext, deps []*task) []*task {
	if g.working() {
		for _, st := range g.busy {
			deps = append(deps, st.last)
		}
	}
	return deps
}

// enqueue puts t on st, behind deps, which come from before.
func (s *session) enqueue(st *stream, t *task, deps []*task) {
	if s.recording != nil {
		s.recording.tasks = append(s.recording.tasks, t)
		return
	}
	t.ctx = st.ctx
	st.last = t
	if !st.listed {
		st.listed = true
		st.ctx.busy = append(st.ctx.busy, st)
	}
	s.queue.submit(t, deps)
}

// do runs work in the order of st: at once and by the caller if it is small and nothing is before
// it, else queued.
func (s *session) do(st *stream, size uint64, run func() cuda.Result) cuda.Result {
	deps := s.before(st)
	if len(deps) == 0 && size <= inlineBytes {
		return s.inline(st.ctx, run)
	}
	s.enqueue(st, &task{run: run}, deps)
	return cuda.Success
}

// StreamCreate makes a stream. Priorities are hints and change nothing here.
func (s *session) StreamCreate(c *wire.Call, a *wire.StreamCreateArgs) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	if a.Flags&^cuda.StreamNonBlocking != 0 {
		return cuda.ErrorInvalidValue
	}
	st := &stream{ctx: g, flags: a.Flags, blocking: a.Flags&cuda.StreamNonBlocking == 0, priority: a.Priority}
	return s.streams.put(a.Stream, st)
}

// StreamDestroy forgets a stream; its work goes on.
func (s *session) StreamDestroy(c *wire.Call, a *wire.StreamDestroyArgs) cuda.Result {
	st, ok := s.streams[a.Stream]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if x := s.captureOf(st); x != nil {
		x.invalid = true
	}
	delete(s.streams, a.Stream)
	return cuda.Success
}

// StreamSynchronize waits for a stream's work.
func (s *session) StreamSynchronize(c *wire.Call, a *wire.StreamSynchronizeArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	deps := s.before(st)
	if len(deps) == 0 {
		return st.ctx.sticky()
	}
	return s.answerBehind(c, st.ctx, deps)
}

// StreamQuery reports whether a stream's work is done.
func (s *session) StreamQuery(c *wire.Call, a *wire.StreamQueryArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if len(s.before(st)) > 0 {
		return cuda.ErrorNotReady
	}
	return st.ctx.sticky()
}

// StreamWaitEvent makes later work of a stream wait for what an event marks now.
func (s *session) StreamWaitEvent(c *wire.Call, a *wire.StreamWaitEventArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	e, ok := s.events[a.Event]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if a.Flags&^cuda.EventWaitExternal != 0 {
		return cuda.ErrorInvalidValue
	}
	s.latest(e)
	if e.mark == nil || e.mark.task.finished() {
		return cuda.Success
	}
	s.enqueue(st, &task{}, append(s.before(st), e.mark.task))
	return cuda.Success
}

package cuda

import (
	"iter"
	"maps"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// Stream ids with a fixed meaning (CU_STREAM_LEGACY, CU_STREAM_PER_THREAD).
const (
	streamLegacy    = 1
	streamPerThread = 2
)

type stream struct {
	handle      bind.Stream
	ctx         uint32
	nonBlocking bool
	// Of this green context: takes work whatever context of the device is current; 0: of none.
	green       uint32
	submitter   *submitter // has its latest calls, nil if none ever had
	submittedAt uint64     // number of the last of them
	latest      uint64     // gauge.order when it last got work
	dirty       bool       // among gauge.dirty
	// Of a thread's default stream: the guest gave it attributes; and it was used since it was last
	// looked at.
	own, used bool
	// event of ours that marks its work in a wait for the whole context, none until needed
	joint bind.Event

	// submitted counts operations put on the stream; done of them are known to have finished. Once
	// the GPU has written markSeq (or a later number) to markWord, markAt of them have.
	submitted, done, markAt uint64
	markWord                word
	markSeq                 uint32
}

// mark says that what was submitted so far is done once w has reached seq.
func (st *stream) mark(w word, seq uint32) { st.markWord, st.markSeq, st.markAt = w, seq, st.submitted }

// reached reports whether the first n operations are known to be done.
func (st *stream) reached(n uint64) bool {
	st.busy()
	return st.done >= n
}

// markUpTo is mark for the first n operations.
func (st *stream) markUpTo(n uint64, w word, seq uint32) {
	if st.markAt < n || st.markWord == 0 {
		st.markWord, st.markSeq, st.markAt = w, seq, n
	}
}

// busy reports whether the stream may have unfinished work.
func (st *stream) busy() bool {
	if st.submitted == st.done {
		return false
	}
	if st.markWord != 0 && int32(st.markWord.load()-st.markSeq) >= 0 {
		st.done = max(st.done, st.markAt)
	}
	return st.submitted != st.done
}

// stream finds the stream that an operation names and makes its context current. Per-thread default
// streams are streams of ours, one for each guest thread and context.
func (s *session) stream(c *wire.Call, id uint32) (*stream, cuda.Result) {
	if id != streamLegacy && id != streamPerThread {
		st, ok := s.streams.hot(id)
		if !ok {
			return nil, cuda.ErrorInvalidHandle
		}
		if st.green != 0 && c.Ctx != 0 {
			return st, s.use(c)
		}
		if st.ctx == s.current && len(s.detached) == 0 {
			return st, cuda.Success
		}
		return st, s.useContext(st.ctx)
	}
	if res := s.use(c); res != cuda.Success {
		return nil, res
	}
	if id == streamLegacy {
		st := s.legacy[c.Ctx]
		if st == nil {
			st = &stream{handle: bind.StreamLegacy, ctx: c.Ctx}
			s.legacy[c.Ctx] = st
		}
		return st, cuda.Success
	}
	return s.threadStream(threadKey{c.Ctx, c.Thread})
}

// submit is stream for operations that put work on it.
func (s *session) submit(c *wire.Call, id uint32) (*stream, cuda.Result) {
	st, res := s.stream(c, id)
	if res == cuda.Success {
		st.submitted++
		s.gauge.touch(st)
		if s.capturing() {
			s.captured(st)
		}
	}
	return st, res
}

func (s *session) useContext(id uint32) cuda.Result {
	return s.use(&wire.Call{Ctx: id})
}

// everyStream is the session's streams: those that the guest made, those of threads, and the legacy
// streams.
func (s *session) everyStream() iter.Seq[*stream] {
	return func(yield func(*stream) bool) {
		for _, st := range s.streams.m {
			if !yield(st) {
				return
			}
		}
		for _, list := range []iter.Seq[*stream]{maps.Values(s.threads), maps.Values(s.legacy)} {
			for st := range list {
				if !yield(st) {
					return
				}
			}
		}
	}
}

// StreamCreate makes a stream.
func (s *session) StreamCreate(c *wire.Call, a *wire.StreamCreateArgs) cuda.Result {
	h, res := s.drv.StreamCreateWithPriority(a.Flags, a.Priority)
	if res != cuda.Success {
		return res
	}
	st := &stream{handle: h, ctx: c.Ctx, nonBlocking: a.Flags&cuda.StreamNonBlocking != 0}
	return keep(&s.streams.table, a.Stream, st, st.handle, s.drv.StreamDestroy)
}

// StreamDestroy gives a stream back; its work goes on.
func (s *session) StreamDestroy(c *wire.Call, a *wire.StreamDestroyArgs) cuda.Result {
	st, ok := s.streams.get(a.Stream)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	return s.endStream(a.Stream, st)
}

func (s *session) endStream(id uint32, st *stream) cuda.Result {
	s.streams.remove(id)
	if x := s.captureOf(st); x != nil {
		s.dropAllocs(x)
		s.captureEnded(x)
	}
	if res := s.useContext(st.ctx); res != cuda.Success {
		return res
	}
	s.leaveGauge(st)
	s.leaveStream(st)
	s.watch.leaveStream(st.handle)
	s.users.wait(st.handle)
	if !st.joint.IsZero() {
		s.drv.EventDestroy(st.joint)
	}
	return s.drv.StreamDestroy(st.handle)
}

// StreamQuery answers whether all work of a stream is done.
func (s *session) StreamQuery(c *wire.Call, a *wire.StreamQueryArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	s.settleStream(st)
	return s.note(s.drv.StreamQuery(st.handle))
}

// StreamWaitEvent orders later work of a stream after an event.
func (s *session) StreamWaitEvent(c *wire.Call, a *wire.StreamWaitEventArgs) cuda.Result {
	e, ok := s.events.hot(a.Event)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if s.capturing() { // the event may be of the capture, and brings the stream into it
		if st, res := s.stream(c, a.Stream); res == cuda.Success {
			s.captureGauge(slices.Values([]*stream{st}))
		}
	}
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if a.Flags != 0 {
		s.captured(st, need{event: e}, need{ctx: e.ctx})
	}
	wait := s.drv.StreamWaitEvent(st.handle, e.handle, a.Flags)
	return s.issueEvent(c, st, e, &wait)
}

// StreamWriteValue writes a word of memory in stream order.
func (s *session) StreamWriteValue(c *wire.Call, a *wire.StreamWriteValueArgs) cuda.Result {
	return s.memOp(c, a.Stream, s.drv.StreamWriteValue32, s.drv.StreamWriteValue64, a.Addr, a.Value, a.Width, a.Flags)
}

// StreamWaitValue holds a stream until a word of memory has a value.
func (s *session) StreamWaitValue(c *wire.Call, a *wire.StreamWaitValueArgs) cuda.Result {
	return s.memOp(c, a.Stream, s.drv.StreamWaitValue32, s.drv.StreamWaitValue64, a.Addr, a.Value, a.Width, a.Flags)
}

func (s *session) memOp(c *wire.Call, id uint32, op32 func(bind.Stream, bind.Mem, uint32, uint32) bind.Call,
	op64 func(bind.Stream, bind.Mem, uint64, uint32) bind.Call, addr, value uint64, width, flags uint32) cuda.Result {
	st, res := s.submit(c, id)
	if res != cuda.Success {
		return res
	}
	if width != 4 && width != 8 {
		return cuda.ErrorInvalidValue
	}
	m, res := s.space.Mem(addr, uint64(width))
	if res != cuda.Success {
		return res
	}
	if width == 4 {
		op := op32(st.handle, m, uint32(value), flags)
		return s.issue(c, st, &op)
	}
	op := op64(st.handle, m, value, flags)
	return s.issue(c, st, &op)
}

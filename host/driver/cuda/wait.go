package cuda

import (
	"runtime"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// note looks at a driver result for the errors after which a context answers nothing else, and
// tells the guest at once.
func (s *session) note(res cuda.Result) cuda.Result {
	if res.Sticky() {
		s.gauge.faults.Add(1)
		s.submitters.ended.Store(true)
		s.drainConsole() // the driver has printed what a failed assert says
		s.host.SetSticky(res)
	}
	return res
}

// StreamSynchronize waits for a stream's work.
func (s *session) StreamSynchronize(c *wire.Call, a *wire.StreamSynchronizeArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	s.takeAwayAll(true, false)
	if !s.busy(st) {
		return s.note(s.drv.StreamSynchronize(st.handle))
	}
	through := s.printing || s.owesPools()
	if st.handle == bind.StreamLegacy || through || s.capturing() {
		s.submitters.drain(nil)
	}
	if through {
		return s.blockOn(c, func() cuda.Result { return s.drv.StreamSynchronize(st.handle) }, st.handle)
	}
	return s.answerBehind(c, st)
}

// gpuDone is the word of the waiting thread's slot that the GPU may write, none if it does not
// reach it.
func (s *session) gpuDone(p *wire.Pending) (slot bind.Mem, addr uintptr, seq uint32) {
	addr, seq, ok := p.GPUDone()
	if !ok {
		return bind.Mem{}, 0, 0
	}
	slot, _ = s.regions[0].At(addr, 4)
	return slot, addr, seq
}

// answerBehind lets the GPU answer a wait: a stream memory operation behind the stream's work
// writes the reply slot of the waiting thread. Without a slot that the GPU reaches, it writes a
// fence word and the watcher answers.
func (s *session) answerBehind(c *wire.Call, st *stream) cuda.Result {
	p := c.Later()
	if slot, addr, seq := s.gpuDone(p); !slot.IsZero() {
		write := s.drv.StreamWriteValue32(st.handle, slot, seq, 0)
		if l := st.waiting(); l != nil {
			x := &wait{pending: p, direct: true, word: word(addr), seq: seq, ctx: s.handleOf(st.ctx), stream: st.handle}
			i := l.next()
			i.SetCall(&write)
			l.notify(i, func(res cuda.Result) {
				if res != cuda.Success {
					p.Done(res, nil)
					return
				}
				s.watch.add(x)
			})
			s.send(l, st, i)
			s.marks(st, word(addr), seq)
			return cuda.Success
		}
		if res := s.note(write.Do()); res != cuda.Success {
			p.Done(res, nil)
			return cuda.Success
		}
		s.marks(st, word(addr), seq)
		s.watch.add(&wait{pending: p, direct: true, word: word(addr), seq: seq, ctx: s.handleOf(st.ctx), stream: st.handle})
		return cuda.Success
	}
	s.settleStream(st)
	return s.fence(p, st, nil)
}

// fence puts a fence word behind a stream's work; then finish runs on the watcher, and its reply is
// sent.
func (s *session) fence(p *wire.Pending, st *stream, finish func() wire.Reply) cuda.Result {
	f, ok := s.fences.take()
	if !ok {
		return s.blockingWait(p, func() cuda.Result { return s.drv.StreamSynchronize(st.handle) }, finish, st.handle)
	}
	_, _, near := p.GPUDone()
	if res := s.watchFence(f, st, &wait{pending: p, far: !near, finish: finish}); res != cuda.Success {
		s.fences.put(f)
		p.Done(res, nil)
	}
	return cuda.Success
}

// watchFence has the GPU write a fence's word behind a stream's work, upon which the watcher ends a
// wait, and has the fence back. With an error neither is so.
func (s *session) watchFence(f fence, st *stream, x *wait) cuda.Result {
	write := s.drv.StreamWriteValue32(st.handle, f.dev, f.value, 0)
	if res := s.note(write.Do()); res != cuda.Success {
		return res
	}
	x.word, x.seq, x.fence, x.ctx, x.stream = f.word, f.value, f, s.handleOf(st.ctx), st.handle
	s.watch.add(x)
	return cuda.Success
}

func (s *session) handleOf(ctx uint32) bind.Context {
	if c, ok := s.ctxs.get(ctx); ok {
		return c.handle
	}
	return bind.Context{}
}

// marks remembers that everything submitted to st so far is done once w has passed seq; behind the
// legacy stream that holds for every blocking stream of the context.
func (s *session) marks(st *stream, w word, seq uint32) {
	st.mark(w, seq)
	if st.handle != bind.StreamLegacy {
		return
	}
	for _, o := range s.streams.m {
		if o.ctx == st.ctx && !o.nonBlocking {
			o.mark(w, seq)
		}
	}
	for k, o := range s.threads {
		if k.ctx == st.ctx {
			o.mark(w, seq)
		}
	}
}

// busy reports whether a stream may have unfinished work. The legacy stream waits for every
// blocking stream.
func (s *session) busy(st *stream) bool {
	if st.busy() || st.handle != bind.StreamLegacy {
		return st.busy()
	}
	return s.anyBusy(st.ctx, func(o *stream) bool { return !o.nonBlocking })
}

func (s *session) anyBusy(ctx uint32, match func(*stream) bool) bool {
	for _, o := range s.streams.m {
		if o.ctx == ctx && match(o) && o.busy() {
			return true
		}
	}
	for k, o := range s.threads {
		if k.ctx == ctx && match(o) && o.busy() {
			return true
		}
	}
	return false
}

// CtxSynchronize waits for all work of a context.
func (s *session) CtxSynchronize(c *wire.Call) cuda.Result {
	s.takeAwayAll(true, false)
	all := func(*stream) bool { return true }
	legacy := s.legacy[c.Ctx]
	idle := legacy == nil || !legacy.busy()
	if idle && !s.anyBusy(c.Ctx, all) {
		return s.note(s.drv.CtxSynchronize())
	}
	if s.printing || s.owesPools() {
		return s.blockOn(c, s.drv.CtxSynchronize)
	}
	loose := s.looseBusy(c.Ctx)
	switch {
	case len(loose) == 0:
		legacy, res := s.stream(c, streamLegacy)
		if res != cuda.Success {
			return res
		}
		return s.answerBehind(c, legacy)
	case len(loose) == 1 && idle && !s.anyBusy(c.Ctx, func(o *stream) bool { return !o.nonBlocking }):
		return s.answerBehind(c, loose[0])
	case len(loose) > maxJoined:
		return s.blockOn(c, s.drv.CtxSynchronize)
	}
	return s.answerBehindAll(c, loose)
}

// maxJoined is how many streams a wait for a context joins by events; beyond it a thread of its own
// waits in the driver.
const maxJoined = 64

// looseBusy lists the streams of a context with unfinished work that the legacy stream does not
// wait for.
func (s *session) looseBusy(ctx uint32) []*stream {
	var list []*stream
	for _, o := range s.streams.m {
		if o.ctx == ctx && o.nonBlocking && o.busy() {
			list = append(list, o)
		}
	}
	return list
}

// answerBehindAll has the GPU answer behind the work of the loose streams and of the legacy stream,
// which stands for all others. The context is current.
func (s *session) answerBehindAll(c *wire.Call, loose []*stream) cuda.Result {
	legacy, res := s.stream(c, streamLegacy)
	if res != cuda.Success {
		return res
	}
	hidden, res := s.hiddenStream(legacy.ctx)
	if res != cuda.Success {
		return res
	}
	all := append(loose, legacy)
	for _, st := range all {
		if res := s.join(hidden, st); res != cuda.Success {
			return res
		}
	}
	hidden.markWord = 0
	if res := s.answerBehind(c, hidden); res != cuda.Success || hidden.markWord == 0 {
		return res
	}
	for _, st := range all {
		s.marks(st, hidden.markWord, hidden.markSeq)
	}
	return cuda.Success
}

// join has later work of to wait for all work so far of st.
func (s *session) join(to, st *stream) cuda.Result {
	if st.joint.IsZero() {
		h, res := s.drv.EventCreate(cuda.EventDisableTiming)
		if res != cuda.Success {
			return res
		}
		st.joint = h
	}
	record, wait := s.drv.EventRecord(st.joint, st.handle), s.drv.StreamWaitEvent(to.handle, st.joint, 0)
	if res := s.note(record.Do()); res != cuda.Success {
		return res
	}
	return s.note(wait.Do())
}

// hiddenStream is a stream of ours in a context, for waits. The context is current.
func (s *session) hiddenStream(id uint32) (*stream, cuda.Result) {
	ctx, ok := s.ctxs.get(id)
	if !ok {
		return nil, cuda.ErrorInvalidContext
	}
	if ctx.hidden == nil {
		h, res := s.drv.StreamCreateWithPriority(cuda.StreamNonBlocking, 0)
		if res != cuda.Success {
			return nil, res
		}
		ctx.hidden = &stream{handle: h, ctx: id, nonBlocking: true}
	}
	return ctx.hidden, cuda.Success
}

// EventSynchronize waits for the work that an event marks.
func (s *session) EventSynchronize(c *wire.Call, a *wire.EventSynchronizeArgs) cuda.Result {
	e, ok := s.events.get(a.Event)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	s.settleEvent(e)
	if e.on != nil && e.epoch == s.epoch && e.on.reached(e.at) && !s.printing {
		return cuda.Success
	}
	if res := s.drv.EventQuery(e.handle); res != cuda.ErrorNotReady && !s.printing {
		return s.note(res)
	}
	if res := s.useContext(e.ctx); res != cuda.Success {
		return res
	}
	if s.printing {
		return s.blockOn(c, func() cuda.Result { return s.drv.EventSynchronize(e.handle) }, e.handle)
	}
	hidden, res := s.hiddenStream(e.ctx)
	if res != cuda.Success {
		return res
	}
	behind := s.drv.StreamWaitEvent(hidden.handle, e.handle, 0)
	if res := behind.Do(); res != cuda.Success {
		return res
	}
	hidden.markWord = 0
	res = s.answerBehind(c, hidden)
	if res == cuda.Success && hidden.markWord != 0 && e.on != nil && e.epoch == s.epoch {
		e.on.markUpTo(e.at, hidden.markWord, hidden.markSeq)
	}
	return res
}

// mostBlocked is how many waits may have a thread of their own: as many as a guest has slots in
// which threads of its own wait. One that uses a slot again before it is answered could have the
// worker make all the threads that its virtual GPU may have.
const mostBlocked = wire.SlotCount

// blockOn runs a blocking driver call on a thread of its own: for programs whose kernels print, and
// for waits over several independent streams. Things are what it names beside the current context.
func (s *session) blockOn(c *wire.Call, wait func() cuda.Result, things ...any) cuda.Result {
	return s.blockingWait(c.Later(), wait, nil, things...)
}

func (s *session) blockingWait(p *wire.Pending, wait func() cuda.Result, finish func() wire.Reply, things ...any) cuda.Result {
	if s.watch.blocked.Add(1) > mostBlocked {
		s.watch.blocked.Add(-1)
		p.Done(cuda.ErrorOutOfMemory, nil)
		return cuda.Success
	}
	ctx := s.handleOf(s.current)
	leave := s.users.enter(append(things, ctx)...)
	s.watch.group.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		s.relaxThread()
		res := s.drv.CtxSetCurrent(ctx)
		if res == cuda.Success {
			res = s.note(wait())
		}
		leave()
		s.watch.blocked.Add(-1) // before the guest hears of it, and waits again
		s.drainConsole()
		var reply wire.Reply
		if finish != nil && res == cuda.Success {
			reply = finish()
		}
		p.Done(res, reply)
	})
	return cuda.Success
}

// drainConsole hands over what kernels printed. Any goroutine.
func (s *session) drainConsole() {
	s.consoleMu.Lock()
	defer s.consoleMu.Unlock()
	if text := s.stdout.take(); len(text) > 0 {
		s.host.Console(text)
	}
	if text := s.stderr.take(); len(text) > 0 {
		s.host.ConsoleError(text)
	}
}

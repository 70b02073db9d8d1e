package cuda

import (
	"log/slog"
	"slices"
	"time"

	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

// lingering is a context that the guest has ended and the driver still has: what it has registered,
// and with it the words by which the GPU answers, is in use by work of contexts that live. To wait
// for that work would hold up the requests that it may itself wait for. The guest's memory in the
// context is freed at once; the rest goes when the GPU has nothing to do. Worker goroutine.
type lingering struct {
	id     uint32 // the guest's, which the registrations name
	handle bind.Context
	ctx    *context_
	end    func() cuda.Result // the driver's call
}

// lingerEvery is how often, at most, the session looks whether contexts may go at last.
const lingerEvery = 10 * time.Millisecond

// endContext ends a context by a call of the driver's, now or when nothing needs what was
// registered through it.
func (s *session) endContext(id uint32, ctx *context_, end func() cuda.Result) cuda.Result {
	s.endGraphsWith(need{ctx: id})
	s.forgetDirectOf(id)
	if s.dropRegistrations(id) {
		return s.ending(id, ctx.handle, end)
	}
	s.freeMemory(id, ctx.handle)
	s.lingering = append(s.lingering, lingering{id, ctx.handle, ctx, end})
	ctx.lingers = true
	return cuda.Success
}

// ending has the driver end a context that nobody else asks it about any more.
func (s *session) ending(id uint32, handle bind.Context, end func() cuda.Result) cuda.Result {
	s.forgetGauge(id, handle)
	s.watch.leaveContext(handle)
	s.users.wait(handle)
	return end()
}

// freeMemory frees the memory of a context that lingers.
func (s *session) freeMemory(id uint32, handle bind.Context) {
	s.current = 0
	if s.drv.CtxSetCurrent(handle) != cuda.Success {
		return
	}
	for _, a := range s.allocs {
		if a.ctx == id && !a.pooled && s.arenaOf(a.at.Value()) == nil {
			// Those of arenas go behind the next synchronisation.
			s.drv.MemFree(a.at)
		}
	}
	for _, x := range s.arrays.m {
		if x.ctx == id && x.owner == 0 {
			s.drv.ArrayDestroy(x.handle)
		}
	}
	for _, m := range s.mipmaps.m {
		if m.ctx == id {
			s.drv.MipmappedArrayDestroy(m.handle)
		}
	}
}

// endLingering ends the contexts that linger: the GPU has nothing to do, or what they have
// registered is let go of already.
func (s *session) endLingering() {
	list := s.lingering
	s.lingering = nil
	for _, l := range list {
		s.current = 0
		s.drv.CtxSetCurrent(l.handle)
		s.letGo(func(ctx uint32) bool { return ctx == l.id })
		if res := s.ending(l.id, l.handle, l.end); res != cuda.Success {
			slog.Warn("a context that was kept for what is registered through it does not end", "error", res)
		} else {
			s.outliveGauge(l.id, l.handle)
		}
		s.budget.Leave()
	}
	s.current = 0
	s.submitters.forget()
}

// endLingeringIfQuiet has a context that lives take over what they have registered.
func (s *session) endLingeringIfQuiet() {
	heir, ok := s.heir(0)
	if !ok || !s.quiet() {
		return
	}
	s.finishAll()
	s.endLingering()
	s.inherit(heir)
}

// lookAtLingering does so if the last look was a while ago.
func (s *session) lookAtLingering() {
	if now := time.Now(); now.Sub(s.lookedAt) >= lingerEvery {
		s.lookedAt = now
		s.endLingeringIfQuiet()
	}
}

// resume gives the guest a primary context back that it has released and that cannot go yet: the
// driver has but one.
func (s *session) resume(ctx *context_) bool {
	if ctx == nil || len(s.lingering) == 0 {
		return false
	}
	s.endLingeringIfQuiet()
	i := slices.IndexFunc(s.lingering, func(l lingering) bool { return l.ctx == ctx })
	if i < 0 {
		return false
	}
	ctx.handle = s.lingering[i].handle
	s.lingering = slices.Delete(s.lingering, i, i+1)
	return true
}

// quiet reports whether the GPU has nothing to do for the session, as far as the driver says
// without waiting. While a stream captures it is not asked, which would end the capture.
func (s *session) quiet() bool {
	if s.capturing() || !s.submitters.empty() {
		return false
	}
	for st := range s.everyStream() {
		if !s.finished(st) {
			return false
		}
	}
	return true
}

// finished reports whether a stream's work is done, or never will be.
func (s *session) finished(st *stream) bool {
	if !st.busy() {
		return true
	}
	if ctx, ok := s.ctxs.get(st.ctx); !ok || ctx.handle.IsZero() || s.useContext(st.ctx) != cuda.Success {
		return true // it went with its context
	}
	if s.drv.StreamQuery(st.handle) == cuda.ErrorNotReady {
		return false
	}
	st.done = st.submitted
	return true
}

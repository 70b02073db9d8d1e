package cuda

import (
	"encoding/binary"
	"math"
	"runtime"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

const (
	// promptBytes is the largest copy out of pinned memory whose bytes are taken at once if nothing
	// that may write them is under way: the driver hands so few to the GPU with its commands, which
	// then need not be fetched from this memory.
	promptBytes = 4096
	// takenBytes is the largest copy whose bytes the driver's asynchronous call may take from
	// pinned memory before it returns.
	takenBytes = 64 << 10
)

// MemcpyWait copies between addresses that the GPU reaches and answers when the bytes are there.
func (s *session) MemcpyWait(c *wire.Call, a *wire.MemcpyWaitArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	up, down := s.space.IsPinned(a.Src), s.space.IsPinned(a.Dst)
	behind := up && !down && a.Size <= takenBytes && s.busyBefore(st)
	idle := !behind && up && !down && !st.busy()
	st, dst, src, res := s.copyOperands(c, a.Stream, a.Dst, a.Src, a.Size)
	if res != cuda.Success {
		return res
	}
	switch {
	case behind:
		return s.copyAfterAll(c, st, dst, src)
	case idle && a.Size <= promptBytes && !s.capturing():
		b, _ := s.ordinary(a.Size)
		here, _ := s.space.HostOf(src)
		copy(b.Bytes(), here.Bytes())
		res = s.drv.MemcpyHtoDAsync(dst, b, st.handle)
	default:
		move := s.drv.MemcpyAsync(dst, src, st.handle)
		res = move.Do()
	}
	if s.note(res) != cuda.Success {
		return res
	}
	if s.printing {
		return s.blockOn(c, func() cuda.Result { return s.drv.StreamSynchronize(st.handle) }, st.handle)
	}
	if down && !up {
		return s.answerBehindCopy(c, st)
	}
	return s.answerBehind(c, st)
}

// busyBefore reports whether other streams may have work that a stream waits for.
func (s *session) busyBefore(st *stream) bool {
	switch {
	case st.handle == bind.StreamLegacy:
		return s.anyBusy(st.ctx, func(o *stream) bool { return !o.nonBlocking })
	case st.nonBlocking:
		return false
	}
	legacy := s.legacy[st.ctx]
	return legacy != nil && s.busy(legacy)
}

// copyAfterAll copies a few bytes out of pinned memory when the work that a stream waits for is
// done, on a thread of its own. The driver's asynchronous copy takes so few bytes at the call if
// its own stream is idle, whatever other streams still write there (driver 580, up to 8 KiB at
// least); its synchronous one waits for them.
func (s *session) copyAfterAll(c *wire.Call, st *stream, dst, src bind.Mem) cuda.Result {
	p, ctx, handle := c.Later(), s.handleOf(st.ctx), st.handle
	move := s.drv.MemcpyAsync(dst, src, handle)
	if s.after.IsZero() {
		s.after = bind.NewBuffer(4) // for the session's life: streams remember it
	}
	ended, n := s.afterWord(), uint32(0)
	if ended.load() == s.afters {
		// No other is under way, which this one's end would say nothing of.
		s.afters++
		n = s.afters
		s.marks(st, ended, n)
	}
	leave := s.users.enter(ctx, handle)
	s.watch.group.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		s.relaxThread()
		res := s.drv.CtxSetCurrent(ctx)
		if res == cuda.Success {
			res = s.drv.StreamSynchronize(bind.StreamLegacy)
		}
		if res == cuda.Success {
			res = move.Do()
		}
		if res == cuda.Success {
			res = s.drv.StreamSynchronize(handle)
		}
		leave()
		s.note(res)
		s.drainConsole()
		if n != 0 {
			ended.store(n)
		}
		p.Done(res, nil)
	})
	return cuda.Success
}

// Copies from the GPU are answered by a copy too, from a table in device memory: the engine that
// brought the bytes brings the answer, where a stream memory operation would be another engine's,
// which waits for this one. Each slot has a table, of the next answers that it may get; it is
// written anew when they are used up, in the stream of the answer that wants it: earlier ones have
// come by then.
const (
	answersBytes = 16 << 10
	answersCount = answersBytes / 4
	answersFrom  = 8 // answers before a slot gets its table
)

// answers is a slot's table in a context.
type answers struct {
	table bind.Mem
	first uint32 // the answer that it begins with
	count int    // waits so far
}

// answerBehindCopy is answerBehind for a wait behind a copy from the GPU.
func (s *session) answerBehindCopy(c *wire.Call, st *stream) cuda.Result {
	p := c.Later()
	addr, seq, ok := p.GPUDone()
	if !ok {
		return s.answerBehind(c, st)
	}
	slot, ok := s.regions[0].HostAt(addr, 4)
	if !ok {
		return s.answerBehind(c, st)
	}
	from, ok := s.answerAt(c.Slot, seq, st)
	if !ok {
		return s.answerBehind(c, st)
	}
	if res := s.note(s.drv.MemcpyDtoHAsync(slot, from, st.handle)); res != cuda.Success {
		p.Done(res, nil)
		return cuda.Success
	}
	s.marks(st, word(addr), seq)
	s.watch.add(&wait{pending: p, direct: true, word: word(addr), seq: seq, ctx: s.handleOf(st.ctx), stream: st.handle})
	return cuda.Success
}

// answerAt is where in device memory an answer of a slot stands, false if it does nowhere. The
// stream's context is current.
func (s *session) answerAt(slot, seq uint32, st *stream) (bind.Mem, bool) {
	ctx, ok := s.ctxs.get(st.ctx)
	if !ok || slot >= wire.SlotCount {
		return bind.Mem{}, false
	}
	a, at := &ctx.answers[slot], seq%answersCount
	if a.count++; a.count < answersFrom || s.capturing() {
		return bind.Mem{}, false
	}
	if a.table.IsZero() {
		table, res := s.drv.MemAlloc(answersBytes)
		if res != cuda.Success {
			a.count = math.MinInt32 // the GPU is full: answers come as before
			return bind.Mem{}, false
		}
		a.table, a.first = table, seq-at+1
	}
	if a.first != seq-at {
		b, _ := s.ordinary(answersBytes)
		for i := range uint32(answersCount) {
			binary.LittleEndian.PutUint32(b.Bytes()[4*i:], seq-at+i)
		}
		if s.note(s.drv.MemcpyHtoDAsync(a.table, b, st.handle)) != cuda.Success {
			return bind.Mem{}, false
		}
		a.first = seq - at
	}
	return a.table.Slice(4*uint64(at), 4)
}

// ordinary is so many bytes of C memory that the driver does not know: what is copied from it the
// driver has taken when its call returns. false: more than a record can hold.
func (s *session) ordinary(size uint64) (bind.Host, bool) {
	if s.inline.IsZero() {
		s.inline = bind.NewBuffer(wire.MaxRecord)
	}
	return s.inline.Host().Slice(0, size)
}

// afterWord is the word that counts copies of copyAfterAll.
func (s *session) afterWord() word { return wordIn(s.after.Bytes()) }

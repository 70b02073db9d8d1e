package cuda

import (
	"encoding/binary"
	"math"
	"runtime"

	"causeway/cuda"
	"causeway/cuda/wire"
)

const (
	// promptBytes is the largest copy out of pinned memory whose bytes are taken at once if nothing that may write them is under way: the
	// driver hands so few to the GPU with its commands, which then need not be fetched from this memory.
	promptBytes = 4096
	// takenBytes is the largest copy whose bytes the driver's asynchronous call may take from pinned memory before it returns.
	takenBytes = 64 << 10
)

// MemcpyWait copies between addresses that the GPU reaches and answers when the bytes are there.
func (s *session) MemcpyWait(c *wire.Call, a *wire.MemcpyWaitArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	up, down := s.pinnedAt(a.Src) != nil, s.pinnedAt(a.Dst) != nil
	behind := up && !down && a.Size <= takenBytes && s.busyBefore(st)
	idle := !behind && up && !down && !st.busy()
	if st, res = s.copyStream(c, a.Stream, a.Dst, a.Src, a.Size); res != cuda.Success {
		return res
	}
	switch {
	case behind:
		return s.copyAfterAll(c, st, a)
	case idle && a.Size <= promptBytes && !s.capturing():
		b := s.ordinary()
		copy(b.bytes(), hostBytes(a.Src, int(a.Size)))
		res = s.fn.cuMemcpyHtoDAsync_v2.call(a.Dst, b.addr(), a.Size, st.handle)
	default:
		res = s.fn.cuMemcpyAsync.call(a.Dst, a.Src, a.Size, st.handle)
	}
	if s.note(res) != cuda.Success {
		return res
	}
	if s.printing {
		return s.blockOn(c, s.fn.cuStreamSynchronize, st.handle)
	}
	if down && !up {
		return s.answerBehindCopy(c, st)
	}
	return s.answerBehind(c, st)
}

// busyBefore reports whether other streams may have work that a stream waits for.
func (s *session) busyBefore(st *stream) bool {
	switch {
	case st.handle == streamLegacy:
		return s.anyBusy(st.ctx, func(o *stream) bool { return !o.nonBlocking })
	case st.nonBlocking:
		return false
	}
	legacy := s.legacy[st.ctx]
	return legacy != nil && s.busy(legacy)
}

// copyAfterAll copies a few bytes out of pinned memory when the work that a stream waits for is done, on a thread of its own.
// The driver's asynchronous copy takes so few bytes at the call if its own stream is idle, whatever other streams still write there (driver
// 580, up to 8 KiB at least); its synchronous one waits for them.
func (s *session) copyAfterAll(c *wire.Call, st *stream, a *wire.MemcpyWaitArgs) cuda.Result {
	p, ctx, handle, args := c.Later(), s.handleOf(st.ctx), st.handle, *a
	if s.after.p == nil {
		s.after = newBuffer(4) // for the session's life: streams remember it
	}
	ended, n := word(s.after.addr()), uint32(0)
	if ended.load() == s.afters { // no other is under way, which this one's end would say nothing of
		s.afters++
		n = s.afters
		s.marks(st, ended, n)
	}
	s.watch.group.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		s.relaxThread()
		res := s.fn.cuCtxSetCurrent.call(ctx)
		if res == cuda.Success {
			res = s.fn.cuStreamSynchronize.call(streamLegacy)
		}
		if res == cuda.Success {
			res = s.fn.cuMemcpyAsync.call(args.Dst, args.Src, args.Size, handle)
		}
		if res == cuda.Success {
			res = s.fn.cuStreamSynchronize.call(handle)
		}
		s.note(res)
		s.drainConsole()
		if n != 0 {
			ended.store(n)
		}
		p.Done(res, nil)
	})
	return cuda.Success
}

// Copies from the GPU are answered by a copy too, from a table in device memory: the engine that brought the bytes brings the answer,
// where a stream memory operation would be another engine's, which waits for this one. Each slot has a table, of the next answers that it
// may get; it is written anew when they are used up, in the stream of the answer that wants it: earlier ones have come by then.
const (
	answersBytes = 16 << 10
	answersCount = answersBytes / 4
	answersFrom  = 8 // answers before a slot gets its table
)

// answers is a slot's table in a context.
type answers struct {
	table uint64 // device address, 0: none
	first uint32 // the answer that it begins with
	count int    // waits so far
}

// answerBehindCopy is answerBehind for a wait behind a copy from the GPU.
func (s *session) answerBehindCopy(c *wire.Call, st *stream) cuda.Result {
	p := c.Later()
	addr, seq, ok := p.GPUDone()
	if !ok || s.regions[0].addr == 0 {
		return s.answerBehind(c, st)
	}
	from := s.answerAt(c.Slot, seq, st)
	if from == 0 {
		return s.answerBehind(c, st)
	}
	if res := s.note(s.fn.cuMemcpyDtoHAsync_v2.call(uint64(addr), from, 4, st.handle)); res != cuda.Success {
		p.Done(res, nil)
		return cuda.Success
	}
	s.marks(st, word(addr), seq)
	s.watch.add(&wait{pending: p, direct: true, word: word(addr), seq: seq, ctx: s.handleOf(st.ctx), stream: st.handle})
	return cuda.Success
}

// answerAt is where in device memory an answer of a slot stands, 0 if it does nowhere. The stream's context is current.
func (s *session) answerAt(slot, seq uint32, st *stream) uint64 {
	ctx, ok := s.ctxs.get(st.ctx)
	if !ok || slot >= wire.SlotCount {
		return 0
	}
	a, at := &ctx.answers[slot], seq%answersCount
	if a.count++; a.count < answersFrom || s.capturing() {
		return 0
	}
	if a.table == 0 {
		if s.fn.cuMemAlloc_v2.call(s.out.addr(), answersBytes) != cuda.Success {
			a.count = math.MinInt32 // the GPU is full: answers come as before
			return 0
		}
		a.table, a.first = *s.out.u64(0), seq-at+1
	}
	if a.first != seq-at {
		b := s.ordinary()
		for i := range uint32(answersCount) {
			binary.LittleEndian.PutUint32(b.bytes()[4*i:], seq-at+i)
		}
		if s.note(s.fn.cuMemcpyHtoDAsync_v2.call(a.table, b.addr(), answersBytes, st.handle)) != cuda.Success {
			return 0
		}
		a.first = seq - at
	}
	return a.table + 4*uint64(at)
}

// ordinary is C memory that the driver does not know: what is copied from it the driver has taken when its call returns.
func (s *session) ordinary() buffer {
	if s.inline.p == nil {
		s.inline = newBuffer(wire.MaxRecord)
	}
	return s.inline
}

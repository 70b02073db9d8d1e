package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

// gate is the session as the worker sees it: in front of the operations that a capture may forbid stands the question
// whether one does. Without a capture it costs a load.
type gate struct{ *session }

// MemAlloc implements wire.Driver.
func (g gate) MemAlloc(c *wire.Call, a *wire.MemAllocArgs, r *wire.MemAllocReply) cuda.Result {
	defer g.guard(c)()
	return g.session.MemAlloc(c, a, r)
}

// MemAllocPitch implements wire.Driver.
func (g gate) MemAllocPitch(c *wire.Call, a *wire.MemAllocPitchArgs, r *wire.MemAllocPitchReply) cuda.Result {
	defer g.guard(c)()
	return g.session.MemAllocPitch(c, a, r)
}

// MemFree implements wire.Driver.
func (g gate) MemFree(c *wire.Call, a *wire.MemFreeArgs) cuda.Result {
	defer g.guard(c)()
	if _, ok := g.graphAllocs[a.Ptr]; ok {
		if res := g.use(c); res != cuda.Success {
			return res
		}
		return g.note(g.fn.cuMemFree_v2.call(a.Ptr))
	}
	return g.session.MemFree(c, a)
}

// RegionAdd implements wire.Driver: pinned memory is registered with the driver.
func (g gate) RegionAdd(c *wire.Call, a *wire.RegionAddArgs, r *wire.RegionAddReply) cuda.Result {
	if a.Kind == wire.RegionPinned {
		defer g.guard(c)()
	}
	return g.session.RegionAdd(c, a, r)
}

// EventQuery implements wire.Driver.
func (g gate) EventQuery(c *wire.Call, a *wire.EventQueryArgs) cuda.Result {
	defer g.guard(c)()
	return g.session.EventQuery(c, a)
}

// StreamQuery implements wire.Driver.
func (g gate) StreamQuery(c *wire.Call, a *wire.StreamQueryArgs) cuda.Result {
	defer g.guard(c)()
	return g.session.StreamQuery(c, a)
}

// StreamSynchronize implements wire.Driver.
func (g gate) StreamSynchronize(c *wire.Call, a *wire.StreamSynchronizeArgs) cuda.Result {
	if res := g.mayWait(c, a.Stream); res != cuda.Success {
		return res
	}
	return g.session.StreamSynchronize(c, a)
}

// mayWait is checkCapture for an operation's stream.
func (g gate) mayWait(c *wire.Call, id uint32) cuda.Result {
	if !g.capturing() {
		return cuda.Success
	}
	st, res := g.stream(c, id)
	if res != cuda.Success {
		return res
	}
	return g.checkCapture(c, st)
}

// EventSynchronize implements wire.Driver.
func (g gate) EventSynchronize(c *wire.Call, a *wire.EventSynchronizeArgs) cuda.Result {
	if e, ok := g.events.get(a.Event); ok && g.capturing() && g.prohibited(c) {
		defer g.guard(c)()
		return g.note(g.fn.cuEventSynchronize.call(e.handle))
	}
	return g.session.EventSynchronize(c, a)
}

// CtxSynchronize implements wire.Driver. A thread of its own asks, in relaxed mode, unless the guest's thread must be
// refused.
func (g gate) CtxSynchronize(c *wire.Call) cuda.Result {
	if !g.capturing() {
		return g.session.CtxSynchronize(c)
	}
	if res := g.use(c); res != cuda.Success {
		return res
	}
	if g.prohibited(c) {
		defer g.guard(c)()
		return g.note(g.fn.cuCtxSynchronize.call())
	}
	return g.blockOn(c, g.fn.cuCtxSynchronize)
}

// transient refuses a copy through memory of the worker on a stream that captures: a replay would find something else there.
func (g gate) transient(c *wire.Call, id uint32) cuda.Result {
	if !g.capturing() {
		return cuda.Success
	}
	st, res := g.stream(c, id)
	if res == cuda.Success && g.inCapture(st) {
		return cuda.ErrorStreamCaptureUnsupported
	}
	return res
}

// MemcpyHtoD implements wire.Driver.
func (g gate) MemcpyHtoD(c *wire.Call, a *wire.MemcpyHtoDArgs) cuda.Result {
	if res := g.transient(c, a.Stream); res != cuda.Success {
		return res
	}
	return g.session.MemcpyHtoD(c, a)
}

// MemcpyDtoH implements wire.Driver.
func (g gate) MemcpyDtoH(c *wire.Call, a *wire.MemcpyDtoHArgs, r *wire.MemcpyDtoHReply) cuda.Result {
	if res := g.transient(c, a.Stream); res != cuda.Success {
		return res
	}
	return g.session.MemcpyDtoH(c, a, r)
}

// MemcpyStaged implements wire.Driver.
func (g gate) MemcpyStaged(c *wire.Call, a *wire.MemcpyStagedArgs) cuda.Result {
	if res := g.transient(c, a.Stream); res != cuda.Success {
		g.complete(a.Word, a.Value)
		return res
	}
	return g.session.MemcpyStaged(c, a)
}

// Memcpy3D implements wire.Driver.
func (g gate) Memcpy3D(c *wire.Call, a *wire.Memcpy3DArgs) cuda.Result {
	if a.SrcKind != 0 || a.DstKind != 0 || a.Word != 0 {
		if res := g.transient(c, a.Stream); res != cuda.Success {
			g.complete(a.Word, a.Value)
			return res
		}
	}
	return g.session.Memcpy3D(c, a)
}

// complete stores a completion word for a copy that is not made.
func (g gate) complete(word, value uint32) {
	if word != 0 && word < wire.WordCount {
		g.host.CompleteWord(word, value)
	}
}

// StreamDestroy implements wire.Driver.
func (g gate) StreamDestroy(c *wire.Call, a *wire.StreamDestroyArgs) cuda.Result {
	st, ok := g.streams.get(a.Stream)
	res := g.session.StreamDestroy(c, a)
	if ok && g.capturing() {
		if x := g.captureOf(st); x != nil {
			g.captureEnded(x)
		}
	}
	return res
}

// MemcpyWait implements wire.Driver.
func (g gate) MemcpyWait(c *wire.Call, a *wire.MemcpyWaitArgs) cuda.Result {
	if g.capturing() {
		if res := g.StreamCaptureCheck(c, &wire.StreamCaptureCheckArgs{Stream: a.Stream}); res != cuda.Success {
			return res
		}
	}
	return g.session.MemcpyWait(c, a)
}

// MemAllocAsync implements wire.Driver: captured, the memory is the graph's.
func (g gate) MemAllocAsync(c *wire.Call, a *wire.MemAllocAsyncArgs, r *wire.MemAllocAsyncReply) cuda.Result {
	res := g.session.MemAllocAsync(c, a, r)
	if res == cuda.Success {
		g.claimCaptured(c, a.Stream, r.Ptr)
	}
	return res
}

// MemAllocFromPool implements wire.Driver.
func (g gate) MemAllocFromPool(c *wire.Call, a *wire.MemAllocFromPoolArgs, r *wire.MemAllocFromPoolReply) cuda.Result {
	res := g.session.MemAllocFromPool(c, a, r)
	if res == cuda.Success {
		g.claimCaptured(c, a.Stream, r.Ptr)
	}
	return res
}

// claimCaptured moves an allocation to those of graphs if its stream captures.
func (g gate) claimCaptured(c *wire.Call, id uint32, ptr uint64) {
	if !g.capturing() {
		return
	}
	if st, res := g.stream(c, id); res == cuda.Success && g.inCapture(st) {
		m := g.allocs[ptr]
		g.noteGraphAlloc(ptr, m.size)
		g.pooling.graphs += m.size
		delete(g.allocs, ptr)
		g.pooling.live -= min(g.pooling.live, m.size)
	}
}

// MemFreeAsync implements wire.Driver. Memory of a graph comes again with its next launch.
func (g gate) MemFreeAsync(c *wire.Call, a *wire.MemFreeAsyncArgs) cuda.Result {
	if _, ok := g.graphAllocs[a.Ptr]; !ok {
		return g.session.MemFreeAsync(c, a)
	}
	st, res := g.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	return g.note(g.fn.cuMemFreeAsync.call(a.Ptr, st.handle))
}

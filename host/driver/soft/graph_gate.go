package soft

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// gate is the session as the worker sees it: operations on a stream that captures become nodes, and calls that a capture
// forbids are refused. What it does not know cannot be captured: stream refuses it.
type gate struct{ *session }

// stream finds the stream that an operation names, if its context works and no capture forbids it.
func (s *session) stream(c *wire.Call, id wire.Stream) (*stream, cuda.Result) {
	st, res := s.findStream(c, id)
	if res == cuda.Success && s.capturing() {
		res = s.admit(st)
	}
	return st, res
}

// Launch implements wire.Driver.
func (g gate) Launch(c *wire.Call, a *wire.LaunchArgs) cuda.Result {
	n, done, res := g.capturedOp(c, a.Stream, wire.NodeKernel, func() []byte {
		v := wire.KernelNode{Func: a.Func, Gx: a.Gx, Gy: a.Gy, Gz: a.Gz, Bx: a.Bx, By: a.By, Bz: a.Bz, Shared: a.Shared,
			Size: uint32(len(a.Params))}
		return append(v.Append(nil), a.Params...)
	})
	if !done {
		return g.session.Launch(c, a)
	}
	if res != cuda.Success || len(a.Attrs) == 0 && a.Flags&wire.LaunchCooperative == 0 {
		return res
	}
	n.attrs = map[uint32][]byte{}
	for b := a.Attrs; len(b) >= attributeSize; b = b[attributeSize:] {
		n.attrs[binary.LittleEndian.Uint32(b)] = append([]byte(nil), b[8:attributeSize]...)
	}
	if a.Flags&wire.LaunchCooperative != 0 {
		n.attrs[cuda.LaunchAttrCooperative] = binary.LittleEndian.AppendUint64(nil, 1)
		n.attrs[cuda.LaunchAttrCooperative] = append(n.attrs[cuda.LaunchAttrCooperative], make([]byte, attributeSize-16)...)
	}
	return g.prepare(c, n, wire.NodeKernel, n.params)
}

// sides are the parameters of a copy node between two addresses.
func sides(dst, src wire.MemcpySide, width, height, depth uint64) []byte {
	const memoryTypeUnified = 4
	dst.Type, src.Type = memoryTypeUnified, memoryTypeUnified
	b := dst.Append(src.Append(nil))
	return (&wire.MemcpyNode{Width: width, Height: height, Depth: depth}).Append(b)
}

// Memcpy implements wire.Driver.
func (g gate) Memcpy(c *wire.Call, a *wire.MemcpyArgs) cuda.Result {
	_, done, res := g.capturedOp(c, a.Stream, wire.NodeMemcpy, func() []byte {
		return sides(wire.MemcpySide{Ptr: a.Dst, Pitch: a.Size}, wire.MemcpySide{Ptr: a.Src, Pitch: a.Size}, a.Size, 1, 1)
	})
	if done {
		return res
	}
	return g.session.Memcpy(c, a)
}

// MemcpyBatch implements wire.Driver: any order of the copies will do, so theirs does.
func (g gate) MemcpyBatch(c *wire.Call, a *wire.MemcpyBatchArgs) cuda.Result {
	if len(a.Pieces)%wire.MemcpyBatchPiece != 0 {
		return cuda.ErrorInvalidValue
	}
	for p := a.Pieces; len(p) > 0; p = p[wire.MemcpyBatchPiece:] {
		word := binary.LittleEndian.Uint64
		if res := g.Memcpy(c, &wire.MemcpyArgs{Dst: word(p), Src: word(p[8:]), Size: word(p[16:]), Stream: a.Stream}); res != cuda.Success {
			return res
		}
	}
	return cuda.Success
}

// Memcpy3D implements wire.Driver.
func (g gate) Memcpy3D(c *wire.Call, a *wire.Memcpy3DArgs) cuda.Result {
	if a.SrcKind != sideAddress || a.DstKind != sideAddress || a.Word != 0 {
		return g.session.Memcpy3D(c, a)
	}
	_, done, res := g.capturedOp(c, a.Stream, wire.NodeMemcpy, func() []byte {
		return sides(wire.MemcpySide{Ptr: a.Dst, Pitch: a.DstPitch, Height: a.DstHeight, X: a.DstX, Y: a.DstY, Z: a.DstZ},
			wire.MemcpySide{Ptr: a.Src, Pitch: a.SrcPitch, Height: a.SrcHeight, X: a.SrcX, Y: a.SrcY, Z: a.SrcZ},
			a.Width, a.Height, a.Depth)
	})
	if done {
		return res
	}
	return g.session.Memcpy3D(c, a)
}

// Memset implements wire.Driver.
func (g gate) Memset(c *wire.Call, a *wire.MemsetArgs) cuda.Result {
	_, done, res := g.capturedOp(c, a.Stream, wire.NodeMemset, func() []byte {
		return (&wire.MemsetNode{Dst: a.Dst, Pitch: a.Pitch, Value: a.Value, Element: a.Element, Width: a.Width, Height: a.Height}).Append(nil)
	})
	if done {
		return res
	}
	return g.session.Memset(c, a)
}

// LaunchHostFunc implements wire.Driver.
func (g gate) LaunchHostFunc(c *wire.Call, a *wire.LaunchHostFuncArgs) cuda.Result {
	if a.Status == 0 {
		_, done, res := g.capturedOp(c, a.Stream, wire.NodeHost, func() []byte { return (&wire.HostNode{ID: a.ID}).Append(nil) })
		if done {
			return res
		}
	}
	return g.session.LaunchHostFunc(c, a)
}

// memOp is a CUstreamBatchMemOpParams behind the head of a node with one.
func memOp(op uint32, addr, value uint64, flags uint32) []byte {
	b := (&wire.BatchNode{Count: 1}).Append(nil)
	b = binary.LittleEndian.AppendUint64(b, uint64(op))
	b = binary.LittleEndian.AppendUint64(b, addr)
	b = binary.LittleEndian.AppendUint64(b, value)
	b = binary.LittleEndian.AppendUint64(b, uint64(flags))
	return append(b, make([]byte, 16)...)
}

// StreamWriteValue implements wire.Driver.
func (g gate) StreamWriteValue(c *wire.Call, a *wire.StreamWriteValueArgs) cuda.Result {
	_, done, res := g.capturedOp(c, a.Stream, wire.NodeBatchMemOp, func() []byte {
		return memOp(2+3*(a.Width/8), a.Addr, a.Value, a.Flags)
	})
	if done {
		return res
	}
	return g.session.StreamWriteValue(c, a)
}

// StreamWaitValue implements wire.Driver.
func (g gate) StreamWaitValue(c *wire.Call, a *wire.StreamWaitValueArgs) cuda.Result {
	_, done, res := g.capturedOp(c, a.Stream, wire.NodeBatchMemOp, func() []byte {
		return memOp(1+3*(a.Width/8), a.Addr, a.Value, a.Flags)
	})
	if done {
		return res
	}
	return g.session.StreamWaitValue(c, a)
}

// EventRecord implements wire.Driver.
func (g gate) EventRecord(c *wire.Call, a *wire.EventRecordArgs) cuda.Result {
	e := g.events[a.Event]
	if e == nil {
		return cuda.ErrorInvalidHandle
	}
	delete(g.marks, e)
	if !g.capturing() {
		return g.session.EventRecord(c, a)
	}
	if a.Flags&cuda.EventRecordExternal != 0 {
		_, done, res := g.capturedOp(c, a.Stream, wire.NodeEventRecord, func() []byte { return (&wire.EventNode{Event: a.Event}).Append(nil) })
		if done {
			return res
		}
		return cuda.ErrorIllegalState
	}
	st, res := g.findStream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	x := g.captureOf(st)
	switch {
	case x == nil:
		return g.session.EventRecord(c, a)
	case x.invalid:
		return cuda.ErrorStreamCaptureInvalidated
	}
	if g.marks == nil {
		g.marks = map[*event]*captureMark{}
	}
	g.marks[e] = &captureMark{x, x.streams[st]}
	return cuda.Success
}

// StreamWaitEvent implements wire.Driver. Waiting for an event of a capture makes a stream part of it.
func (g gate) StreamWaitEvent(c *wire.Call, a *wire.StreamWaitEventArgs) cuda.Result {
	if !g.capturing() {
		return g.session.StreamWaitEvent(c, a)
	}
	st, res := g.findStream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	e := g.events[a.Event]
	if e == nil {
		return cuda.ErrorInvalidHandle
	}
	x, m := g.captureOf(st), g.marks[e]
	if x != nil && a.Flags&cuda.EventWaitExternal != 0 {
		_, _, res := g.capturedOp(c, a.Stream, wire.NodeWaitEvent, func() []byte { return (&wire.EventNode{Event: a.Event}).Append(nil) })
		return res
	}
	switch {
	case x == nil && m == nil:
		return g.session.StreamWaitEvent(c, a)
	case x != nil && x.invalid:
		return cuda.ErrorStreamCaptureInvalidated
	case m == nil && e.mark == nil:
		return cuda.Success
	case m == nil:
		return invalidate(x, cuda.ErrorStreamCaptureIsolation)
	case m.capture.invalid:
		return cuda.ErrorStreamCaptureInvalidated
	case x == nil && st == st.ctx.legacy:
		return invalidate(m.capture, cuda.ErrorStreamCaptureImplicit)
	case x != nil && x != m.capture:
		invalidate(x, cuda.Success)
		return invalidate(m.capture, cuda.ErrorStreamCaptureMerge)
	}
	m.capture.streams[st] = union(m.capture.streams[st], m.before)
	return cuda.Success
}

// marked refuses questions about an event that was recorded in a capture.
func (g gate) marked(id wire.ID) cuda.Result {
	if m := g.marks[g.events[id]]; m != nil {
		invalidate(m.capture, cuda.Success)
		return cuda.ErrorCapturedEvent
	}
	return cuda.Success
}

// EventQuery implements wire.Driver.
func (g gate) EventQuery(c *wire.Call, a *wire.EventQueryArgs) cuda.Result {
	if g.capturing() {
		if res := g.marked(a.Event); res != cuda.Success {
			return res
		}
		if res := g.forbidden(c); res != cuda.Success {
			return res
		}
	}
	return g.session.EventQuery(c, a)
}

// EventSynchronize implements wire.Driver.
func (g gate) EventSynchronize(c *wire.Call, a *wire.EventSynchronizeArgs) cuda.Result {
	if g.capturing() {
		if res := g.marked(a.Event); res != cuda.Success {
			return res
		}
		if res := g.forbidden(c); res != cuda.Success {
			return res
		}
	}
	return g.session.EventSynchronize(c, a)
}

// EventDestroy implements wire.Driver.
func (g gate) EventDestroy(c *wire.Call, a *wire.EventDestroyArgs) cuda.Result {
	delete(g.marks, g.events[a.Event])
	return g.session.EventDestroy(c, a)
}

// awaitable judges a question about the end of a stream's work: that the legacy stream waits for a capturing one is found before
// that the call is forbidden while capturing (seen on driver 580).
func (g gate) awaitable(c *wire.Call, stream wire.Stream) cuda.Result {
	if st, res := g.findStream(c, stream); res == cuda.Success && g.captureOf(st) == nil && len(g.implicit(st)) > 0 {
		return g.admit(st)
	}
	return g.forbidden(c)
}

// StreamSynchronize implements wire.Driver.
func (g gate) StreamSynchronize(c *wire.Call, a *wire.StreamSynchronizeArgs) cuda.Result {
	if res := g.awaitable(c, a.Stream); res != cuda.Success {
		return res
	}
	return g.session.StreamSynchronize(c, a)
}

// StreamQuery implements wire.Driver.
func (g gate) StreamQuery(c *wire.Call, a *wire.StreamQueryArgs) cuda.Result {
	if res := g.awaitable(c, a.Stream); res != cuda.Success {
		return res
	}
	return g.session.StreamQuery(c, a)
}

// CtxSynchronize implements wire.Driver: never while one of the context's streams captures.
func (g gate) CtxSynchronize(c *wire.Call) cuda.Result {
	res := cuda.Success
	for _, x := range g.captures {
		if x.origin.ctx.id == c.Ctx {
			x.invalid = true
			res = cuda.ErrorStreamCaptureUnsupported
		}
	}
	if res != cuda.Success {
		return res
	}
	return g.session.CtxSynchronize(c)
}

// MemAlloc implements wire.Driver.
func (g gate) MemAlloc(c *wire.Call, a *wire.MemAllocArgs, r *wire.MemAllocReply) cuda.Result {
	if res := g.forbidden(c); res != cuda.Success {
		return res
	}
	return g.session.MemAlloc(c, a, r)
}

// MemAllocPitch implements wire.Driver.
func (g gate) MemAllocPitch(c *wire.Call, a *wire.MemAllocPitchArgs, r *wire.MemAllocPitchReply) cuda.Result {
	if res := g.forbidden(c); res != cuda.Success {
		return res
	}
	return g.session.MemAllocPitch(c, a, r)
}

// MemFree implements wire.Driver. Memory of a graph comes again with its next launch.
func (g gate) MemFree(c *wire.Call, a *wire.MemFreeArgs) cuda.Result {
	if res := g.forbidden(c); res != cuda.Success {
		return res
	}
	if m := g.graphMem[a.Ptr]; m != nil {
		return m.release()
	}
	return g.session.MemFree(c, a)
}

// MemAllocAsync implements wire.Driver.
func (g gate) MemAllocAsync(c *wire.Call, a *wire.MemAllocAsyncArgs, r *wire.MemAllocAsyncReply) cuda.Result {
	n, done, res := g.capturedOp(c, a.Stream, wire.NodeMemAlloc, func() []byte {
		return append((&wire.AllocNode{Size: a.Size}).Append(nil), make([]byte, 88)...)
	})
	if !done {
		return g.session.MemAllocAsync(c, a, r)
	}
	if res == cuda.Success {
		r.Ptr = n.work.alloc.mem.lo
	}
	return res
}

// MemFreeAsync implements wire.Driver.
func (g gate) MemFreeAsync(c *wire.Call, a *wire.MemFreeAsyncArgs) cuda.Result {
	_, done, res := g.capturedOp(c, a.Stream, wire.NodeMemFree, func() []byte { return (&wire.FreeNode{Ptr: a.Ptr}).Append(nil) })
	if done {
		return res
	}
	m := g.graphMem[a.Ptr]
	if m == nil {
		return g.session.MemFreeAsync(c, a)
	}
	st, res := g.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	return g.do(st, 0, m.release)
}

// GraphLaunch implements wire.Driver: captured, it is a child graph.
func (g gate) GraphLaunch(c *wire.Call, a *wire.GraphLaunchArgs) cuda.Result {
	if g.capturing() {
		st, res := g.findStream(c, a.Stream)
		if res != cuda.Success {
			return res
		}
		if x := g.captureOf(st); x != nil {
			// an executable graph is no longer the graph that it was made of
			return invalidate(x, cuda.ErrorNotSupported)
		}
	}
	return g.session.GraphLaunch(c, a)
}

// StreamDestroy implements wire.Driver.
func (g gate) StreamDestroy(c *wire.Call, a *wire.StreamDestroyArgs) cuda.Result {
	if st := g.streams[a.Stream]; st != nil && g.capturing() {
		if x := g.captureOf(st); x != nil {
			x.invalid = true
		}
	}
	return g.session.StreamDestroy(c, a)
}

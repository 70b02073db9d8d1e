package soft

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// Admit implements wire.Admitter: operations on a stream that captures become nodes, and calls that
// a capture forbids are refused. What is not known here cannot be captured: stream refuses it.
func (s *session) Admit(c *wire.Call, a wire.Args, r wire.Reply) (done bool, res cuda.Result) {
	if !s.capturing() {
		return false, cuda.Success
	}
	switch c.Op.Info().Capture {
	case wire.CaptureUnsafe, wire.CaptureWait:
		res = s.admitQuestion(c, a)
	case wire.CaptureNode:
		args := a
		switch a := a.(type) {
		case *wire.EventRecordArgs:
			return s.admitRecord(c, a)
		case *wire.StreamWaitEventArgs:
			return s.admitWait(c, a)
		case wire.Streamed:
			return s.admitWork(c, a.OnStream(), args, r)
		}
	}
	return res != cuda.Success, res
}

// stream finds the stream that an operation names, if its context works and no capture forbids it.
func (s *session) stream(c *wire.Call, id wire.Stream) (*stream, cuda.Result) {
	st, res := s.findStream(c, id)
	if res == cuda.Success && s.capturing() {
		res = s.admit(st)
	}
	return st, res
}

// admitQuestion judges potentially unsafe calls and waits. That a question concerns a capture is
// found before that it is forbidden while capturing (seen on driver 580).
func (s *session) admitQuestion(c *wire.Call, a wire.Args) cuda.Result {
	switch a := a.(type) {
	case *wire.EventQueryArgs:
		if res := s.marked(a.Event); res != cuda.Success {
			return res
		}
	case *wire.EventSynchronizeArgs:
		if res := s.marked(a.Event); res != cuda.Success {
			return res
		}
	case *wire.CtxSynchronizeArgs: // never while one of the context's streams captures
		res := cuda.Success
		for _, x := range s.captures {
			if x.origin.ctx.id == c.Ctx {
				x.invalid = true
				res = cuda.ErrorStreamCaptureUnsupported
			}
		}
		return res
	case wire.Streamed: // the legacy stream waits for one that captures
		if st, res := s.findStream(c, a.OnStream()); res == cuda.Success && s.captureOf(st) == nil && len(s.implicit(st)) > 0 {
			return s.admit(st)
		}
	}
	return s.forbidden(c)
}

// marked refuses questions about an event that was recorded in a capture.
func (s *session) marked(id wire.ID) cuda.Result {
	if m := s.marks[s.events[id]]; m != nil {
		invalidate(m.capture, cuda.Success)
		return cuda.ErrorCapturedEvent
	}
	return cuda.Success
}

// admitWork adds what an operation would do as a node, if its stream captures.
func (s *session) admitWork(c *wire.Call, id wire.Stream, a wire.Args, r wire.Reply) (done bool, res cuda.Result) {
	st, res := s.findStream(c, id)
	if res != cuda.Success {
		return true, res
	}
	x := s.captureOf(st)
	if x == nil {
		return false, cuda.Success
	}
	if _, ok := a.(*wire.GraphLaunchArgs); ok {
		// An executable graph is no longer the graph that it was made of.
		return true, invalidate(x, cuda.ErrorNotSupported)
	}
	kind, params, ok := nodeOf(a)
	if !ok {
		return false, cuda.Success
	}
	n, res := s.capture(c, x, st, kind, params)
	if res != cuda.Success {
		return true, res
	}
	switch a := a.(type) {
	case *wire.LaunchArgs:
		res = s.captureAttributes(c, n, a)
	case *wire.MemAllocAsyncArgs:
		if r, ok := r.(*wire.MemAllocAsyncReply); ok {
			r.Ptr = n.work.alloc.mem.lo
		}
	}
	return true, res
}

// nodeOf is the kind and the parameters of the node that an operation becomes; false if there is
// none.
func nodeOf(a wire.Args) (kind uint32, params []byte, ok bool) {
	switch a := a.(type) {
	case *wire.LaunchArgs:
		v := wire.KernelNode{Func: a.Func, Gx: a.Gx, Gy: a.Gy, Gz: a.Gz, Bx: a.Bx, By: a.By, Bz: a.Bz, Shared: a.Shared, Size: uint32(len(a.Params))}
		return wire.NodeKernel, append(v.Append(nil), a.Params...), true
	case *wire.MemcpyArgs:
		return wire.NodeMemcpy, operands(wire.MemcpyOperand{Ptr: a.Dst, Pitch: a.Size}, wire.MemcpyOperand{Ptr: a.Src, Pitch: a.Size}, a.Size, 1, 1), true
	case *wire.Memcpy3DArgs:
		return wire.NodeMemcpy, operands(wire.MemcpyOperand{Ptr: a.Dst, Pitch: a.DstPitch, Height: a.DstHeight, X: a.DstX, Y: a.DstY, Z: a.DstZ},
			wire.MemcpyOperand{Ptr: a.Src, Pitch: a.SrcPitch, Height: a.SrcHeight, X: a.SrcX, Y: a.SrcY, Z: a.SrcZ},
			a.Width, a.Height, a.Depth), a.SrcKind == atAddress && a.DstKind == atAddress && a.Word == 0
	case *wire.MemsetArgs:
		return wire.NodeMemset, (&wire.MemsetNode{Dst: a.Dst, Pitch: a.Pitch, Value: a.Value, Element: a.Element, Width: a.Width, Height: a.Height}).Append(nil), true
	case *wire.LaunchHostFuncArgs:
		return wire.NodeHost, (&wire.HostNode{ID: a.ID}).Append(nil), a.Status == 0
	case *wire.StreamWriteValueArgs:
		return wire.NodeBatchMemOp, memOp(2+3*(a.Width/8), a.Addr, a.Value, a.Flags), true
	case *wire.StreamWaitValueArgs:
		return wire.NodeBatchMemOp, memOp(1+3*(a.Width/8), a.Addr, a.Value, a.Flags), true
	case *wire.MemAllocAsyncArgs:
		return wire.NodeMemAlloc, append((&wire.AllocNode{Size: a.Size}).Append(nil), make([]byte, 88)...), true
	case *wire.MemFreeAsyncArgs:
		return wire.NodeMemFree, (&wire.FreeNode{Ptr: a.Ptr}).Append(nil), true
	}
	return 0, nil, false
}

// operands are the parameters of a copy node between two addresses.
func operands(dst, src wire.MemcpyOperand, width, height, depth uint64) []byte {
	dst.Type, src.Type = cuda.MemoryTypeUnified, cuda.MemoryTypeUnified
	b := dst.Append(src.Append(nil))
	return (&wire.MemcpyNode{Width: width, Height: height, Depth: depth}).Append(b)
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

// captureAttributes gives a captured kernel the attributes of its launch.
func (s *session) captureAttributes(c *wire.Call, n *graphNode, a *wire.LaunchArgs) cuda.Result {
	if len(a.Attrs) == 0 && a.Flags&wire.LaunchCooperative == 0 {
		return cuda.Success
	}
	n.attrs = map[uint32][]byte{}
	for b := a.Attrs; len(b) >= attributeSize; b = b[attributeSize:] {
		n.attrs[binary.LittleEndian.Uint32(b)] = append([]byte(nil), b[8:attributeSize]...)
	}
	if a.Flags&wire.LaunchCooperative != 0 {
		n.attrs[cuda.LaunchAttrCooperative] = append(binary.LittleEndian.AppendUint64(nil, 1), make([]byte, attributeSize-16)...)
	}
	return s.prepare(c, n, wire.NodeKernel, n.params)
}

// admitRecord has an event mark a place in a capture, or become a node.
func (s *session) admitRecord(c *wire.Call, a *wire.EventRecordArgs) (done bool, res cuda.Result) {
	e := s.events[a.Event]
	if e == nil {
		return true, cuda.ErrorInvalidHandle
	}
	st, res := s.findStream(c, a.Stream)
	if res != cuda.Success {
		return true, res
	}
	x, external := s.captureOf(st), a.Flags&cuda.EventRecordExternal != 0
	switch {
	case x == nil && external:
		return true, cuda.ErrorIllegalState
	case x == nil:
		return false, cuda.Success
	case x.invalid:
		return true, cuda.ErrorStreamCaptureInvalidated
	}
	delete(s.marks, e)
	if external {
		_, res := s.capture(c, x, st, wire.NodeEventRecord, (&wire.EventNode{Event: a.Event}).Append(nil))
		return true, res
	}
	if s.marks == nil {
		s.marks = map[*event]*captureMark{}
	}
	s.marks[e] = &captureMark{x, x.streams[st]}
	return true, cuda.Success
}

// admitWait makes a stream part of a capture that the event was recorded in.
func (s *session) admitWait(c *wire.Call, a *wire.StreamWaitEventArgs) (done bool, res cuda.Result) {
	st, res := s.findStream(c, a.Stream)
	if res != cuda.Success {
		return true, res
	}
	e := s.events[a.Event]
	if e == nil {
		return true, cuda.ErrorInvalidHandle
	}
	x, m := s.captureOf(st), s.marks[e]
	switch {
	case x == nil && m == nil:
		return false, cuda.Success
	case x != nil && x.invalid:
		return true, cuda.ErrorStreamCaptureInvalidated
	case x != nil && a.Flags&cuda.EventWaitExternal != 0:
		_, res := s.capture(c, x, st, wire.NodeWaitEvent, (&wire.EventNode{Event: a.Event}).Append(nil))
		return true, res
	case m == nil && e.mark == nil:
		return true, cuda.Success
	case m == nil:
		return true, invalidate(x, cuda.ErrorStreamCaptureIsolation)
	case m.capture.invalid:
		return true, cuda.ErrorStreamCaptureInvalidated
	case x == nil && st == st.ctx.legacy:
		return true, invalidate(m.capture, cuda.ErrorStreamCaptureImplicit)
	case x != nil && x != m.capture:
		invalidate(x, cuda.Success)
		return true, invalidate(m.capture, cuda.ErrorStreamCaptureMerge)
	}
	m.capture.streams[st] = union(m.capture.streams[st], m.before)
	return true, cuda.Success
}

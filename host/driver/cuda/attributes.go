package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

const (
	attributeValueSize = 64 // CUlaunchAttributeValue
	maxQuestions       = 1024
)

// StreamSetAttribute sets an attribute of a stream.
func (s *session) StreamSetAttribute(c *wire.Call, a *wire.StreamSetAttributeArgs) cuda.Result {
	if len(a.Value) != attributeValueSize {
		return cuda.ErrorInvalidValue
	}
	st, res := s.stream(c, a.Target)
	if res != cuda.Success {
		return res
	}
	v := bufferOf(a.Value)
	defer v.free()
	return s.fn.cuStreamSetAttribute.call(st.handle, uint64(a.Attr), v.addr())
}

// StreamGetAttribute reads an attribute of a stream.
func (s *session) StreamGetAttribute(c *wire.Call, a *wire.StreamGetAttributeArgs, r *wire.StreamGetAttributeReply) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	v := newBuffer(attributeValueSize)
	defer v.free()
	if res = s.fn.cuStreamGetAttribute.call(st.handle, uint64(a.Attr), v.addr()); res == cuda.Success {
		r.Value = append([]byte(nil), v.bytes()...)
	}
	return res
}

// StreamCopyAttributes copies the attributes of one stream to another.
func (s *session) StreamCopyAttributes(c *wire.Call, a *wire.StreamCopyAttributesArgs) cuda.Result {
	src, res := s.stream(c, a.Source)
	if res != cuda.Success {
		return res
	}
	dst, res := s.stream(c, a.Target)
	if res != cuda.Success {
		return res
	}
	return s.fn.cuStreamCopyAttributes.call(dst.handle, src.handle)
}

// CtxRecordEvent records an event behind all work of a context.
func (s *session) CtxRecordEvent(c *wire.Call, a *wire.CtxRecordEventArgs) cuda.Result {
	return s.contextEvent(a.Target, a.Event, s.fn.cuCtxRecordEvent)
}

// CtxWaitEvent holds later work of a context behind an event.
func (s *session) CtxWaitEvent(c *wire.Call, a *wire.CtxWaitEventArgs) cuda.Result {
	return s.contextEvent(a.Target, a.Event, s.fn.cuCtxWaitEvent)
}

func (s *session) contextEvent(id, event uint32, do entry) cuda.Result {
	ctx, ok := s.ctxs.get(id)
	if !ok || ctx.handle == 0 {
		return cuda.ErrorInvalidContext
	}
	e, ok := s.events.get(event)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if res := s.useContext(id); res != cuda.Success {
		return res
	}
	return s.note(do.call(ctx.handle, e.handle))
}

// CtxGetExecAffinity asks how many multiprocessors the current context has.
func (s *session) CtxGetExecAffinity(c *wire.Call, a *wire.CtxGetExecAffinityArgs, r *wire.CtxGetExecAffinityReply) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	*s.out.u64(0) = 0
	res := s.fn.cuCtxGetExecAffinity.call(s.out.addr(), uint64(a.Type))
	r.Value = uint32(*s.out.i32(1))
	return res
}

// FlushRDMAWrites makes writes of other devices visible.
func (s *session) FlushRDMAWrites(c *wire.Call, a *wire.FlushRDMAWritesArgs) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	return s.fn.cuFlushGPUDirectRDMAWrites.call(uint64(a.Target), uint64(a.Scope))
}

// DeviceAsk forwards questions about devices that are asked too rarely to be known beforehand.
func (s *session) DeviceAsk(c *wire.Call, a *wire.DeviceAskArgs, r *wire.DeviceAskReply) cuda.Result {
	n := len(a.List) / 4
	if n > maxQuestions {
		return cuda.ErrorInvalidValue
	}
	list, out := bufferOf(a.List), newBuffer(max(8, 4*n))
	defer list.free()
	defer out.free()
	var res cuda.Result
	size := 4 * n
	switch a.What {
	case wire.AskExecAffinity:
		size = 4
		res = s.fn.cuDeviceGetExecAffinitySupport.call(out.addr(), uint64(a.A), uint64(a.Dev))
	case wire.AskHostAtomics:
		res = s.fn.cuDeviceGetHostAtomicCapabilities.call(out.addr(), list.addr(), uint64(n), uint64(a.Dev))
		if int(a.Dev) < len(s.devices) && !s.lib.claimsAtomics(&s.devices[a.Dev]) {
			clear(out.bytes()) // what the driver may say beyond what settleAtomics found
		}
	case wire.AskP2PAtomics:
		res = s.fn.cuDeviceGetP2PAtomicCapabilities.call(out.addr(), list.addr(), uint64(n), uint64(a.Dev), uint64(a.A))
	case wire.AskTexture1DWidth:
		size = 8
		res = s.fn.cuDeviceGetTexture1DLinearMaxWidth.call(out.addr(), uint64(a.A), uint64(a.B), uint64(a.Dev))
	default:
		return cuda.ErrorInvalidValue
	}
	if res == cuda.Success {
		r.Answers = append([]byte(nil), out.bytes()[:size]...)
	}
	return res
}

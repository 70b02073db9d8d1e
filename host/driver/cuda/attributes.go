package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

const maxQuestions = 1024

// StreamSetAttribute sets an attribute of a stream.
func (s *session) StreamSetAttribute(c *wire.Call, a *wire.StreamSetAttributeArgs) cuda.Result {
	v, _, res := s.space.AttributeValue(a.Attr, a.Value, s.eventHandle)
	if res != cuda.Success {
		return res
	}
	st, res := s.stream(c, a.Target)
	if res != cuda.Success {
		return res
	}
	return st.shaped(s.drv.StreamSetAttribute(st.handle, a.Attr, &v))
}

// StreamGetAttribute reads an attribute of a stream.
func (s *session) StreamGetAttribute(c *wire.Call, a *wire.StreamGetAttributeArgs, r *wire.StreamGetAttributeReply) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	var v bind.LaunchAttributeValue
	if res = s.drv.StreamGetAttribute(st.handle, a.Attr, &v); res == cuda.Success {
		r.Value = v.Bytes(a.Attr, s.eventID)
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
	return dst.shaped(s.drv.StreamCopyAttributes(dst.handle, src.handle))
}

// CtxRecordEvent records an event behind all work of a context.
func (s *session) CtxRecordEvent(c *wire.Call, a *wire.CtxRecordEventArgs) cuda.Result {
	return s.contextEvent(a.Target, a.Event, s.drv.CtxRecordEvent)
}

// CtxWaitEvent holds later work of a context behind an event.
func (s *session) CtxWaitEvent(c *wire.Call, a *wire.CtxWaitEventArgs) cuda.Result {
	return s.contextEvent(a.Target, a.Event, s.drv.CtxWaitEvent)
}

func (s *session) contextEvent(id, event uint32, do func(bind.Context, bind.Event) cuda.Result) cuda.Result {
	ctx, ok := s.ctxs.get(id)
	if !ok || ctx.handle.IsZero() {
		return cuda.ErrorInvalidContext
	}
	e, ok := s.events.get(event)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if res := s.useContext(id); res != cuda.Success {
		return res
	}
	e.recorded()
	return s.note(do(ctx.handle, e.handle))
}

// CtxGetExecAffinity asks how many multiprocessors the current context has.
func (s *session) CtxGetExecAffinity(c *wire.Call, a *wire.CtxGetExecAffinityArgs, r *wire.CtxGetExecAffinityReply) cuda.Result {
	var p bind.ExecAffinityParam
	res := s.drv.CtxGetExecAffinity(&p, a.Type)
	r.Value = p.Param.SmCount().Val
	return res
}

// FlushRDMAWrites makes writes of other devices visible.
func (s *session) FlushRDMAWrites(c *wire.Call, a *wire.FlushRDMAWritesArgs) cuda.Result {
	return s.drv.FlushGPUDirectRDMAWrites(a.Target, a.Scope)
}

// DeviceAsk forwards questions about devices that are asked too rarely to be known beforehand.
func (s *session) DeviceAsk(c *wire.Call, a *wire.DeviceAskArgs, r *wire.DeviceAskReply) cuda.Result {
	n := len(a.List) / 4
	if n > maxQuestions {
		return cuda.ErrorInvalidValue
	}
	list, answers := make([]uint32, n), make([]uint32, n)
	for i := range list {
		list[i] = binary.LittleEndian.Uint32(a.List[4*i:])
	}
	var res cuda.Result
	switch a.What {
	case wire.AskExecAffinity:
		var v int32
		v, res = s.drv.DeviceGetExecAffinitySupport(a.A, a.Dev)
		answers = []uint32{uint32(v)}
	case wire.AskHostAtomics:
		res = s.drv.DeviceGetHostAtomicCapabilities(answers, list, a.Dev)
		if int(a.Dev) < len(s.devices) && !claimsAtomics(&s.devices[a.Dev]) {
			clear(answers) // what the driver may say beyond what settleAtomics found
		}
	case wire.AskP2PAtomics:
		res = s.drv.DeviceGetP2PAtomicCapabilities(answers, list, a.Dev, a.A)
	case wire.AskTexture1DWidth:
		var v uint64
		v, res = s.drv.DeviceGetTexture1DLinearMaxWidth(a.A, a.B, a.Dev)
		answers = []uint32{uint32(v), uint32(v >> 32)}
	default:
		return cuda.ErrorInvalidValue
	}
	if res == cuda.Success {
		r.Answers, _ = binary.Append(nil, binary.LittleEndian, answers)
	}
	return res
}

// DeviceTpcMap says where the current device's pairs of multiprocessors lie, as the driver tells
// cuBLASLt.
func (s *session) DeviceTpcMap(c *wire.Call, r *wire.DeviceTpcMapReply) (res cuda.Result) {
	r.Map, res = s.drv.TpcMap()
	return res
}

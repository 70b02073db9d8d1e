package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

// IpcGetMemHandle shares memory of MemAlloc.
func (s *session) IpcGetMemHandle(c *wire.Call, a *wire.IpcGetMemHandleArgs, r *wire.IpcGetMemHandleReply) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	if _, ok := s.allocs[a.Ptr]; !ok {
		return cuda.ErrorInvalidValue
	}
	var res cuda.Result
	r.Token, res = s.offer(shareMemory, a.Ptr, func() ([]byte, int, cuda.Result) {
		res := s.note(s.fn.cuIpcGetMemHandle.call(s.out.addr(), a.Ptr))
		return s.out.bytes()[:opaqueSize], -1, res
	})
	return res
}

// IpcOpenMemHandle maps another session's memory. The driver counts how often it is open; so does this.
func (s *session) IpcOpenMemHandle(c *wire.Call, a *wire.IpcOpenMemHandleArgs, r *wire.IpcOpenMemHandleReply) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	blob, fd, ok := s.redeem(shareMemory, a.Token, opaqueSize)
	closeFile(fd)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if a.AvoidMib != 0 && !s.avoid(a.Avoid, uint64(a.AvoidMib)<<20) {
		return cuda.ErrorMapFailed
	}
	w := words(blob)
	res := s.note(s.fn.cuIpcOpenMemHandle_v2.call(s.out.addr(), uint64(a.Flags), 0, 0, 0, 0, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]))
	if res != cuda.Success {
		return res
	}
	ptr := *s.out.u64(0)
	*s.out.u64(0), *s.out.u64(1) = 0, 0
	if res = s.fn.cuPointerGetAttribute.call(s.out.addr(), attrRangeSize, ptr); res == cuda.Success {
		res = s.fn.cuPointerGetAttribute.call(s.out.addr()+8, attrDevice, ptr)
	}
	if res != cuda.Success || len(s.opened) >= maxObjects {
		s.fn.cuIpcCloseMemHandle.call(ptr)
		return res
	}
	r.Ptr, r.Size, r.Dev = ptr, *s.out.u64(0), uint32(*s.out.u64(1))
	if s.opened == nil {
		s.opened = map[uint64]int{}
	}
	s.opened[ptr]++
	return cuda.Success
}

// IpcCloseMemHandle unmaps another session's memory, however often it was opened.
func (s *session) IpcCloseMemHandle(c *wire.Call, a *wire.IpcCloseMemHandleArgs) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	n, ok := s.opened[a.Ptr]
	if !ok {
		return cuda.ErrorInvalidValue
	}
	delete(s.opened, a.Ptr)
	res := cuda.Success
	for ; n > 0 && res == cuda.Success; n-- {
		res = s.note(s.fn.cuIpcCloseMemHandle.call(a.Ptr))
	}
	return res
}

// IpcGetEventHandle shares an event.
func (s *session) IpcGetEventHandle(c *wire.Call, a *wire.IpcGetEventHandleArgs, r *wire.IpcGetEventHandleReply) cuda.Result {
	e, ok := s.events.get(a.Event)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if res := s.useContext(e.ctx); res != cuda.Success {
		return res
	}
	var res cuda.Result
	r.Token, res = s.offer(shareEvent, uint64(a.Event), func() ([]byte, int, cuda.Result) {
		res := s.note(s.fn.cuIpcGetEventHandle.call(s.out.addr(), e.handle))
		return s.out.bytes()[:opaqueSize], -1, res
	})
	return res
}

// IpcOpenEventHandle makes another session's event one of this session's.
func (s *session) IpcOpenEventHandle(c *wire.Call, a *wire.IpcOpenEventHandleArgs) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	blob, fd, ok := s.redeem(shareEvent, a.Token, opaqueSize)
	closeFile(fd)
	if !ok {
		return cuda.ErrorMapFailed
	}
	w := words(blob)
	res := s.note(s.fn.cuIpcOpenEventHandle.call(s.out.addr(), 0, 0, 0, 0, 0, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]))
	if res != cuda.Success {
		return res
	}
	e := &event{handle: *s.out.u64(0), ctx: c.Ctx}
	if !s.events.put(a.Event, e) {
		s.fn.cuEventDestroy_v2.call(e.handle)
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

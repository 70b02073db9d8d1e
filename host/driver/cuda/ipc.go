package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// IpcGetMemHandle shares memory of MemAlloc.
func (s *session) IpcGetMemHandle(c *wire.Call, a *wire.IpcGetMemHandleArgs, r *wire.IpcGetMemHandleReply) cuda.Result {
	m, ok := s.allocs[a.Ptr]
	if !ok {
		return cuda.ErrorInvalidValue
	}
	var res cuda.Result
	r.Token, res = s.offer(c, shareMemory, a.Ptr, s.sharedAs(a.Ptr, m), func() ([]byte, int, cuda.Result) {
		if x := s.arenaOf(a.Ptr); x != nil && !m.pooled {
			return s.sharePage(x, a.Ptr, m.size)
		}
		var h bind.IpcMemHandle
		res := s.note(s.drv.IpcGetMemHandle(&h, m.at))
		return h.Reserved[:], -1, res
	})
	return res
}

// sharedAs is what others keep of an allocation that is shared.
func (s *session) sharedAs(ptr uint64, m allocation) driver.SharedMemory {
	if x := s.arenaOf(ptr); x != nil && (!m.pooled || m.pool != nil) {
		if at, p, ok := x.page(ptr); ok { // all of it stays
			return driver.SharedMemory{Bytes: p.mem.Size(), Of: at}
		}
	}
	return driver.SharedMemory{Bytes: m.size}
}

// IpcOpenMemHandle maps another session's memory. The driver counts how often it is open; so does
// this.
func (s *session) IpcOpenMemHandle(c *wire.Call, a *wire.IpcOpenMemHandleArgs, r *wire.IpcOpenMemHandleReply) (res cuda.Result) {
	if c.Replay {
		_, res := s.awaitPage(c, a.Token, shareMemory)
		return res
	}
	blob, fd, ok := s.redeem(shareMemory, a.Token, opaqueSize)
	defer closeFile(fd)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	defer func() { s.giveUpUnless(&res, a.Token) }()
	if fd >= 0 {
		if s.offers.Own(a.Token) { // the driver opens none of its own process's either
			return cuda.ErrorInvalidContext
		}
		return s.openPage(c, a, fd, blob, r)
	}
	if a.AvoidMib != 0 && !s.avoid(a.Avoid, uint64(a.AvoidMib)<<20) {
		return cuda.ErrorMapFailed
	}
	at, res := s.drv.IpcOpenMemHandle(bind.IpcMemHandle{Reserved: [opaqueSize]byte(blob)}, a.Flags)
	if s.note(res) != cuda.Success {
		return res
	}
	size, res := s.drv.AttributeOf(cuda.PointerAttrRangeSize, at)
	dev := uint64(0)
	if res == cuda.Success {
		dev, res = s.drv.AttributeOf(cuda.PointerAttrDeviceOrdinal, at)
	}
	if _, again := s.opened[at.Value()]; res == cuda.Success && !again && len(s.opened) >= maxObjects {
		res = cuda.ErrorOutOfMemory
	}
	if res != cuda.Success {
		s.drv.IpcCloseMemHandle(at)
		return res
	}
	r.Ptr, r.Size, r.Dev = at.Value(), size, uint32(dev)
	if s.opened == nil {
		s.opened = map[uint64]opened{}
	}
	o := s.opened[r.Ptr]
	s.opened[r.Ptr] = opened{at: at, n: o.n + 1, ctx: c.Ctx, tokens: append(o.tokens, driver.ShareToken(a.Token))}
	return cuda.Success
}

// IpcCloseMemHandle unmaps another session's memory, however often it was opened.
func (s *session) IpcCloseMemHandle(c *wire.Call, a *wire.IpcCloseMemHandleArgs) cuda.Result {
	o, ok := s.opened[a.Ptr]
	if !ok || o.page != nil && o.page.kind != shareMemory {
		return cuda.ErrorInvalidValue
	}
	delete(s.opened, a.Ptr)
	if o.page != nil {
		res := s.closePage(o.page)
		s.giveUpOpened(o)
		return res
	}
	res := cuda.Success
	for n := o.n; n > 0 && res == cuda.Success; n-- {
		res = s.note(s.drv.IpcCloseMemHandle(o.at))
	}
	s.giveUpOpened(o)
	return res
}

// giveUpOpened lets go as often as it was opened.
func (s *session) giveUpOpened(o opened) {
	for _, t := range o.tokens {
		s.giveUp(t)
	}
	if o.page != nil {
		for range o.n {
			s.giveUp(o.page.token)
		}
	}
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
	r.Token, res = s.offer(c, shareEvent, uint64(a.Event), driver.SharedMemory{}, func() ([]byte, int, cuda.Result) {
		var h bind.IpcEventHandle
		res := s.note(s.drv.IpcGetEventHandle(&h, e.handle))
		return h.Reserved[:], -1, res
	})
	return res
}

// IpcOpenEventHandle makes another session's event one of this session's.
func (s *session) IpcOpenEventHandle(c *wire.Call, a *wire.IpcOpenEventHandleArgs) cuda.Result {
	if c.Replay {
		return s.awaitEvent(c, a)
	}
	e := &event{ctx: c.Ctx}
	if res := s.importEvent(e, a.Token); res != cuda.Success {
		return res
	}
	return keep(&s.events.table, a.Event, e, e.handle, s.drv.EventDestroy)
}

// importEvent has e be what a token names. Its context is current.
func (s *session) importEvent(e *event, token []byte) (res cuda.Result) {
	blob, fd, ok := s.redeem(shareEvent, token, opaqueSize)
	closeFile(fd)
	if !ok {
		return cuda.ErrorMapFailed
	}
	e.handle, res = s.drv.IpcOpenEventHandle(bind.IpcEventHandle{Reserved: [opaqueSize]byte(blob)})
	e.token = driver.ShareToken(token)
	return s.note(res)
}

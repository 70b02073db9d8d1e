package soft

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// opened is memory of another session, mapped at addresses of the window.
type opened struct {
	in    *reservation
	file  *memoryFile // nil: it is awaited (rejoin.go)
	a     *allocation
	from  part
	token driver.ShareToken
	of    *pool // an imported one, of whose memory it is: cuMemFree ends it. nil: none
	ctx   *gpuContext
}

// open maps a part of a file and makes it reachable. The call's record has what awaitOpened needs.
func (s *session) open(p part, f *memoryFile, dev int, ctx *gpuContext, token []byte, c *wire.Call) (*opened, cuda.Result) {
	from := p.Offset &^ (pageSize - 1)
	length := (p.Offset + p.Size - from + pageSize - 1) &^ (pageSize - 1)
	in, ok := s.reserve(c, 0, (length+vmmUnit-1)&^(vmmUnit-1), vmmUnit)
	if !ok {
		return nil, cuda.ErrorOutOfMemory
	}
	if from+length > f.size || f.mapAt(in.mem[:length], from) != nil {
		_ = releaseAll(in.mem)
		return nil, cuda.ErrorMapFailed
	}
	lo := p.Offset - from
	o := &opened{in: in, file: f, from: p, token: driver.ShareToken(token)}
	o.a = s.space.foreign(in.mem[lo:lo+p.Size:lo+p.Size], dev, ctx, ipcMemory)
	o.ctx = s.ctxs[c.Ctx]
	c.Placed = o.places(c.Placed[:0])
	return o, cuda.Success
}

// shut unmaps, after the work that may use it.
func (s *session) shut(o *opened) cuda.Result {
	s.awaitIdle()
	s.space.unmap(o.a)
	err := releaseAll(o.in.mem)
	e := o.file.close()
	driver.LetGo(s.host, o.token)
	if err != nil || e != nil {
		return cuda.ErrorOperatingSystem
	}
	return cuda.Success
}

// IpcGetMemHandle shares memory of MemAlloc: the chunks around it become parts of a file, in place.
func (s *session) IpcGetMemHandle(c *wire.Call, a *wire.IpcGetMemHandleArgs, r *wire.IpcGetMemHandleReply) cuda.Result {
	if _, res := s.context(c); res != cuda.Success {
		return res
	}
	m, res := s.owned(a.Ptr)
	if res != cuda.Success || m.kind != plainMemory {
		return cuda.ErrorInvalidValue
	}
	r.Token, res = s.shareArena(c, shareMemory, m)
	return res
}

// shareArena shares an allocation of an arena.
func (s *session) shareArena(c *wire.Call, kind byte, m *allocation) ([]byte, cuda.Result) {
	return s.offer(c, kind, m.lo, driver.SharedMemory{Bytes: m.size}, func() ([]byte, int, cuda.Result) {
		s.awaitIdle() // chunks are copied
		f, off, err := s.space.publish(m)
		if err != nil {
			s.log.Warn("memory cannot be shared", "error", err)
			return nil, -1, cuda.ErrorOutOfMemory
		}
		return s.part(m.device, off, m.size).encode(), int(f.f.Fd()), cuda.Success
	})
}

// IpcOpenMemHandle maps memory of another session. What is open already has one address.
func (s *session) IpcOpenMemHandle(c *wire.Call, a *wire.IpcOpenMemHandleArgs, r *wire.IpcOpenMemHandleReply) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	if c.Replay {
		o, res := s.awaitOpened(c, g, a.Token)
		if res == cuda.Success {
			r.Ptr, r.Size, r.Dev = o.a.lo, o.a.size, uint32(o.a.device)
		}
		return res
	}
	p, f, dev, res := s.redeem(shareMemory, a.Token, cuda.ErrorInvalidValue)
	if res != cuda.Success {
		return res
	}
	if f == nil || p.Session == s.name {
		_ = f.close()
		s.letGo(a.Token)
		return cuda.ErrorInvalidContext
	}
	for _, o := range s.opened {
		if o.from == p && o.of == nil {
			_ = f.close()
			s.letGo(a.Token) // as often as it is closed
			r.Ptr, r.Size, r.Dev = o.a.lo, o.a.size, uint32(o.a.device)
			c.Placed = o.places(c.Placed)
			return cuda.Success
		}
	}
	o, res := s.open(p, f, dev, g, a.Token, c)
	if res != cuda.Success {
		_ = f.close()
		s.letGo(a.Token)
		return res
	}
	s.keepOpened(o)
	r.Ptr, r.Size, r.Dev = o.a.lo, o.a.size, uint32(dev)
	return cuda.Success
}

func (s *session) keepOpened(o *opened) {
	if s.opened == nil {
		s.opened = map[uint64]*opened{}
	}
	s.opened[o.a.lo] = o
}

// IpcCloseMemHandle unmaps memory of another session.
func (s *session) IpcCloseMemHandle(c *wire.Call, a *wire.IpcCloseMemHandleArgs) cuda.Result {
	o := s.opened[a.Ptr]
	if o == nil || o.of != nil {
		return cuda.ErrorInvalidValue
	}
	delete(s.opened, a.Ptr)
	return s.shut(o)
}

// forgetOpened unmaps what was opened in a context that is gone.
func (s *session) forgetOpened(g *gpuContext) {
	for ptr, o := range s.opened {
		if o.ctx == g {
			delete(s.opened, ptr)
			_ = s.shut(o)
		}
	}
}

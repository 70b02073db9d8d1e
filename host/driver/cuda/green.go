package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// green is a green context: a part of a device.
type green struct {
	handle uint64
	dev    uint32
	ctx    uint32 // id of the context made of it, 0
}

const (
	devResourceSize = 144 // CUdevResource
	maxResources    = 4096
	maxSplit        = 1024
)

// keepResource remembers a CUdevResource. It holds words of the driver's own, so only what the driver gave goes back to it.
func (s *session) keepResource(b []byte) cuda.Result {
	if s.resources == nil {
		s.resources = map[string]struct{}{}
	}
	if len(s.resources) >= maxResources {
		return cuda.ErrorOutOfMemory
	}
	s.resources[string(b)] = struct{}{}
	return cuda.Success
}

func (s *session) knownResource(b []byte) cuda.Result {
	if len(b) != devResourceSize {
		return cuda.ErrorInvalidValue
	}
	if _, ok := s.resources[string(b)]; !ok {
		if binary.LittleEndian.Uint32(b) == 0 {
			return cuda.ErrorInvalidResourceType
		}
		return cuda.ErrorInvalidValue
	}
	return cuda.Success
}

// DevResourceGet reads the resources of a device, a context or a green context.
func (s *session) DevResourceGet(c *wire.Call, a *wire.DevResourceGetArgs, r *wire.DevResourceGetReply) cuda.Result {
	b := newBuffer(devResourceSize)
	defer b.free()
	var res cuda.Result
	switch a.Scope {
	case 0:
		res = s.fn.cuDeviceGetDevResource.call(uint64(a.Dev), b.addr(), uint64(a.Type))
	case 1:
		ctx, ok := s.ctxs.get(a.Target)
		if !ok || ctx.handle == 0 {
			return cuda.ErrorInvalidContext
		}
		res = s.fn.cuCtxGetDevResource.call(ctx.handle, b.addr(), uint64(a.Type))
	case 2:
		g, ok := s.greens.get(a.Green)
		if !ok {
			return cuda.ErrorInvalidHandle
		}
		res = s.fn.cuGreenCtxGetDevResource.call(g.handle, b.addr(), uint64(a.Type))
	default:
		return cuda.ErrorInvalidValue
	}
	if res == cuda.Success {
		r.Resource = append([]byte(nil), b.bytes()...)
		res = s.keepResource(r.Resource)
	}
	return res
}

// DevSmResourceSplit cuts multiprocessors into groups.
func (s *session) DevSmResourceSplit(c *wire.Call, a *wire.DevSmResourceSplitArgs, r *wire.DevSmResourceSplitReply) cuda.Result {
	if res := s.knownResource(a.Source); res != cuda.Success {
		return res
	}
	room := min(a.Room, maxSplit)
	src, out := bufferOf(a.Source), newBuffer(devResourceSize*int(room+1))
	defer src.free()
	defer out.free()
	*s.out.u64(0) = uint64(room)
	list, rest := out.addr(), uint64(0)
	if room == 0 {
		list = 0
	}
	if a.Remain != 0 {
		rest = out.addr() + devResourceSize*uint64(room)
	}
	res := s.fn.cuDevSmResourceSplitByCount.call(list, s.out.addr(), src.addr(), rest, uint64(a.Flags), uint64(a.Least))
	if res != cuda.Success {
		return res
	}
	r.Groups = uint32(*s.out.i32(0))
	if room > 0 {
		r.List = append([]byte(nil), out.bytes()[:devResourceSize*int(min(r.Groups, room))]...)
	}
	if a.Remain != 0 {
		r.List = append(r.List, out.bytes()[devResourceSize*int(room):]...)
	}
	for b := r.List; len(b) > 0; b = b[devResourceSize:] {
		if res := s.keepResource(b[:devResourceSize]); res != cuda.Success {
			return res
		}
	}
	return cuda.Success
}

// DevResourceGenerateDesc joins resources into a description.
func (s *session) DevResourceGenerateDesc(c *wire.Call, a *wire.DevResourceGenerateDescArgs) cuda.Result {
	if a.Count == 0 || a.Count > maxSplit || len(a.List) != devResourceSize*int(a.Count) {
		return cuda.ErrorInvalidValue
	}
	for b := a.List; len(b) > 0; b = b[devResourceSize:] {
		if res := s.knownResource(b[:devResourceSize]); res != cuda.Success {
			return res
		}
	}
	list := bufferOf(a.List)
	defer list.free()
	if res := s.fn.cuDevResourceGenerateDesc.call(s.out.addr(), list.addr(), uint64(a.Count)); res != cuda.Success {
		return res
	}
	if !s.descs.put(a.Resdesc, *s.out.u64(0)) {
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// GreenCtxCreate makes a green context.
func (s *session) GreenCtxCreate(c *wire.Call, a *wire.GreenCtxCreateArgs, r *wire.GreenCtxCreateReply) cuda.Result {
	d, ok := s.descs.get(a.Resdesc)
	if !ok {
		return cuda.ErrorInvalidResourceType
	}
	res := s.fn.cuGreenCtxCreate.call(s.out.addr(), d, uint64(a.Dev), uint64(a.Flags))
	if res != cuda.Success {
		return res
	}
	g := green{handle: *s.out.u64(0), dev: a.Dev}
	if !s.greens.put(a.Green, g) {
		s.fn.cuGreenCtxDestroy.call(g.handle)
		return cuda.ErrorInvalidHandle
	}
	*s.out.u64(0) = 0
	if s.fn.cuGreenCtxGetId.call(g.handle, s.out.addr()) == cuda.Success {
		r.Uid = *s.out.u64(0)
	}
	return cuda.Success
}

// GreenCtxDestroy ends a green context, and the context made of it.
func (s *session) GreenCtxDestroy(c *wire.Call, a *wire.GreenCtxDestroyArgs) cuda.Result {
	g, ok := s.greens.remove(a.Green)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	destroy := func() cuda.Result { return s.fn.cuGreenCtxDestroy.call(g.handle) }
	ctx, ok := s.ctxs.get(g.ctx)
	if !ok {
		return destroy()
	}
	res := s.endContext(g.ctx, ctx, destroy)
	s.forgetContext(g.ctx, ctx)
	s.ctxs.remove(g.ctx)
	return res
}

// CtxFromGreenCtx gives a green context's context.
func (s *session) CtxFromGreenCtx(c *wire.Call, a *wire.CtxFromGreenCtxArgs) cuda.Result {
	g, ok := s.greens.get(a.Green)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if res := s.fn.cuCtxFromGreenCtx.call(s.out.addr(), g.handle); res != cuda.Success {
		return res
	}
	ctx := &context_{handle: *s.out.u64(0), dev: g.dev, retains: 1}
	if !s.ctxs.put(a.Ctx, ctx) {
		return cuda.ErrorInvalidContext
	}
	g.ctx = a.Ctx
	s.greens.m[a.Green] = g
	return s.contextReady(a.Ctx, ctx)
}

// GreenCtxStreamCreate makes a stream whose work stays within a green context.
func (s *session) GreenCtxStreamCreate(c *wire.Call, a *wire.GreenCtxStreamCreateArgs) cuda.Result {
	g, ok := s.greens.get(a.Green)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	ctx := c.Ctx
	if g.ctx != 0 {
		ctx = g.ctx
	}
	res := s.fn.cuGreenCtxStreamCreate.call(s.out.addr(), g.handle, uint64(a.Flags), uint64(uint32(a.Priority)))
	if res != cuda.Success {
		return res
	}
	st := &stream{handle: *s.out.u64(0), ctx: ctx, nonBlocking: a.Flags&streamNonBlocking != 0, green: true}
	if !s.streams.put(a.Stream, st) {
		s.fn.cuStreamDestroy_v2.call(st.handle)
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// GreenCtxEvent records an event behind a green context's work, or holds that work behind one.
func (s *session) GreenCtxEvent(c *wire.Call, a *wire.GreenCtxEventArgs) cuda.Result {
	g, ok := s.greens.get(a.Green)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	e, ok := s.events.get(a.Event)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	do := s.fn.cuGreenCtxRecordEvent
	if a.Wait != 0 {
		do = s.fn.cuGreenCtxWaitEvent
	}
	return s.note(do.call(g.handle, e.handle))
}

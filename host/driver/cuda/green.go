package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// green is a green context: a part of a device.
type green struct {
	handle bind.GreenCtx
	dev    uint32
	ctx    uint32 // id of the context made of it, 0
}

const (
	maxResources = 4096
	maxSplit     = 1024
)

// keepResource remembers a CUdevResource. It holds words of the driver's own, so only what the
// driver gave goes back to it.
func (s *session) keepResource(d bind.DevResource, from origin) cuda.Result {
	if s.resources == nil {
		s.resources = map[bind.DevResource]origin{}
	}
	if len(s.resources) >= maxResources {
		return cuda.ErrorOutOfMemory
	}
	if s.resources[d] == nil {
		s.resources[d] = from
	}
	return cuda.Success
}

// knownResources are those of a guest's records that the driver gave, as it knows them.
func (s *session) knownResources(b []byte) ([]bind.DevResource, cuda.Result) {
	list := make([]bind.DevResource, len(b)/binary.Size(bind.DevResource{}))
	if n, err := binary.Decode(b, binary.LittleEndian, list); err != nil || n != len(b) || n == 0 {
		return nil, cuda.ErrorInvalidValue
	}
	for i, d := range list {
		if _, ok := s.resources[d]; !ok {
			if d.Type == 0 {
				return nil, cuda.ErrorInvalidResourceType
			}
			return nil, cuda.ErrorInvalidValue
		}
		if now, ok := s.recalled[d]; ok { // of the process that the session was in before
			list[i] = now
		}
	}
	return list, cuda.Success
}

// DevResourceGet reads the resources of a device, a context or a green context.
func (s *session) DevResourceGet(c *wire.Call, a *wire.DevResourceGetArgs, r *wire.DevResourceGetReply) cuda.Result {
	var d bind.DevResource
	var res cuda.Result
	var from origin
	switch a.Scope {
	case 0:
		from = ofDevice(a.Dev, a.Type)
		res = s.drv.DeviceGetDevResource(a.Dev, &d, a.Type)
	case 1:
		ctx, ok := s.ctxs.get(a.Target)
		if !ok || ctx.handle.IsZero() {
			return cuda.ErrorInvalidContext
		}
		if ctx.primary { // which has all of its device
			from = ofDevice(ctx.dev, a.Type)
		}
		res = s.drv.CtxGetDevResource(ctx.handle, &d, a.Type)
	case 2:
		g, ok := s.greens.get(a.Green)
		if !ok {
			return cuda.ErrorInvalidHandle
		}
		res = s.drv.GreenCtxGetDevResource(g.handle, &d, a.Type)
	default:
		return cuda.ErrorInvalidValue
	}
	if res == cuda.Success {
		r.Resource = bind.Encode(&d)
		res = s.keepResource(d, from)
	}
	return res
}

// DevSmResourceSplit cuts multiprocessors into groups.
func (s *session) DevSmResourceSplit(c *wire.Call, a *wire.DevSmResourceSplitArgs, r *wire.DevSmResourceSplitReply) cuda.Result {
	sources, res := s.knownResources(a.Source)
	if res != cuda.Success {
		return res
	}
	if len(sources) != 1 {
		return cuda.ErrorInvalidValue
	}
	list := make([]bind.DevResource, min(a.Room, maxSplit))
	var rest *bind.DevResource
	if a.Remain != 0 {
		rest = &bind.DevResource{}
	}
	groups, res := s.drv.DevSmResourceSplitByCount(list, &sources[0], rest, a.Flags, a.Least)
	if res != cuda.Success {
		return res
	}
	r.Groups = uint32(groups)
	list = list[:min(int(r.Groups), len(list))]
	if rest != nil {
		list = append(list, *rest)
	}
	var source bind.DevResource
	_, _ = binary.Decode(a.Source, binary.LittleEndian, &source)
	for i := range list {
		r.List = append(r.List, bind.Encode(&list[i])...)
		if res := s.keepResource(list[i], s.resources[source].cut(a, uint32(i))); res != cuda.Success {
			return res
		}
	}
	return cuda.Success
}

// DevResourceGenerateDesc joins resources into a description.
func (s *session) DevResourceGenerateDesc(c *wire.Call, a *wire.DevResourceGenerateDescArgs) cuda.Result {
	if err := s.placeResources(c, a.List); err != nil {
		c.Because("%v", err)
		return cuda.ErrorNotSupported
	}
	list, res := s.knownResources(a.List)
	if res != cuda.Success {
		return res
	}
	if len(list) != int(a.Count) || len(list) > maxSplit {
		return cuda.ErrorInvalidValue
	}
	h, res := s.drv.DevResourceGenerateDesc(list)
	if res != cuda.Success {
		return res
	}
	return s.descs.add(a.Resdesc, resDesc{h, s.loose(a.List)})
}

// resDesc is a description of resources, and whether nobody knows how one of them came about.
type resDesc struct {
	handle bind.DevResourceDesc
	loose  bool
}

// loose reports whether nobody knows how one of a guest's records came about.
func (s *session) loose(b []byte) bool {
	list := make([]bind.DevResource, len(b)/binary.Size(bind.DevResource{}))
	_, _ = binary.Decode(b, binary.LittleEndian, list)
	for _, d := range list {
		if s.resources[d] == nil {
			return true
		}
	}
	return false
}

// GreenCtxCreate makes a green context.
func (s *session) GreenCtxCreate(c *wire.Call, a *wire.GreenCtxCreateArgs, r *wire.GreenCtxCreateReply) cuda.Result {
	d, ok := s.descs.get(a.Resdesc)
	if !ok {
		return cuda.ErrorInvalidResourceType
	}
	h, res := s.drv.GreenCtxCreate(d.handle, a.Dev, a.Flags)
	if res != cuda.Success {
		return res
	}
	g := green{handle: h, dev: a.Dev}
	if !s.greens.put(a.Green, g) {
		s.drv.GreenCtxDestroy(g.handle)
		return cuda.ErrorInvalidHandle
	}
	if uid, res := s.drv.GreenCtxGetId(g.handle); res == cuda.Success {
		r.Uid = uid
	}
	return cuda.Success
}

// GreenCtxDestroy ends a green context, and the context made of it.
func (s *session) GreenCtxDestroy(c *wire.Call, a *wire.GreenCtxDestroyArgs) cuda.Result {
	g, ok := s.greens.get(a.Green)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	return s.endGreen(a.Green, g)
}

func (s *session) endGreen(id uint32, g green) cuda.Result {
	s.greens.remove(id)
	for on, st := range s.streams.m {
		if st.green == id { // the driver would keep it, without what it runs on
			s.endStream(on, st)
		}
	}
	destroy := func() cuda.Result { return s.drv.GreenCtxDestroy(g.handle) }
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
	if !ok || g.ctx != 0 { // of two numbers one would outlive it
		return cuda.ErrorInvalidHandle
	}
	h, res := s.drv.CtxFromGreenCtx(g.handle)
	if res != cuda.Success {
		return res
	}
	ctx := &context_{handle: h, dev: g.dev, retains: 1, green: true}
	if !s.ctxs.put(a.Ctx, ctx) {
		return cuda.ErrorInvalidContext
	}
	g.ctx = a.Ctx
	s.greens.set(a.Green, g)
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
	h, res := s.drv.GreenCtxStreamCreate(g.handle, a.Flags, a.Priority)
	if res != cuda.Success {
		return res
	}
	st := &stream{handle: h, ctx: ctx, nonBlocking: a.Flags&cuda.StreamNonBlocking != 0, green: a.Green}
	return keep(&s.streams.table, a.Stream, st, st.handle, s.drv.StreamDestroy)
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
	do := s.drv.GreenCtxRecordEvent
	if a.Wait == 0 {
		e.recorded()
	} else {
		do = s.drv.GreenCtxWaitEvent
	}
	return s.note(do(g.handle, e.handle))
}

package cuda

import (
	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/cuda/wire"
)

// link is a CUlinkState with the option arrays that the driver keeps writing to until it ends.
type link struct {
	handle uint64
	opt    *jitOptions
	ctx    uint32
	image  []byte // of a completed link
}

// maxLinked bounds the image that a link may give, in bytes.
const maxLinked = 1 << 30

// LinkCreate opens a link.
func (s *session) LinkCreate(c *wire.Call, a *wire.LinkCreateArgs) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	o := newJITOptions(a.Options, a.InfoCap, a.ErrCap)
	if res := s.fn.cuLinkCreate_v2.call(uint64(o.n), o.keys.addr(), o.values.addr(), s.out.addr()); res != cuda.Success {
		o.free()
		return res
	}
	l := &link{handle: *s.out.u64(0), opt: o, ctx: c.Ctx}
	if !s.links.put(a.Link, l) {
		s.fn.cuLinkDestroy.call(l.handle)
		o.free()
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// link finds a link and makes the context current that it was made in.
func (s *session) link(id uint32) (*link, cuda.Result) {
	l, ok := s.links.get(id)
	if !ok {
		return nil, cuda.ErrorInvalidHandle
	}
	return l, s.useContext(l.ctx)
}

// LinkAdd adds an input. The driver keeps no reference to it.
func (s *session) LinkAdd(c *wire.Call, a *wire.LinkAddArgs, r *wire.LinkAddReply) cuda.Result {
	l, res := s.link(a.Link)
	if res != cuda.Success {
		return res
	}
	in, name, o := cString(a.Input), cString(a.Name), newJITOptions(a.Options, 0, 0)
	defer in.free()
	defer name.free()
	defer o.free()
	size := uint64(len(a.Input))
	if f := fatbin.Detect(a.Input); a.Type == linkInputPTX && f != fatbin.ELF && f != fatbin.Container {
		size++ // with its NUL
	}
	res = s.fn.cuLinkAddData_v2.call(l.handle, uint64(a.Type), in.addr(), size, name.addr(), uint64(o.n), o.keys.addr(),
		o.values.addr())
	info, errs, wall := l.opt.logs()
	r.InfoLen, r.ErrLen, r.WallMs = uint32(len(info)), uint32(len(errs)), wall
	r.Logs = append(append([]byte(nil), info...), errs...)
	if res == cuda.Success {
		s.notePrinting(a.Input)
	}
	return res
}

const linkInputPTX = 1 // CU_JIT_INPUT_PTX

// LinkComplete links what was added.
func (s *session) LinkComplete(c *wire.Call, a *wire.LinkCompleteArgs, r *wire.LinkCompleteReply) cuda.Result {
	l, res := s.link(a.Link)
	if res != cuda.Success {
		return res
	}
	if a.Again == 0 || l.image == nil {
		res = s.fn.cuLinkComplete.call(l.handle, s.out.addr(), s.out.addr()+8)
		image, size := *s.out.u64(0), *s.out.u64(1)
		switch {
		case res == cuda.Success && size > maxLinked:
			res = cuda.ErrorOutOfMemory
		case res == cuda.Success && image != 0:
			l.image = append([]byte{}, hostBytes(image, int(size))...)
		}
	}
	info, errs, wall := l.opt.logs()
	r.InfoLen, r.ErrLen, r.WallMs = uint32(len(info)), uint32(len(errs)), wall
	r.Result = append(append(append([]byte(nil), info...), errs...), l.image...)
	return res
}

// LinkDestroy ends a link.
func (s *session) LinkDestroy(c *wire.Call, a *wire.LinkDestroyArgs) cuda.Result {
	l, ok := s.links.remove(a.Link)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	defer l.opt.free()
	if res := s.useContext(l.ctx); res != cuda.Success {
		return res
	}
	return s.fn.cuLinkDestroy.call(l.handle)
}

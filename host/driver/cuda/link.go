package cuda

import (
	"log/slog"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// link is a CUlinkState with the option arrays that the driver keeps writing to until it ends.
type link struct {
	handle bind.LinkState
	opt    *jitOptions
	ctx    uint32
	image  []byte // of a completed link
}

// maxLinked bounds the image that a link may give, in bytes.
const maxLinked = 1 << 30

// LinkCreate opens a link.
func (s *session) LinkCreate(c *wire.Call, a *wire.LinkCreateArgs) cuda.Result {
	o := newJITOptions(a.Options, a.InfoCap, a.ErrCap)
	h, res := s.drv.LinkCreate(o.Options)
	if res != cuda.Success {
		o.Free()
		return res
	}
	l := &link{handle: h, opt: o, ctx: c.Ctx}
	if !s.links.put(a.Link, l) {
		s.drv.LinkDestroy(l.handle)
		o.Free()
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
	in, code, err := bind.HoldInput(a.Type, a.Input, s.takes)
	if err != nil {
		slog.Info("an input is not shown to the linker", "error", err)
		return cuda.ErrorInvalidImage
	}
	defer in.Release()
	o := newJITOptions(a.Options, 0, 0)
	defer o.Free()
	res = s.drv.LinkAddData(l.handle, a.Type, in, a.Name, o.Options)
	r.InfoLen, r.ErrLen, r.WallMs, r.Logs = l.opt.logs()
	if res == cuda.Success {
		t := codeTraits(a.Input, fatbin.Unknown) // of an object or library
		if code != nil {
			t = s.scan(code)()
		}
		s.printing = s.printing || t.prints
	}
	return res
}

// LinkComplete links what was added.
func (s *session) LinkComplete(c *wire.Call, a *wire.LinkCompleteArgs, r *wire.LinkCompleteReply) cuda.Result {
	l, res := s.link(a.Link)
	if res != cuda.Success {
		return res
	}
	if a.Again == 0 || l.image == nil {
		var image []byte
		if image, res = s.drv.LinkComplete(l.handle, maxLinked); res == cuda.Success && image != nil {
			l.image = image
		}
	}
	r.InfoLen, r.ErrLen, r.WallMs, r.Result = l.opt.logs()
	r.Result = append(r.Result, l.image...)
	return res
}

// LinkDestroy ends a link.
func (s *session) LinkDestroy(c *wire.Call, a *wire.LinkDestroyArgs) cuda.Result {
	l, ok := s.links.remove(a.Link)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	defer l.opt.Free()
	if res := s.useContext(l.ctx); res != cuda.Success {
		return res
	}
	return s.drv.LinkDestroy(l.handle)
}

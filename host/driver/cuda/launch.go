package cuda

import (
	"cmp"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// Launch starts a kernel from a packed parameter buffer.
func (s *session) Launch(c *wire.Call, a *wire.LaunchArgs) cuda.Result {
	f, ok := s.funcs.hot(a.Func)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	args, ok := f.layout.Arguments(a.Params)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if !f.isAt(s.mark(c.Ctx)) {
		if res := s.instanceAt(c, f, c.Ctx); res != cuda.Success {
			return res
		}
	}
	in := cmp.Or(f.ctx, c.Ctx)
	// Of what is captured local memory is taken by what is made of the graph.
	if captured := s.capturing() && s.captured(st, s.ofLaunch(f, in)...); !captured && f.local != 0 {
		grow, res := s.outgrows(c, f, in)
		if res != cuda.Success {
			return res
		}
		if len(grow) > 0 {
			s.submitters.drain(nil) // whether the driver takes it is to be known
			return s.grown(c, grow, s.launch(c, a, f.handle, st, nil, args))
		}
	}
	return s.launch(c, a, f.handle, st, s.submitterFor(c, st), args)
}

// launch gives a launch to a submitter, or to the driver if that is nil.
func (s *session) launch(c *wire.Call, a *wire.LaunchArgs, fn bind.Function, st *stream, l *submitter, args bind.Arguments) cuda.Result {
	var d bind.Dims // a literal would be copied, as a whole behind its parts, which stalls
	d[0], d[1], d[2], d[3], d[4], d[5], d[6] = a.Gx, a.Gy, a.Gz, a.Bx, a.By, a.Bz, a.Shared
	switch {
	case len(a.Attrs) > 0: // a cooperative launch then has its attribute among them
		return s.launchWithAttributes(c, a, fn, st, l, &d, args)
	case a.Flags&wire.LaunchCooperative != 0:
		s.submitters.drain(nil)
		return s.drv.LaunchCooperativeKernel(fn, &d, st.handle, args)
	case l == nil:
		return s.drv.LaunchKernel(fn, &d, st.handle, args)
	}
	i := l.next()
	i.SetLaunch(s.drv, fn, &d, st.handle, bind.Attributes{}, args)
	s.send(l, st, i)
	return cuda.Success
}

// launchWithAttributes is the extended form.
func (s *session) launchWithAttributes(c *wire.Call, a *wire.LaunchArgs, fn bind.Function, st *stream, l *submitter, d *bind.Dims, args bind.Arguments) cuda.Result {
	var kept needs
	attrs, events, res := s.space.LaunchAttributes(a.Attrs, s.eventFor(&kept))
	if res != cuda.Success {
		return res
	}
	s.captured(st, kept...)
	if events {
		s.epoch++
		s.submitters.drain(nil) // the launch records them
		l = nil
	}
	if l == nil || !s.drv.HasLaunchKernelEx() {
		return s.drv.LaunchKernelEx(fn, d, st.handle, attrs, args)
	}
	i := l.next()
	i.SetLaunch(s.drv, fn, d, st.handle, attrs, args)
	s.send(l, st, i)
	return cuda.Success
}

package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// Launch attribute records and the ids that hold handles (CUDA Driver API, CUlaunchAttribute).
const (
	launchAttributeSize       = 72
	attrProgrammaticEvent     = 7
	attrLaunchCompletionEvent = 12
	attrDeviceUpdatableNode   = 13
)

// Launch starts a kernel from a packed parameter buffer.
func (s *session) Launch(c *wire.Call, a *wire.LaunchArgs) cuda.Result {
	f, ok := s.funcs.get(a.Func)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	d := launchDims{a.Gx, a.Gy, a.Gz, a.Bx, a.By, a.Bz, a.Shared}
	switch {
	case len(a.Attrs) > 0: // a cooperative launch then has its attribute among them
		return s.launchWithAttributes(c, a, f, st, &d)
	case a.Flags&wire.LaunchCooperative != 0:
		p := bufferOf(a.Params)
		defer p.free()
		for _, off := range f.offsets {
			if int(off) >= len(a.Params) {
				return cuda.ErrorInvalidValue
			}
		}
		s.lanes.drain(nil)
		return s.fn.cuLaunchCooperativeKernel.launchCooperative(f.handle, &d, st.handle, p, f.offsets)
	}
	l := s.laneFor(c, st)
	if l == nil {
		return s.fn.cuLaunchKernel.launch(f.handle, &d, st.handle, a.Params)
	}
	i := l.next()
	i.setLaunch(s.fn.cuLaunchKernel, f.handle, st.handle, &d, a.Params, buffer{}, 0)
	s.send(l, st, i)
	return cuda.Success
}

// launchWithAttributes is the extended form.
func (s *session) launchWithAttributes(c *wire.Call, a *wire.LaunchArgs, f *function, st *stream, d *launchDims) cuda.Result {
	list, events, res := s.launchAttributes(a.Attrs)
	if res != cuda.Success {
		return res
	}
	if events {
		s.epoch++
		s.lanes.drain(nil) // the launch records them
	}
	n := len(a.Attrs) / launchAttributeSize
	var l *lane
	if !events {
		l = s.laneFor(c, st)
	}
	if l == nil || s.fn.cuLaunchKernelEx == 0 {
		defer list.free()
		return s.fn.cuLaunchKernelEx.launchEx(f.handle, d, st.handle, list, n, a.Params)
	}
	i := l.next()
	i.setLaunch(s.fn.cuLaunchKernelEx, f.handle, st.handle, d, a.Params, list, n)
	s.send(l, st, i)
	return cuda.Success
}

// launchAttributes copies attribute records into C memory and puts the driver's events where the guest's ids stand. It
// reports whether there are any.
func (s *session) launchAttributes(attrs []byte) (_ buffer, events bool, _ cuda.Result) {
	if len(attrs)%launchAttributeSize != 0 {
		return buffer{}, false, cuda.ErrorInvalidValue
	}
	list := bufferOf(attrs)
	b := list.bytes()
	for ; len(b) > 0; b = b[launchAttributeSize:] {
		switch binary.LittleEndian.Uint32(b) {
		case attrProgrammaticEvent, attrLaunchCompletionEvent:
			e, ok := s.events.get(uint32(binary.LittleEndian.Uint64(b[8:])))
			if !ok {
				list.free()
				return buffer{}, false, cuda.ErrorInvalidHandle
			}
			binary.LittleEndian.PutUint64(b[8:], e.handle)
			events = true
		case attrDeviceUpdatableNode:
			list.free()
			return buffer{}, false, cuda.ErrorNotSupported
		}
	}
	return list, events, cuda.Success
}

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
		list, res := s.launchAttributes(a.Attrs)
		if res != cuda.Success {
			return res
		}
		defer list.free()
		p := bufferOf(a.Params)
		defer p.free()
		return s.fn.cuLaunchKernelEx.launchEx(f.handle, &d, st.handle, list, len(a.Attrs)/launchAttributeSize, p, len(a.Params))
	case a.Flags&wire.LaunchCooperative != 0:
		p := bufferOf(a.Params)
		defer p.free()
		for _, off := range f.offsets {
			if int(off) >= len(a.Params) {
				return cuda.ErrorInvalidValue
			}
		}
		return s.fn.cuLaunchCooperativeKernel.launchCooperative(f.handle, &d, st.handle, p, f.offsets)
	}
	return s.fn.cuLaunchKernel.launch(f.handle, &d, st.handle, a.Params)
}

// launchAttributes copies attribute records into C memory and puts the driver's events where the guest's ids stand.
func (s *session) launchAttributes(attrs []byte) (buffer, cuda.Result) {
	if len(attrs)%launchAttributeSize != 0 {
		return buffer{}, cuda.ErrorInvalidValue
	}
	list := bufferOf(attrs)
	b := list.bytes()
	for ; len(b) > 0; b = b[launchAttributeSize:] {
		switch binary.LittleEndian.Uint32(b) {
		case attrProgrammaticEvent, attrLaunchCompletionEvent:
			e, ok := s.events.get(uint32(binary.LittleEndian.Uint64(b[8:])))
			if !ok {
				list.free()
				return buffer{}, cuda.ErrorInvalidHandle
			}
			binary.LittleEndian.PutUint64(b[8:], e.handle)
		case attrDeviceUpdatableNode:
			list.free()
			return buffer{}, cuda.ErrorNotSupported
		}
	}
	return list, cuda.Success
}

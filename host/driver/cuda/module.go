package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

type module struct {
	handle  uint64
	library bool   // belongs to a library: not unloaded on its own
	lib     uint32 // that library
}

// CUjit_option values (CUDA Driver API reference, cuModuleLoadDataEx) that carry a plain number; all others hold
// pointers of the guest and are dropped, the log buffers being ours.
var plainJITOption = map[uint64]bool{
	0: true, 1: true, 7: true, 8: true, 9: true, 10: true, 11: true, 12: true, 13: true, 14: true, 15: true, 16: true,
	20: true, 21: true, 22: true, 23: true, 24: true, 29: true, 30: true, 31: true, 32: true,
	33: true, 34: true, 35: true,
}

const (
	jitWallTime     = 2
	jitInfoLog      = 3
	jitInfoLogBytes = 4
	jitErrLog       = 5
	jitErrLogBytes  = 6
	maxLog          = 1 << 20
)

// jitOptions are the option arrays of one load, with log buffers of ours.
type jitOptions struct {
	keys, values, info, errs buffer
	n                        int
	wall, infoLen, errLen    int // index of the option in values, -1 if absent
}

func newJITOptions(pairs []byte, infoCap, errCap uint32) *jitOptions {
	o := &jitOptions{wall: -1, infoLen: -1, errLen: -1}
	n := len(pairs)/16 + 5
	o.keys, o.values = newBuffer(4*n), newBuffer(8*n)
	add := func(key int32, value uint64) int {
		*o.keys.i32(o.n), *o.values.u64(o.n) = key, value
		o.n++
		return o.n - 1
	}
	for p := pairs; len(p) >= 16; p = p[16:] {
		key, value := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
		switch {
		case key == jitWallTime:
			o.wall = add(jitWallTime, 0)
		case plainJITOption[key]:
			add(int32(key), value)
		}
	}
	if infoCap > 0 {
		o.info = newBuffer(int(min(infoCap, maxLog)))
		add(jitInfoLog, o.info.addr())
		o.infoLen = add(jitInfoLogBytes, uint64(o.info.size))
	}
	if errCap > 0 {
		o.errs = newBuffer(int(min(errCap, maxLog)))
		add(jitErrLog, o.errs.addr())
		o.errLen = add(jitErrLogBytes, uint64(o.errs.size))
	}
	return o
}

// logs are the info log, the error log and the compile time in milliseconds.
func (o *jitOptions) logs() (info, errs []byte, wall float32) {
	if o.infoLen >= 0 {
		info = o.info.bytes()[:min(uint64(o.info.size), *o.values.u64(o.infoLen))]
	}
	if o.errLen >= 0 {
		errs = o.errs.bytes()[:min(uint64(o.errs.size), *o.values.u64(o.errLen))]
	}
	if o.wall >= 0 {
		wall = *o.values.f32(2 * o.wall)
	}
	return info, errs, wall
}

func (o *jitOptions) free() {
	for _, b := range []buffer{o.keys, o.values, o.info, o.errs} {
		if b.p != nil {
			b.free()
		}
	}
}

// ModuleLoad loads PTX, a cubin or a fatbin into the current context.
func (s *session) ModuleLoad(c *wire.Call, a *wire.ModuleLoadArgs, r *wire.ModuleLoadReply) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	look := s.scan(a.Image)
	im, o := holdImage(a.Image, false), newJITOptions(a.Options, a.InfoCap, a.ErrCap)
	defer im.release()
	defer o.free()
	res := s.fn.cuModuleLoadDataEx.call(s.out.addr(), im.addr, uint64(o.n), o.keys.addr(), o.values.addr())
	info, errs, wall := o.logs()
	r.InfoLen, r.ErrLen, r.WallMs = uint32(len(info)), uint32(len(errs)), wall
	r.Logs = append(append([]byte(nil), info...), errs...)
	if res != cuda.Success {
		return res
	}
	handle := *s.out.u64(0)
	if !s.modules.put(a.Module, module{handle: handle}) {
		s.fn.cuModuleUnload.call(handle)
		return cuda.ErrorInvalidHandle
	}
	t := look()
	s.printing = t.prints || s.printing
	r.Managed = s.keepSource(owner{id: a.Module}, s.movable(c, t), a.Options)
	return cuda.Success
}

// ModuleUnload unloads a module that the guest loaded.
func (s *session) ModuleUnload(c *wire.Call, a *wire.ModuleUnloadArgs) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	m, ok := s.modules.remove(a.Module)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if m.library {
		return cuda.Success
	}
	s.forgetSource(owner{id: a.Module})
	return s.fn.cuModuleUnload.call(m.handle)
}

// ModuleGetGlobal finds a variable of a module.
func (s *session) ModuleGetGlobal(c *wire.Call, a *wire.ModuleGetGlobalArgs, r *wire.ModuleGetGlobalReply) cuda.Result {
	m, ok := s.modules.get(a.Module)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	of := owner{id: a.Module}
	if m.library {
		of = owner{library: true, id: m.lib}
	}
	if v, ok := s.managed[of][string(a.Name)]; ok {
		r.Ptr, r.Size = v.addr, v.size
		return cuda.Success
	}
	if res := s.use(c); res != cuda.Success {
		return res
	}
	name := cString(a.Name)
	defer name.free()
	res := s.fn.cuModuleGetGlobal_v2.call(s.out.addr(), s.out.addr()+8, m.handle, name.addr())
	if res == cuda.Success {
		r.Ptr, r.Size = *s.out.u64(0), *s.out.u64(1)
		res = s.refuseManaged(r.Ptr, a.Name)
	}
	return res
}

// ModuleListFunctions names a module's kernels.
func (s *session) ModuleListFunctions(c *wire.Call, a *wire.ModuleListFunctionsArgs, r *wire.ModuleListFunctionsReply) cuda.Result {
	m, ok := s.modules.get(a.Module)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if res := s.use(c); res != cuda.Success {
		return res
	}
	names, res := s.enumerate(m.handle, s.fn.cuModuleGetFunctionCount, s.fn.cuModuleEnumerateFunctions, s.fn.cuFuncGetName)
	r.Names = names
	return res
}

// enumerate lists the names behind a count / enumerate / name triple of entry points.
func (s *session) enumerate(handle uint64, count, list, name entry) ([]byte, cuda.Result) {
	if res := count.call(s.out.addr(), handle); res != cuda.Success {
		return nil, res
	}
	n := *s.out.i32(0)
	handles := newBuffer(8 * int(n))
	defer handles.free()
	if res := list.call(handles.addr(), uint64(n), handle); res != cuda.Success {
		return nil, res
	}
	var names []byte
	for i := range int(n) {
		if res := name.call(s.out.addr(), *handles.u64(i)); res != cuda.Success {
			return nil, res
		}
		names = append(append(names, goString(*s.out.u64(0))...), 0)
	}
	return names, cuda.Success
}

// LibraryLoad loads an image independent of contexts.
func (s *session) LibraryLoad(c *wire.Call, a *wire.LibraryLoadArgs, r *wire.LibraryLoadReply) cuda.Result {
	look := s.scan(a.Image)
	im, o := holdImage(a.Image, true), newJITOptions(a.Jit, a.InfoCap, a.ErrCap)
	defer o.free()
	var keep struct{ keys, values buffer }
	keep.keys, keep.values = newBuffer(4), newBuffer(8)
	defer keep.keys.free()
	defer keep.values.free()
	*keep.keys.i32(0), *keep.values.u64(0) = libraryBinaryIsPreserved, 1
	res := s.fn.cuLibraryLoadData.call(s.out.addr(), im.addr, o.keys.addr(), o.values.addr(), uint64(o.n),
		keep.keys.addr(), keep.values.addr(), 1)
	info, errs, wall := o.logs()
	r.InfoLen, r.ErrLen, r.WallMs = uint32(len(info)), uint32(len(errs)), wall
	r.Logs = append(append([]byte(nil), info...), errs...)
	if res != cuda.Success {
		im.release()
		return res
	}
	handle := *s.out.u64(0)
	if !s.libs.put(a.Library, handle) {
		s.fn.cuLibraryUnload.call(handle)
		im.release()
		return cuda.ErrorInvalidHandle
	}
	s.images.put(a.Library, im)
	t := look()
	s.printing = t.prints || s.printing
	r.Managed = s.keepSource(owner{library: true, id: a.Library}, s.movable(c, t), nil)
	return cuda.Success
}

// LibraryUnload unloads a library.
func (s *session) LibraryUnload(c *wire.Call, a *wire.LibraryUnloadArgs) cuda.Result {
	h, ok := s.libs.remove(a.Library)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	res := s.fn.cuLibraryUnload.call(h)
	s.forgetSource(owner{library: true, id: a.Library})
	if im, ok := s.images.remove(a.Library); ok {
		im.release()
	}
	return res
}

// LibraryGetModule gives the library's module in the current context.
func (s *session) LibraryGetModule(c *wire.Call, a *wire.LibraryGetModuleArgs) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	h, ok := s.libs.get(a.Library)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if res := s.fn.cuLibraryGetModule.call(s.out.addr(), h); res != cuda.Success {
		return res
	}
	if !s.modules.put(a.Module, module{handle: *s.out.u64(0), library: true, lib: a.Library}) {
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// LibraryGetGlobal finds a global or managed variable of a library.
func (s *session) LibraryGetGlobal(c *wire.Call, a *wire.LibraryGetGlobalArgs, r *wire.LibraryGetGlobalReply) cuda.Result {
	if v, ok := s.managed[owner{library: true, id: a.Library}][string(a.Name)]; ok {
		r.Ptr, r.Size = v.addr, v.size
		return cuda.Success
	}
	if res := s.use(c); res != cuda.Success {
		return res
	}
	h, ok := s.libs.get(a.Library)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	find := s.fn.cuLibraryGetGlobal
	if a.Managed != 0 {
		find = s.fn.cuLibraryGetManaged
	}
	name := cString(a.Name)
	defer name.free()
	res := find.call(s.out.addr(), s.out.addr()+8, h, name.addr())
	if res == cuda.Success {
		r.Ptr, r.Size = *s.out.u64(0), *s.out.u64(1)
		res = s.refuseManaged(r.Ptr, a.Name)
	}
	return res
}

// LibraryListKernels names a library's kernels.
func (s *session) LibraryListKernels(c *wire.Call, a *wire.LibraryListKernelsArgs, r *wire.LibraryListKernelsReply) cuda.Result {
	h, ok := s.libs.get(a.Library)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	names, res := s.enumerate(h, s.fn.cuLibraryGetKernelCount, s.fn.cuLibraryEnumerateKernels, s.fn.cuKernelGetName)
	r.Names = names
	return res
}

package cuda

import (
	"encoding/binary"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

type module struct {
	handle  bind.Module
	ctx     uint32
	library bool // not unloaded on its own: it is a library's, or a further name of one
	code
}

const maxLog = 1 << 20

// jitOptions are the options of one load, with log buffers of ours.
type jitOptions struct {
	*bind.Options
	info, errs             bind.Buffer
	wall, infoLen, errsLen int // index of the option, -1 if absent
}

func newJITOptions(pairs []byte, infoCap, errCap uint32) *jitOptions {
	o := &jitOptions{Options: bind.NewOptions(len(pairs)/16 + 5), wall: -1, infoLen: -1, errsLen: -1}
	for p := pairs; len(p) >= 16; p = p[16:] {
		key, value := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
		if key == cuda.JITWallTime {
			o.wall = o.Add(cuda.JITWallTime, 0)
		} else {
			// Not those that hold pointers of the guest: the log buffers are ours.
			o.AddPlain(key, value)
		}
	}
	log := func(room uint32, buffer, size int32) (bind.Buffer, int) {
		if room == 0 {
			return bind.Buffer{}, -1
		}
		room = min(room, maxLog)
		return o.AddBuffer(buffer, int(room)), o.Add(size, uint64(room))
	}
	o.info, o.infoLen = log(infoCap, cuda.JITInfoLogBuffer, cuda.JITInfoLogBufferSizeBytes)
	o.errs, o.errsLen = log(errCap, cuda.JITErrorLogBuffer, cuda.JITErrorLogBufferSizeBytes)
	return o
}

// logs are how long the info log and the error log are, the compile time in milliseconds, and the
// logs one behind the other.
func (o *jitOptions) logs() (info, errs uint32, wall float32, both []byte) {
	text := func(b bind.Buffer, length int) []byte {
		if length < 0 {
			return nil
		}
		return b.Bytes()[:min(uint64(len(b.Bytes())), o.Value(length))]
	}
	if o.wall >= 0 {
		wall = float(o.Value(o.wall))
	}
	i, e := text(o.info, o.infoLen), text(o.errs, o.errsLen)
	return uint32(len(i)), uint32(len(e)), wall, slices.Concat(i, e)
}

// ModuleLoad loads PTX, a cubin or a fatbin into the current context.
func (s *session) ModuleLoad(c *wire.Call, a *wire.ModuleLoadArgs, r *wire.ModuleLoadReply) cuda.Result {
	image, res := s.check(a.Image)
	if res != cuda.Success {
		return res
	}
	defer s.steer(c)()
	look := s.scan(image)
	im, o := bind.HoldImage(image, false), newJITOptions(a.Options, a.InfoCap, a.ErrCap)
	defer im.Release()
	defer o.Free()
	handle, res := s.drv.ModuleLoadDataEx(im, o.Options)
	r.InfoLen, r.ErrLen, r.WallMs, r.Logs = o.logs()
	if res != cuda.Success {
		return res
	}
	if !s.modules.put(a.Module, module{handle: handle, ctx: c.Ctx, code: code{module: a.Module}}) {
		s.drv.ModuleUnload(handle)
		return cuda.ErrorInvalidHandle
	}
	t := look()
	if res := s.bookManaged(owner{id: a.Module}, t); res != cuda.Success {
		s.modules.remove(a.Module)
		s.drv.ModuleUnload(handle)
		return res
	}
	s.printing = t.prints || s.printing
	r.Managed = s.keepSource(owner{id: a.Module}, s.movableCode(c, t), a.Options)
	s.nameVariables(owner{id: a.Module}, image)
	return s.settleVariables(c, owner{id: a.Module})
}

// ModuleUnload unloads a module that the guest loaded.
func (s *session) ModuleUnload(c *wire.Call, a *wire.ModuleUnloadArgs) cuda.Result {
	m, ok := s.modules.remove(a.Module)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if m.library {
		return cuda.Success
	}
	s.forgetSource(owner{id: a.Module})
	s.forgetCode(owner{id: a.Module})
	s.unloaded(m.code)
	return s.drv.ModuleUnload(m.handle)
}

// ModuleGetGlobal finds a variable of a module.
func (s *session) ModuleGetGlobal(c *wire.Call, a *wire.ModuleGetGlobalArgs, r *wire.ModuleGetGlobalReply) cuda.Result {
	m, ok := s.modules.get(a.Module)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	of := owner{id: a.Module}
	if m.library {
		of = owner{lib: true, id: m.lib}
	}
	var res cuda.Result
	r.Ptr, r.Size, res = s.variable(c, of, a.Name, func() (bind.Address, uint64, cuda.Result) { return s.drv.ModuleGetGlobal(m.handle, a.Name) })
	return res
}

// variable is where one of a module or a library lies: in memory of this session's, if it is a
// managed one, else where the driver finds it.
func (s *session) variable(c *wire.Call, of owner, name []byte, find func() (bind.Address, uint64, cuda.Result)) (ptr, size uint64, res cuda.Result) {
	if v, ok := s.managed[of][string(name)]; ok {
		return v.addr, v.size, cuda.Success
	}
	if res := s.use(c); res != cuda.Success {
		return 0, 0, res
	}
	at, size, res := find()
	if res != cuda.Success {
		return 0, 0, res
	}
	return at.Value(), size, s.refuseManaged(at, name)
}

// ModuleListFunctions names a module's kernels.
func (s *session) ModuleListFunctions(c *wire.Call, a *wire.ModuleListFunctionsArgs, r *wire.ModuleListFunctionsReply) (res cuda.Result) {
	m, ok := s.modules.get(a.Module)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	r.Names, res = enumerate(m.handle, s.drv.ModuleGetFunctionCount, s.drv.ModuleEnumerateFunctions, s.drv.FuncGetName)
	return res
}

// enumerate lists the names of what an object holds.
func enumerate[O, H any](of O, count func(O) (uint32, cuda.Result), list func([]H, O) cuda.Result, name func(H) (string, cuda.Result)) ([]byte, cuda.Result) {
	n, res := count(of)
	if res != cuda.Success {
		return nil, res
	}
	handles := make([]H, n)
	if res := list(handles, of); res != cuda.Success {
		return nil, res
	}
	var names []byte
	for _, h := range handles {
		text, res := name(h)
		if res != cuda.Success {
			return nil, res
		}
		names = append(append(names, text...), 0)
	}
	return names, cuda.Success
}

// LibraryLoad loads an image independent of contexts.
func (s *session) LibraryLoad(c *wire.Call, a *wire.LibraryLoadArgs, r *wire.LibraryLoadReply) cuda.Result {
	image, res := s.check(a.Image)
	if res != cuda.Success {
		return res
	}
	defer s.steer(c)()
	look := s.scan(image)
	im, o, keep := bind.HoldImage(image, true), newJITOptions(a.Jit, a.InfoCap, a.ErrCap), bind.NewOptions(1)
	defer o.Free()
	defer keep.Free()
	keep.Add(cuda.LibraryBinaryIsPreserved, 1) // the driver need not copy, and may load lazily
	handle, res := s.drv.LibraryLoadData(im, o.Options, keep)
	r.InfoLen, r.ErrLen, r.WallMs, r.Logs = o.logs()
	if res != cuda.Success {
		im.Release()
		return res
	}
	if !s.libs.put(a.Library, handle) {
		s.drv.LibraryUnload(handle)
		im.Release()
		return cuda.ErrorInvalidHandle
	}
	t := look()
	if res := s.bookManaged(owner{lib: true, id: a.Library}, t); res != cuda.Success {
		s.libs.remove(a.Library)
		s.drv.LibraryUnload(handle)
		im.Release()
		return res
	}
	s.images.put(a.Library, im)
	s.printing = t.prints || s.printing
	r.Managed = s.keepSource(owner{lib: true, id: a.Library}, s.movableCode(c, t), nil)
	s.nameVariables(owner{lib: true, id: a.Library}, image)
	return s.settleVariables(c, owner{lib: true, id: a.Library})
}

// LibraryUnload unloads a library.
func (s *session) LibraryUnload(c *wire.Call, a *wire.LibraryUnloadArgs) cuda.Result {
	h, ok := s.libs.remove(a.Library)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	s.unloaded(code{lib: a.Library})
	res := s.drv.LibraryUnload(h)
	if old, ok := s.retired[a.Library]; ok {
		delete(s.retired, a.Library)
		s.drv.LibraryUnload(old.handle)
		old.image.Release()
	}
	s.forgetSource(owner{lib: true, id: a.Library})
	s.forgetCode(owner{lib: true, id: a.Library})
	if im, ok := s.images.remove(a.Library); ok {
		im.Release()
	}
	return res
}

// LibraryGetModule gives the library's module in the current context.
func (s *session) LibraryGetModule(c *wire.Call, a *wire.LibraryGetModuleArgs) cuda.Result {
	h, ok := s.libs.get(a.Library)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	m, res := s.drv.LibraryGetModule(h)
	if res == cuda.Success {
		res = s.instantiate(c, a.Library, c.Ctx)
	}
	if res != cuda.Success {
		return res
	}
	return s.modules.add(a.Module, module{handle: m, ctx: c.Ctx, library: true, code: code{lib: a.Library}})
}

// LibraryGetGlobal finds a global or managed variable of a library.
func (s *session) LibraryGetGlobal(c *wire.Call, a *wire.LibraryGetGlobalArgs, r *wire.LibraryGetGlobalReply) cuda.Result {
	res := s.instantiate(c, a.Library, c.Ctx)
	if res != cuda.Success {
		return res
	}
	r.Ptr, r.Size, res = s.variable(c, owner{lib: true, id: a.Library}, a.Name, func() (bind.Address, uint64, cuda.Result) {
		h, ok := s.libs.get(a.Library)
		switch {
		case !ok:
			return bind.Address{}, 0, cuda.ErrorInvalidHandle
		case a.Managed != 0:
			return s.drv.LibraryGetManaged(h, a.Name)
		}
		return s.drv.LibraryGetGlobal(h, a.Name)
	})
	return res
}

// LibraryListKernels names a library's kernels.
func (s *session) LibraryListKernels(c *wire.Call, a *wire.LibraryListKernelsArgs, r *wire.LibraryListKernelsReply) (res cuda.Result) {
	h, ok := s.libs.get(a.Library)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	r.Names, res = enumerate(h, s.drv.LibraryGetKernelCount, s.drv.LibraryEnumerateKernels, s.drv.KernelGetName)
	return res
}

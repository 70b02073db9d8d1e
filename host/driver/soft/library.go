package soft

import (
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/soft/ptx"
)

// library is code that belongs to no context. Each context gets a module of it when it first needs
// one.
type library struct {
	id        wire.ID
	source    *ptx.Module
	instances map[*gpuContext]*module
	// spare waits for the first context that asks: the image was compiled for it when the library
	// came.
	spare    *module
	managed  *managedVars  // nil: not moved
	retired  []*allocation // variables from before that: see reload
	settings map[kernelOn]*settings
	// Some instance, or code whose variables lie nowhere, for names and attributes; never nil.
	shape *module
}

// kernel is a library's entry function, in whichever context.
type kernel struct {
	lib  *library
	name string
}

// LibraryLoad compiles an image.
func (s *session) LibraryLoad(c *wire.Call, a *wire.LibraryLoadArgs, r *wire.LibraryLoadReply) cuda.Result {
	device := 0
	if g, ok := s.ctxs[c.Ctx]; ok {
		device = g.device
	}
	if c.Replay && len(c.Placed) > 0 { // the context that was current then may be gone
		device = deviceAt(c.Placed[0])
	}
	b := &build{}
	res := b.parse(a.Image, a.Jit)
	if res == cuda.Success {
		var m *module
		b.shape = vacated(c)
		if m, res = s.instantiate(c, b, b.source, nil, device); res == cuda.Success {
			l := &library{id: a.Library, source: b.source, instances: map[*gpuContext]*module{}, settings: map[kernelOn]*settings{}}
			l.begins(m)
			if res = s.libraries.put(a.Library, l); res != cuda.Success {
				s.free(m.vars)
			}
		}
		_, r.Managed = layout(b.source)
	}
	r.WallMs, r.InfoLen, r.ErrLen, r.Logs = b.results(a.InfoCap, a.ErrCap)
	return s.loaded(b, res)
}

// vacated reports whether a request that is made again made an instance for a context that has
// ended since: where that was others may be, and the next context's has not come yet.
func vacated(c *wire.Call) bool { return c.Replay && len(c.Placed) == 0 }

// begins makes a module what waits for the first context, unless it is a shape only.
func (l *library) begins(m *module) {
	l.owns(m)
	l.shape, l.spare = m, nil
	if len(m.vars) == m.placed {
		l.spare = m
	}
}

// instance is the library's module in the current context.
func (s *session) instance(c *wire.Call, l *library) (*module, cuda.Result) {
	g, res := s.context(c)
	if res != cuda.Success {
		return nil, res
	}
	if m := l.instances[g]; m != nil {
		return m, cuda.Success
	}
	in := c
	if c.Op != wire.OpLibraryInstance {
		if n := l.shape.placed; n > 0 && !c.MayKeep(n) {
			return nil, cuda.ErrorOutOfMemory
		}
		in = &wire.Call{Op: wire.OpLibraryInstance, Ctx: c.Ctx, Thread: c.Thread, Replay: c.Replay}
	}
	m, res := s.instanceIn(in, l, g)
	if res != cuda.Success {
		return nil, res
	}
	l.instances[g] = m
	if in != c && len(m.vars) > 0 {
		c.Made(wire.Instance{Library: l.id, Ctx: c.Ctx, Placed: m.places()})
	}
	return m, cuda.Success
}

// instanceIn is a new one, or the spare one if that has its variables where the call is to have
// them.
func (s *session) instanceIn(c *wire.Call, l *library, g *gpuContext) (*module, cuda.Result) {
	if m := l.spare; m != nil && m.device == g.device && (!c.Replay || len(c.Placed) == 0 || slices.Equal(m.places(), c.Placed)) {
		l.spare = nil
		m.ctx = g
		for _, v := range m.vars {
			v.ctx = g
		}
		return m, cuda.Success
	}
	m, res := s.instantiate(c, &build{managed: l.managed}, l.source, g, g.device)
	if res == cuda.Success {
		l.owns(m)
	}
	return m, res
}

// places are where a module's variables lie.
func (m *module) places() (at []uint64) {
	for _, v := range m.vars {
		at = append(at, v.lo)
	}
	return at
}

// LibraryInstance makes a library's module in a context again.
func (s *session) LibraryInstance(c *wire.Call, a *wire.LibraryInstanceArgs) cuda.Result {
	l, ok := s.libraries[a.Library]
	if !ok || !c.Replay {
		return cuda.ErrorInvalidHandle
	}
	_, res := s.instance(c, l)
	return res
}

// LibraryUnload unloads a library and its modules; queued launches still run.
func (s *session) LibraryUnload(c *wire.Call, a *wire.LibraryUnloadArgs) cuda.Result {
	l, ok := s.libraries[a.Library]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	delete(s.libraries, a.Library)
	s.kernels.deleteIf(func(k *kernel) bool { return k.lib == l })
	for _, m := range l.instances {
		s.unload(m)
	}
	if l.spare != nil {
		s.unload(l.spare)
	}
	s.free(l.retired)
	return cuda.Success
}

// LibraryGetKernel finds a kernel.
func (s *session) LibraryGetKernel(c *wire.Call, a *wire.LibraryGetKernelArgs, r *wire.LibraryGetKernelReply) cuda.Result {
	l, ok := s.libraries[a.Library]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if _, ok := l.shape.funcs[string(a.Name)]; !ok {
		return cuda.ErrorNotFound
	}
	k, device := &kernel{lib: l, name: string(a.Name)}, 0
	if g, ok := s.ctxs[c.Ctx]; ok {
		device = g.device
	}
	r.Info = k.on(device).info()
	return s.kernels.put(a.Kernel, k)
}

// LibraryGetModule is the library's module in the current context.
func (s *session) LibraryGetModule(c *wire.Call, a *wire.LibraryGetModuleArgs) cuda.Result {
	l, ok := s.libraries[a.Library]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	m, res := s.instance(c, l)
	if res != cuda.Success {
		return res
	}
	return s.modules.put(a.Module, m)
}

// LibraryGetGlobal finds a variable in the current context.
func (s *session) LibraryGetGlobal(c *wire.Call, a *wire.LibraryGetGlobalArgs, r *wire.LibraryGetGlobalReply) cuda.Result {
	l, ok := s.libraries[a.Library]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if r.Ptr, r.Size, ok = l.managed.find(string(a.Name)); ok {
		return cuda.Success
	}
	m, res := s.instance(c, l)
	if res != cuda.Success {
		return res
	}
	r.Ptr, r.Size, res = m.global(string(a.Name))
	if res == cuda.Success && a.Managed != 0 {
		return cuda.ErrorNotFound // it is there, but not managed
	}
	return res
}

// LibraryListKernels names the kernels of a library.
func (s *session) LibraryListKernels(c *wire.Call, a *wire.LibraryListKernelsArgs, r *wire.LibraryListKernelsReply) cuda.Result {
	l, ok := s.libraries[a.Library]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	r.Names = names(l.shape.code.Kernels())
	return cuda.Success
}

// KernelGetFunction is a kernel in the current context.
func (s *session) KernelGetFunction(c *wire.Call, a *wire.KernelGetFunctionArgs, r *wire.KernelGetFunctionReply) cuda.Result {
	k, ok := s.kernels[a.Kernel]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	m, res := s.instance(c, k.lib)
	if res != cuda.Success {
		return res
	}
	e := m.funcs[k.name]
	r.Info = e.info()
	return s.funcs.put(a.Func, &function{mod: m, entry: e})
}

// KernelFunction is the same for a guest that knows what the kernel is like.
func (s *session) KernelFunction(c *wire.Call, a *wire.KernelFunctionArgs) cuda.Result {
	return s.KernelGetFunction(c, &wire.KernelGetFunctionArgs{Func: a.Func, Kernel: a.Kernel}, new(wire.KernelGetFunctionReply))
}

package soft

import (
	"errors"
	"fmt"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/soft/exec"
	"causeway/host/driver/soft/ptx"
)

// module is loaded code with its variables. The worker owns it; kernels in it are used by tasks
// also after it is gone.
type module struct {
	ctx     *gpuContext // nil: a library's, not yet claimed by a context
	device  int
	library *library // nil: of ModuleLoad
	code    *exec.Module
	source  *ptx.Module  // of ModuleLoad
	managed *managedVars // of ModuleLoad, nil: not moved
	vars    []*allocation
	placed  int           // variables; as many as vars, unless it is a shape
	retired []*allocation // of ModuleLoad: variables from before the managed ones moved
	funcs   map[string]*entry
}

// entry is one kernel of a module with what the guest has set for it.
type entry struct {
	code       *exec.Kernel
	own        settings
	kernel     *settings // of the library's kernel on the device; nil: it is of ModuleLoad
	lacks      error     // why it cannot run, usually an instruction that exec lacks
	complained bool
}

// instantiate lowers source and places its variables; their addresses are noted in c.
func (s *session) instantiate(c *wire.Call, b *build, source *ptx.Module, g *gpuContext, device int) (*module, cuda.Result) {
	m := &module{ctx: g, device: device, funcs: map[string]*entry{}}
	code, err := exec.Load(source, func(name string, size, align uint64, space ptx.Space) (uint64, []byte, error) {
		if addr, mem, ok := b.managed.place(name); ok {
			return addr, mem, nil
		}
		m.placed++
		if b.shape {
			return nowhere, nil, nil
		}
		r := request{device: device, size: size, align: max(align, 256), ctx: g, kind: variable, readOnly: space == ptx.Const}
		a, res := s.obtain(c, r)
		if res != cuda.Success {
			return 0, nil, res
		}
		m.vars = append(m.vars, a)
		if a.came {
			return a.lo, nil, nil
		}
		return a.lo, a.mem, nil
	})
	if err == nil {
		err = m.adopt(code)
	}
	if err == nil {
		b.mention(m)
		return m, cuda.Success
	}
	s.free(m.vars)
	var res cuda.Result
	if errors.As(err, &res) {
		return nil, b.fail(res, "%v", err)
	}
	return nil, b.broken(err)
}

// nowhere is where a shape has its variables.
const nowhere = 256

// adopt lists the kernels of loaded code.
func (m *module) adopt(code *exec.Module) error {
	m.code = code
	for _, k := range code.Kernels() {
		static := k.Attributes().SharedBytes
		if static > sharedDefault {
			return fmt.Errorf("entry function '%s' uses too much shared data (%#x bytes, %#x max)", k.Name(), static, sharedDefault)
		}
		m.funcs[k.Name()] = &entry{code: k, lacks: k.Unsupported()}
	}
	return nil
}

// mention puts kernels that cannot run into the info log.
func (b *build) mention(m *module) {
	for _, k := range m.code.Kernels() {
		if err := m.funcs[k.Name()].lacks; err != nil {
			fmt.Fprintf(&b.info, "info    : %s cannot be launched on the software GPU: %v\n", k.Name(), err)
		}
	}
}

// global finds a variable. Managed ones that have not moved are not given out: the guest could not
// read them.
func (m *module) global(name string) (ptr, size uint64, res cuda.Result) {
	for _, g := range m.code.Globals() {
		if g.Name == name {
			if g.Managed {
				return 0, 0, cuda.ErrorNotSupported
			}
			return g.Addr, g.Size, cuda.Success
		}
	}
	return 0, 0, cuda.ErrorNotFound
}

// names lists kernels, each name NUL-terminated.
func names(kernels []*exec.Kernel) []byte {
	var list []byte
	for _, k := range kernels {
		list = append(append(list, k.Name()...), 0)
	}
	return list
}

// ModuleLoad compiles an image into the current context.
func (s *session) ModuleLoad(c *wire.Call, a *wire.ModuleLoadArgs, r *wire.ModuleLoadReply) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	b := &build{}
	if res = b.parse(a.Image, a.Options); res == cuda.Success {
		var m *module
		if m, res = s.instantiate(c, b, b.source, g, g.device); res == cuda.Success {
			m.source = b.source
			if res = s.modules.put(a.Module, m); res != cuda.Success {
				s.free(m.vars)
			}
		}
		_, r.Managed = layout(b.source)
	}
	r.WallMs, r.InfoLen, r.ErrLen, r.Logs = b.results(a.InfoCap, a.ErrCap)
	return s.loaded(b, res)
}

// loaded logs what a guest without log buffers cannot see.
func (s *session) loaded(b *build, res cuda.Result) cuda.Result {
	if res != cuda.Success {
		s.log.Debug("image is refused", "result", res.Name(), "why", cut(b.errs.String(), 1000))
	} else if b.info.Len() > 0 {
		s.log.Debug("image has kernels that cannot run", "which", cut(b.info.String(), 1000))
	}
	return res
}

// ModuleUnload unloads a module; queued launches still run.
func (s *session) ModuleUnload(c *wire.Call, a *wire.ModuleUnloadArgs) cuda.Result {
	m, ok := s.modules[a.Module]
	if !ok || m.library != nil {
		return cuda.ErrorInvalidHandle
	}
	delete(s.modules, a.Module)
	s.unload(m)
	return cuda.Success
}

func (s *session) unload(m *module) {
	s.funcs.deleteIf(func(f *function) bool { return f.mod == m })
	s.modules.deleteIf(func(x *module) bool { return x == m })
	s.free(append(m.vars, m.retired...))
	m.vars, m.retired = nil, nil
}

// ModuleGetFunction finds a kernel.
func (s *session) ModuleGetFunction(c *wire.Call, a *wire.ModuleGetFunctionArgs, r *wire.ModuleGetFunctionReply) cuda.Result {
	m, ok := s.modules[a.Module]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	e, ok := m.funcs[string(a.Name)]
	if !ok {
		return cuda.ErrorNotFound
	}
	r.Info = e.info()
	return s.funcs.put(a.Func, &function{mod: m, entry: e})
}

// ModuleGetGlobal finds a variable.
func (s *session) ModuleGetGlobal(c *wire.Call, a *wire.ModuleGetGlobalArgs, r *wire.ModuleGetGlobalReply) (res cuda.Result) {
	m, ok := s.modules[a.Module]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	managed := m.managed
	if m.library != nil {
		managed = m.library.managed
	}
	if r.Ptr, r.Size, ok = managed.find(string(a.Name)); ok {
		return cuda.Success
	}
	r.Ptr, r.Size, res = m.global(string(a.Name))
	return res
}

// ModuleListFunctions names the kernels of a module.
func (s *session) ModuleListFunctions(c *wire.Call, a *wire.ModuleListFunctionsArgs, r *wire.ModuleListFunctionsReply) cuda.Result {
	m, ok := s.modules[a.Module]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	r.Names = names(m.code.Kernels())
	return cuda.Success
}

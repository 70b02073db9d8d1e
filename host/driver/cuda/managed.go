package cuda

import (
	"bytes"
	"log/slog"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

const pointerIsManaged = 8 // CU_POINTER_ATTRIBUTE_IS_MANAGED

// owner is what managed variables belong to.
type owner struct {
	library bool // else a module that the guest loaded
	id      uint32
}

// managedVars are an owner's managed variables, in memory of the guest.
type managedVars map[string]struct{ addr, size uint64 }

// refuseManaged keeps the address of a managed variable from the guest: kernels reach it, the guest's own code does not.
func (s *session) refuseManaged(ptr uint64, name []byte) cuda.Result {
	*s.out.u64(0) = 0
	if s.fn.cuPointerGetAttribute.call(s.out.addr(), pointerIsManaged, ptr) != cuda.Success || *s.out.i32(0) == 0 {
		return cuda.Success
	}
	slog.Info("managed variable is not given to the guest", "name", string(name))
	return cuda.ErrorNotSupported
}

// LibraryManage moves a library's managed variables into a pinned region, which both sides reach at one address. The driver
// would put them where only this process can follow, so the library is loaded anew, from code that holds the region's addresses
// instead of the variables.
func (s *session) LibraryManage(c *wire.Call, a *wire.LibraryManageArgs, r *wire.LibraryManageReply) cuda.Result {
	if _, ok := s.libs.get(a.Library); !ok {
		return cuda.ErrorInvalidHandle
	}
	o := owner{library: true, id: a.Library}
	code, reg, res := s.manageable(o, a.Region, &r.Size)
	if code == nil {
		return res
	}
	im := holdImage(code, true)
	if res := s.fn.cuLibraryLoadData.call(s.out.addr(), im.addr, 0, 0, 0, 0, 0, 0); res != cuda.Success {
		im.release()
		return res
	}
	fresh := *s.out.u64(0)
	if res := s.swapModules(c, a.Library, fresh); res != cuda.Success {
		s.fn.cuLibraryUnload.call(fresh)
		im.release()
		return res
	}
	// The old one stays loaded, and its image with it: a guest may have handles of it.
	if old, ok := s.images.get(a.Library); ok {
		s.retired = append(s.retired, old)
	}
	s.libs.m[a.Library], s.images.m[a.Library] = fresh, im
	s.moved(c, o, reg)
	return cuda.Success
}

// ModuleManage does for a module what LibraryManage does for a library.
func (s *session) ModuleManage(c *wire.Call, a *wire.ModuleManageArgs, r *wire.ModuleManageReply) cuda.Result {
	m, ok := s.modules.get(a.Module)
	if !ok || m.library {
		return cuda.ErrorInvalidHandle
	}
	o := owner{id: a.Module}
	code, reg, res := s.manageable(o, a.Region, &r.Size)
	if code == nil {
		return res
	}
	for _, f := range s.funcs.m {
		if f.module == a.Module {
			return cuda.ErrorNotSupported // it is of code that would be gone
		}
	}
	if res := s.use(c); res != cuda.Success {
		return res
	}
	im, opt := holdImage(code, false), newJITOptions(s.sources[o].options, 0, 0)
	defer im.release()
	defer opt.free()
	if res := s.fn.cuModuleLoadDataEx.call(s.out.addr(), im.addr, uint64(opt.n), opt.keys.addr(), opt.values.addr()); res != cuda.Success {
		return res
	}
	s.fn.cuModuleUnload.call(m.handle)
	m.handle = *s.out.u64(0)
	s.modules.m[a.Module] = m
	s.moved(c, o, reg)
	return cuda.Success
}

// manageable is the code to load for variables in a region, and the region; no code if there is nothing to be done but to return.
func (s *session) manageable(o owner, region uint32, size *uint64) ([]byte, driver.Region, cuda.Result) {
	src, ok := s.sources[o]
	if ok {
		*size = src.vars.size
	}
	if !ok || region == 0 {
		return nil, driver.Region{}, cuda.Success
	}
	reg, ok := s.host.Region(region)
	if !ok || reg.Kind != wire.RegionPinned || uint64(len(reg.Mem)) < src.vars.size || s.managed[o] != nil {
		return nil, reg, cuda.ErrorInvalidValue
	}
	code, err := src.vars.move(reg.VA)
	if err != nil {
		slog.Info("managed variables", "error", err)
		return nil, reg, cuda.ErrorNotSupported
	}
	return code, reg, cuda.Success
}

// moved gives the variables in a region their first values and makes them known.
func (s *session) moved(c *wire.Call, o owner, reg driver.Region) {
	table := managedVars{}
	for _, v := range s.sources[o].vars.list {
		table[v.Name] = struct{ addr, size uint64 }{reg.VA + v.Offset, v.Size}
		if !c.Replay { // else the guest's memory holds what the program has made of them
			copy(reg.Mem[v.Offset:v.Offset+v.Size], v.Init)
		}
	}
	if s.managed == nil {
		s.managed = map[owner]managedVars{}
	}
	s.managed[o] = table
}

// swapModules gives the modules of a library that the guest has their successors, those of lib.
func (s *session) swapModules(c *wire.Call, library uint32, lib uint64) cuda.Result {
	for id, m := range s.modules.m {
		if !m.library || m.lib != library {
			continue
		}
		if res := s.use(c); res != cuda.Success {
			return res
		}
		if res := s.fn.cuLibraryGetModule.call(s.out.addr(), lib); res != cuda.Success {
			return res
		}
		m.handle = *s.out.u64(0)
		s.modules.m[id] = m
	}
	return cuda.Success
}

// source is loaded code with managed variables that can move.
type source struct {
	vars    *movable
	options []byte // a module's: JIT options
}

// movable is what can move of an image: text that ptxvars does not know its way about is assembled first.
func (s *session) movable(c *wire.Call, t traits) *movable {
	if t.compile == nil || s.use(c) != cuda.Success {
		return t.managed
	}
	code, res := s.assemble(t.compile)
	if res != cuda.Success {
		slog.Info("managed variables: the text is not assembled", "result", res)
		return nil
	}
	return codeTraits(code, fatbin.ELF).managed
}

// assemble makes machine code for the current context's device.
func (s *session) assemble(text []byte) ([]byte, cuda.Result) {
	if res := s.fn.cuLinkCreate_v2.call(0, 0, 0, s.out.addr()); res != cuda.Success {
		return nil, res
	}
	state := *s.out.u64(0)
	defer s.fn.cuLinkDestroy.call(state)
	in, name := cString(text), cString(nil)
	defer in.free()
	defer name.free()
	if res := s.fn.cuLinkAddData_v2.call(state, linkInputPTX, in.addr(), uint64(in.size), name.addr(), 0, 0, 0); res != cuda.Success {
		return nil, res
	}
	if res := s.fn.cuLinkComplete.call(state, s.out.addr(), s.out.addr()+8); res != cuda.Success {
		return nil, res
	}
	image, size := *s.out.u64(0), *s.out.u64(1)
	if image == 0 || size > maxLinked {
		return nil, cuda.ErrorOutOfMemory
	}
	return bytes.Clone(hostBytes(image, int(size))), cuda.Success
}

// keepSource remembers loaded code for a Manage operation, and answers how much memory its managed variables want.
func (s *session) keepSource(o owner, vars *movable, options []byte) uint64 {
	if vars == nil {
		return 0
	}
	if s.sources == nil {
		s.sources = map[owner]source{}
	}
	s.sources[o] = source{vars, options}
	return vars.size
}

func (s *session) forgetSource(o owner) {
	delete(s.sources, o)
	delete(s.managed, o)
}

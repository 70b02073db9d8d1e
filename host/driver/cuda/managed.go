package cuda

import (
	"bytes"
	"log/slog"
	"slices"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// owner is what managed variables belong to.
type owner struct {
	lib bool // of a library, else of a module that the guest loaded
	id  uint32
}

// managedVars are an owner's managed variables that have moved.
type managedVars map[string]struct{ addr, size uint64 }

// refuseManaged keeps the address of a managed variable from the guest: kernels reach it, the
// guest's own code does not.
func (s *session) refuseManaged(at bind.Address, name []byte) cuda.Result {
	if is, res := s.drv.AttributeOf(cuda.PointerAttrIsManaged, at); res != cuda.Success || uint32(is) == 0 {
		return cuda.Success
	}
	slog.Info("managed variable is not given to the guest", "name", string(name))
	return cuda.ErrorNotSupported
}

// LibraryManage moves a library's managed variables into a pinned region, which both sides reach at
// one address, or into device memory. The driver would put them where only this process can follow,
// so the library is loaded anew, from code that holds the region's addresses instead of the
// variables.
func (s *session) LibraryManage(c *wire.Call, a *wire.LibraryManageArgs, r *wire.LibraryManageReply) cuda.Result {
	if _, ok := s.libs.get(a.Library); !ok {
		return cuda.ErrorInvalidHandle
	}
	o := owner{lib: true, id: a.Library}
	image, home, res := s.manageable(c, o, place{a.Region, a.At}, &r.Size)
	if image == nil {
		return res
	}
	im := bind.HoldImage(image, true)
	fresh, res := s.drv.LibraryLoadData(im, nil, nil)
	if res != cuda.Success {
		im.Release()
		return res
	}
	if res := s.swapModules(a.Library, fresh); res != cuda.Success {
		s.drv.LibraryUnload(fresh)
		im.Release()
		return res
	}
	// The old one stays loaded, and its image with it: a guest may have handles of it.
	if s.retired == nil {
		s.retired = map[uint32]retired{}
	}
	old, _ := s.libs.get(a.Library)
	held, _ := s.images.get(a.Library)
	s.retired[a.Library] = retired{old, held}
	s.libs.set(a.Library, fresh)
	s.images.set(a.Library, im)
	if !s.known(code{lib: a.Library}, 0) { // else kernels that the guest has reach the old ones
		s.freeManaged(o)
	}
	s.moved(c, o, home)
	return s.settleAgain(c, o, image)
}

// retired is a library in whose place is another.
type retired struct {
	handle bind.Library
	image  bind.Image
}

// settleAgain does what a load does for the variables of code that took the place of other.
func (s *session) settleAgain(c *wire.Call, o owner, code *fatbin.Code) cuda.Result {
	s.forgetCode(o)
	s.nameVariables(o, code)
	return s.settleVariables(c, o)
}

// ModuleManage does for a module what LibraryManage does for a library.
func (s *session) ModuleManage(c *wire.Call, a *wire.ModuleManageArgs, r *wire.ModuleManageReply) cuda.Result {
	m, ok := s.modules.get(a.Module)
	if !ok || m.library || m.ctx != c.Ctx {
		return cuda.ErrorInvalidHandle
	}
	o := owner{id: a.Module}
	code, home, res := s.manageable(c, o, place{a.Region, a.At}, &r.Size)
	if code == nil {
		return res
	}
	if s.known(m.code, 1) {
		return cuda.ErrorNotSupported // it is of code that would be gone
	}
	if res := s.use(c); res != cuda.Success {
		return res
	}
	im, opt := bind.HoldImage(code, false), newJITOptions(s.sources[o].options, 0, 0)
	defer im.Release()
	defer opt.Free()
	fresh, res := s.drv.ModuleLoadDataEx(im, opt.Options)
	if res != cuda.Success {
		return res
	}
	s.drv.ModuleUnload(m.handle)
	s.freeManaged(o)
	m.handle = fresh
	s.modules.set(a.Module, m)
	s.moved(c, o, home)
	return s.settleAgain(c, o, code)
}

// known reports whether the guest has more than so much of some code.
func (s *session) known(c code, more int) bool {
	return ofCode(&s.funcs.table, c)+ofCode(&s.modules.table, c)+ofCode(&s.texRefs.table, c)+ofCode(&s.surfRefs.table, c) > more
}

// place is where the guest would have managed variables: in a region, or at an address of device
// memory. Neither: nowhere yet.
type place struct {
	region uint32
	at     uint64
}

// home is where they lie: mem is the guest's memory, nil for the device's.
type home struct {
	base uint64
	mem  []byte
}

// manageable is the code to load for variables in a place, and where that is; no code if there is
// nothing to be done but to return.
func (s *session) manageable(c *wire.Call, o owner, p place, size *uint64) (*fatbin.Code, home, cuda.Result) {
	src, ok := s.sources[o]
	if ok {
		*size = src.vars.size
	}
	if !ok || p == (place{}) {
		return nil, home{}, cuda.Success
	}
	h, res := s.homeFor(c, src, p)
	if res != cuda.Success || s.managed[o] != nil {
		return nil, home{}, cuda.ErrorInvalidValue
	}
	moved, err := src.vars.move(h.base)
	if err != nil {
		slog.Info("managed variables", "error", err)
		return nil, h, cuda.ErrorNotSupported
	}
	code, res := s.check(moved)
	return code, h, res
}

// homeFor finds the place's memory. That of the device gets the variables' first values, but for a
// session that is rebuilt: it has its bytes.
func (s *session) homeFor(c *wire.Call, src source, p place) (home, cuda.Result) {
	if p.at == 0 {
		reg, ok := s.host.Region(p.region)
		if !ok || reg.Kind != wire.RegionPinned || reg.Size < src.vars.size {
			return home{}, cuda.ErrorInvalidValue
		}
		return home{reg.VA, reg.Mem}, cuda.Success
	}
	if c.Replay {
		return home{base: p.at}, cuda.Success
	}
	all, res := s.space.Mem(p.at, src.vars.size)
	if res != cuda.Success {
		return home{}, res
	}
	for _, v := range src.vars.list {
		if res := s.firstValue(c, all, v.Offset, v.Init[:min(v.Size, uint64(len(v.Init)))]); res != cuda.Success {
			return home{}, res
		}
	}
	return home{base: p.at}, cuda.Success
}

// firstValue copies what is not zero of a variable's first value into memory that is.
func (s *session) firstValue(c *wire.Call, all bind.Mem, offset uint64, init []byte) cuda.Result {
	for piece := range slices.Chunk(init, wire.MaxInlineData) {
		if len(bytes.TrimLeft(piece, "\x00")) > 0 {
			st, res := s.submit(c, streamLegacy)
			if res != cuda.Success {
				return res
			}
			dst, ok := all.Slice(offset, uint64(len(piece)))
			src, there := s.ordinary(uint64(len(piece)))
			if !ok || !there {
				return cuda.ErrorInvalidValue
			}
			copy(src.Bytes(), piece)
			if res := s.note(s.drv.MemcpyHtoDAsync(dst, src, st.handle)); res != cuda.Success {
				return res
			}
		}
		offset += uint64(len(piece))
	}
	return cuda.Success
}

// moved gives the variables in a region their first values and makes all known.
func (s *session) moved(c *wire.Call, o owner, h home) {
	table := managedVars{}
	for _, v := range s.sources[o].vars.list {
		table[v.Name] = struct{ addr, size uint64 }{h.base + v.Offset, v.Size}
		if h.mem != nil && !c.Replay { // else the memory holds what the program has made of them
			copy(h.mem[v.Offset:v.Offset+v.Size], v.Init)
		}
	}
	if s.managed == nil {
		s.managed = map[owner]managedVars{}
	}
	s.managed[o] = table
}

// swapModules gives the modules of a library that the guest has their successors, those of lib.
func (s *session) swapModules(library uint32, lib bind.Library) cuda.Result {
	for id, m := range s.modules.m {
		if !m.library || m.lib != library {
			continue
		}
		if res := s.useContext(m.ctx); res != cuda.Success {
			return res
		}
		h, res := s.drv.LibraryGetModule(lib)
		if res != cuda.Success {
			return res
		}
		m.handle = h
		s.modules.set(id, m)
	}
	return cuda.Success
}

// source is loaded code with managed variables that can move.
type source struct {
	vars    *movable
	options []byte // a module's: JIT options
}

// movableCode is what can move of an image: text that ptxvars does not know its way about is
// assembled first.
func (s *session) movableCode(c *wire.Call, t traits) *movable {
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
	state, res := s.drv.LinkCreate(nil)
	if res != cuda.Success {
		return nil, res
	}
	defer s.drv.LinkDestroy(state)
	in, _, err := bind.HoldInput(cuda.JITInputPTX, text, s.takes)
	if err != nil {
		return nil, cuda.ErrorInvalidImage
	}
	defer in.Release()
	if res := s.drv.LinkAddData(state, cuda.JITInputPTX, in, nil, nil); res != cuda.Success {
		return nil, res
	}
	image, res := s.drv.LinkComplete(state, maxLinked)
	if res == cuda.Success && image == nil {
		res = cuda.ErrorOutOfMemory
	}
	return image, res
}

// keepSource remembers loaded code for a Manage operation, and answers how much memory its managed
// variables want.
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

// bookManaged books what the driver makes for the managed variables of code that was loaded: they
// are its own, of any size, and in no account of the process, until they move or the code is
// unloaded.
func (s *session) bookManaged(o owner, t traits) cuda.Result {
	if t.hidden != nil {
		slog.Info("code is not loaded", "error", t.hidden)
		return cuda.ErrorNotSupported
	}
	if t.bytes == 0 {
		return cuda.Success
	}
	res := s.charge(t.bytes)
	if res == cuda.Success {
		if s.made == nil {
			s.made = map[owner]uint64{}
		}
		s.made[o] = t.bytes
	}
	return res
}

// freeManaged ends that.
func (s *session) freeManaged(o owner) {
	s.refund(s.made[o])
	delete(s.made, o)
}

func (s *session) forgetSource(o owner) {
	s.freeManaged(o)
	delete(s.sources, o)
	delete(s.managed, o)
}

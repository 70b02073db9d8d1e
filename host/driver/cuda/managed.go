package cuda

import (
	"log/slog"
	"strings"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/ptxvars"
)

const pointerIsManaged = 8 // CU_POINTER_ATTRIBUTE_IS_MANAGED

// managedVars are a library's managed variables, in memory of the guest.
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
// would put them where only this process can follow, so the library is loaded anew, from PTX that names the region's addresses
// instead of the variables.
func (s *session) LibraryManage(c *wire.Call, a *wire.LibraryManageArgs, r *wire.LibraryManageReply) cuda.Result {
	if _, ok := s.libs.get(a.Library); !ok {
		return cuda.ErrorInvalidHandle
	}
	text, ok := libraryPTX(s.sources[a.Library], s.compute())
	if !ok {
		slog.Info("managed variables need the program's PTX, which is not there")
		return cuda.ErrorNotSupported
	}
	vars, size, err := ptxvars.Find(text)
	r.Size = size
	if err == nil && (a.Region == 0 || size == 0) {
		return cuda.Success
	}
	reg, ok := s.host.Region(a.Region)
	if !ok || reg.Kind != wire.RegionPinned || uint64(len(reg.Mem)) < size || s.managed[a.Library] != nil {
		return cuda.ErrorInvalidValue
	}
	if err == nil {
		text, err = ptxvars.Move(text, vars, reg.VA)
	}
	if err != nil {
		slog.Info("managed variables", "error", err)
		return cuda.ErrorNotSupported
	}
	im := holdImage([]byte(text), true)
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
	table := managedVars{}
	for _, v := range vars {
		table[v.Name] = struct{ addr, size uint64 }{reg.VA + v.Offset, v.Size}
		if !c.Replay { // else the guest's memory holds what the program has made of them
			copy(reg.Mem[v.Offset:], v.Init)
		}
	}
	if s.managed == nil {
		s.managed = map[uint32]managedVars{}
	}
	s.managed[a.Library] = table
	return cuda.Success
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

// keepSource remembers an image for LibraryManage; img does not change any more.
func (s *session) keepSource(library uint32, img []byte) {
	if s.sources == nil {
		s.sources = map[uint32][]byte{}
	}
	s.sources[library] = img
}

func (s *session) forgetSource(library uint32) {
	delete(s.sources, library)
	delete(s.managed, library)
}

// libraryPTX is the text that the driver would compile for a GPU of compute capability sm.
func libraryPTX(img []byte, sm int) (string, bool) {
	if fatbin.Detect(img) != fatbin.Container {
		return string(img), fatbin.Detect(img) == fatbin.PTX
	}
	entries, err := fatbin.Decode(img)
	if err != nil {
		return "", false
	}
	best, ok := fatbin.BestPTX(entries, sm)
	if !ok {
		return "", false
	}
	text, err := best.Payload()
	return strings.TrimRight(string(text), "\x00"), err == nil
}

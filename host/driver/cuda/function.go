package cuda

import (
	"cmp"
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// function is a CUfunction or a CUkernel: launches take either.
type function struct {
	handle bind.Function // also of a kernel
	kernel bind.Kernel   // none: it is a function
	ctx    uint32        // 0: it is a kernel, of no context
	code
	layout *bind.Layout
	local  uint32 // bytes of local memory that a thread needs
	roomy  uint64 // where that is known to be there: session.mark
	// Of a kernel: the context in which its library's variables are known: see instanceAt.
	there uint64
}

func (f *function) isKernel() bool { return !f.kernel.IsZero() }

const maxFuncAttrs = 24

// ModuleGetFunction finds a kernel of a module.
func (s *session) ModuleGetFunction(c *wire.Call, a *wire.ModuleGetFunctionArgs, r *wire.ModuleGetFunctionReply) (res cuda.Result) {
	m, ok := s.modules.get(a.Module)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	h, res := s.drv.ModuleGetFunction(m.handle, a.Name)
	if res != cuda.Success {
		return res
	}
	r.Info, res = s.addFunction(a.Func, &function{handle: h, ctx: m.ctx, code: m.code, layout: s.drv.FunctionLayout(h)}, 0)
	return res
}

// LibraryGetKernel finds a kernel of a library.
func (s *session) LibraryGetKernel(c *wire.Call, a *wire.LibraryGetKernelArgs, r *wire.LibraryGetKernelReply) (res cuda.Result) {
	h, ok := s.libs.get(a.Library)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	k, res := s.drv.LibraryGetKernel(h, a.Name)
	if res != cuda.Success {
		return res
	}
	// Without a context the driver finds a kernel but knows nothing of its parameters yet.
	if c.Ctx == 0 {
		ctx, res := s.drv.DevicePrimaryCtxRetain(0)
		if res != cuda.Success {
			return res
		}
		defer s.drv.DevicePrimaryCtxRelease(0)
		s.drv.CtxSetCurrent(ctx)
		s.current = 0
	}
	r.Info, res = s.addFunction(a.Kernel, &function{handle: k.AsFunction(), kernel: k, code: code{lib: a.Library}, layout: s.drv.KernelLayout(k)}, s.deviceOf(c))
	return res
}

// KernelGetFunction gives a kernel's function in the current context.
func (s *session) KernelGetFunction(c *wire.Call, a *wire.KernelGetFunctionArgs, r *wire.KernelGetFunctionReply) (res cuda.Result) {
	k, handle, res := s.instanceOf(c, a.Kernel)
	if res != cuda.Success {
		return res
	}
	r.Info, res = s.addFunction(a.Func, &function{handle: handle, ctx: c.Ctx, code: k.code, layout: s.drv.FunctionLayout(handle)}, 0)
	return res
}

// KernelFunction gives a kernel's function in the current context to a guest that knows what it is
// like.
func (s *session) KernelFunction(c *wire.Call, a *wire.KernelFunctionArgs) cuda.Result {
	k, handle, res := s.instanceOf(c, a.Kernel)
	if res != cuda.Success {
		return res
	}
	f := &function{handle: handle, ctx: c.Ctx, code: k.code, layout: k.layout, local: k.local}
	// Before its first launch, which then need not; from 12.4 on.
	if res := s.note(s.drv.FuncLoad(f.handle)); res != cuda.Success && res != cuda.ErrorNotSupported {
		return res
	}
	return s.funcs.add(a.Func, f)
}

// instanceOf asks the driver for a kernel's function in the current context.
func (s *session) instanceOf(c *wire.Call, id uint32) (*function, bind.Function, cuda.Result) {
	k, ok := s.funcs.get(id)
	if !ok || !k.isKernel() {
		return nil, bind.Function{}, cuda.ErrorInvalidHandle
	}
	h, res := s.drv.KernelGetFunction(k.kernel)
	if res == cuda.Success {
		res = s.instantiate(c, k.lib, c.Ctx)
	}
	return k, h, res
}

func (s *session) deviceOf(c *wire.Call) uint32 {
	if ctx, ok := s.ctxs.get(c.Ctx); ok {
		return ctx.dev
	}
	return 0
}

// addFunction stores f and describes it: attributes, then the layout of its parameters.
func (s *session) addFunction(id uint32, f *function, dev uint32) ([]byte, cuda.Result) {
	var attrs [maxFuncAttrs]int32
	count := 0
	for i := range maxFuncAttrs {
		v, res := s.functionAttribute(f, uint32(i), dev)
		if res == cuda.ErrorInvalidValue {
			break
		}
		if res != cuda.Success {
			return nil, res
		}
		attrs[i] = v
		count++
	}
	f.local = uint32(min(max(attrs[cuda.FuncAttrLocalSizeBytes], 0), maxLocal))
	var params []byte
	for i := range f.layout.Count() {
		offset, size := f.layout.Parameter(i)
		params = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(params, offset), size)
	}
	if !s.funcs.put(id, f) {
		return nil, cuda.ErrorInvalidHandle
	}
	info := binary.LittleEndian.AppendUint32(nil, uint32(count))
	info = binary.LittleEndian.AppendUint32(info, uint32(f.layout.Count()))
	for _, v := range attrs {
		info = binary.LittleEndian.AppendUint32(info, uint32(v))
	}
	return append(info, params...), cuda.Success
}

// FuncGetAttribute reads one attribute of a function, or of a kernel on a device.
func (s *session) FuncGetAttribute(c *wire.Call, a *wire.FuncGetAttributeArgs, r *wire.FuncGetAttributeReply) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	r.Value, res = s.functionAttribute(f, uint32(a.Attr), uint32(a.Dev))
	return res
}

func (s *session) functionAttribute(f *function, attr, dev uint32) (int32, cuda.Result) {
	if f.isKernel() {
		return s.drv.KernelGetAttribute(attr, f.kernel, dev)
	}
	return s.drv.FuncGetAttribute(attr, f.handle)
}

// function finds a function or kernel, with the call's context current if there is one.
func (s *session) function(c *wire.Call, id uint32) (*function, cuda.Result) {
	f, ok := s.funcs.get(id)
	if !ok {
		return nil, cuda.ErrorInvalidHandle
	}
	if c.Ctx == 0 && f.isKernel() {
		return f, cuda.Success
	}
	return f, s.use(c)
}

// FuncSetAttribute sets one attribute of a function, or of a kernel on a device.
func (s *session) FuncSetAttribute(c *wire.Call, a *wire.FuncSetAttributeArgs) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	if f.isKernel() {
		return s.drv.KernelSetAttribute(uint32(a.Attr), a.Value, f.kernel, uint32(a.Dev))
	}
	return s.drv.FuncSetAttribute(f.handle, uint32(a.Attr), a.Value)
}

// FuncSetCacheConfig sets a function's preferred split of L1 and shared memory.
func (s *session) FuncSetCacheConfig(c *wire.Call, a *wire.FuncSetCacheConfigArgs) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	if f.isKernel() {
		return s.drv.KernelSetCacheConfig(f.kernel, a.Config, s.deviceOf(c))
	}
	return s.drv.FuncSetCacheConfig(f.handle, a.Config)
}

// FuncGetModule gives the module of a function.
func (s *session) FuncGetModule(c *wire.Call, a *wire.FuncGetModuleArgs) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	if res := s.instanceAt(c, f, c.Ctx); res != cuda.Success {
		return res
	}
	h, res := s.drv.FuncGetModule(f.handle)
	if res != cuda.Success {
		return res
	}
	// Unloading belongs to the handle that loaded it.
	return s.modules.add(a.Module, module{handle: h, ctx: cmp.Or(f.ctx, c.Ctx), library: true, code: f.code})
}

// OccupancyMaxActiveBlocks asks how many blocks fit a multiprocessor.
func (s *session) OccupancyMaxActiveBlocks(c *wire.Call, a *wire.OccupancyMaxActiveBlocksArgs, r *wire.OccupancyMaxActiveBlocksReply) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	r.Blocks, res = s.drv.OccupancyMaxActiveBlocksPerMultiprocessorWithFlags(f.handle, int32(a.Block), a.Dynamic, a.Flags)
	return res
}

// OccupancyAvailableDynamicSMem asks how much dynamic shared memory is left for a block.
func (s *session) OccupancyAvailableDynamicSMem(c *wire.Call, a *wire.OccupancyAvailableDynamicSMemArgs, r *wire.OccupancyAvailableDynamicSMemReply) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	r.Bytes, res = s.drv.OccupancyAvailableDynamicSMemPerBlock(f.handle, int32(a.Blocks), int32(a.Block))
	return res
}

// OccupancyMaxActiveClusters asks how many clusters of a launch can be resident.
func (s *session) OccupancyMaxActiveClusters(c *wire.Call, a *wire.OccupancyMaxActiveClustersArgs, r *wire.OccupancyMaxActiveClustersReply) (res cuda.Result) {
	r.Clusters, res = s.clusters(c, s.drv.OccupancyMaxActiveClusters, a.Func, bind.Dims{a.Gx, a.Gy, a.Gz, a.Bx, a.By, a.Bz, a.Shared}, a.Attrs)
	return res
}

// OccupancyMaxPotentialClusterSize asks for the largest cluster of a launch.
func (s *session) OccupancyMaxPotentialClusterSize(c *wire.Call, a *wire.OccupancyMaxPotentialClusterSizeArgs, r *wire.OccupancyMaxPotentialClusterSizeReply) (res cuda.Result) {
	r.Size, res = s.clusters(c, s.drv.OccupancyMaxPotentialClusterSize, a.Func, bind.Dims{a.Gx, a.Gy, a.Gz, a.Bx, a.By, a.Bz, a.Shared}, a.Attrs)
	return res
}

// clusters asks a question about a launch.
func (s *session) clusters(c *wire.Call, ask func(bind.Function, *bind.LaunchConfig) (int32, cuda.Result), id uint32, d bind.Dims, list []byte) (int32, cuda.Result) {
	f, res := s.function(c, id)
	if res != cuda.Success {
		return 0, res
	}
	attrs, _, res := s.space.LaunchAttributes(list, s.eventHandle)
	if res != cuda.Success {
		return 0, res
	}
	return s.drv.Clusters(ask, f.handle, &d, attrs)
}

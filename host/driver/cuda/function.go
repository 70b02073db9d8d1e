package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// function is a CUfunction or a CUkernel: launches take either.
type function struct {
	handle  uint64
	kernel  bool
	module  uint32   // that it was looked up in, 0: a library's
	offsets []uint32 // of the parameters in the packed buffer
}

const (
	maxFuncAttrs  = 24
	maxParameters = 4096
)

// ModuleGetFunction finds a kernel of a module.
func (s *session) ModuleGetFunction(c *wire.Call, a *wire.ModuleGetFunctionArgs, r *wire.ModuleGetFunctionReply) cuda.Result {
	m, ok := s.modules.get(a.Module)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if res := s.use(c); res != cuda.Success {
		return res
	}
	name := cString(a.Name)
	defer name.free()
	if res := s.fn.cuModuleGetFunction.call(s.out.addr(), m.handle, name.addr()); res != cuda.Success {
		return res
	}
	info, res := s.addFunction(a.Func, &function{handle: *s.out.u64(0), module: a.Module}, 0)
	r.Info = info
	return res
}

// LibraryGetKernel finds a kernel of a library.
func (s *session) LibraryGetKernel(c *wire.Call, a *wire.LibraryGetKernelArgs, r *wire.LibraryGetKernelReply) cuda.Result {
	h, ok := s.libs.get(a.Library)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	name := cString(a.Name)
	defer name.free()
	if res := s.fn.cuLibraryGetKernel.call(s.out.addr(), h, name.addr()); res != cuda.Success {
		return res
	}
	handle := *s.out.u64(0)
	// Without a context the driver finds a kernel but knows nothing of its parameters yet.
	if c.Ctx == 0 {
		if res := s.fn.cuDevicePrimaryCtxRetain.call(s.out.addr(), 0); res != cuda.Success {
			return res
		}
		defer s.fn.cuDevicePrimaryCtxRelease_v2.call(0)
		s.fn.cuCtxSetCurrent.call(*s.out.u64(0))
		s.current = 0
	}
	info, res := s.addFunction(a.Kernel, &function{handle: handle, kernel: true}, s.deviceOf(c))
	r.Info = info
	return res
}

// KernelGetFunction gives a kernel's function in the current context.
func (s *session) KernelGetFunction(c *wire.Call, a *wire.KernelGetFunctionArgs, r *wire.KernelGetFunctionReply) cuda.Result {
	_, handle, res := s.instanceOf(c, a.Kernel)
	if res != cuda.Success {
		return res
	}
	info, res := s.addFunction(a.Func, &function{handle: handle}, 0)
	r.Info = info
	return res
}

// KernelFunction gives a kernel's function in the current context to a guest that knows what it is like.
func (s *session) KernelFunction(c *wire.Call, a *wire.KernelFunctionArgs) cuda.Result {
	k, handle, res := s.instanceOf(c, a.Kernel)
	if res != cuda.Success {
		return res
	}
	f := &function{handle: handle, offsets: k.offsets}
	if s.fn.cuFuncLoad != 0 { // 12.4: before its first launch, which then need not
		if res := s.note(s.fn.cuFuncLoad.call(f.handle)); res != cuda.Success {
			return res
		}
	}
	if !s.funcs.put(a.Func, f) {
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// instanceOf asks the driver for a kernel's function in the call's context.
func (s *session) instanceOf(c *wire.Call, id uint32) (*function, uint64, cuda.Result) {
	k, ok := s.funcs.get(id)
	if !ok || !k.kernel {
		return nil, 0, cuda.ErrorInvalidHandle
	}
	if res := s.use(c); res != cuda.Success {
		return nil, 0, res
	}
	if res := s.fn.cuKernelGetFunction.call(s.out.addr(), k.handle); res != cuda.Success {
		return nil, 0, res
	}
	return k, *s.out.u64(0), cuda.Success
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
		var res cuda.Result
		if f.kernel {
			res = s.fn.cuKernelGetAttribute.call(s.out.addr(), uint64(i), f.handle, uint64(dev))
		} else {
			res = s.fn.cuFuncGetAttribute.call(s.out.addr(), uint64(i), f.handle)
		}
		if res == cuda.ErrorInvalidValue {
			break
		}
		if res != cuda.Success {
			return nil, res
		}
		attrs[i] = *s.out.i32(0)
		count++
	}
	param := s.fn.cuFuncGetParamInfo
	if f.kernel {
		param = s.fn.cuKernelGetParamInfo
	}
	var params []byte
	for i := range maxParameters {
		if param.call(f.handle, uint64(i), s.out.addr(), s.out.addr()+8) != cuda.Success {
			break
		}
		off, size := uint32(*s.out.u64(0)), uint32(*s.out.u64(1))
		f.offsets = append(f.offsets, off)
		params = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(params, off), size)
	}
	if !s.funcs.put(id, f) {
		return nil, cuda.ErrorInvalidHandle
	}
	info := binary.LittleEndian.AppendUint32(nil, uint32(count))
	info = binary.LittleEndian.AppendUint32(info, uint32(len(f.offsets)))
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
	if f.kernel {
		res = s.fn.cuKernelGetAttribute.call(s.out.addr(), uint64(a.Attr), f.handle, uint64(a.Dev))
	} else {
		res = s.fn.cuFuncGetAttribute.call(s.out.addr(), uint64(a.Attr), f.handle)
	}
	r.Value = *s.out.i32(0)
	return res
}

// function finds a function or kernel, with the call's context current if there is one.
func (s *session) function(c *wire.Call, id uint32) (*function, cuda.Result) {
	f, ok := s.funcs.get(id)
	if !ok {
		return nil, cuda.ErrorInvalidHandle
	}
	if c.Ctx == 0 && f.kernel {
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
	if f.kernel {
		return s.fn.cuKernelSetAttribute.call(uint64(a.Attr), uint64(a.Value), f.handle, uint64(a.Dev))
	}
	return s.fn.cuFuncSetAttribute.call(f.handle, uint64(a.Attr), uint64(a.Value))
}

// FuncSetCacheConfig sets a function's preferred split of L1 and shared memory.
func (s *session) FuncSetCacheConfig(c *wire.Call, a *wire.FuncSetCacheConfigArgs) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	if f.kernel {
		return s.fn.cuKernelSetCacheConfig.call(f.handle, uint64(a.Config), uint64(s.deviceOf(c)))
	}
	return s.fn.cuFuncSetCacheConfig.call(f.handle, uint64(a.Config))
}

// FuncGetModule gives the module of a function.
func (s *session) FuncGetModule(c *wire.Call, a *wire.FuncGetModuleArgs) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	if res := s.fn.cuFuncGetModule.call(s.out.addr(), f.handle); res != cuda.Success {
		return res
	}
	// Unloading belongs to the handle that loaded it.
	if !s.modules.put(a.Module, module{handle: *s.out.u64(0), library: true}) {
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// OccupancyMaxActiveBlocks asks how many blocks fit a multiprocessor.
func (s *session) OccupancyMaxActiveBlocks(c *wire.Call, a *wire.OccupancyMaxActiveBlocksArgs, r *wire.OccupancyMaxActiveBlocksReply) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	res = s.fn.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags.call(s.out.addr(), f.handle, uint64(a.Block), a.Dynamic,
		uint64(a.Flags))
	r.Blocks = *s.out.i32(0)
	return res
}

// OccupancyAvailableDynamicSMem asks how much dynamic shared memory is left for a block.
func (s *session) OccupancyAvailableDynamicSMem(c *wire.Call, a *wire.OccupancyAvailableDynamicSMemArgs, r *wire.OccupancyAvailableDynamicSMemReply) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	res = s.fn.cuOccupancyAvailableDynamicSMemPerBlock.call(s.out.addr(), f.handle, uint64(a.Blocks), uint64(a.Block))
	r.Bytes = *s.out.u64(0)
	return res
}

// OccupancyMaxActiveClusters asks how many clusters of a launch can be resident.
func (s *session) OccupancyMaxActiveClusters(c *wire.Call, a *wire.OccupancyMaxActiveClustersArgs, r *wire.OccupancyMaxActiveClustersReply) cuda.Result {
	v, res := s.clusters(c, s.fn.cuOccupancyMaxActiveClusters, a.Func, launchDims{a.Gx, a.Gy, a.Gz, a.Bx, a.By, a.Bz, a.Shared}, a.Attrs)
	r.Clusters = v
	return res
}

// OccupancyMaxPotentialClusterSize asks for the largest cluster of a launch.
func (s *session) OccupancyMaxPotentialClusterSize(c *wire.Call, a *wire.OccupancyMaxPotentialClusterSizeArgs, r *wire.OccupancyMaxPotentialClusterSizeReply) cuda.Result {
	v, res := s.clusters(c, s.fn.cuOccupancyMaxPotentialClusterSize, a.Func, launchDims{a.Gx, a.Gy, a.Gz, a.Bx, a.By, a.Bz, a.Shared}, a.Attrs)
	r.Size = v
	return res
}

// clusters asks a question about a CUlaunchConfig (56 bytes: dimensions, stream at 32, attributes at 40, count at 48).
func (s *session) clusters(c *wire.Call, ask entry, id uint32, d launchDims, attrs []byte) (int32, cuda.Result) {
	f, res := s.function(c, id)
	if res != cuda.Success {
		return 0, res
	}
	list, _, res := s.launchAttributes(attrs)
	if res != cuda.Success {
		return 0, res
	}
	defer list.free()
	cfg := newBuffer(56)
	defer cfg.free()
	for i, v := range d {
		*cfg.i32(i) = int32(v)
	}
	*cfg.u64(5) = list.addr()
	*cfg.i32(12) = int32(len(attrs) / launchAttributeSize)
	res = ask.call(s.out.addr(), f.handle, cfg.addr())
	return *s.out.i32(0), res
}

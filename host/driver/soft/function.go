package soft

import (
	"math"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// function is a kernel of a module, as the guest names it.
type function struct {
	mod   *module
	entry *entry
}

// function finds a function, or a kernel in the current context.
func (s *session) function(c *wire.Call, id wire.ID) (*function, cuda.Result) {
	if f, ok := s.funcs[id]; ok {
		return f, f.mod.ctx.sticky()
	}
	k, ok := s.kernels[id]
	if !ok {
		return nil, cuda.ErrorInvalidHandle
	}
	m, res := s.instance(c, k.lib)
	if res != cuda.Success {
		return nil, res
	}
	return &function{mod: m, entry: m.funcs[k.name]}, cuda.Success
}

// entryIn is what a function, or a kernel in a context, is of code; nil if there is none.
func (s *session) entryIn(g *gpuContext, id wire.ID) *entry {
	if f, ok := s.funcs[id]; ok {
		return f.entry
	}
	if k, ok := s.kernels[id]; ok && k.lib.instances[g] != nil {
		return k.lib.instances[g].funcs[k.name]
	}
	return nil
}

// attributes are the CUfunction_attribute values.
func (e *entry) attributes() [cuda.FuncAttrMax]int32 {
	a := e.code.Attributes()
	var v [cuda.FuncAttrMax]int32
	v[cuda.FuncAttrMaxThreadsPerBlock] = int32(min(a.MaxThreadsPerBlock, maxBlockThreads))
	v[cuda.FuncAttrSharedSizeBytes] = int32(a.SharedBytes)
	v[cuda.FuncAttrConstSizeBytes] = int32(min(a.ConstBytes, math.MaxInt32))
	v[cuda.FuncAttrLocalSizeBytes] = int32(min(a.LocalBytes, math.MaxInt32))
	v[cuda.FuncAttrNumRegs] = int32(a.Registers)
	v[cuda.FuncAttrPTXVersion] = int32(a.PTXVersion)
	v[cuda.FuncAttrBinaryVersion] = capability
	v[cuda.FuncAttrMaxDynamicSharedSizeBytes] = e.setting(dynamicShared)
	v[cuda.FuncAttrPreferredSharedMemoryCarveout] = e.setting(carveout)
	if a.ExplicitCluster && a.RequiredCluster == [3]uint32{} {
		v[cuda.FuncAttrClusterSizeMustBeSet] = 1
	}
	v[cuda.FuncAttrRequiredClusterWidth] = int32(a.RequiredCluster[0])
	v[cuda.FuncAttrRequiredClusterHeight] = int32(a.RequiredCluster[1])
	v[cuda.FuncAttrRequiredClusterDepth] = int32(a.RequiredCluster[2])
	v[cuda.FuncAttrNonPortableClusterSizeAllowed] = e.setting(nonPortable)
	return v
}

// info is what the guest library needs to know of a function.
func (e *entry) info() []byte {
	params := e.code.Params()
	head := wire.FunctionInfo{AttrCount: cuda.FuncAttrMax, ParamCount: uint32(len(params))}
	attrs := e.attributes()
	copy(head.Attrs[:], attrs[:])
	b := head.Append(nil)
	for _, p := range params {
		b = (&wire.ParamInfo{Offset: uint32(p.Offset), Size: uint32(p.Size)}).Append(b)
	}
	return b
}

// asked is what a function is, or a kernel on a device.
func (s *session) asked(c *wire.Call, id wire.ID, dev int32) (*entry, cuda.Result) {
	if k, ok := s.kernels[id]; ok {
		return k.on(int(dev)), cuda.Success
	}
	f, res := s.function(c, id)
	if res != cuda.Success {
		return nil, res
	}
	return f.entry, cuda.Success
}

// FuncGetAttribute reads an attribute.
func (s *session) FuncGetAttribute(c *wire.Call, a *wire.FuncGetAttributeArgs, r *wire.FuncGetAttributeReply) cuda.Result {
	e, res := s.asked(c, a.Func, a.Dev)
	if res != cuda.Success {
		return res
	}
	if a.Attr < 0 || a.Attr >= cuda.FuncAttrMax {
		return cuda.ErrorInvalidValue
	}
	r.Value = e.attributes()[a.Attr]
	return cuda.Success
}

// FuncGetModule names a function's module.
func (s *session) FuncGetModule(c *wire.Call, a *wire.FuncGetModuleArgs) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	return s.modules.put(a.Module, f.mod)
}

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
	v[cuda.FuncAttrMaxDynamicSharedSizeBytes] = e.dynamic
	v[cuda.FuncAttrPreferredSharedMemoryCarveout] = e.carveout
	if a.ExplicitCluster && a.RequiredCluster == [3]uint32{} {
		v[cuda.FuncAttrClusterSizeMustBeSet] = 1
	}
	v[cuda.FuncAttrRequiredClusterWidth] = int32(a.RequiredCluster[0])
	v[cuda.FuncAttrRequiredClusterHeight] = int32(a.RequiredCluster[1])
	v[cuda.FuncAttrRequiredClusterDepth] = int32(a.RequiredCluster[2])
	if e.nonPortable {
		v[cuda.FuncAttrNonPortableClusterSizeAllowed] = 1
	}
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

// FuncGetAttribute reads an attribute.
func (s *session) FuncGetAttribute(c *wire.Call, a *wire.FuncGetAttributeArgs, r *wire.FuncGetAttributeReply) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	if a.Attr < 0 || a.Attr >= cuda.FuncAttrMax {
		return cuda.ErrorInvalidValue
	}
	r.Value = f.entry.attributes()[a.Attr]
	return cuda.Success
}

// FuncSetAttribute sets one of the attributes that can be set.
func (s *session) FuncSetAttribute(c *wire.Call, a *wire.FuncSetAttributeArgs) cuda.Result {
	if s.passed(c, a.Func) {
		return cuda.Success
	}
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	switch a.Attr {
	case cuda.FuncAttrMaxDynamicSharedSizeBytes:
		if a.Value < 0 || int64(a.Value)+int64(f.entry.code.Attributes().SharedBytes) > sharedOptIn {
			return cuda.ErrorInvalidValue
		}
		f.entry.dynamic = a.Value
	case cuda.FuncAttrPreferredSharedMemoryCarveout:
		if a.Value < -1 || a.Value > 100 {
			return cuda.ErrorInvalidValue
		}
		f.entry.carveout = a.Value
	case cuda.FuncAttrNonPortableClusterSizeAllowed:
		if a.Value < 0 || a.Value > 1 {
			return cuda.ErrorInvalidValue
		}
		f.entry.nonPortable = a.Value != 0
	case cuda.FuncAttrClusterSchedulingPolicyPreference: // blocks of a cluster run on one core anyway
	case cuda.FuncAttrRequiredClusterWidth, cuda.FuncAttrRequiredClusterHeight, cuda.FuncAttrRequiredClusterDepth:
		return cuda.ErrorNotSupported
	default:
		return cuda.ErrorInvalidValue
	}
	return cuda.Success
}

// FuncSetCacheConfig accepts a preference between caches that this GPU does not have apart.
func (s *session) FuncSetCacheConfig(c *wire.Call, a *wire.FuncSetCacheConfigArgs) cuda.Result {
	if s.passed(c, a.Func) {
		return cuda.Success
	}
	if _, res := s.function(c, a.Func); res != cuda.Success {
		return res
	}
	if a.Config > cuda.FuncCachePreferEqual {
		return cuda.ErrorInvalidValue
	}
	return cuda.Success
}

// passed reports whether a request that is made again was about a kernel in a context that has ended since, as its instance there has.
func (s *session) passed(c *wire.Call, id wire.ID) bool {
	_, is := s.kernels[id]
	return is && c.Replay && s.ctxs[c.Ctx] == nil
}

// FuncGetModule names a function's module.
func (s *session) FuncGetModule(c *wire.Call, a *wire.FuncGetModuleArgs) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	return s.modules.put(a.Module, f.mod)
}

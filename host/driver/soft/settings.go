package soft

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/soft/exec"
)

// What programs set of kernels. A library's kernel has values on each device, whichever context is
// current and whether it lasts; a function may have its own in its context, which count there
// whatever the kernel's are.

const (
	dynamicShared = iota // bytes that launches may ask for
	carveout
	nonPortable // clusters larger than every GPU of the architecture takes
	settingCount
)

// settings are what was set in one place.
type settings struct {
	set   [settingCount]bool
	value [settingCount]int32
}

// kernelOn is a library's kernel on a device.
type kernelOn struct {
	name   string
	device int
}

// settingsOf are those of a kernel on a device.
func (l *library) settingsOf(on kernelOn) *settings {
	x := l.settings[on]
	if x == nil {
		x = &settings{}
		l.settings[on] = x
	}
	return x
}

// owns has a module be the library's, and its functions follow the library's kernels.
func (l *library) owns(m *module) {
	m.library = l
	for name, e := range m.funcs {
		e.kernel = l.settingsOf(kernelOn{name, m.device})
	}
}

// on is what a kernel is like on a device, in no context.
func (k *kernel) on(device int) *entry {
	e := k.lib.shape.funcs[k.name]
	return &entry{code: e.code, lacks: e.lacks, kernel: k.lib.settings[kernelOn{k.name, device}]}
}

// setting is what holds for launches.
func (e *entry) setting(which int) int32 {
	switch {
	case e.own.set[which]:
		return e.own.value[which]
	case e.kernel != nil && e.kernel.set[which]:
		return e.kernel.value[which]
	case which == dynamicShared:
		return int32(sharedDefault - e.code.Attributes().SharedBytes)
	case which == carveout:
		return -1
	}
	return 0
}

// dynamic is how many bytes of dynamic shared memory launches may ask for.
func (e *entry) dynamic() uint32 { return uint32(e.setting(dynamicShared)) }

// change sets one, if the value may be.
func (x *settings) change(code *exec.Kernel, attr, value int32) cuda.Result {
	which, least, most := 0, int64(0), int64(0)
	switch attr {
	case cuda.FuncAttrMaxDynamicSharedSizeBytes:
		which, most = dynamicShared, sharedOptIn-int64(code.Attributes().SharedBytes)
	case cuda.FuncAttrPreferredSharedMemoryCarveout:
		which, least, most = carveout, -1, 100
	case cuda.FuncAttrNonPortableClusterSizeAllowed:
		which, most = nonPortable, 1
	case cuda.FuncAttrClusterSchedulingPolicyPreference:
		// Blocks of a cluster run on one core anyway.
		return cuda.Success
	case cuda.FuncAttrRequiredClusterWidth, cuda.FuncAttrRequiredClusterHeight, cuda.FuncAttrRequiredClusterDepth:
		return cuda.ErrorNotSupported
	default:
		return cuda.ErrorInvalidValue
	}
	if int64(value) < least || int64(value) > most {
		return cuda.ErrorInvalidValue
	}
	x.set[which], x.value[which] = true, value
	return cuda.Success
}

// FuncSetAttribute sets one of the attributes that can be set, of a function or of a kernel on a
// device.
func (s *session) FuncSetAttribute(c *wire.Call, a *wire.FuncSetAttributeArgs) cuda.Result {
	if k, ok := s.kernels[a.Func]; ok {
		if a.Dev < 0 || int(a.Dev) >= len(s.gpus) {
			return cuda.ErrorInvalidDevice
		}
		return k.lib.settingsOf(kernelOn{k.name, int(a.Dev)}).change(k.lib.shape.funcs[k.name].code, a.Attr, a.Value)
	}
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	return f.entry.own.change(f.entry.code, a.Attr, a.Value)
}

// FuncSetCacheConfig accepts a preference between caches that this GPU does not have apart.
func (s *session) FuncSetCacheConfig(c *wire.Call, a *wire.FuncSetCacheConfigArgs) cuda.Result {
	if _, ok := s.kernels[a.Func]; !ok {
		if _, res := s.function(c, a.Func); res != cuda.Success {
			return res
		}
	}
	if a.Config > cuda.FuncCachePreferEqual {
		return cuda.ErrorInvalidValue
	}
	return cuda.Success
}

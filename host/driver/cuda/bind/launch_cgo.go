package bind

/*
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// A launch from a packed parameter buffer: the hot path, one crossing.
#cgo noescape cw_launch
#cgo nocallback cw_launch
static int cw_launch(uint64_t fn, uint64_t func, const uint32_t *d, uint64_t stream, const uint8_t *params, uint64_t size) {
	typedef int (*entry)(uint64_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint64_t, void **,
	                     void **);
	void *extra[] = {(void *)1, (void *)params, (void *)2, &size, NULL};
	return ((entry)(uintptr_t)fn)(func, d[0], d[1], d[2], d[3], d[4], d[5], d[6], stream, NULL, size ? extra : NULL);
}

#cgo noescape cw_launch_ex
#cgo nocallback cw_launch_ex
static int cw_launch_ex(uint64_t fn, void *config, void *attrs, uint64_t func, const uint8_t *params, uint64_t size) {
	typedef int (*entry)(void *, uint64_t, void **, void **);
	void *extra[] = {(void *)1, (void *)params, (void *)2, &size, NULL};
	memcpy((char *)config + 40, &attrs, sizeof attrs); // CUlaunchConfig.attrs
	return ((entry)(uintptr_t)fn)(config, func, NULL, size ? extra : NULL);
}

// cuLaunchCooperativeKernel has no packed form: the parameters' addresses follow from the function's layout.
#cgo noescape cw_launch_coop
#cgo nocallback cw_launch_coop
static int cw_launch_coop(uint64_t fn, uint64_t func, const uint32_t *d, uint64_t stream, uint8_t *params,
                          const uint32_t *offsets, uint32_t n) {
	void **p = calloc(n + 1, sizeof *p);
	if (!p) return 2;
	for (uint32_t i = 0; i < n; i++) p[i] = params + offsets[i];
	typedef int (*entry)(uint64_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint64_t, void **);
	int r = ((entry)(uintptr_t)fn)(func, d[0], d[1], d[2], d[3], d[4], d[5], d[6], stream, p);
	free(p);
	return r;
}
*/
import "C"

import (
	"math"
	"unsafe"

	"causeway/cuda"
)

// StreamLegacy is CU_STREAM_LEGACY.
var StreamLegacy = Stream{v: 1}

// AsFunction is a kernel where the driver takes either.
func (k Kernel) AsFunction() Function { return Function{v: k.v} }

// Dims are grid x, y, z, block x, y, z and dynamic shared bytes.
type Dims [7]uint32

// maxParameters bounds what the driver is asked about one kernel.
const maxParameters = 4096

// Layout is where a kernel's parameters lie in a packed buffer.
type Layout struct {
	offsets, sizes []uint32
	need           int // bytes of a buffer that holds them all
	unknown        bool
}

// FunctionLayout asks the driver. One before 12.4 does not tell.
func (d *Driver) FunctionLayout(f Function) *Layout {
	return layout(d.HasFuncGetParamInfo(), func(i uint64) (uint64, uint64, cuda.Result) { return d.FuncGetParamInfo(f, i) })
}

// KernelLayout asks the driver.
func (d *Driver) KernelLayout(k Kernel) *Layout {
	return layout(d.HasKernelGetParamInfo(), func(i uint64) (uint64, uint64, cuda.Result) { return d.KernelGetParamInfo(k, i) })
}

func layout(told bool, ask func(i uint64) (offset, size uint64, res cuda.Result)) *Layout {
	l := &Layout{unknown: !told}
	for i := range uint64(maxParameters) {
		offset, size, res := ask(i)
		if res != cuda.Success || offset > math.MaxInt32 || size > math.MaxInt32 {
			break
		}
		l.offsets, l.sizes = append(l.offsets, uint32(offset)), append(l.sizes, uint32(size))
		l.need = max(l.need, int(offset+size))
	}
	return l
}

// Count is how many parameters there are.
func (l *Layout) Count() int { return len(l.offsets) }

// Parameter is where one lies, and how many bytes it has.
func (l *Layout) Parameter(i int) (offset, size uint32) { return l.offsets[i], l.sizes[i] }

// Arguments are a kernel's parameters: at least as many bytes as it reads.
type Arguments struct {
	b      []byte
	layout *Layout
}

// Arguments takes a guest's packed buffer, false if the kernel would read beyond it.
func (l *Layout) Arguments(b []byte) (Arguments, bool) { return Arguments{b, l}, len(b) >= l.need }

// LaunchKernel launches on this thread.
func (d *Driver) LaunchKernel(f Function, dims *Dims, st Stream, a Arguments) cuda.Result {
	if d.fn.cuLaunchKernel == 0 {
		return cuda.ErrorNotSupported
	}
	return cuda.Result(C.cw_launch(C.uint64_t(d.fn.cuLaunchKernel), C.uint64_t(f.v), (*C.uint32_t)(unsafe.Pointer(&dims[0])),
		C.uint64_t(st.v), (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(a.b))), C.uint64_t(len(a.b))))
}

// LaunchKernelEx launches with attributes on this thread.
func (d *Driver) LaunchKernelEx(f Function, dims *Dims, st Stream, attrs Attributes, a Arguments) cuda.Result {
	if d.fn.cuLaunchKernelEx == 0 {
		return cuda.ErrorNotSupported
	}
	cfg := config(dims, st, attrs)
	return cuda.Result(C.cw_launch_ex(C.uint64_t(d.fn.cuLaunchKernelEx), unsafe.Pointer(&cfg), unsafe.Pointer(unsafe.SliceData(attrs.list)),
		C.uint64_t(f.v), (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(a.b))), C.uint64_t(len(a.b))))
}

func config(d *Dims, st Stream, attrs Attributes) LaunchConfig {
	return LaunchConfig{
		gridDimX: d[0], gridDimY: d[1], gridDimZ: d[2], blockDimX: d[3], blockDimY: d[4], blockDimZ: d[5], sharedMemBytes: d[6],
		hStream: st, numAttrs: uint32(len(attrs.list)),
	}
}

// LaunchCooperativeKernel launches on this thread. The driver must have told of the parameters.
func (d *Driver) LaunchCooperativeKernel(f Function, dims *Dims, st Stream, a Arguments) cuda.Result {
	if d.fn.cuLaunchCooperativeKernel == 0 || a.layout.unknown {
		return cuda.ErrorNotSupported
	}
	return cuda.Result(C.cw_launch_coop(C.uint64_t(d.fn.cuLaunchCooperativeKernel), C.uint64_t(f.v), (*C.uint32_t)(unsafe.Pointer(&dims[0])),
		C.uint64_t(st.v), (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(a.b))), (*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(a.layout.offsets))),
		C.uint32_t(len(a.layout.offsets))))
}

// Clusters answers a question about a launch: how many clusters of it can be resident, or how large
// they can be.
func (d *Driver) Clusters(ask func(Function, *LaunchConfig) (int32, cuda.Result), f Function, dims *Dims, attrs Attributes) (int32, cuda.Result) {
	list := attrs.copy()
	defer list.Free()
	cfg := config(dims, Stream{}, attrs)
	cfg.attrs = list.Host().Address()
	return ask(f, &cfg)
}

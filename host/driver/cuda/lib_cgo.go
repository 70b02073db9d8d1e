package cuda

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Every entry point we call takes only integers and pointers, at most 14 of them: by the System V ABI surplus arguments
// are harmless, so one trampoline serves all.
#cgo noescape cw_call
#cgo nocallback cw_call
static int cw_call(uint64_t fn, const uint64_t *a) {
	typedef int (*entry)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
	                     uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
	return ((entry)(uintptr_t)fn)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13]);
}

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
static int cw_launch_ex(uint64_t fn, uint64_t func, const uint32_t *d, uint64_t stream, void *attrs, uint32_t nattrs,
                        const uint8_t *params, uint64_t size) {
	struct { uint32_t d[7]; uint32_t pad; uint64_t stream; void *attrs; uint32_t n; uint32_t pad2; } cfg;
	memset(&cfg, 0, sizeof cfg);
	memcpy(cfg.d, d, sizeof cfg.d);
	cfg.stream = stream; cfg.attrs = attrs; cfg.n = nattrs;
	void *extra[] = {(void *)1, (void *)params, (void *)2, &size, NULL};
	typedef int (*entry)(void *, uint64_t, void **, void **);
	return ((entry)(uintptr_t)fn)(&cfg, func, NULL, size ? extra : NULL);
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

// cuMemHostRegister and friends of memory that Go only knows as a slice of a foreign mapping.
static void cw_flush(void) { fflush(stdout); }
*/
import "C"

import (
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"unsafe"

	"causeway/cuda"
)

// ErrNoDriver says that this machine has no usable NVIDIA driver library.
var ErrNoDriver = errors.New("libcuda.so.1 cannot be loaded; install the NVIDIA driver or choose --gpu soft")

// lib is the loaded driver library; addresses of its entry points are fields of fn, named as exported.
type lib struct {
	fn entryPoints
}

// load opens the driver library under name and resolves every entry point; those that an older driver lacks stay 0 and
// answer ErrorNotSupported when called.
func load(name string) (*lib, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	h := C.dlopen(cname, C.RTLD_NOW|C.RTLD_LOCAL)
	if h == nil {
		return nil, fmt.Errorf("%w (%s)", ErrNoDriver, C.GoString(C.dlerror()))
	}
	l := &lib{}
	resolve(h, reflect.ValueOf(&l.fn).Elem())
	if l.fn.cuInit == 0 || l.fn.cuDriverGetVersion == 0 {
		return nil, fmt.Errorf("%s is not a CUDA driver library: cuInit is missing", name)
	}
	return l, nil
}

// resolve fills a struct of entry points, and the structs embedded in it, by the names of its fields.
func resolve(h unsafe.Pointer, v reflect.Value) {
	for i := range v.NumField() {
		if v.Field(i).Kind() == reflect.Struct {
			resolve(h, v.Field(i))
			continue
		}
		sym := C.CString(v.Type().Field(i).Name)
		// Fields are unexported names of C symbols: set them through their address.
		*(*entry)(unsafe.Pointer(v.Field(i).UnsafeAddr())) = entry(uintptr(C.dlsym(h, sym)))
		C.free(unsafe.Pointer(sym))
	}
}

// entry is the address of an entry point, 0 if the driver lacks it.
type entry uint64

// call invokes an entry point with integer and address arguments.
func (f entry) call(a ...uint64) cuda.Result {
	if f == 0 {
		return cuda.ErrorNotSupported
	}
	var args [14]uint64
	copy(args[:], a)
	return cuda.Result(C.cw_call(C.uint64_t(f), (*C.uint64_t)(unsafe.Pointer(&args[0]))))
}

// launchDims are grid x, y, z, block x, y, z and dynamic shared bytes.
type launchDims [7]uint32

// launch launches from a packed parameter buffer.
func (f entry) launch(fn uint64, d *launchDims, stream uint64, params []byte) cuda.Result {
	p := (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(params)))
	return cuda.Result(C.cw_launch(C.uint64_t(f), C.uint64_t(fn), (*C.uint32_t)(unsafe.Pointer(&d[0])), C.uint64_t(stream),
		p, C.uint64_t(len(params))))
}

// launchEx launches with n CUlaunchAttribute records in attrs.
func (f entry) launchEx(fn uint64, d *launchDims, stream uint64, attrs buffer, n int, params []byte) cuda.Result {
	if f == 0 {
		return cuda.ErrorNotSupported
	}
	p := (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(params)))
	return cuda.Result(C.cw_launch_ex(C.uint64_t(f), C.uint64_t(fn), (*C.uint32_t)(unsafe.Pointer(&d[0])), C.uint64_t(stream),
		attrs.p, C.uint32_t(n), p, C.uint64_t(len(params))))
}

func (f entry) launchCooperative(fn uint64, d *launchDims, stream uint64, params buffer, offsets []uint32) cuda.Result {
	if f == 0 {
		return cuda.ErrorNotSupported
	}
	var o *C.uint32_t
	if len(offsets) > 0 {
		o = (*C.uint32_t)(unsafe.Pointer(&offsets[0]))
	}
	return cuda.Result(C.cw_launch_coop(C.uint64_t(f), C.uint64_t(fn), (*C.uint32_t)(unsafe.Pointer(&d[0])),
		C.uint64_t(stream), (*C.uint8_t)(params.p), o, C.uint32_t(len(offsets))))
}

// buffer is C memory, for everything whose address the driver is told.
type buffer struct {
	p    unsafe.Pointer
	size int
}

func newBuffer(size int) buffer {
	return buffer{C.calloc(1, C.size_t(max(size, 1))), size}
}

func bufferOf(b []byte) buffer {
	n := newBuffer(len(b))
	copy(n.bytes(), b)
	return n
}

// cString is b with a NUL behind it.
func cString(b []byte) buffer {
	n := newBuffer(len(b) + 1)
	copy(n.bytes(), b)
	return n
}

func (b buffer) addr() uint64  { return uint64(uintptr(b.p)) }
func (b buffer) bytes() []byte { return unsafe.Slice((*byte)(b.p), b.size) }
func (b buffer) free()         { C.free(b.p) }
func (b buffer) u64(i int) *uint64 {
	return (*uint64)(unsafe.Add(b.p, 8*i))
}
func (b buffer) i32(i int) *int32 { return (*int32)(unsafe.Add(b.p, 4*i)) }
func (b buffer) f32(i int) *float32 {
	return (*float32)(unsafe.Add(b.p, 4*i))
}

// pointerTo makes a pointer to foreign memory (C's, the driver's, a mapping) at addr: never to Go's.
func pointerTo(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// goString reads a NUL-terminated string that the driver owns.
func goString(addr uint64) string {
	if addr == 0 {
		return ""
	}
	return C.GoString((*C.char)(pointerTo(addr)))
}

// word is a 32-bit word that the GPU writes and this process reads.
type word uintptr

func (w word) load() uint32   { return atomic.LoadUint32((*uint32)(pointerTo(uint64(w)))) }
func (w word) store(v uint32) { atomic.StoreUint32((*uint32)(pointerTo(uint64(w))), v) }

// memAddr is the address of a mapping's first byte.
func memAddr(b []byte) uint64 {
	if len(b) == 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(&b[0])))
}

// hostBytes views memory of the driver (a pinned buffer) at addr.
func hostBytes(addr uint64, n int) []byte {
	return unsafe.Slice((*byte)(pointerTo(addr)), n)
}

func setenv(name, value string) {
	n, v := C.CString(name), C.CString(value)
	C.setenv(n, v, 1)
	C.free(unsafe.Pointer(n))
	C.free(unsafe.Pointer(v))
}

// flushStdout pushes what the driver printed for kernels out of libc's buffer.
func flushStdout() { C.cw_flush() }

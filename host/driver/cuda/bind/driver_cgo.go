package bind

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

// By the System V ABI surplus arguments are harmless, so that one trampoline serves all entries of integers and pointers.
#cgo noescape cw_direct
#cgo nocallback cw_direct
static int cw_direct(uint64_t fn, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) {
	return ((int (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t))(uintptr_t)fn)(a, b, c, d, e, f);
}

enum { CW_ARGS = 16, CW_WORDS = 8 };

// Arguments with words behind them that the driver writes: outs has a bit for each argument that is the index of such a word, whose
// address the driver gets.
static int cw_frame(uint64_t fn, uint64_t *a, uint32_t outs) {
	typedef int (*entry)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
	                     uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
	for (; outs; outs &= outs - 1) {
		uint64_t *p = &a[__builtin_ctz(outs)];
		*p = (uintptr_t)&a[*p];
	}
	return ((entry)(uintptr_t)fn)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15]);
}

#cgo noescape cw_call
#cgo nocallback cw_call
static int cw_call(uint64_t fn, uint64_t *a, uint32_t outs) { return cw_frame(fn, a, outs); }

// The same with addresses of Go's memory. at: how many, then in which argument each goes, four bits apiece.
#cgo noescape cw_call_refs
#cgo nocallback cw_call_refs
static int cw_call_refs(uint64_t fn, uint64_t *a, uint32_t outs, uint32_t at, void *p, void *q, void *r, void *s, void *t) {
	void *list[] = {p, q, r, s, t};
	for (uint32_t i = 0, n = at & 15; i < n; i++)
		a[(at >>= 4) & 15] = (uintptr_t)list[i];
	return cw_frame(fn, a, outs);
}

// What the driver knows of an address is asked for each copy.
#cgo noescape cw_ask
#cgo nocallback cw_ask
static int cw_ask(uint64_t fn, uint64_t *value, uint32_t attribute, uint64_t address) {
	return ((int (*)(uint64_t *, uint32_t, uint64_t))(uintptr_t)fn)(value, attribute, address);
}

// Floats travel in registers of their own.
static int cw_floats(uint64_t fn, uint64_t handle, float x, float y) {
	return ((int (*)(uint64_t, float, float))(uintptr_t)fn)(handle, x, y);
}
*/
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"unsafe"

	"causeway/cuda"
)

// ErrNoDriver says that this machine has no usable NVIDIA driver library.
var ErrNoDriver = errors.New("libcuda.so.1 cannot be loaded; install the NVIDIA driver or choose --gpu soft")

// Driver is the driver library. What an older one lacks answers ErrorNotSupported.
type Driver struct{ fn entries }

// Load opens the driver library under a name, for the life of the process.
func Load(name string) (*Driver, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	h := C.dlopen(cname, C.RTLD_NOW|C.RTLD_LOCAL)
	if h == nil {
		return nil, fmt.Errorf("%w (%s)", ErrNoDriver, C.GoString(C.dlerror()))
	}
	d := New(func(symbol string) uint64 {
		c := C.CString(symbol)
		defer C.free(unsafe.Pointer(c))
		return uint64(uintptr(C.dlsym(h, c)))
	})
	if d.fn.cuInit == 0 || d.fn.cuDriverGetVersion == 0 {
		return nil, fmt.Errorf("%s is not a CUDA driver library: cuInit is missing", name)
	}
	return d, nil
}

// Preload loads a library that the driver loads by itself at the first call that needs it, for the
// life of the process.
func Preload(name string) error {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	if C.dlopen(cname, C.RTLD_LAZY|C.RTLD_LOCAL) == nil {
		return errors.New(C.GoString(C.dlerror()))
	}
	return nil
}

// New is a driver whose functions find gives by name, 0 for what it lacks. Tests have stand-ins.
func New(find func(symbol string) uint64) *Driver {
	d := &Driver{}
	d.fn.resolve(func(symbol string) entry { return entry(find(symbol)) })
	return d
}

// entry is the address of an entry point, 0 if the driver lacks it.
type entry uint64

// directArgs is how many arguments travel in registers.
const directArgs = 6

// call calls an entry of integers and addresses. It is what the hot paths use: one crossing,
// nothing in memory.
func (e entry) call(a, b, c, d, f, g uint64) cuda.Result {
	if e == 0 {
		return cuda.ErrorNotSupported
	}
	return cuda.Result(C.cw_direct(C.uint64_t(e), C.uint64_t(a), C.uint64_t(b), C.uint64_t(c), C.uint64_t(d), C.uint64_t(f), C.uint64_t(g)))
}

func (e entry) callFloats(handle uint64, x, y float32) cuda.Result {
	if e == 0 {
		return cuda.ErrorNotSupported
	}
	return cuda.Result(C.cw_floats(C.uint64_t(e), C.uint64_t(handle), C.float(x), C.float(y)))
}

// frame is the arguments of a call, and words that the driver writes.
type frame [C.CW_ARGS + C.CW_WORDS]uint64

func (f *frame) call(e entry, outs uint32) cuda.Result {
	if e == 0 {
		return cuda.ErrorNotSupported
	}
	return cuda.Result(C.cw_call(C.uint64_t(e), (*C.uint64_t)(unsafe.Pointer(f)), C.uint32_t(outs)))
}

// callRefs is call with addresses of Go's memory, which hold no pointers of Go's. The driver does
// not keep them.
func (f *frame) callRefs(e entry, outs, at uint32, p, q, r, s, t unsafe.Pointer) cuda.Result {
	if e == 0 {
		return cuda.ErrorNotSupported
	}
	return cuda.Result(C.cw_call_refs(C.uint64_t(e), (*C.uint64_t)(unsafe.Pointer(f)), C.uint32_t(outs), C.uint32_t(at), p, q, r, s, t))
}

// pointerGetAttribute calls cuPointerGetAttribute about any number.
func (d *Driver) pointerGetAttribute(attribute uint32, ptr uint64) (value uint64, _ cuda.Result) {
	if d.fn.cuPointerGetAttribute == 0 {
		return 0, cuda.ErrorNotSupported
	}
	res := C.cw_ask(C.uint64_t(d.fn.cuPointerGetAttribute), (*C.uint64_t)(unsafe.Pointer(&value)), C.uint32_t(attribute), C.uint64_t(ptr))
	return value, cuda.Result(res)
}

// Call is a call to be made once, here or by a Queue. It holds handles and addresses, nothing that
// tables may change meanwhile.
type Call struct {
	fn      entry
	args    [directArgs]uint64
	refused cuda.Result // instead of being made
}

// Do makes it.
func (c *Call) Do() cuda.Result {
	if c.refused != cuda.Success {
		return c.refused
	}
	a := &c.args
	return c.fn.call(a[0], a[1], a[2], a[3], a[4], a[5])
}

// Possible reports whether it can be made later: the driver has the entry, and nothing is wrong
// with its arguments.
func (c *Call) Possible() bool { return c.fn != 0 && c.refused == cuda.Success }

// pointerTo makes a pointer to foreign memory (C's, the driver's, a mapping) at addr: never to
// Go's.
func pointerTo(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// first is the address of a list, nil if nothing is in it.
func first[T any](list []T) unsafe.Pointer {
	if len(list) == 0 {
		return nil
	}
	return unsafe.Pointer(&list[0])
}

// textAt reads a NUL-terminated string that the driver owns.
func textAt(addr uint64) string {
	if addr == 0 {
		return ""
	}
	return C.GoString((*C.char)(pointerTo(addr)))
}

// copied is a copy of what the driver's memory at addr holds.
func copied[T any](addr, n uint64) []T {
	if addr == 0 || n == 0 {
		return nil
	}
	return append([]T(nil), unsafe.Slice((*T)(pointerTo(addr)), n)...)
}

// LinkComplete gives the image of a completed link, at most so many bytes; nil if the driver gave
// none.
func (d *Driver) LinkComplete(state LinkState, most uint64) ([]byte, cuda.Result) {
	at, size, res := d.linkComplete(state)
	switch {
	case res != cuda.Success || at.v == 0:
		return nil, res
	case size > most:
		return nil, cuda.ErrorOutOfMemory
	}
	return bytes.Clone(unsafe.Slice((*byte)(pointerTo(at.v)), size)), cuda.Success
}

package cuda

/*
#include <stdint.h>

// The im2col forms take more arguments than cw_call passes.
#cgo noescape cw_call16
#cgo nocallback cw_call16
static int cw_call16(uint64_t fn, const uint64_t *a) {
	typedef int (*entry)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
	                     uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
	return ((entry)(uintptr_t)fn)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13],
	                              a[14], a[15]);
}

// Two float arguments travel in floating point registers.
static int cw_call_floats(uint64_t fn, uint64_t handle, float x, float y) {
	typedef int (*entry)(uint64_t, float, float);
	return ((entry)(uintptr_t)fn)(handle, x, y);
}
*/
import "C"

import (
	"math"
	"unsafe"

	"causeway/cuda"
)

// call16 is call for entry points of up to 16 arguments.
func (f entry) call16(a ...uint64) cuda.Result {
	if f == 0 {
		return cuda.ErrorNotSupported
	}
	var args [16]uint64
	copy(args[:], a)
	return cuda.Result(C.cw_call16(C.uint64_t(f), (*C.uint64_t)(unsafe.Pointer(&args[0]))))
}

// callFloats calls an entry point that takes a handle and up to two floats, given by their bits.
func (f entry) callFloats(handle uint64, x, y uint32) cuda.Result {
	if f == 0 {
		return cuda.ErrorNotSupported
	}
	return cuda.Result(C.cw_call_floats(C.uint64_t(f), C.uint64_t(handle), C.float(math.Float32frombits(x)),
		C.float(math.Float32frombits(y))))
}

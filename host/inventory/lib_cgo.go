package inventory

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

// Every entry point we call takes only integers and pointers, at most 6 of them: by the System V ABI surplus arguments are
// harmless, so one trampoline serves all.
static int cw_call(void *fn, const uint64_t *a) {
	typedef int (*entry)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
	return ((entry)fn)(a[0], a[1], a[2], a[3], a[4], a[5]);
}
*/
import "C"

import (
	"fmt"
	"unsafe"
)

const maxArgs = 6

// library is a loaded libnvidia-ml.so.1. It stays loaded.
type library struct {
	handle  unsafe.Pointer
	entries map[string]unsafe.Pointer
}

// LoadNVML loads the machine's management library; ErrNoNVML if there is none.
func LoadNVML(name string) (Library, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	h := C.dlopen(cname, C.RTLD_NOW|C.RTLD_LOCAL)
	if h == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoNVML, C.GoString(C.dlerror()))
	}
	return &library{handle: h, entries: map[string]unsafe.Pointer{}}, nil
}

// Call implements Library.
func (l *library) Call(entry string, args ...any) Return {
	fn, known := l.entries[entry]
	if !known {
		sym := C.CString(entry)
		fn = C.dlsym(l.handle, sym)
		C.free(unsafe.Pointer(sym))
		l.entries[entry] = fn
	}
	if fn == nil || len(args) > maxArgs {
		return FunctionNotFound
	}
	var words [maxArgs]C.uint64_t
	var copies [maxArgs]unsafe.Pointer
	for i, a := range args {
		switch a := a.(type) {
		case uint64:
			words[i] = C.uint64_t(a)
		case []byte:
			copies[i] = C.CBytes(a)
			defer C.free(copies[i])
			words[i] = C.uint64_t(uintptr(copies[i]))
		default:
			return InvalidArgument
		}
	}
	r := C.cw_call(fn, &words[0])
	for i, a := range args {
		if b, ok := a.([]byte); ok {
			copy(b, unsafe.Slice((*byte)(copies[i]), len(b)))
		}
	}
	return Return(r)
}

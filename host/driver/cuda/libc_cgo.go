package cuda

/*
#include <stdio.h>
#include <stdlib.h>

static void cw_flush(void) { fflush(stdout); }
*/
import "C"

import "unsafe"

func setenv(name, value string) {
	n, v := C.CString(name), C.CString(value)
	C.setenv(n, v, 1)
	C.free(unsafe.Pointer(n))
	C.free(unsafe.Pointer(v))
}

// flushStdout pushes what the driver printed for kernels out of libc's buffer.
func flushStdout() { C.cw_flush() }

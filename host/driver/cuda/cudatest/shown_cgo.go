package cudatest

/*
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// A driver that counts what it is shown: launches and nodes of a kernel with two parameters, and images.
enum { KERNEL_LONG = 4000 };
static int shown;

static int show(void) { shown++; return 0; }
static int show_handle(uint64_t *handle) { *handle = 0x77000; shown++; return 0; }

static int parameter(uint64_t kernel, uint64_t i, uint64_t *offset, uint64_t *size) {
	(void)kernel;
	if (i > 1) return 1;
	*offset = i ? 8 : 0;
	*size = i ? KERNEL_LONG : 8;
	return 0;
}

// What an allocation node takes: CUDA_MEM_ALLOC_NODE_PARAMS.
enum { RIGHTS = 100, RIGHT = 12, PROPS = 88 };
static int allocation(uint64_t node, char *params) {
	static char rights[RIGHTS * RIGHT];
	(void)node;
	*(char **)(params + PROPS) = rights;
	*(uint64_t *)(params + PROPS + 8) = RIGHTS;
	return 0;
}

static uint64_t showing(const char *name) {
#define SHOWN(n, f) if (!strcmp(name, n)) return (uint64_t)(uintptr_t)(f)
	SHOWN("cuLaunchKernel", show);
	SHOWN("cuLaunchKernelEx", show);
	SHOWN("cuLaunchCooperativeKernel", show);
	SHOWN("cuLinkAddData_v2", show);
	SHOWN("cuGraphAddNode_v2", show_handle);
	SHOWN("cuModuleLoadDataEx", show_handle);
	SHOWN("cuLibraryLoadData", show_handle);
	SHOWN("cuFuncGetParamInfo", parameter);
	SHOWN("cuKernelGetParamInfo", parameter);
	SHOWN("cuGraphMemAllocNodeGetParams", allocation);
	return 0;
}
static int take_shown(void) { int n = shown; shown = 0; return n; }
*/
import "C"

import "unsafe"

// KernelBytes is how many bytes of parameters every kernel of a Showing driver reads: one of 8, one
// of 4000.
const KernelBytes = 8 + C.KERNEL_LONG

// Rights is how many an allocation node of a Showing driver says that it gives.
const Rights = C.RIGHTS

// Showing is Owning for a driver that also counts the launches, nodes and images that it is shown.
func Showing(name string) uint64 {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	if at := uint64(C.showing(n)); at != 0 {
		return at
	}
	return Owning(name)
}

// Shown is how many there were since it was asked.
func Shown() int { return int(C.take_shown()) }

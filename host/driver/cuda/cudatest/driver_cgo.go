package cudatest

/*
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

// A driver that agrees to everything: handles are numbers, memory is none but pinned memory.
enum { BLOCKS = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char *mem; uint64_t size; } blocks[BLOCKS];
static uint64_t handles;

static int agree(void) { return 0; }

static int make(uint64_t *handle) {
	*handle = __atomic_add_fetch(&handles, 1, __ATOMIC_RELAXED) << 12;
	return 0;
}

// Host memory is for the GPU where it is for this process.
static int device_pointer(uint64_t *address, uint64_t host) { *address = host; return 0; }

static int name(const char **text) { *text = "name"; return 0; }

// Conditional nodes come with graphs for their bodies.
static int add_node(uint64_t *node, uint64_t graph, uint64_t deps, uint64_t edges, uint64_t count, char *params) {
	enum { CONDITIONAL = 13, SIZE = 16 + 12, BODIES = 16 + 16, MOST = 65536 };
	static uint64_t bodies[MOST];
	(void)graph, (void)deps, (void)edges, (void)count;
	if (*(uint32_t *)params == CONDITIONAL) {
		uint32_t n = *(uint32_t *)(params + SIZE);
		if (n > MOST) return 1;
		for (uint32_t i = 0; i < n; i++) make(&bodies[i]);
		*(uint64_t **)(params + BODIES) = bodies;
	}
	return make(node);
}

static int host_alloc(uint64_t *address, uint64_t size) {
	int r = 2; // out of memory
	pthread_mutex_lock(&lock);
	for (int i = 0; i < BLOCKS && r; i++) {
		if (blocks[i].mem || !(blocks[i].mem = calloc(1, size))) continue;
		blocks[i].size = size;
		*address = (uint64_t)(uintptr_t)blocks[i].mem;
		r = 0;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

static int host_free(uint64_t address) {
	int r = 1;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < BLOCKS; i++) {
		if (!blocks[i].mem || (uint64_t)(uintptr_t)blocks[i].mem != address) continue;
		free(blocks[i].mem);
		blocks[i].mem = 0;
		r = 0;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

// A stream writes at once, and only to pinned memory.
static int stream_write(uint64_t stream, uint64_t address, uint32_t value, uint32_t flags) {
	(void)stream, (void)flags;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < BLOCKS; i++) {
		uint64_t at = address - (uint64_t)(uintptr_t)blocks[i].mem;
		if (blocks[i].mem && address % 4 == 0 && at < blocks[i].size && blocks[i].size - at >= 4)
			__atomic_store_n((uint32_t *)(blocks[i].mem + at), value, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

// One device, whose attributes are 0 but those that a test sets.
static int attributes[256];

static int count(int *n) { *n = 1; return 0; }

static int attribute(int *value, int which) { *value = attributes[which & 255]; return 0; }

static void set_attribute(int which, int value) { attributes[which & 255] = value; }

static uint64_t agreeing(int which) {
	switch (which) {
	case 1: return (uint64_t)(uintptr_t)make;
	case 2: return (uint64_t)(uintptr_t)host_alloc;
	case 3: return (uint64_t)(uintptr_t)host_free;
	case 4: return (uint64_t)(uintptr_t)stream_write;
	case 5: return (uint64_t)(uintptr_t)add_node;
	case 6: return (uint64_t)(uintptr_t)name;
	case 7: return (uint64_t)(uintptr_t)count;
	case 8: return (uint64_t)(uintptr_t)attribute;
	}
	return (uint64_t)(uintptr_t)agree;
}

static uint64_t device_pointers(void) { return (uint64_t)(uintptr_t)device_pointer; }
*/
import "C"

// SetAttribute sets what the agreeing driver answers for an attribute of its device, in all of this
// process.
func SetAttribute(which, value int32) { C.set_attribute(C.int(which), C.int(value)) }

// Agreeing returns the address of the function that stands for the driver's of a name in a driver
// that agrees to everything.
func Agreeing(name string) uint64 {
	switch name {
	case "cuMemHostAlloc":
		return uint64(C.agreeing(2))
	case "cuMemHostGetDevicePointer_v2":
		return uint64(C.device_pointers())
	case "cuMemFreeHost":
		return uint64(C.agreeing(3))
	case "cuStreamWriteValue32_v2":
		return uint64(C.agreeing(4))
	case "cuGraphAddNode_v2":
		return uint64(C.agreeing(5))
	case "cuDeviceGetCount":
		return uint64(C.agreeing(7))
	case "cuDeviceGetAttribute":
		return uint64(C.agreeing(8))
	case "cuKernelGetName", "cuFuncGetName":
		return uint64(C.agreeing(6))
	case "cuDevicePrimaryCtxRetain", "cuCtxCreate_v2", "cuStreamCreateWithPriority", "cuEventCreate", "cuModuleLoadDataEx", "cuModuleGetFunction",
		"cuLibraryLoadData", "cuLibraryGetKernel", "cuLibraryGetModule", "cuKernelGetFunction", "cuMemAlloc_v2", "cuMemAllocAsync", "cuGraphCreate",
		"cuGraphClone", "cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams", "cuMemCreate", "cuMemAddressReserve",
		"cuArray3DCreate_v2", "cuMipmappedArrayCreate", "cuMipmappedArrayGetLevel", "cuTexObjectCreate", "cuSurfObjectCreate", "cuTexRefCreate",
		"cuMemPoolCreate", "cuUserObjectCreate", "cuGraphConditionalHandleCreate", "cuDeviceGetDefaultMemPool":
		return uint64(C.agreeing(1))
	}
	return uint64(C.agreeing(0))
}

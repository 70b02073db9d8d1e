package cudatest

/*
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// A driver whose copies are made at once: device memory is memory.
static int alloc(uint64_t *address, uint64_t size) {
	*address = (uint64_t)(uintptr_t)calloc(1, size);
	return *address ? 0 : 2;
}

static int copy(uint64_t dst, uint64_t src, uint64_t size) {
	memmove((void *)(uintptr_t)dst, (void *)(uintptr_t)src, size);
	return 0;
}

static int batch(uint64_t *dst, uint64_t *src, uint64_t *size, uint64_t n, const uint32_t *attributes, const uint64_t *first, uint64_t count) {
	if (count != 1 || *first || attributes[0] < 1 || attributes[0] > 3)
		return 1;
	for (uint64_t i = 0; i < n; i++)
		copy(dst[i], src[i], size[i]);
	return 0;
}

static int store(uint64_t stream, uint64_t address, uint32_t value) {
	(void)stream;
	__atomic_store_n((uint32_t *)(uintptr_t)address, value, __ATOMIC_RELEASE);
	return 0;
}

// Whatever is asked of a pointer: it is device memory.
static int attribute(uint32_t *value, int which) {
	*value = which == 2 ? 2 : 0;
	return 0;
}

static uint64_t moving(int which) {
	switch (which) {
	case 1: return (uint64_t)(uintptr_t)alloc;
	case 2: return (uint64_t)(uintptr_t)copy;
	case 3: return (uint64_t)(uintptr_t)batch;
	case 4: return (uint64_t)(uintptr_t)store;
	case 5: return (uint64_t)(uintptr_t)attribute;
	}
	return 0;
}
*/
import "C"

// Moving returns the address of the function that stands for the driver's of a name in a driver
// whose copies are made at once, 0 if it has none.
func Moving(name string) uint64 {
	switch name {
	case "cuMemAlloc_v2":
		return uint64(C.moving(1))
	case "cuMemcpyAsync", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2":
		return uint64(C.moving(2))
	case "cuMemcpyBatchAsync_v2":
		return uint64(C.moving(3))
	case "cuStreamWriteValue32_v2":
		return uint64(C.moving(4))
	case "cuPointerGetAttribute":
		return uint64(C.moving(5))
	}
	return 0
}

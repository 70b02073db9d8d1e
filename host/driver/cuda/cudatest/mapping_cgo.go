package cudatest

/*
#include <stdint.h>

// A driver that maps physical memory: it counts what there is of it, and which pages are mapped, and fails from a call on that the test names.
enum { PAGE = 2 << 20, PAGES = 1 << 18, OUT_OF_MEMORY = 2, INVALID = 1 };
static uint64_t range, created, pages, waits, calls, failing, wrong;
static unsigned char mapped[PAGES];

static int fails(void) { return failing && ++calls >= failing; }
static int reserve(uint64_t *at, uint64_t size, uint64_t align, uint64_t hint) { (void)size; (void)align; *at = range = hint; return 0; }
static uint32_t place; // of the last memory: CUmemLocation's type, and its id above
static int create(uint64_t *handle, uint64_t size, const uint32_t *prop) {
	static uint64_t last;
	(void)size;
	if (fails()) return OUT_OF_MEMORY;
	place = prop[2] | prop[3] << 16;
	*handle = ++last;
	created++;
	return 0;
}
static int attribute(int *value, int which, int dev) {
	(void)dev;
	*value = which == 141 ? 1 : which == 134 ? 5 : 0; // HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, HOST_NUMA_ID
	return 0;
}
static int release(uint64_t handle) { (void)handle; if (!created) wrong++; else created--; return 0; }
static int set_mapped(uint64_t at, uint64_t size, unsigned char to) {
	for (uint64_t p = (at - range) / PAGE; p < (at + size - range) / PAGE; p++) {
		if (p >= PAGES || mapped[p] == to) { wrong++; return INVALID; }
		mapped[p] = to;
		pages += to ? 1 : -1;
	}
	return 0;
}
static int map(uint64_t at, uint64_t size) { return fails() ? OUT_OF_MEMORY : set_mapped(at, size, 1); }
static int unmap(uint64_t at, uint64_t size) { return set_mapped(at, size, 0); }
static int access_(uint64_t at, uint64_t size) { (void)at; (void)size; return fails() ? OUT_OF_MEMORY : 0; }
static int alloc_async(uint64_t *at) { static uint64_t last = 1ull << 44; if (fails()) return OUT_OF_MEMORY; *at = last += 4096; return 0; }
static int synchronize(void) { waits++; return 0; }

static uint64_t mapping_entry(int which) {
	switch (which) {
	case 1: return (uint64_t)(uintptr_t)reserve;
	case 2: return (uint64_t)(uintptr_t)create;
	case 3: return (uint64_t)(uintptr_t)release;
	case 4: return (uint64_t)(uintptr_t)map;
	case 5: return (uint64_t)(uintptr_t)unmap;
	case 6: return (uint64_t)(uintptr_t)access_;
	case 7: return (uint64_t)(uintptr_t)synchronize;
	case 8: return (uint64_t)(uintptr_t)alloc_async;
	case 9: return (uint64_t)(uintptr_t)attribute;
	}
	return 0;
}
static void mapping_restart(void) {
	created = pages = wrong = 0;
	for (int i = 0; i < PAGES; i++) mapped[i] = 0;
}
static void mapping_fail(uint64_t call) { calls = 0; failing = call; }
static uint32_t mapping_place(void) { return place; }
static uint64_t mapping_count(int which) {
	return which == 1 ? created : which == 2 ? pages : which == 3 ? waits : wrong;
}
*/
import "C"

// Mapping returns the address of the function that stands for the driver's of a name in a driver
// that maps physical memory, 0 if it has none. One test at a time.
func Mapping(name string) uint64 {
	names := []string{"", "cuMemAddressReserve", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuCtxSynchronize", "cuMemAllocAsync", "cuDeviceGetAttribute"}
	for i := 1; i < len(names); i++ {
		if names[i] == name {
			return uint64(C.mapping_entry(C.int(i)))
		}
	}
	return 0
}

// FailMapping has calls that create, map, give access or allocate in stream order find no memory,
// from the nth from now on; 0: none.
func FailMapping(n int) { C.mapping_fail(C.uint64_t(n)) }

// RestartMapping forgets all that is mapped, as a new process has nothing.
func RestartMapping() { C.mapping_restart() }

// MappingPlace is where the last physical memory was made: CUmemLocation's type and id.
func MappingPlace() (kind, id uint32) {
	place := uint32(C.mapping_place())
	return place & 0xffff, place >> 16
}

// MappingCounts are the pieces of physical memory that there are, pages that are mapped, waits for
// a context, and calls that made no sense.
func MappingCounts() (created, pages, waits, wrong int) {
	return int(C.mapping_count(1)), int(C.mapping_count(2)), int(C.mapping_count(3)), int(C.mapping_count(4))
}

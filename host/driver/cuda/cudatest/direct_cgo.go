package cudatest

/*
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// A driver whose device memory adapters may be told of: each allocation is a file, and its number. What is called is written down, a letter for each call.
enum { MOST = 64 };
static struct { uint64_t at, size, id; int file; } direct_blocks[MOST];
static uint64_t direct_last, direct_at;
static int32_t direct_attributes[256];
static uint32_t direct_refuses;
static char direct_said[256];

static void direct_say(char what) {
	size_t n = strlen(direct_said);
	if (n + 1 < sizeof direct_said)
		direct_said[n] = what;
}

static int direct_alloc(uint64_t *address, uint64_t size) {
	for (int i = 0; i < MOST; i++) {
		if (direct_blocks[i].at)
			continue;
		int file = memfd_create("device", MFD_CLOEXEC);
		uint64_t all = (size + 8191) & ~4095ull; // a page more: memory may begin anywhere in one
		if (file < 0 || ftruncate(file, all))
			return 2;
		void *p = mmap(0, all, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		if (p == MAP_FAILED)
			return 2;
		*address = (uint64_t)(uintptr_t)p + direct_at;
		direct_blocks[i].at = *address, direct_blocks[i].size = size, direct_blocks[i].id = ++direct_last, direct_blocks[i].file = file;
		return 0;
	}
	return 2;
}

static int direct_find(uint64_t address) {
	for (int i = 0; i < MOST; i++)
		if (direct_blocks[i].at && address - direct_blocks[i].at < direct_blocks[i].size)
			return i;
	return -1;
}

static int direct_free(uint64_t address) {
	int i = direct_find(address);
	if (i < 0)
		return 1;
	direct_say('F');
	uint64_t at = address & ~4095ull;
	munmap((void *)(uintptr_t)at, (direct_blocks[i].size + 8191) & ~4095ull);
	close(direct_blocks[i].file);
	direct_blocks[i].at = 0;
	return 0;
}

static void direct_empty(void) {
	for (int i = 0; i < MOST; i++)
		if (direct_blocks[i].at)
			direct_free(direct_blocks[i].at);
}

static int direct_end(uint64_t context) {
	(void)context;
	direct_say('E');
	return 0;
}

static int direct_pointer(uint64_t *value, uint32_t which, uint64_t address) {
	int i = direct_find(address);
	if (i < 0)
		return 1;
	switch (which) {
	case 2: *(uint32_t *)value = 2; return 0;
	case 7: *value = direct_blocks[i].id; return 0;
	case 11: *value = direct_blocks[i].at; return 0;
	case 12: *value = direct_blocks[i].size; return 0;
	}
	return 1;
}

static int direct_handle(int *fd, uint64_t address, uint64_t size, uint32_t kind, uint64_t flags) {
	int i = direct_find(address);
	if (i < 0 || kind != 1 || flags || (address | size) & 4095 || address + size > direct_blocks[i].at + direct_blocks[i].size)
		return 1;
	if (direct_refuses)
		return direct_refuses;
	*fd = dup(direct_blocks[i].file);
	return *fd < 0;
}

static int direct_attribute(int *value, uint32_t which, int device) {
	(void)device;
	*value = which < 256 ? direct_attributes[which] : 0;
	return 0;
}

static int direct_sync(uint64_t stream) {
	(void)stream;
	direct_say('S');
	return 0;
}

static int direct_flush(uint32_t target, uint32_t scope) {
	if (target != 0 || scope != 200)
		return 1;
	direct_say('P');
	return 0;
}

static uint64_t direct_entry(const char *name) {
#define ENTRY(n, f) if (!strcmp(name, n)) return (uint64_t)(uintptr_t)f
	ENTRY("cuMemAlloc_v2", direct_alloc);
	ENTRY("cuMemFree_v2", direct_free);
	ENTRY("cuMemFreeAsync", direct_free);
	ENTRY("cuCtxDestroy_v2", direct_end);
	ENTRY("cuPointerGetAttribute", direct_pointer);
	ENTRY("cuMemGetHandleForAddressRange", direct_handle);
	ENTRY("cuDeviceGetAttribute", direct_attribute);
	ENTRY("cuStreamSynchronize", direct_sync);
	ENTRY("cuFlushGPUDirectRDMAWrites", direct_flush);
#undef ENTRY
	return 0;
}

static void direct_set(uint32_t which, int32_t value) { direct_attributes[which & 255] = value; }
static void direct_begin_at(uint64_t at) { direct_at = at; }
static void direct_refuse(uint32_t result) { direct_refuses = result; }
static const char *direct_told(void) { return direct_said; }
static void direct_forget(void) { memset(direct_said, 0, sizeof direct_said); }
*/
import "C"

import "unsafe"

// Direct returns the address of the function that stands for the driver's of a name in a driver
// that tells adapters of its device memory, 0 if it has none.
func Direct(name string) uint64 {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	return uint64(C.direct_entry(n))
}

// DirectEmpty frees what sessions before have left.
func DirectEmpty() { C.direct_empty() }

// DirectIs sets an attribute of its devices.
func DirectIs(attribute uint32, value int32) { C.direct_set(C.uint32_t(attribute), C.int32_t(value)) }

// DirectBegins has memory begin so far behind a page's beginning.
func DirectBegins(at uint64) { C.direct_begin_at(C.uint64_t(at)) }

// DirectRefuses has no memory be had as a file, for a reason; 0: it is.
func DirectRefuses(result uint32) { C.direct_refuse(C.uint32_t(result)) }

// DirectSays adds a letter to what was called: F is for memory that was freed, E for a context that
// was ended, S for a stream that was waited for, P for writes that were made visible.
func DirectSays(what byte) { C.direct_say(C.char(what)) }

// DirectSaid is what was called since it was asked before, a letter for each call.
func DirectSaid() string {
	defer C.direct_forget()
	return C.GoString(C.direct_told())
}

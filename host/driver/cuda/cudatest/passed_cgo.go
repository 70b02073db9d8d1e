package cudatest

/*
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// A driver of two processes whose memory passes from one to the other by descriptors. Memory is files, so that copies are copies; addresses are numbers.
enum { MOST = 64, OUT_OF_MEMORY = 2, INVALID = 1, NO_PEER = 217 };
static struct { char *mem; uint64_t size; int fd, process, used; } memory[MOST]; // a handle is its place, less one
static struct { uint64_t at, size, of; int process, used, open; } mappings[MOST];
static uint64_t reserved[2], wrong, calls, failing;
static int now;

static int fails(void) { return failing && ++calls == failing; }

static int passed_reserve(uint64_t *at, uint64_t size, uint64_t align, uint64_t hint)
{
	(void)size, (void)align;
	if (fails()) return OUT_OF_MEMORY;
	*at = hint;
	reserved[now]++;
	return 0;
}
static int passed_unreserve(void) { reserved[now]--; return 0; }
static int keep(uint64_t *handle, int fd, uint64_t size)
{
	for (int i = 0; i < MOST; i++) {
		if (memory[i].used) continue;
		memory[i].mem = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		memory[i].size = size, memory[i].fd = fd, memory[i].process = now, memory[i].used = 1;
		*handle = i + 1;
		return 0;
	}
	return OUT_OF_MEMORY;
}
static int passed_create(uint64_t *handle, uint64_t size)
{
	int fd = memfd_create("gpu", MFD_CLOEXEC);
	return fd < 0 || ftruncate(fd, size) ? OUT_OF_MEMORY : keep(handle, fd, size);
}
static int passed_import(uint64_t *handle, uint64_t file)
{
	struct stat st;
	if (fails()) return INVALID;
	int fd = dup((int)file);
	if (fd < 0 || fstat(fd, &st)) { wrong++; return INVALID; }
	return keep(handle, fd, st.st_size);
}
static int passed_export(uint64_t *file, uint64_t handle)
{
	*file = (uint64_t)dup(memory[handle - 1].fd);
	return 0;
}
static int passed_release(uint64_t handle)
{
	if (!handle || handle > MOST || !memory[handle - 1].used || memory[handle - 1].process != now) { wrong++; return INVALID; }
	munmap(memory[handle - 1].mem, memory[handle - 1].size);
	close(memory[handle - 1].fd);
	memory[handle - 1].used = 0;
	return 0;
}
static int passed_map(uint64_t at, uint64_t size, uint64_t offset, uint64_t handle)
{
	(void)offset;
	if (fails()) return INVALID;
	if (memory[handle - 1].size != size) return INVALID;
	for (int i = 0; i < MOST; i++) {
		if (mappings[i].used) continue;
		mappings[i].at = at, mappings[i].size = size, mappings[i].of = handle - 1, mappings[i].process = now, mappings[i].used = 1, mappings[i].open = 0;
		return 0;
	}
	return OUT_OF_MEMORY;
}
static int passed_find(uint64_t at, uint64_t size)
{
	for (int i = 0; i < MOST; i++)
		if (mappings[i].used && mappings[i].process == now && at >= mappings[i].at && at - mappings[i].at < mappings[i].size && size <= mappings[i].size - (at - mappings[i].at))
			return i;
	return -1;
}
static int passed_unmap(uint64_t at, uint64_t size)
{
	int i = passed_find(at, size);
	if (i < 0) { wrong++; return INVALID; }
	mappings[i].used = 0;
	return 0;
}
static int passed_access(uint64_t at, uint64_t size)
{
	int i = passed_find(at, size);
	if (i < 0) { wrong++; return INVALID; }
	if (fails()) return NO_PEER;
	mappings[i].open = 1;
	return 0;
}
static char *passed_bytes(uint64_t at, uint64_t size)
{
	int i = passed_find(at, size);
	return i < 0 || !mappings[i].open ? 0 : memory[mappings[i].of].mem + (at - mappings[i].at);
}
static int passed_copy(uint64_t to, uint64_t from, uint64_t size)
{
	char *a = passed_bytes(to, size), *b = passed_bytes(from, size);
	if (fails()) return INVALID;
	if (!a || !b) { wrong++; return INVALID; }
	memcpy(a, b, size);
	return 0;
}
static int passed_wait(void) { return fails() ? INVALID : 0; }
static uint64_t passed_entry(int which)
{
	void *all[] = {passed_reserve, passed_unreserve, passed_create, passed_import, passed_export, passed_release, passed_map, passed_unmap, passed_access, passed_copy, passed_wait};
	return (uint64_t)(uintptr_t)all[which];
}
static void passed_process(int n) { now = n; }
static void passed_fail(uint64_t n) { calls = 0, failing = n; }
static int passed_access_bytes(uint64_t at, char *b, uint64_t size, int write)
{
	char *mem = passed_bytes(at, size);
	if (!mem) return 0;
	memcpy(write ? mem : b, write ? b : mem, size);
	return 1;
}
static uint64_t passed_count(int which)
{
	uint64_t n = 0;
	for (int i = 0; i < MOST; i++)
		n += which == 0 ? memory[i].used && memory[i].process == now : which == 1 && mappings[i].used && mappings[i].process == now;
	return which == 2 ? reserved[now] : which == 3 ? wrong : n;
}
*/
import "C"

import (
	"slices"
	"unsafe"
)

// Passed returns the address of the function that stands for the driver's of a name in a driver of
// two processes whose memory passes by descriptors, 0 if it has none. One test at a time.
func Passed(name string) uint64 {
	names := []string{"cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemImportFromShareableHandle", "cuMemExportToShareableHandle", "cuMemRelease",
		"cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemcpyAsync", "cuStreamSynchronize"}
	if i := slices.Index(names, name); i >= 0 {
		return uint64(C.passed_entry(C.int(i)))
	}
	return 0
}

// PassedProcess says which of the two calls from now on.
func PassedProcess(n int) { C.passed_process(C.int(n)) }

// FailPassed has the nth call from now on fail that reserves, imports, maps, gives access, copies
// or waits; 0: none.
func FailPassed(n int) { C.passed_fail(C.uint64_t(n)) }

// PassedWrite and PassedRead reach memory that is mapped, false if it is not, or not to be reached.
func PassedWrite(at uint64, b []byte) bool {
	return C.passed_access_bytes(C.uint64_t(at), (*C.char)(unsafe.Pointer(&b[0])), C.uint64_t(len(b)), 1) != 0
}

// PassedRead is PassedWrite the other way.
func PassedRead(at uint64, b []byte) bool {
	return C.passed_access_bytes(C.uint64_t(at), (*C.char)(unsafe.Pointer(&b[0])), C.uint64_t(len(b)), 0) != 0
}

// PassedCounts are the pieces of memory that the process has, its mappings, its reservations, and
// calls of both that made no sense.
func PassedCounts() (pieces, mapped, reserved, wrong int) {
	return int(C.passed_count(0)), int(C.passed_count(1)), int(C.passed_count(2)), int(C.passed_count(3))
}

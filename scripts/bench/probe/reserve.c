/*
 * Which addresses the bare driver gives for those that it is asked for (cuMemAddressReserve with an
 * address): by size, again after it was freed, after the host's memory was registered there, and
 * one beside the other. Managed memory's pieces have theirs by that
 * (guest/libcuda/memory/pieces.h).
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "driver.h"

enum { DEVICE_MAP = 2 /* CU_MEMHOSTREGISTER_DEVICEMAP */ };

#define ENTRIES(X) \
	X(cuInit, cuInit, (unsigned)) \
	X(cuDeviceGet, cuDeviceGet, (int *, int)) \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (handle *, int)) \
	X(cuCtxSetCurrent, cuCtxSetCurrent, (handle)) \
	X(cuMemAddressReserve, cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	X(cuMemAddressFree, cuMemAddressFree, (CUdeviceptr, size_t)) \
	X(cuMemHostRegister, cuMemHostRegister_v2, (void *, size_t, unsigned)) \
	X(cuMemHostUnregister, cuMemHostUnregister, (void *))

ENTRIES(DECLARE)

/* "kept", where it has what it is asked for, "elsewhere", or the error. */
static const char *reserve(uint64_t at, uint64_t size, CUdeviceptr *p)
{
	static char error[32];
	int res = cuMemAddressReserve(p, size, 0, at, 0);
	snprintf(error, sizeof error, "error %d", res);
	if (res != 0)
		*p = 0;
	return res != 0 ? error : *p == at ? "kept" : "elsewhere";
}

static void give(CUdeviceptr p, uint64_t size)
{
	if (p != 0 && cuMemAddressFree(p, size) != 0)
		printf("# %#llx cannot be freed\n", p);
}

static void alone(uint64_t at, uint64_t mib)
{
	uint64_t size = mib << 20;
	CUdeviceptr p;
	printf("alone %llu MiB: %s", (unsigned long long)mib, reserve(at, size, &p));
	give(p, size);
	printf(", again %s", reserve(at, size, &p));
	give(p, size);
	void *m = mmap((void *)(uintptr_t)at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (m == (void *)(uintptr_t)at && cuMemHostRegister(m, size, DEVICE_MAP) == 0)
		cuMemHostUnregister(m);
	else
		printf(", host memory cannot be registered there");
	if (m != MAP_FAILED)
		munmap(m, size);
	printf(", after host memory %s\n", reserve(at, size, &p));
	give(p, size);
}

/* Four and a part of one. */
static void beside(uint64_t at, uint64_t mib)
{
	enum { PIECES = 5, PART = 10 << 20 };
	uint64_t piece = mib << 20;
	CUdeviceptr p[PIECES];
	printf("beside each other %llu MiB:", (unsigned long long)mib);
	for (int i = 0; i < PIECES; i++)
		printf(" %s", reserve(at + i * piece, i < PIECES - 1 || piece < PART ? piece : PART, &p[i]));
	printf("\n");
	for (int i = 0; i < PIECES; i++)
		give(p[i], i < PIECES - 1 || piece < PART ? piece : PART);
}

int main(void)
{
	static const uint64_t sizes[] = {2, 10, 32, 34, 128, 144}, pieces[] = {2, 32, 128};
	static const char program[] = "reserve";
	uint64_t at = 0x650000000000;
	handle ctx;
	int dev;
	ENTRIES(BIND)
	if (cuInit(0) || cuDeviceGet(&dev, 0) || cuDevicePrimaryCtxRetain(&ctx, dev) || cuCtxSetCurrent(ctx)) {
		puts("# no context");
		return 1;
	}
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
		alone(at += 1ull << 30, sizes[i]);
	for (unsigned i = 0; i < sizeof pieces / sizeof *pieces; i++)
		beside(at += 1ull << 30, pieces[i]);
	return 0;
}

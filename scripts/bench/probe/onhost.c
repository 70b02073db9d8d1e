/*
 * What the bare driver makes of memory that lies on the host and is the GPU's to use at an address
 * of the caller's (cuMemCreate on a NUMA node), which is where a GPU server keeps the managed
 * memory for which its GPU has no room. Prints "name value unit" lines; values are medians. Status
 * 1: there is no such memory.
 *
 *   onhost [MIB]      the size of a piece (32)
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "timing.h"

enum { HOST_NUMA = 3, MAPS_HOST_NUMA = 141, HOST_NUMA_ID = 134, TIMES = 9 };

#define ENTRIES(X) \
	X(cuInit, cuInit, (unsigned)) \
	X(cuDeviceGet, cuDeviceGet, (int *, int)) \
	X(cuDeviceGetAttribute, cuDeviceGetAttribute, (int *, int, int)) \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (handle *, int)) \
	X(cuCtxSetCurrent, cuCtxSetCurrent, (handle)) \
	X(cuCtxSynchronize, cuCtxSynchronize, (void)) \
	X(cuMemAddressReserve, cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	X(cuMemCreate, cuMemCreate, (unsigned long long *, size_t, const struct prop *, unsigned long long)) \
	X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, (size_t *, const struct prop *, int)) \
	X(cuMemMap, cuMemMap, (CUdeviceptr, size_t, size_t, unsigned long long, unsigned long long)) \
	X(cuMemSetAccess, cuMemSetAccess, (CUdeviceptr, size_t, const struct access_desc *, size_t)) \
	X(cuMemUnmap, cuMemUnmap, (CUdeviceptr, size_t)) \
	X(cuMemRelease, cuMemRelease, (unsigned long long)) \
	X(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
	X(cuMemsetD32, cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t)) \
	X(cuMemcpyDtoD, cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t)) \
	X(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t)) \
	X(cuStreamCreate, cuStreamCreate, (handle *, unsigned)) \
	X(cuStreamSynchronize, cuStreamSynchronize, (handle)) \
	X(cuMemHostAlloc, cuMemHostAlloc, (void **, size_t, unsigned)) \
	X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, handle)) \
	X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, handle)) \
	X(cuMemcpyAsync, cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, handle))

ENTRIES(DECLARE)

static void check(CUresult r, const char *what)
{
	if (r != 0) {
		printf("# %s returned %d\n", what, r);
		exit(1);
	}
}
#define CK(call) check((call), #call)

static void bind_all(void)
{
	static const char program[] = "onhost";
	ENTRIES(BIND)
}

static double took[TIMES];
static void say(const char *name, double per, const char *unit)
{
	double us = median(took, TIMES);
	printf("%s %.2f %s\n", name, per > 0 ? per / us / 1e3 : us, unit);
}

/* Makes a piece and maps it at base + at: a device's for comparison, or the host's. */
static unsigned long long piece(const struct prop *p, CUdeviceptr at, size_t size)
{
	unsigned long long h;
	struct access_desc a = {{DEVICE, 0}, READ_WRITE};
	CK(cuMemCreate(&h, size, p, 0));
	CK(cuMemMap(at, size, 0, h, 0));
	CK(cuMemSetAccess(at, size, &a, 1));
	return h;
}

static void made(const char *name, const struct prop *p, CUdeviceptr at, size_t size)
{
	double gone[TIMES];
	for (int i = 0; i < TIMES; i++) {
		double t = now_us();
		unsigned long long h = piece(p, at, size);
		took[i] = now_us() - t;
		t = now_us();
		CK(cuMemUnmap(at, size));
		CK(cuMemRelease(h));
		gone[i] = now_us() - t;
	}
	char line[64];
	snprintf(line, sizeof line, "%s_made", name);
	say(line, 0, "us");
	memcpy(took, gone, sizeof took);
	snprintf(line, sizeof line, "%s_ended", name);
	say(line, 0, "us");
}

/* Which copies of the host's memory at `at` the driver makes, in a stream: a result for each, and
 * whether the bytes are right. */
static void copies(const char *when, CUdeviceptr at, CUdeviceptr device, size_t size)
{
	static const size_t sizes[] = {4, 4096, 512 << 10, 1 << 20};
	unsigned char *plain = malloc(size), *pinned;
	handle s;
	CK(cuStreamCreate(&s, 1));
	CK(cuMemHostAlloc((void **)&pinned, size, 0));
	for (unsigned k = 0; k < sizeof sizes / sizeof *sizes; k++)
		for (int way = 0; way < 6; way++) {
			static const char *const name[] = {"HtoDAsync",	       "HtoDAsync pinned", "DtoHAsync",
							   "DtoHAsync pinned", "Async to device",  "Async from device"};
			size_t n = sizes[k];
			unsigned char *mem = way % 2 ? pinned : plain;
			uint32_t word = 0;
			memset(mem, 0x31 + way, n);
			CK(cuMemsetD32(at, 0x51515151, size / 4));
			CK(cuMemsetD32(device, 0x61616161, size / 4));
			CK(cuCtxSynchronize());
			CUresult r = way < 2   ? cuMemcpyHtoDAsync(at, mem, n, s)
				     : way < 4 ? cuMemcpyDtoHAsync(mem, at, n, s)
				     : way < 5 ? cuMemcpyAsync(device, at, n, s)
					       : cuMemcpyAsync(at, device, n, s);
			CUresult waited = cuStreamSynchronize(s);
			if (way == 2 || way == 3)
				word = mem[n - 1];
			else if (r == 0 && waited == 0 && cuMemcpyAsync(device, way == 4 ? device : at, n, s) == 0 &&
				 cuStreamSynchronize(s) == 0)
				CK(cuMemcpyDtoH(&word, device + n - 4, 4));
			int right = (word & 255) == (way < 2 ? 0x31u + (unsigned)way : way == 5 ? 0x61u : 0x51u);
			printf("# %s: %s of %zu bytes: %d, wait %d, %s\n", when, name[way], n, r, waited, right ? "right" : "WRONG");
		}
}

int main(int argc, char **argv)
{
	size_t size = (argc > 1 ? strtoul(argv[1], NULL, 0) : 32) << 20, unit = 0;
	int can = 0, node = -1;
	handle ctx;
	CUdeviceptr base, other;
	uint32_t word = 0;
	bind_all();
	CK(cuInit(0));
	CK(cuDevicePrimaryCtxRetain(&ctx, 0));
	CK(cuCtxSetCurrent(ctx));
	CK(cuDeviceGetAttribute(&can, MAPS_HOST_NUMA, 0));
	CK(cuDeviceGetAttribute(&node, HOST_NUMA_ID, 0));
	printf("attribute_141 %d -\nhost_numa_id %d -\n", can, node);
	struct prop there = {.type = PINNED, .at = {DEVICE, 0}}, here = {.type = PINNED, .at = {HOST_NUMA, node < 0 ? 0 : node}};
	CK(cuMemGetAllocationGranularity(&unit, &here, 0));
	printf("granularity %zu bytes\n", unit);
	CK(cuMemAddressReserve(&base, 2 * size, 0, 0, 0));
	made("device", &there, base, size);
	made("host", &here, base, size);
	piece(&there, base, size); /* one beside the other in one reservation */
	piece(&here, base + size, size);
	CK(cuMemAlloc(&other, size));
	CK(cuMemsetD32(base, 7, size / 4));
	CK(cuMemcpyDtoD(base + size, base, size));
	CK(cuMemcpyDtoH(&word, base + 2 * size - 4, 4));
	if (word != 7)
		check(-1, "the copy's last word");
	for (int way = 0; way < 3; way++) {
		static const char *const name[] = {"host_filled", "host_to_device", "device_to_host"};
		for (int i = 0; i < TIMES; i++) {
			double t = now_us();
			if (way == 0)
				CK(cuMemsetD32(base + size, 9, size / 4));
			else
				CK(way == 1 ? cuMemcpyDtoD(other, base + size, size) : cuMemcpyDtoD(base + size, other, size));
			CK(cuCtxSynchronize());
			took[i] = now_us() - t;
		}
		say(name[way], (double)size, "GB/s");
	}
	copies("the GPU has access", base + size, other, size);
	struct access_desc processor = {{HOST_NUMA, node < 0 ? 0 : node}, READ_WRITE};
	printf("# access for the processor: %d\n", cuMemSetAccess(base + size, size, &processor, 1));
	copies("the processor, too", base + size, other, size);
	return 0;
}

package cudatest

/*
#include <stdint.h>

// A driver whose pools' memory lies by the order in which they were made in the process, that of the device among them: the first time somebody asks for
// it, or allocates in stream order.
static uint64_t pools, own, taken[64];

static int make_pool(uint64_t *pool) { *pool = ++pools; return 0; }
static int own_pool(uint64_t *pool) {
	if (!own) make_pool(&own);
	*pool = own;
	return 0;
}
static int from_pool(uint64_t *at, uint64_t size, uint64_t pool) {
	enum { UNIT = 512 };
	if (!pool || pool > pools || pool >= sizeof taken / sizeof *taken) return 1;
	*at = (pool << 36) + taken[pool];
	taken[pool] += (size + UNIT - 1) / UNIT * UNIT;
	return 0;
}
static int from_own(uint64_t *at, uint64_t size) {
	uint64_t pool;
	own_pool(&pool);
	return from_pool(at, size, pool);
}

static uint64_t pool_entry(int which) {
	switch (which) {
	case 0: return (uint64_t)(uintptr_t)make_pool;
	case 1: return (uint64_t)(uintptr_t)own_pool;
	case 2: return (uint64_t)(uintptr_t)from_pool;
	}
	return (uint64_t)(uintptr_t)from_own;
}
static void restart_pools(void) {
	pools = own = 0;
	for (int i = 0; i < 64; i++) taken[i] = 0;
}
*/
import "C"

import "slices"

// Pools returns the address of the function that stands for the driver's of a name in a driver whose pools lie by the order in which they were made, 0 if it has
// none. One test at a time.
func Pools(name string) uint64 {
	names := []string{"cuMemPoolCreate", "cuDeviceGetDefaultMemPool", "cuMemAllocFromPoolAsync", "cuMemAllocAsync"}
	if i := slices.Index(names, name); i >= 0 {
		return uint64(C.pool_entry(C.int(i)))
	}
	return 0
}

// RestartPools forgets all pools, as a new process has none.
func RestartPools() { C.restart_pools() }

package cudatest

/*
#include <stdint.h>

// A driver whose pools' memory lies by the order in which they were made in the process, that of the device among them: the first time somebody asks for
// it, or allocates in stream order. What a pool holds beside its allocations stays, when the pool is destroyed, for as long as one of those does.
enum { POOLS = 64, THRESHOLD = 4, RESERVED = 5 };
static uint64_t pools, own, taken[POOLS], keeps[POOLS], holds[POOLS], left;

static int make_pool(uint64_t *pool) { *pool = ++pools; return 0; }
static int own_pool(uint64_t *pool) {
	if (!own) make_pool(&own);
	*pool = own;
	return 0;
}
static int from_pool(uint64_t *at, uint64_t size, uint64_t pool) {
	enum { UNIT = 512 };
	if (!pool || pool > pools || pool >= POOLS) return 1;
	*at = (pool << 36) + taken[pool];
	taken[pool] += (size + UNIT - 1) / UNIT * UNIT;
	return 0;
}
static int from_own(uint64_t *at, uint64_t size) {
	uint64_t pool;
	own_pool(&pool);
	return from_pool(at, size, pool);
}

static int get_pool(uint64_t pool, int which, uint64_t *value) {
	*value = which == THRESHOLD ? keeps[pool % POOLS] : which == RESERVED ? holds[pool % POOLS] : 0;
	return 0;
}
static int set_pool(uint64_t pool, int which, const uint64_t *value) {
	if (which == THRESHOLD) keeps[pool % POOLS] = *value;
	return 0;
}
static int trim_pool(uint64_t pool, uint64_t keep) {
	if (holds[pool % POOLS] > keep) holds[pool % POOLS] = keep;
	return 0;
}
static int destroy_pool(uint64_t pool) {
	if (pool == own) return 1;
	left += holds[pool % POOLS] + keeps[pool % POOLS];
	return 0;
}

static uint64_t pool_entry(int which) {
	switch (which) {
	case 0: return (uint64_t)(uintptr_t)make_pool;
	case 1: return (uint64_t)(uintptr_t)own_pool;
	case 2: return (uint64_t)(uintptr_t)from_pool;
	case 4: return (uint64_t)(uintptr_t)get_pool;
	case 5: return (uint64_t)(uintptr_t)set_pool;
	case 6: return (uint64_t)(uintptr_t)trim_pool;
	case 7: return (uint64_t)(uintptr_t)destroy_pool;
	}
	return (uint64_t)(uintptr_t)from_own;
}
static void restart_pools(void) {
	pools = own = left = 0;
	for (int i = 0; i < POOLS; i++) taken[i] = keeps[i] = holds[i] = 0;
}
static void hold(uint64_t pool, uint64_t bytes) { holds[pool % POOLS] = bytes; }
static uint64_t kept(uint64_t pool) { return keeps[pool % POOLS]; }
static uint64_t lost(void) { return left; }
*/
import "C"

import "slices"

// Pools returns the address of the function that stands for the driver's of a name in a driver
// whose pools lie by the order in which they were made, 0 if it has none. One test at a time.
func Pools(name string) uint64 {
	names := []string{"cuMemPoolCreate", "cuDeviceGetDefaultMemPool", "cuMemAllocFromPoolAsync", "cuMemAllocAsync",
		"cuMemPoolGetAttribute", "cuMemPoolSetAttribute", "cuMemPoolTrimTo", "cuMemPoolDestroy"}
	if i := slices.Index(names, name); i >= 0 {
		return uint64(C.pool_entry(C.int(i)))
	}
	return 0
}

// RestartPools forgets all pools, as a new process has none.
func RestartPools() { C.restart_pools() }

// Hold has the nth pool that was made hold so much beside its allocations.
func Hold(n, bytes uint64) { C.hold(C.uint64_t(n), C.uint64_t(bytes)) }

// Kept is how much the nth pool keeps back.
func Kept(n uint64) uint64 { return uint64(C.kept(C.uint64_t(n))) }

// Lost is what pools that are destroyed hold, or would keep back.
func Lost() uint64 { return uint64(C.lost()) }

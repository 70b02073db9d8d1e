package cudatest

/*
#include <stdint.h>

// A driver of two devices, whose primary contexts are 1 and 2. Memory is on the second, and what is mapped is reached by the device that was given access, from a context of that.
enum { INVALID = 1, PLACE = 0x1000000 };
static uint64_t on_current, on_reached, on_copies;

static int on_retain(uint64_t *ctx, uint32_t dev) { *ctx = dev + 1; return 0; }
static int on_use(uint64_t ctx) { on_current = ctx; return 0; }
static int on_properties(uint32_t *prop) // CUmemAllocationProp: type, handle types, location's type and id
{
	prop[0] = 1, prop[2] = 1, prop[3] = 1;
	return 0;
}
static int on_reserve(uint64_t *at) { *at = PLACE; return 0; }
static int on_access(uint64_t at, uint64_t size, const uint32_t *desc) // CUmemAccessDesc: location's type and id, flags
{
	(void)at, (void)size;
	on_reached = desc[1] + 1;
	return 0;
}
static int on_copy(void)
{
	if (on_reached != on_current) return INVALID;
	on_copies++;
	return 0;
}
static uint64_t on_entry(int which)
{
	void *all[] = {on_retain, on_use, on_properties, on_reserve, on_access, on_copy};
	return (uint64_t)(uintptr_t)all[which];
}
static uint64_t on_counted(void) { uint64_t n = on_copies; on_copies = 0; return n; }
*/
import "C"

// OnDevice is a function of a driver of two devices with memory on the second one alone.
func OnDevice(name string) uint64 {
	for i, n := range []string{"cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemGetAllocationPropertiesFromHandle", "cuMemAddressReserve", "cuMemSetAccess", "cuMemcpyDtoHAsync_v2"} {
		if n == name {
			return uint64(C.on_entry(C.int(i)))
		}
	}
	return 0
}

// OnDeviceCopies is how many copies came from it since it was last asked.
func OnDeviceCopies() uint64 { return uint64(C.on_counted()) }

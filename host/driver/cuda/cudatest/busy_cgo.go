package cudatest

/*
#include <stdint.h>

// A driver with one context whose work goes on until the test ends it: its streams are not ready, and to wait for it is noted and not done.
static __thread uint64_t current;
static uint64_t busy;
static unsigned waits, freed, destroyed;
enum { NOT_READY = 600 };

static int use_context(uint64_t ctx) { current = ctx; return 0; }
static int ready(uint64_t stream) { (void)stream; return busy && current == busy ? NOT_READY : 0; }
static int finish(void) { waits += busy && current == busy; return 0; }
static int unpin(uint64_t address) { (void)address; waits += busy != 0; return 0; }
static int free_memory(uint64_t address) { (void)address; freed++; return 0; }
static int destroy(uint64_t ctx) { (void)ctx; destroyed++; return 0; }

static uint64_t busy_entry(int which) {
	switch (which) {
	case 1: return (uint64_t)(uintptr_t)use_context;
	case 2: return (uint64_t)(uintptr_t)ready;
	case 3: return (uint64_t)(uintptr_t)finish;
	case 4: return (uint64_t)(uintptr_t)unpin;
	case 5: return (uint64_t)(uintptr_t)free_memory;
	case 6: return (uint64_t)(uintptr_t)destroy;
	}
	return 0;
}
static void set_busy(uint64_t ctx) { busy = ctx; waits = freed = destroyed = 0; }
static unsigned count(int which) { return which == 3 ? waits : which == 5 ? freed : destroyed; }
*/
import "C"

// Busy returns the address of the function that stands for the driver's of a name in a driver with
// a context that works on and on, 0 if it has none. One test at a time.
func Busy(name string) uint64 {
	switch name {
	case "cuCtxSetCurrent":
		return uint64(C.busy_entry(1))
	case "cuStreamQuery":
		return uint64(C.busy_entry(2))
	case "cuCtxSynchronize":
		return uint64(C.busy_entry(3))
	case "cuMemHostUnregister":
		return uint64(C.busy_entry(4))
	case "cuMemFree_v2":
		return uint64(C.busy_entry(5))
	case "cuCtxDestroy_v2":
		return uint64(C.busy_entry(6))
	}
	return 0
}

// SetBusy names the context that works, 0 for none, and forgets what was counted.
func SetBusy(handle uint64) { C.set_busy(C.uint64_t(handle)) }

// BusyCounts are the calls that would have waited for the context, the memory that was freed, and
// the contexts that were destroyed.
func BusyCounts() (waits, freed, destroyed int) {
	return int(C.count(3)), int(C.count(5)), int(C.count(6))
}

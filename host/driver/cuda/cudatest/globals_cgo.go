package cudatest

/*
#include <stdint.h>

// A driver that puts variables where the test says, by the first letters of their names.
static uint64_t globals;
static int get_global(uint64_t *at, uint64_t *size, uint64_t module, const char *name) {
	(void)module;
	*at = globals + ((uint64_t)(uint8_t)name[0] << 16);
	*size = 16;
	return 0;
}
static uint64_t global_entry(void) { return (uint64_t)(uintptr_t)get_global; }
static void set_globals(uint64_t at) { globals = at; }
*/
import "C"

// Globals stands for cuModuleGetGlobal_v2 of a driver that puts variables where SetGlobals says.
// One test at a time.
func Globals() uint64 { return uint64(C.global_entry()) }

// SetGlobals is where variables lie from now on, 64 KiB for each first letter.
func SetGlobals(at uint64) { C.set_globals(C.uint64_t(at)) }

package cudatest

/*
#include <stdint.h>
#include <string.h>

// A driver that puts variables where the test says, each context's and each library's apart, and remembers what libraries hold at an offset of their image, and what was launched last. Its functions'
// numbers are their kernels' and 1 << 20, kernels' are their libraries' times 256.
enum { LIBRARIES = 32, HELD = 16, MOST = 64 };
static struct { uint64_t base, offset, libraries, unloaded, current, contexts[MOST], launched, taken, pages, backed, granted; unsigned char held[LIBRARIES][HELD]; } ed;

static int ed_load(uint64_t *lib, const char *code)
{
	*lib = ++ed.libraries;
	if (*lib < LIBRARIES) memcpy(ed.held[*lib], code + ed.offset, HELD);
	return 0;
}
static int ed_unload(uint64_t lib) { ed.unloaded |= 1ull << lib; return 0; }
// Contexts are counted in the order in which they are current first.
static int ed_current(uint64_t ctx)
{
	for (ed.current = 0; ctx && ed.current < MOST - 1 && ed.contexts[ed.current] && ed.contexts[ed.current] != ctx;) ed.current++;
	if (ctx) ed.contexts[ed.current] = ctx;
	return 0;
}
static int ed_global(uint64_t *at, uint64_t *size, uint64_t lib, const char *name)
{
	*at = ed.base + (ed.current << 32) + (lib << 22) + (*name == 'y' ? 16 : *name == 'c' ? 4096 : 0);
	*size = *name == 'y' ? 16 : *name == 'c' ? 4 : 8;
	return 0;
}
static int ed_kernel(uint64_t *kernel, uint64_t lib) { *kernel = lib << 8; return 0; }
static int ed_function(uint64_t *function, uint64_t kernel) { *function = kernel | 1 << 20; return 0; }
static int ed_launch(uint64_t function) { ed.launched = function; return 0; }
static int ed_reserve(uint64_t *at, uint64_t size, uint64_t align, uint64_t hint)
{
	(void)size, (void)align;
	*at = hint == ed.taken ? hint + (1ull << 40) : hint;
	ed.pages++;
	return 0;
}
static int ed_unreserve(void) { ed.pages--; return 0; }
static int ed_map(void) { ed.backed++; return 0; }
static int ed_access(void) { ed.granted++; return 0; }
static uint64_t ed_entry(int which)
{
	void *all[] = {ed_load, ed_unload, ed_current, ed_global, ed_kernel, ed_function, ed_launch, ed_reserve, ed_unreserve, ed_map, ed_access};
	return (uint64_t)(uintptr_t)all[which];
}
static void ed_begin(uint64_t base, uint64_t offset, uint64_t taken) { memset(&ed, 0, sizeof ed); ed.base = base, ed.offset = offset, ed.taken = taken; }
static uint64_t ed_held(uint64_t lib, int word) { uint64_t v; memcpy(&v, ed.held[lib] + 8 * word, 8); return v; }
static uint64_t ed_count(int which) { uint64_t all[] = {ed.launched, ed.unloaded, ed.pages, ed.backed, ed.granted}; return all[which]; }
*/
import "C"

// Editions are the entries of a driver that puts variables where BeginEditions says, by their names.
func Editions() map[string]uint64 {
	all := map[string]uint64{}
	for i, name := range []string{"cuLibraryLoadData", "cuLibraryUnload", "cuCtxSetCurrent", "cuLibraryGetGlobal", "cuLibraryGetKernel", "cuKernelGetFunction", "cuLaunchKernel",
		"cuMemAddressReserve", "cuMemAddressFree", "cuMemMap", "cuMemSetAccess"} {
		all[name] = uint64(C.ed_entry(C.int(i)))
	}
	return all
}

// BeginEditions begins such a driver anew: variables lie from base on, 16 bytes at an offset of images are remembered, and an address cannot be reserved. One test at a time.
func BeginEditions(base, offset, taken uint64) {
	C.ed_begin(C.uint64_t(base), C.uint64_t(offset), C.uint64_t(taken))
}

// Held are the two words that a library's image held at the offset, by the library's number, which begin with 1.
func Held(library uint64) [2]uint64 {
	return [2]uint64{uint64(C.ed_held(C.uint64_t(library), 0)), uint64(C.ed_held(C.uint64_t(library), 1))}
}

// What such a driver has counted.
const (
	EditionLaunched = iota // the last function or kernel that was launched
	EditionUnloaded        // libraries, a bit for each
	EditionPages           // reservations that are not freed
	EditionBacked          // mappings
	EditionGranted         // mappings to which access was given
)

// EditionCount is one of these.
func EditionCount(which int) uint64 { return uint64(C.ed_count(C.int(which))) }

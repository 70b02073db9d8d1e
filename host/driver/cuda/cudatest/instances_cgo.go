package cudatest

/*
#include <stdint.h>
#include <string.h>

// A driver that puts each context's and each library's variables apart: x, y of 16 bytes behind it, and a constant c.
enum { MOST = 64 };
static struct { uint64_t base, libraries, current, contexts[MOST]; } in;

static int in_load(uint64_t *lib) { *lib = ++in.libraries; return 0; }
// Contexts are counted in the order in which they are current first.
static int in_current(uint64_t ctx)
{
	for (in.current = 0; ctx && in.current < MOST - 1 && in.contexts[in.current] && in.contexts[in.current] != ctx;) in.current++;
	if (ctx) in.contexts[in.current] = ctx;
	return 0;
}
static int in_global(uint64_t *at, uint64_t *size, uint64_t lib, const char *name)
{
	*at = in.base + (in.current << 32) + (lib << 22) + (*name == 'y' ? 16 : *name == 'c' ? 4096 : 0);
	*size = *name == 'y' ? 16 : *name == 'c' ? 4 : 8;
	return 0;
}
static uint64_t in_entry(int which)
{
	void *all[] = {in_load, in_current, in_global};
	return (uint64_t)(uintptr_t)all[which];
}
static void in_begin(uint64_t base) { memset(&in, 0, sizeof in); in.base = base; }
*/
import "C"

// Instances are the entries of a driver that puts a library's variables elsewhere in each context,
// from base on, by their names. It begins anew; one test at a time.
func Instances(base uint64) map[string]uint64 {
	C.in_begin(C.uint64_t(base))
	all := map[string]uint64{}
	for i, name := range []string{"cuLibraryLoadData", "cuCtxSetCurrent", "cuLibraryGetGlobal"} {
		all[name] = uint64(C.in_entry(C.int(i)))
	}
	return all
}

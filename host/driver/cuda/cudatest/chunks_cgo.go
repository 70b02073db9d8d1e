package cudatest

/*
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// A driver that puts the variable of each module where there is room first: in a low chunk, of which the test says how much is in use, then in one above it. The code of a module is text: its
// variable is as long as the number in brackets says.
enum { CHUNK = 32 << 20, UNIT = 256, UNITS = 2 * CHUNK / UNIT, MOST = 256, OUT_OF_MEMORY = 2, INVALID = 1 };
static const uint64_t low = 1ull << 40;
static unsigned char taken[UNITS];
static struct { uint64_t at, units; int used; } loaded[MOST];
static uint64_t others, wrong;

static int chunks_load(uint64_t *module, const char *text)
{
	uint64_t size = 0, units, run = 0;
	const char *p = strchr(text, '[');
	if (!p || sscanf(p + 1, "%lu", &size) != 1) return INVALID;
	units = (size + UNIT - 1) / UNIT;
	int i = 0;
	while (i < MOST && loaded[i].used) i++;
	if (i == MOST) return OUT_OF_MEMORY;
	for (uint64_t u = 0; u < UNITS; u++) {
		if (u == UNITS / 2) run = 0; // no variable lies in both
		run = taken[u] ? 0 : run + 1;
		if (run < units) continue;
		loaded[i].at = u + 1 - units, loaded[i].units = units, loaded[i].used = 1;
		memset(taken + loaded[i].at, 1, units);
		*module = i + 1;
		return 0;
	}
	return OUT_OF_MEMORY;
}
static int chunks_unload(uint64_t module)
{
	if (!module || module > MOST || !loaded[module - 1].used) { wrong++; return INVALID; }
	memset(taken + loaded[module - 1].at, 0, loaded[module - 1].units);
	loaded[module - 1].used = 0;
	return 0;
}
static int chunks_find(uint64_t *at, uint64_t *size, uint64_t module)
{
	if (!module || module > MOST || !loaded[module - 1].used) { wrong++; return INVALID; }
	*at = low + loaded[module - 1].at * UNIT;
	*size = loaded[module - 1].units * UNIT;
	return 0;
}
static void chunks_restart(uint64_t used)
{
	memset(taken, 0, sizeof taken);
	memset(loaded, 0, sizeof loaded);
	memset(taken, 1, used / UNIT);
	wrong = 0;
}
static uint64_t chunks_count(int which)
{
	uint64_t n = 0;
	for (int i = 0; i < MOST; i++) n += loaded[i].used;
	return which ? wrong : n;
}
static uint64_t chunks_entry(int which)
{
	void *all[] = {chunks_load, chunks_unload, chunks_find};
	return (uint64_t)(uintptr_t)all[which];
}
*/
import "C"

import "slices"

// Chunks returns the address of the function that stands for the driver's of a name in a driver that puts variables where there is room first, 0 if it has none. One
// test at a time.
func Chunks(name string) uint64 {
	// A library's data are a module's: it is loaded when it is there.
	names := [][]string{{"cuModuleLoadDataEx", "cuLibraryLoadData"}, {"cuModuleUnload", "cuLibraryUnload"}, {"cuModuleGetGlobal_v2", "cuLibraryGetGlobal"}}
	if i := slices.IndexFunc(names, func(list []string) bool { return slices.Contains(list, name) }); i >= 0 {
		return uint64(C.chunks_entry(C.int(i)))
	}
	return 0
}

// RestartChunks begins a process of which so many bytes of the lower chunk are in use from the beginning.
func RestartChunks(used uint64) { C.chunks_restart(C.uint64_t(used)) }

// ChunksCounts are the modules that are loaded, and the calls that made no sense.
func ChunksCounts() (loaded, wrong int) { return int(C.chunks_count(0)), int(C.chunks_count(1)) }

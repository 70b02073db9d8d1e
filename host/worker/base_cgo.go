package worker

/*
#include <malloc.h>

static void cw_one_arena(void)
{
#ifdef M_ARENA_MAX
	mallopt(M_ARENA_MAX, 1);
#endif
	mallopt(M_MMAP_THRESHOLD, 32 << 20);
}
*/
import "C"

// oneArena keeps libc from mapping 64 MiB for each thread that allocates, whenever it does so first, and from mapping what is not large.
func oneArena() { C.cw_one_arena() }

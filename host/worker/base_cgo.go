package worker

/*
#include <malloc.h>

static void cw_one_arena(void)
{
#ifdef M_ARENA_MAX
	mallopt(M_ARENA_MAX, 1);
#endif
}
*/
import "C"

// oneArena keeps libc from mapping 64 MiB for each thread that allocates, whenever it does so
// first.
func oneArena() { C.cw_one_arena() }

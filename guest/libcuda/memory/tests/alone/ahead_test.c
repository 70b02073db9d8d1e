/* What touch.c does beside serving accesses: what a prefetch wished, and accesses that ended with a
 * signal. */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "memory/forbidden.c"
#include "memory/touch.c"
#include "session/lock.c"
#include "session/signals.c"

#include "memory/tests/alone/touch_fakes.h"

/* What ended with a signal may be tried again, however many pages that were. */
static void again(void)
{
	anew();
	cw_touch_again();
	CHECK(cw_forbidden == 0);
	result = CUDA_ERROR_UNKNOWN;
	for (uint32_t u = 0; u < 40; u++) {
		struct cw_fault f = at(u, 0, 0);
		CHECK(serve(&f, 0) == 1 && cw_forbidden == u + 1);
	}
	/* The work has not ended. */
	CHECK(cw_heard(CUDA_ERROR_NOT_READY) == CUDA_ERROR_NOT_READY && cw_forbidden == 40);
	CHECK(cw_heard(CUDA_SUCCESS) == CUDA_SUCCESS && cw_forbidden == 0);
	for (uint32_t u = 0; u < 40; u++)
		CHECK(!refused(at(u, 0, 0).at));
	struct cw_fault f = at(3, 0, 0);
	CHECK(serve(&f, 0) == 1 && cw_forbidden == 1);
	struct cw_fault g = at(4, 0, 0);
	CHECK(serve(&g, 0) == 1 && cw_forbidden == 2);
	cw_touch_restore(g.at, CW_PAGE); /* of an area that ends */
	CHECK(cw_forbidden == 1 && !refused(g.at) && refused(f.at));
	cw_touch_again();
}

/* What a prefetch wished comes behind the access that met it, piece by piece, as long as the GPU
 * has nothing to do. */
static void wishes(void)
{
	anew();
	CHECK(ahead() == 0);
	cw_areas = area;
	area->wish_lo = 10;
	area->wish_hi = 10 + 3 * WISH_MOST + 7;
	CHECK(ahead() == 0 && did[BRING] == 0); /* nobody has touched it */
	CHECK(brought(20) == WISH_MOST && area->ahead == 20 + WISH_MOST);
	memset(area->holder + area->ahead, CW_AT_CPU, 5); /* an access was quicker */
	CHECK(ahead() == 1 && last.lo == 25 + WISH_MOST && last.hi == 25 + 2 * WISH_MOST && !last.write && atomic_load(&cw_copies) == 0);
	idle = 0; /* a kernel: an access would wait, and nothing is brought for nobody */
	CHECK(ahead() == 0 && did[BRING] == 2);
	idle = 1;
	CHECK(ahead() == 1 && last.lo == 25 + 2 * WISH_MOST && last.hi == area->wish_hi);
	CHECK(ahead() == 0 && did[BRING] == 3 && area->holder[19] == CW_AT_GPU && area->holder[area->wish_hi] == CW_AT_GPU);
	memset(area->holder, CW_AT_GPU, UNITS);
	area->ahead = 20;
	result = CUDA_ERROR_UNKNOWN; /* whose access needs it hears of that */
	CHECK(ahead() == 0 && did[BRING] == 4 && atomic_load(&cw_copies) == 0);
	result = CUDA_SUCCESS;
	area->ahead = 20;
	attach(12); /* its stream is not waited for */
	CHECK(ahead() == 0 && did[BRING] == 4);
	cw_areas = NULL;
}

/* A function that a stream called does not wait. What lies beside what it writes counts as written
 * only while nothing else can write it. */
static void functions(void)
{
	anew();
	idle = 0;
	struct cw_fault f = at(10, 1, 0);
	CHECK(serve(&f, 0) == 0 && did[BRING] == 0);
	atomic_store(&cw_callback_thread, ME);
	area->touch[0] = (struct cw_burst){.start = 6, .next = 10, .units = 4};
	CHECK(serve(&f, 0) == 1 && last.lo == 10 && last.hi == 18 && !last.write);
	f.protect = 1;
	area->change[0] = (struct cw_burst){.start = 6, .next = 10, .units = 4};
	CHECK(serve(&f, 0) == 1 && did[CHANGE] == 1 && last.lo == 10 && last.hi == 11 && area->holder[11] == CW_AT_BOTH);
	f = at(18, 1, 0);
	tracks = 0; /* all that comes counts as written */
	CHECK(serve(&f, 0) == 1 && last.lo == 18 && last.hi == 19);
	tracks = 1;
	idle = 1;
	f = at(50, 1, 0);
	area->touch[0] = (struct cw_burst){.start = 46, .next = 50, .units = 4};
	CHECK(serve(&f, 0) == 1 && last.lo == 50 && last.hi == 58 && last.write);
	atomic_store(&cw_callback_thread, 0);
}

/* A debugger's turn: all comes to be written, once nothing of the GPU's is under way. */
static void all_of_it(void)
{
	anew();
	idle = 0;
	cw_lock_acquire(&cw_resident_lock);
	CHECK(cw_touch_all(area) == 0 && did[BRING] == 0 && atomic_load(&cw_copies) == 0);
	idle = 1;
	attach(5); /* whose work nobody has waited for */
	CHECK(cw_touch_all(area) == 0 && did[BRING] == 0);
	area->attach = CU_MEM_ATTACH_GLOBAL;
	area->fresh = 1; /* the processor's anyhow */
	CHECK(cw_touch_all(area) == 0 && did[BRING] == 0);
	area->fresh = 0;
	area->holder[7] = CW_AT_BOTH;
	CHECK(cw_touch_all(area) == 1 && did[BRING] == 1 && did[CHANGE] == 1 && atomic_load(&cw_copies) == 0);
	for (uint32_t u = 0; u < UNITS; u++)
		CHECK(area->holder[u] == CW_AT_CPU);
	result = CUDA_ERROR_UNKNOWN;
	CHECK(cw_touch_all(area) == 0 && atomic_load(&cw_copies) == 0);
	cw_lock_release(&cw_resident_lock);
}

int main(void)
{
	again();
	wishes();
	functions();
	all_of_it();
	puts("ahead_test ok");
	return 0;
}

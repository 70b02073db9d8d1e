/*
 * For room_test.c: a GPU that knows what accesses and moves cost, around the real rule of room.c.
 * Time is the model's: launches are given in 5 us and run one behind the other, as long as the
 * memory that they read and write takes; the thread that moves pieces is run where the launch would
 * wait for it.
 */
#ifndef CW_ROOM_MODEL_H
#define CW_ROOM_MODEL_H

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "api/callback.h"
#include "api/capture.h"
#include "memory/resident.h"
#include "session/internal.h"
#include "session/tests/check.h"

/* Bytes in a second, each way. */
#define HBM 2e12
#define LINK 33e9
#define ISSUE 5e-6
static double moves_at = 25e9; /* copies; what an H100 was measured with, pages included, is 5e9 */

enum { SETS_MOST = 8, EACH_MOST = 64 };
#define PIECE (128ull << 20)

static struct {
	double now, free_at; /* s; the GPU has done what it was given at free_at */
	/* The mover's wait goes on until then, and nobody waits for it; 0: it does not. */
	double pending;
	double told;   /* what the mover is told that the time is: when it began to wait */
	double moving; /* s that went into moves */
	uint64_t room; /* bytes of the GPU's memory that are free */
	/* That the program has beyond a limit that was lowered: none are free until these have
	 * left. */
	uint64_t over;
	int lowered; /* that has happened */
	int refused; /* pieces that found no room for that reason */
	int by_link, turning;
	int function, barred; /* one of the application is ahead; none can be */
} gpu;

struct cw_session cw_s;
struct cw_global cw_g;
_Atomic uint64_t cw_copies;
_Atomic uint32_t cw_captures;
__thread int cw_in_callback;
struct cw_lock cw_resident_lock;
struct cw_area *cw_areas;

static struct cw_group *set[SETS_MOST];

void cw_log(enum cw_log_level level, const char *fmt, ...)
{
	(void)level;
	(void)fmt;
}
CUresult cw_check_slow(void) { return CUDA_SUCCESS; }
int cw_pieces_return(void) { return 1; }
int cw_gpu_idle(void) { return gpu.free_at <= gpu.now; }
int cw_host_bar(void)
{
	gpu.barred += !gpu.function;
	gpu.now += gpu.function ? 1e-3 : 0;
	return !gpu.function;
}
void cw_host_unbar(void)
{
	CHECK(gpu.barred == 1);
	gpu.barred--;
}
CUresult cw_ctx_current(struct cw_ctx **ctx)
{
	(void)ctx;
	return CUDA_ERROR_INVALID_CONTEXT;
}

struct cw_area *cw_area_at(uint64_t addr)
{
	for (struct cw_area *a = cw_areas; a; a = a->next)
		if (addr - a->base < a->size)
			return a;
	return NULL;
}

CUresult cwop_MemGetInfo(uint64_t *free_, uint64_t *total)
{
	*free_ = gpu.room;
	*total = 80ull << 30;
	return CUDA_SUCCESS;
}

CUresult cwop_ManagedPlaces(uint64_t at_gpu, uint64_t here, uint64_t to_gpu, uint64_t to_guest, uint64_t evicted, uint64_t returned)
{
	CHECK((at_gpu + here) % PIECE == 0 && to_gpu == returned * PIECE && to_guest == evicted * PIECE);
	return CUDA_SUCCESS;
}

static void moved(uint64_t size)
{
	CHECK(cw_gpu_idle() && gpu.barred == 1);
	gpu.now += (double)size / moves_at;
	gpu.moving += (double)size / moves_at;
	gpu.free_at = gpu.now;
}

static int gpus = 1, gone_over, refuses; /* refuses: the other GPU has no room */
int cw_device_count(void) { return gpus; }
CUresult cw_piece_to(struct cw_area *a, int device)
{
	CHECK(cw_gpu_idle() && gpu.barred == 1 && a->device != device && a->to == device + 1 && !a->group->still);
	if (refuses)
		return CUDA_ERROR_OUT_OF_MEMORY;
	a->device = device;
	gone_over++;
	return CUDA_SUCCESS;
}

CUresult cw_piece_out(struct cw_area *a)
{
	CHECK(!a->region);
	a->region = (struct cw_region *)a;
	a->memory = 0;
	uint64_t back = gpu.over < a->backed ? gpu.over : a->backed;
	gpu.over -= back;
	gpu.room += a->backed - back;
	moved(a->size);
	return CUDA_SUCCESS;
}

CUresult cw_piece_in(struct cw_area *a)
{
	CHECK(a->region && (gpu.room >= a->backed || gpu.lowered));
	if (gpu.room < a->backed) {
		gpu.refused++;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	a->region = NULL;
	a->memory = 1;
	gpu.room -= a->backed;
	moved(a->size);
	return CUDA_SUCCESS;
}

/* --- time, and the mover's thread ------------------------------------------------------------- */

static int64_t model_now_ms(void) { return (int64_t)((gpu.told > 0 ? gpu.told : gpu.now) * 1000); }

CUresult cw_gpu_wait(uint32_t stream)
{
	CHECK(stream == 0);
	if (gpu.told > 0) /* it has waited */
		gpu.told = 0;
	else if (gpu.free_at > gpu.now)
		gpu.now = gpu.free_at;
	return CUDA_SUCCESS;
}

static void *(*mover_run)(void *);
static jmp_buf mover_rests;
CUresult cw_thread_start(void *(*run)(void *), void *arg)
{
	(void)arg;
	mover_run = run;
	return CUDA_SUCCESS;
}

static void turn(void)
{
	CHECK(!gpu.turning);
	gpu.turning = 1;
	if (setjmp(mover_rests) == 0)
		mover_run(NULL);
	gpu.turning = 0;
	gpu.told = gpu.pending = 0;
}

/* The mover rests; or a launch waits for it, 20 ms at most. */
static int model_futex_wait(_Atomic uint32_t *word, uint32_t value, int flags, const struct timespec *t)
{
	(void)flags;
	(void)value;
	(void)word;
	if (gpu.turning && !t)
		longjmp(mover_rests, 1);
	if (!gpu.turning && !(gpu.pending > 0)) {
		gpu.pending = gpu.free_at > gpu.now ? gpu.free_at : gpu.now + 1e-9;
		gpu.told = gpu.now;
	}
	double asked = gpu.told, until = gpu.now + 20e-3;
	gpu.told = 0;
	gpu.now = gpu.pending < until ? gpu.pending : until;
	if (gpu.now < gpu.pending) {
		gpu.told = asked;
		return 0;
	}
	gpu.told = asked;
	turn();
	return 0;
}
static int model_futex_wake(_Atomic uint32_t *word, int n, int flags)
{
	(void)word;
	(void)n;
	(void)flags;
	return 0;
}

#define cw_now_ms model_now_ms
#define cw_futex_wait model_futex_wait
#define cw_futex_wake model_futex_wake

#endif

/*
 * Limits of contexts. What one is stays so until the program sets one, so the worker is asked once:
 * cuDNN asks before each launch. The stack's size is the exception: the driver makes it larger for
 * a kernel that needs more (CUDA programming guide, "Call stack"), so it is asked for while there
 * is a kernel whose need is above it.
 */
#include "api/api.h"

static struct {
	uint32_t ctx; /* 0: not known */
	uint64_t value;
} known[CU_LIMIT_MAX];
static uint32_t generation; /* changes when what was asked for before may not be so any more */
/* The largest stack that a kernel which the program knows needs, in bytes. */
static uint64_t deepest;
static struct cw_lock lock;

void cw_limits_forget(void)
{
	cw_lock_acquire(&lock);
	generation++;
	for (int i = 0; i < CU_LIMIT_MAX; i++)
		known[i].ctx = 0;
	cw_lock_release(&lock);
}

void cw_limits_kernel(int local)
{
	cw_lock_acquire(&lock);
	if (local > 0 && (uint64_t)local > deepest)
		deepest = (uint64_t)local;
	if (known[CU_LIMIT_STACK_SIZE].value < deepest)
		known[CU_LIMIT_STACK_SIZE].ctx = 0;
	generation++;
	cw_lock_release(&lock);
}

static int find(uint32_t ctx, uint32_t limit, uint64_t *value, uint32_t *now)
{
	cw_lock_acquire(&lock);
	int found = known[limit].ctx == ctx;
	*value = known[limit].value;
	*now = generation;
	cw_lock_release(&lock);
	return found;
}

static void note(uint32_t ctx, uint32_t limit, uint64_t value, uint32_t asked)
{
	cw_lock_acquire(&lock);
	if (generation == asked && (limit != CU_LIMIT_STACK_SIZE || value >= deepest)) {
		known[limit].ctx = ctx;
		known[limit].value = value;
	}
	cw_lock_release(&lock);
}

CUresult cwi_cuCtxGetLimit(size_t *value, CUlimit limit)
{
	struct cw_ctx *c;
	uint64_t v = 0;
	uint32_t now = 0;
	CUresult res = cw_ctx_current(&c);

	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (res)
		return res;
	int kept = (uint32_t)limit < CU_LIMIT_MAX;
	if (!kept || !find(c->o.id, (uint32_t)limit, &v, &now)) {
		res = cwop_CtxGetLimit((uint32_t)limit, &v);
		if (res)
			return res;
		if (kept)
			note(c->o.id, (uint32_t)limit, v, now);
	}
	*value = v;
	return CUDA_SUCCESS;
}

CUresult cwi_cuCtxSetLimit(CUlimit limit, size_t value)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	/* What is asked for meanwhile is not kept: the answer may be of before. */
	cw_limits_forget();
	res = cwop_CtxSetLimit((uint32_t)limit, value);
	cw_limits_forget();
	return res;
}

/*
 * The launch interface of CUDA 3: a function keeps its block shape, its dynamic shared memory and
 * the bytes of its arguments from one launch to the next. A launch takes a copy of all that and
 * goes the way of cuLaunchKernel with packed arguments.
 */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

/* Guards every function's state, for the time of a copy. */
static struct cw_lock lock;

/* A function of which nothing was set has one thread, and zeros for arguments, as with the real
 * driver. */
struct cw_legacy {
	uint32_t block[3];
	uint32_t shared; /* bytes */
	/* bytes of arguments, as set; it counts for nothing unless it is more than the function
	 * has */
	uint32_t size;
	uint8_t args[]; /* as many as the function has */
};

static size_t bytes_of(const struct cw_func *f) { return sizeof(struct cw_legacy) + f->info->param_bytes; }

/* A function of the current context. Kernels have no state: it would be that of all contexts. */
static CUresult target(CUfunction func, struct cw_func **f, struct cw_ctx **c)
{
	CUresult res = cw_ctx_current(c);

	if (res)
		return res;
	*f = (struct cw_func *)cw_handle_get(CW_KIND_FUNC, func);
	return *f && (*f)->o.ctx == (*c)->o.id ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* A function of the current context and its state, which is made on first use and locked until
 * close_state. */
struct setting {
	struct cw_ctx *ctx;
	struct cw_func *f;
	struct cw_legacy *state;
};

static CUresult open_state(CUfunction func, struct setting *s)
{
	CUresult res = target(func, &s->f, &s->ctx);

	if (res)
		return res;
	cw_lock_acquire(&lock);
	if (!s->f->legacy) {
		s->f->legacy = calloc(1, bytes_of(s->f));
		for (int i = 0; s->f->legacy && i < 3; i++)
			s->f->legacy->block[i] = 1;
	}
	s->state = s->f->legacy;
	if (s->state)
		return CUDA_SUCCESS;
	cw_lock_release(&lock);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult close_state(int valid)
{
	cw_lock_release(&lock);
	return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- settings --------------------------------------------------------------------------------- */

/* Whether any kernel of the device can have the shape; what this one cannot have is refused at the
 * launch. */
static int shape_fits(const struct cw_device *d, const int shape[3])
{
	/* x, y, z follow each other */
	const int32_t *max = d->attrs + CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X;

	for (int i = 0; i < 3; i++)
		if (shape[i] <= 0 || shape[i] > max[i])
			return 0;
	return (int64_t)shape[0] * shape[1] * shape[2] <= d->attrs[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
}

CUresult cwi_cuFuncSetBlockShape(CUfunction func, int x, int y, int z)
{
	const int shape[3] = {x, y, z};
	struct setting s;
	CUresult res = open_state(func, &s);
	int fits;

	if (res)
		return res;
	fits = shape_fits(s.ctx->device, shape);
	for (int i = 0; fits && i < 3; i++)
		s.state->block[i] = (uint32_t)shape[i];
	return close_state(fits);
}

CUresult cwi_cuFuncSetSharedSize(CUfunction func, unsigned int bytes)
{
	struct setting s;
	CUresult res = open_state(func, &s);
	int fits;

	if (res)
		return res;
	fits = bytes <= (uint32_t)cw_func_attr(s.f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
	if (fits)
		s.state->shared = bytes;
	return close_state(fits);
}

/* --- arguments -------------------------------------------------------------------------------- */

CUresult cwi_cuParamSetSize(CUfunction func, unsigned int bytes)
{
	struct setting s;
	CUresult res = open_state(func, &s);

	if (res)
		return res;
	if (bytes <= CW_PARAM_BYTES_MAX)
		s.state->size = bytes;
	return close_state(bytes <= CW_PARAM_BYTES_MAX);
}

/* The size may be set before or after: only what no kernel can have is out of range, and what this
 * one does not have is dropped. */
CUresult cwi_cuParamSetv(CUfunction func, int offset, void *ptr, unsigned int bytes)
{
	struct setting s;
	CUresult res = open_state(func, &s);
	uint32_t at = (uint32_t)offset, room;
	int fits;

	if (res)
		return res;
	fits = ptr && offset >= 0 && offset <= CW_PARAM_BYTES_MAX && bytes <= (uint32_t)(CW_PARAM_BYTES_MAX - offset);
	if (fits && at < s.f->info->param_bytes) {
		room = s.f->info->param_bytes - at;
		memcpy(s.state->args + at, ptr, bytes < room ? bytes : room);
	}
	return close_state(fits);
}

CUresult cwi_cuParamSeti(CUfunction func, int offset, unsigned int value) { return cwi_cuParamSetv(func, offset, &value, sizeof value); }

CUresult cwi_cuParamSetf(CUfunction func, int offset, float value) { return cwi_cuParamSetv(func, offset, &value, sizeof value); }

/* --- launches --------------------------------------------------------------------------------- */

/* Launches are as asynchronous as cuLaunchKernel's. */
CUresult cwi_cuLaunchGridAsync(CUfunction func, int width, int height, CUstream stream)
{
	struct setting s;
	struct cw_legacy *l;
	CUresult res = open_state(func, &s);
	void *extra[5] = {(void *)CW_PACKED_BUFFER, NULL, (void *)CW_PACKED_SIZE, NULL, (void *)CW_PACKED_END};
	size_t size;

	if (res)
		return res;
	if (width <= 0 || height <= 0)
		return close_state(0);
	l = malloc(bytes_of(s.f)); /* a copy, to be launched without the lock */
	if (l)
		memcpy(l, s.state, bytes_of(s.f));
	close_state(1);
	if (!l)
		return CUDA_ERROR_OUT_OF_MEMORY;
	size = s.f->info->param_bytes;
	extra[1] = l->args;
	extra[3] = &size;
	res = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	if (l->size <= size)
		res = cwi_cuLaunchKernel(0, func, (unsigned)width, (unsigned)height, 1, l->block[0], l->block[1], l->block[2], l->shared,
					 stream, NULL, extra);
	free(l);
	return res;
}

CUresult cwi_cuLaunchGrid(CUfunction func, int width, int height) { return cwi_cuLaunchGridAsync(func, width, height, NULL); }

CUresult cwi_cuLaunch(CUfunction func) { return cwi_cuLaunchGridAsync(func, 1, 1, NULL); }

/*
 * Launches. A launch is checked with the true limits, its arguments are gathered straight into the
 * ring record, and the call returns: configuration errors come back from the call, faults of the
 * kernel later, as on a real driver.
 */
#include "api/api.h"
#include "memory/resident.h"

#include <stdlib.h>
#include <string.h>

enum { CLUSTER_PORTABLE = 8, CLUSTER_MAX = 16 }; /* blocks */

/* CUlaunchAttribute: id, 4 bytes of padding, 64 bytes of value. */
enum { ATTRIBUTE_SIZE = 72, ATTRIBUTE_VALUE = 8, ATTRIBUTES_MAX = 64 };
enum {
	LAUNCH_IGNORE = 0,
	LAUNCH_WINDOW = 1,
	LAUNCH_COOPERATIVE = 2,
	LAUNCH_CLUSTER = 4,
	LAUNCH_EVENT = 7,
	LAUNCH_DOMAIN_MAP = 9,
	LAUNCH_PREFERRED_CLUSTER = 11,
	LAUNCH_COMPLETION_EVENT = 12,
	LAUNCH_UPDATABLE_NODE = 13,
	LAUNCH_LAST = 16,
};

struct dims {
	uint32_t grid[3], block[3], shared;
};

/* What every form of launch comes down to. attrs are already translated. */
struct launch {
	struct cw_ctx *ctx;
	struct cw_func *func;
	uint32_t stream;
	uint32_t flags;
	struct dims d;
	const uint8_t *attrs;
	uint32_t attr_bytes;
};

static inline CUresult check_dims(const struct cw_ctx *c, const struct cw_func *f, const struct dims *d)
{
	const int32_t *attrs = c->device->attrs;
	/* x, y, z follow each other */
	const int32_t *max_grid = attrs + CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X;
	const int32_t *max_block = attrs + CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X;
	uint64_t threads = (uint64_t)d->block[0] * d->block[1] * d->block[2];

	for (int i = 0; i < 3; i++) /* less one: zero is refused too */
		if (d->grid[i] - 1u >= (uint32_t)max_grid[i] || d->block[i] - 1u >= (uint32_t)max_block[i])
			return CUDA_ERROR_INVALID_VALUE;
	if (threads > (uint32_t)attrs[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK])
		return CUDA_ERROR_INVALID_VALUE;
	if (threads > (uint32_t)cw_func_attr(f, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK))
		return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	if (d->shared > (uint32_t)cw_func_attr(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* A kernel compiled for clusters of an unstated size: each launch must state it, by
 * cuLaunchKernelEx. */
static inline int needs_cluster(const struct cw_func *f)
{
	return cw_func_attr(f, CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET) && !cw_func_attr(f, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
}

/* The context, function and stream of a launch. */
static inline CUresult target(struct launch *l, CUfunction func, int ptds, CUstream stream)
{
	CUresult res = cw_ctx_current(&l->ctx);

	if (cw_unlikely(res))
		return res;
	l->func = cw_func_get(func);
	if (cw_unlikely(!l->func))
		return CUDA_ERROR_INVALID_HANDLE;
	/* a function lives in one context, a kernel in all */
	if (cw_unlikely(l->func->o.ctx && l->func->o.ctx != l->ctx->o.id))
		return CUDA_ERROR_INVALID_HANDLE;
	return cw_stream_here(stream, ptds, l->ctx->o.id, &l->stream);
}

/* Cooperative launches must fit the device all at once. */
static CUresult check_cooperative(const struct launch *l)
{
	const struct dims *d = &l->d;
	uint64_t blocks = (uint64_t)d->grid[0] * d->grid[1] * d->grid[2];
	int per_sm = 0;
	CUresult res;

	if (!cw_device_attr(l->ctx->device, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH))
		return CUDA_ERROR_NOT_SUPPORTED;
	res = cw_occupancy_blocks(l->func, (int)(d->block[0] * d->block[1] * d->block[2]), d->shared, 0, &per_sm);
	if (res)
		return res;
	if (blocks > (uint64_t)per_sm * (uint32_t)cw_device_attr(l->ctx->device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT))
		return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
	return CUDA_SUCCESS;
}

static inline uint32_t pad8(uint32_t n) { return (n + 7) & ~7u; }

/* size: bytes of arguments, from the caller's pointers or packed; what a packed form leaves out is
 * zero. */
static inline CUresult send(const struct launch *l, void *const *args, const struct cw_packed *packed, uint32_t size)
{
	const struct cw_func_info *info = l->func->info;
	struct cw_in_Launch *a;
	struct cw_tx tx;
	CUresult res;
	uint32_t at;

	res = cw_begin(&tx, CW_OP_LAUNCH, sizeof *a, pad8(size) + pad8(l->attr_bytes), 0);
	if (cw_unlikely(res))
		return res;
	a = (struct cw_in_Launch *)(tx.rec + sizeof(struct cw_record));
	a->func = l->func->o.id;
	a->stream = l->stream;
	a->gx = l->d.grid[0];
	a->gy = l->d.grid[1];
	a->gz = l->d.grid[2];
	a->bx = l->d.block[0];
	a->by = l->d.block[1];
	a->bz = l->d.block[2];
	a->shared = l->d.shared;
	a->flags = l->flags;
	at = (uint32_t)(sizeof(struct cw_record) + sizeof *a);
	if (size) {
		a->params = (struct cw_span){size, at};
		if (args) {
			cw_params_gather(tx.rec + at, info->params, info->param_count, args);
		} else {
			uint32_t given = packed->size < size ? (uint32_t)packed->size : size;

			memcpy(tx.rec + at, packed->data, given);
			memset(tx.rec + at + given, 0, size - given);
		}
		at += pad8(size);
	}
	if (l->attr_bytes) {
		a->attrs = (struct cw_span){l->attr_bytes, at};
		memcpy(tx.rec + at, l->attrs, l->attr_bytes);
	}
	return cw_settle(cw_commit(&tx), l->stream);
}

/* Where there is managed memory arguments may lie in it, and are read before the ring is held:
 * their pages may need it to come here. */
static __attribute__((noinline)) CUresult send_aside(const struct launch *l, void *const *args, const struct cw_packed *packed)
{
	const struct cw_func_info *info = l->func->info;
	uint32_t size = info->param_bytes, given = packed && packed->size < size ? (uint32_t)packed->size : size;
	uint8_t few[512] = {0}, *all = size <= sizeof few ? few : calloc(1, size);
	struct cw_packed copy = {all, size};
	CUresult res;

	if (!all)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (args)
		cw_params_gather(all, info->params, info->param_count, args);
	else if (packed)
		memcpy(all, packed->data, given);
	if (cw_unlikely(atomic_load_explicit(&cw_short, memory_order_relaxed) != 0))
		cw_room_named(all, size);
	res = send(l, NULL, &copy, size);
	if (all != few)
		free(all);
	return res;
}

/* Arguments by pointers or packed, never both. */
static inline CUresult submit(const struct launch *l, void **args, void **extra)
{
	const struct cw_func_info *info = l->func->info;
	struct cw_packed packed;

	if (cw_likely(!extra)) {
		if (cw_unlikely(info->param_count && !args))
			return CUDA_ERROR_INVALID_VALUE;
		if (cw_unlikely(atomic_load_explicit(&cw_copies, memory_order_relaxed) != 0))
			return send_aside(l, info->param_count ? args : NULL, NULL);
		return send(l, args, NULL, info->param_bytes);
	}
	if (args || cw_params_packed(extra, info->param_bytes, &packed))
		return CUDA_ERROR_INVALID_VALUE;
	if (cw_unlikely(atomic_load_explicit(&cw_copies, memory_order_relaxed) != 0))
		return send_aside(l, NULL, &packed);
	return send(l, NULL, &packed, info->param_bytes);
}

CUresult cwi_cuLaunchKernel(int ptds, CUfunction func, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
			    unsigned int bz, unsigned int shared, CUstream stream, void **args, void **extra)
{
	struct launch l = {.d = {{gx, gy, gz}, {bx, by, bz}, shared}};
	CUresult res = target(&l, func, ptds, stream);

	if (cw_unlikely(res) || cw_unlikely(res = check_dims(l.ctx, l.func, &l.d)))
		return res;
	if (cw_unlikely(needs_cluster(l.func)))
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	return submit(&l, args, extra);
}

CUresult cwi_cuLaunchCooperativeKernel(int ptds, CUfunction func, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
				       unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **args)
{
	struct launch l = {.flags = CW_LAUNCH_COOPERATIVE, .d = {{gx, gy, gz}, {bx, by, bz}, shared}};
	CUresult res = target(&l, func, ptds, stream);

	if (res || (res = check_dims(l.ctx, l.func, &l.d)) || (res = check_cooperative(&l)))
		return res;
	return submit(&l, args, NULL);
}

/* --- the extended form ------------------------------------------------------------------------ */

static uint32_t word(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof v);
	return v;
}

static CUresult check_cluster(const struct launch *l, const uint8_t *value)
{
	uint32_t x = word(value), y = word(value + 4), z = word(value + 8);
	const uint32_t *g = l->d.grid;
	uint64_t size = (uint64_t)x * y * z;
	int portable = !cw_func_attr(l->func, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);

	if (!x || !y || !z)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cw_device_attr(l->ctx->device, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH))
		return size == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CLUSTER_SIZE;
	if (size > (portable ? CLUSTER_PORTABLE : CLUSTER_MAX) || g[0] % x || g[1] % y || g[2] % z)
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	return CUDA_SUCCESS;
}

/* The event handle at the head of a value becomes its id. */
static CUresult translate_event(uint8_t *value)
{
	uint64_t handle, id;
	struct cw_event *e;

	memcpy(&handle, value, sizeof handle);
	e = (struct cw_event *)cw_handle_get(CW_KIND_EVENT, (const void *)(uintptr_t)handle);
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!(e->o.flags & CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_NOT_SUPPORTED;
	atomic_store_explicit(&e->recorded, 1, memory_order_relaxed);
	id = e->o.id;
	memcpy(value, &id, sizeof id);
	return CUDA_SUCCESS;
}

static CUresult one_attribute(struct launch *l, uint8_t *attr)
{
	uint8_t *value = attr + ATTRIBUTE_VALUE;
	uint32_t id = word(attr);
	int domains = cw_device_attr(l->ctx->device, CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT);

	switch (id) {
	case LAUNCH_COOPERATIVE:
		if (word(value))
			l->flags |= CW_LAUNCH_COOPERATIVE;
		return CUDA_SUCCESS;
	case LAUNCH_CLUSTER: return check_cluster(l, value);
	case LAUNCH_EVENT:
	case LAUNCH_COMPLETION_EVENT: return translate_event(value);
	case LAUNCH_DOMAIN_MAP: return value[0] < domains && value[1] < domains ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case LAUNCH_UPDATABLE_NODE:
		/* answers with what kernels call the node by, which is not forwarded. Off is what
		 * every launch is. */
		if (!word(value))
			return CUDA_SUCCESS;
		cw_log(CW_LOG_ERROR, "cuLaunchKernelEx: device-updatable kernel nodes are not forwarded");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	return id <= LAUNCH_LAST ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Copies the attributes that mean something to out. */
static CUresult attributes(struct launch *l, const void *attrs, uint32_t count, uint8_t *out)
{
	int cooperative = 0, cluster = 0;

	if (count > ATTRIBUTES_MAX || (count && !attrs))
		return CUDA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; i < count; i++) {
		uint8_t *to = out + l->attr_bytes;
		uint32_t id;
		CUresult res;

		memcpy(to, (const uint8_t *)attrs + (size_t)i * ATTRIBUTE_SIZE, ATTRIBUTE_SIZE);
		memset(to + sizeof id, 0, ATTRIBUTE_VALUE - sizeof id);
		id = word(to);
		if (id == LAUNCH_IGNORE)
			continue;
		res = one_attribute(l, to);
		if (res)
			return res;
		cooperative |= id == LAUNCH_COOPERATIVE;
		cluster |= id == LAUNCH_CLUSTER;
		if (id != LAUNCH_UPDATABLE_NODE)
			l->attr_bytes += ATTRIBUTE_SIZE;
	}
	if (!cluster && needs_cluster(l->func))
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	/* alone, a cooperative attribute is what cuLaunchCooperativeKernel does */
	if (cooperative && l->attr_bytes == ATTRIBUTE_SIZE)
		l->attr_bytes = 0;
	l->attrs = out;
	return CUDA_SUCCESS;
}

CUresult cwi_cuLaunchKernelEx(int ptds, const CUlaunchConfig *config, CUfunction func, void **args, void **extra)
{
	uint8_t attrs[ATTRIBUTES_MAX * ATTRIBUTE_SIZE];
	struct launch l = {0};
	CUresult res;

	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	l.d = (struct dims){{config->gridDimX, config->gridDimY, config->gridDimZ},
			    {config->blockDimX, config->blockDimY, config->blockDimZ},
			    config->sharedMemBytes};
	if ((res = target(&l, func, ptds, config->hStream)) || (res = check_dims(l.ctx, l.func, &l.d)) ||
	    (res = attributes(&l, config->attrs, config->numAttrs, attrs)))
		return res;
	if ((l.flags & CW_LAUNCH_COOPERATIVE) && (res = check_cooperative(&l)))
		return res;
	return submit(&l, args, extra);
}

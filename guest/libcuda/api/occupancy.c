/* Occupancy questions. The worker answers (the driver's own rules decide); libraries ask the same
 * few over and over. */
#include "api/api.h"

#include <string.h>

enum { CACHE = 64, DISABLE_CACHING_OVERRIDE = 1, ATTRIBUTE_SIZE = 72, ATTRIBUTES_MAX = 64 };

struct question {
	uint32_t func; /* 0: empty */
	int block;
	size_t dynamic;
	uint32_t flags;
};

static struct {
	struct question q;
	int blocks;
} cache[CACHE];
static struct cw_lock cache_lock;

static unsigned place(const struct question *q)
{
	uint64_t h = q->func * 0x9e3779b97f4a7c15ull ^ (uint64_t)(uint32_t)q->block * 0xc2b2ae3d27d4eb4full ^ q->dynamic;

	return (unsigned)(h >> 32 ^ h) % CACHE;
}

static int same(const struct question *a, const struct question *b)
{
	return a->func == b->func && a->block == b->block && a->dynamic == b->dynamic && a->flags == b->flags;
}

CUresult cw_occupancy_blocks(const struct cw_func *f, int block, size_t dynamic, uint32_t flags, int *blocks)
{
	struct question q = {f->o.id, block, dynamic, flags};
	unsigned at = place(&q);
	int found, value = 0;
	CUresult res;

	cw_lock_acquire(&cache_lock);
	found = same(&cache[at].q, &q);
	if (found)
		value = cache[at].blocks;
	cw_lock_release(&cache_lock);
	if (!found) {
		res = cwop_OccupancyMaxActiveBlocks(q.func, block, dynamic, flags, &value);
		if (res)
			return res;
		cw_lock_acquire(&cache_lock);
		cache[at].q = q;
		cache[at].blocks = value;
		cw_lock_release(&cache_lock);
	}
	*blocks = value;
	return CUDA_SUCCESS;
}

void cw_occupancy_forget(uint32_t func)
{
	cw_lock_acquire(&cache_lock);
	for (int i = 0; i < CACHE; i++)
		if (cache[i].q.func == func)
			cache[i].q.func = 0;
	cw_lock_release(&cache_lock);
}

CUresult cwi_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction func, int block, size_t dynamic,
								  unsigned int flags)
{
	struct cw_func *f = cw_func_get(func);
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!blocks || block <= 0 || flags > DISABLE_CACHING_OVERRIDE)
		return CUDA_ERROR_INVALID_VALUE;
	return f ? cw_occupancy_blocks(f, block, dynamic, flags, blocks) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cwi_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction func, int block, size_t dynamic)
{
	return cwi_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, func, block, dynamic, 0);
}

/*
 * The block size with the most resident threads: sizes are tried from the largest down in steps of
 * a warp (the largest itself may be no multiple of one), and the first of equals wins. The
 * application's callback gives each size's shared memory.
 */
CUresult cwi_cuOccupancyMaxPotentialBlockSizeWithFlags(int *min_grid, int *block, CUfunction func, CUoccupancyB2DSize dynamic_of,
						       size_t dynamic, int limit, unsigned int flags)
{
	struct cw_func *f = cw_func_get(func);
	struct cw_ctx *c;
	int warp, largest, per_sm, best = 0, best_block = 0, best_blocks = 0;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!min_grid || !block || flags > DISABLE_CACHING_OVERRIDE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	warp = cw_device_attr(c->device, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
	per_sm = cw_device_attr(c->device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
	largest = cw_device_attr(c->device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
	if (cw_func_attr(f, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) < largest)
		largest = cw_func_attr(f, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
	if (limit > 0 && limit < largest)
		largest = limit;
	if (warp <= 0 || largest <= 0)
		return CUDA_ERROR_UNKNOWN;
	for (int rounded = (largest + warp - 1) / warp * warp; rounded > 0; rounded -= warp) {
		int size = rounded < largest ? rounded : largest, blocks = 0;

		res = cw_occupancy_blocks(f, size, dynamic_of ? dynamic_of(size) : dynamic, flags, &blocks);
		if (res)
			return res;
		if (size * blocks > best) {
			best = size * blocks;
			best_block = size;
			best_blocks = blocks;
		}
		if (best >= per_sm)
			break;
	}
	*min_grid = best_blocks * cw_device_attr(c->device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	*block = best_block;
	return CUDA_SUCCESS;
}

CUresult cwi_cuOccupancyMaxPotentialBlockSize(int *min_grid, int *block, CUfunction func, CUoccupancyB2DSize dynamic_of, size_t dynamic,
					      int limit)
{
	return cwi_cuOccupancyMaxPotentialBlockSizeWithFlags(min_grid, block, func, dynamic_of, dynamic, limit, 0);
}

CUresult cwi_cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamic, CUfunction func, int blocks, int block)
{
	struct cw_func *f = cw_func_get(func);
	uint64_t bytes = 0;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!dynamic || blocks <= 0 || block <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cwop_OccupancyAvailableDynamicSMem(f->o.id, blocks, block, &bytes);
	if (!res)
		*dynamic = bytes;
	return res;
}

typedef CUresult cluster_op(uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, const void *, size_t,
			    int32_t *);

/* Copies the attributes that can matter to residency: not the ones that hold handles. */
static size_t residency_attributes(const CUlaunchConfig *config, uint8_t *out)
{
	enum { IGNORE = 0, EVENT = 7, COMPLETION_EVENT = 12, UPDATABLE_NODE = 13 };
	size_t len = 0;

	for (unsigned i = 0; i < config->numAttrs; i++) {
		const uint8_t *attr = (const uint8_t *)config->attrs + (size_t)i * ATTRIBUTE_SIZE;
		uint32_t id;

		memcpy(&id, attr, sizeof id);
		if (id == IGNORE || id == EVENT || id == COMPLETION_EVENT || id == UPDATABLE_NODE)
			continue;
		memcpy(out + len, attr, ATTRIBUTE_SIZE);
		len += ATTRIBUTE_SIZE;
	}
	return len;
}

static CUresult clusters(int *out, CUfunction func, const CUlaunchConfig *config, cluster_op *op)
{
	uint8_t attrs[ATTRIBUTES_MAX * ATTRIBUTE_SIZE];
	struct cw_func *f = cw_func_get(func);
	int32_t value = 0;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!out || !config || config->numAttrs > ATTRIBUTES_MAX || (config->numAttrs && !config->attrs))
		return CUDA_ERROR_INVALID_VALUE;
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	res = op(f->o.id, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ,
		 config->sharedMemBytes, attrs, residency_attributes(config, attrs), &value);
	if (!res)
		*out = value;
	return res;
}

CUresult cwi_cuOccupancyMaxActiveClusters(int *count, CUfunction func, const CUlaunchConfig *config)
{
	return clusters(count, func, config, cwop_OccupancyMaxActiveClusters);
}

CUresult cwi_cuOccupancyMaxPotentialClusterSize(int *size, CUfunction func, const CUlaunchConfig *config)
{
	return clusters(size, func, config, cwop_OccupancyMaxPotentialClusterSize);
}

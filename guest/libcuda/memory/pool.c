/* Memory pools: the default pool of each device. Pools of the application's own are refused by cuMemPoolCreate. */
#include <string.h>

#include "memory/memory.h"
#include "session/lock.h"

enum { MAX_DEVICES = 64 };

static struct cw_lock lock;
static struct cw_obj *default_pool[MAX_DEVICES];

/* flags of a pool's object: its device. */
static CUresult pool_of(CUdevice dev, CUmemoryPool *out)
{
	CUresult res = CUDA_SUCCESS;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (dev < 0 || dev >= MAX_DEVICES || (uint32_t)dev >= cw_session_info()->device_count)
		return CUDA_ERROR_INVALID_DEVICE;
	cw_lock_acquire(&lock);
	if (!default_pool[dev]) {
		struct cw_obj *o = cw_handle_alloc();
		res = o ? cwop_PoolGetDefault(o->id, (uint32_t)dev) : CUDA_ERROR_OUT_OF_MEMORY;
		if (o)
			o->flags = (uint32_t)dev;
		if (o)
			cw_handle_publish(o, CW_KIND_POOL);
		if (res == 0)
			default_pool[dev] = o;
		else if (o)
			cw_handle_free(CW_KIND_POOL, o);
	}
	*out = (CUmemoryPool)default_pool[dev];
	cw_lock_release(&lock);
	return res;
}

CUresult cwi_cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev) { return pool_of(dev, pool); }

CUresult cwi_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) { return pool_of(dev, pool); }

/* The default pool is what is set already; there is no other. */
CUresult cwi_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	CUmemoryPool own;
	CUresult res = pool_of(dev, &own);
	if (res != 0)
		return res;
	return own == pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Attributes 1 to 3 are ints, the rest 64-bit (cuda.h, CUmemPool_attribute). */
static int is_int(int attr) { return attr >= 1 && attr <= 3; }

CUresult cwi_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	struct cw_obj *o = cw_handle_get(CW_KIND_POOL, pool);
	uint64_t v = 0;
	if (!o || !value)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult res = cwop_PoolGetAttribute(o->id, (int)attr, &v);
	if (res == 0)
		memcpy(value, &v, is_int((int)attr) ? 4 : 8);
	return res;
}

CUresult cwi_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	struct cw_obj *o = cw_handle_get(CW_KIND_POOL, pool);
	uint64_t v = 0;
	if (!o || !value)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&v, value, is_int((int)attr) ? 4 : 8);
	return cwop_PoolSetAttribute(o->id, (int)attr, v);
}

CUresult cwi_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	struct cw_obj *o = cw_handle_get(CW_KIND_POOL, pool);
	return o ? cwop_PoolTrimTo(o->id, keep) : CUDA_ERROR_INVALID_VALUE;
}

/* Memory pools: which there are, and what they are set to. Sharing them is in poolshare.c. */
#include <string.h>

#include "memory/managedpool.h"
#include "memory/vmm.h"
#include "session/lock.h"

enum { MAX_DEVICES = 64 };

/* Guards both lists; held while a default pool is asked for, once for each device. */
static struct cw_lock lock;
static struct cw_pool *default_pool[MAX_DEVICES];
static struct cw_pool *current_pool[MAX_DEVICES]; /* NULL: the default one */

/* Under the lock. */
static CUresult default_of(CUdevice dev, struct cw_pool **out)
{
	CUresult res = CUDA_SUCCESS;
	if (!default_pool[dev]) {
		struct cw_pool *p = (struct cw_pool *)cw_handle_alloc();
		if (!p)
			return CUDA_ERROR_OUT_OF_MEMORY;
		p->device = dev;
		p->is_default = 1;
		p->o.flags = (uint32_t)dev;
		cw_handle_publish(&p->o, CW_KIND_POOL);
		res = cwop_PoolGetDefault(p->o.id, (uint32_t)dev);
		if (res == 0)
			default_pool[dev] = p;
		else
			cw_handle_free(CW_KIND_POOL, &p->o);
	}
	*out = default_pool[dev];
	return res;
}

static int is_device(CUdevice dev) { return cw_device_get(dev) != NULL && dev < MAX_DEVICES; }

static CUresult get(CUdevice dev, int current, CUmemoryPool *out)
{
	struct cw_pool *p = NULL;
	CUresult res = CUDA_SUCCESS;
	cw_lock_acquire(&lock);
	if (current && current_pool[dev])
		p = current_pool[dev];
	else
		res = default_of(dev, &p);
	cw_lock_release(&lock);
	if (res == 0)
		*out = (CUmemoryPool)p;
	return res;
}

CUresult cw_pool_current(CUdevice dev, CUmemoryPool *out) { return is_device(dev) ? get(dev, 1, out) : CUDA_ERROR_INVALID_DEVICE; }

CUresult cwi_cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev)
{
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	return is_device(dev) ? get(dev, 0, pool) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cwi_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) { return pool ? cw_pool_current(dev, pool) : CUDA_ERROR_INVALID_VALUE; }

static CUresult set(CUdevice dev, CUmemoryPool handle)
{
	struct cw_pool *p = cw_pool_get(handle);
	if (!p || p->imported || p->managed || p->device != dev)
		return CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&lock);
	current_pool[dev] = p->is_default ? NULL : p;
	cw_lock_release(&lock);
	return CUDA_SUCCESS;
}

CUresult cwi_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) { return is_device(dev) ? set(dev, pool) : CUDA_ERROR_INVALID_DEVICE; }

/* --- by location (CUDA 13) -------------------------------------------------------------------- */

enum { MANAGED = 2 /* CU_MEM_ALLOCATION_TYPE_MANAGED */ };

/* Pools of host memory would be the host's memory, which the guest cannot map. */
static CUresult check_location(const CUmemLocation *l, CUmemAllocationType type)
{
	if (!l || type != CW_MEM_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (l->type == CU_MEM_LOCATION_TYPE_HOST || l->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	    l->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
		return CUDA_ERROR_NOT_SUPPORTED;
	return l->type == CU_MEM_LOCATION_TYPE_DEVICE && is_device(l->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cwi_cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	if (pool && (int)type == MANAGED)
		return cw_managed_pool_of(location, 0, pool);
	CUresult res = pool ? check_location(location, type) : CUDA_ERROR_INVALID_VALUE;
	return res != 0 ? res : get(location->id, 0, pool);
}

CUresult cwi_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	if (pool && (int)type == MANAGED)
		return cw_managed_pool_of(location, 1, pool);
	CUresult res = pool ? check_location(location, type) : CUDA_ERROR_INVALID_VALUE;
	return res != 0 ? res : get(location->id, 1, pool);
}

CUresult cwi_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
	struct cw_pool *p = cw_pool_get(pool);
	if ((int)type == MANAGED)
		return p ? cw_managed_pool_set(location, p) : CUDA_ERROR_INVALID_VALUE;
	CUresult res = check_location(location, type);
	return res != 0 ? res : set(location->id, pool);
}

/* --- the application's own -------------------------------------------------------------------- */

CUresult cwi_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	if (!pool || !props)
		return CUDA_ERROR_INVALID_VALUE;
	if ((int)props->allocType == MANAGED)
		return cw_managed_pool_create(pool, props);
	if (props->handleTypes & CW_MEM_FABRIC) /* MEMPOOL_SUPPORTED_HANDLE_TYPES */
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult res = check_location(&props->location, props->allocType);
	if (res != 0)
		return res;
	struct cw_pool *p = (struct cw_pool *)cw_handle_alloc();
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	p->device = props->location.id;
	p->o.flags = (uint32_t)p->device;
	cw_handle_publish(&p->o, CW_KIND_POOL);
	res = cwop_PoolCreate(p->o.id, (uint32_t)p->device, props->maxSize, (uint32_t)props->handleTypes, props->usage);
	if (res != 0)
		cw_handle_free(CW_KIND_POOL, &p->o);
	else
		*pool = (CUmemoryPool)p;
	return res;
}

/* Memory that was allocated from it stays. A device that used it goes back to its default pool. */
CUresult cwi_cuMemPoolDestroy(CUmemoryPool pool)
{
	struct cw_pool *p = cw_pool_get(pool);
	if (!p || p->is_default)
		return CUDA_ERROR_INVALID_VALUE;
	uint32_t id = p->o.id;
	struct cw_managed_pool *managed = p->managed;
	cw_lock_acquire(&lock);
	if (current_pool[p->device] == p)
		current_pool[p->device] = NULL;
	cw_lock_release(&lock);
	if (!cw_handle_free(CW_KIND_POOL, &p->o))
		return CUDA_ERROR_INVALID_VALUE;
	if (managed) {
		cw_managed_pool_end(managed);
		return CUDA_SUCCESS;
	}
	return cwop_PoolDestroy(id);
}

CUresult cwi_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
	struct cw_pool *p = cw_pool_get(pool);
	uint32_t f = 0;
	if (!flags || !p || !location)
		return CUDA_ERROR_INVALID_VALUE;
	if (p->managed && (location->type != CU_MEM_LOCATION_TYPE_DEVICE || is_device(location->id))) {
		*flags = (CUmemAccess_flags)3; /* CU_MEM_ACCESS_FLAGS_PROT_READWRITE: everybody's */
		return CUDA_SUCCESS;
	}
	if (location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
		*flags = 0; /* CU_MEM_ACCESS_FLAGS_PROT_NONE */
		return CUDA_SUCCESS;
	}
	if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || !is_device(location->id))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult res = cwop_PoolGetAccess(p->o.id, (uint32_t)location->id, &f);
	if (res == 0)
		*flags = (CUmemAccess_flags)f;
	return res;
}

CUresult cwi_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
	struct cw_pool *p = cw_pool_get(pool);
	CUresult res = CUDA_SUCCESS;
	if (!p || !map || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; p->managed && i < count; i++) /* everybody has it, and nobody loses it */
		if (map[i].flags != 3)
			return CUDA_ERROR_NOT_SUPPORTED;
	for (size_t i = 0; i < count; i++) {
		if (map[i].location.type == CU_MEM_LOCATION_TYPE_HOST || map[i].location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
			if (p->managed)
				continue;
			return CUDA_ERROR_NOT_SUPPORTED;
		}
		if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			return CUDA_ERROR_INVALID_VALUE;
		if (map[i].flags == 1) /* CU_MEM_ACCESS_FLAGS_PROT_READ */
			return CUDA_ERROR_NOT_SUPPORTED;
		if (!is_device(map[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
	}
	for (size_t i = 0; res == 0 && !p->managed && i < count; i++)
		res = cwop_PoolSetAccess(p->o.id, (uint32_t)map[i].location.id, (uint32_t)map[i].flags);
	return res;
}

/* --- attributes ------------------------------------------------------------------------------- */

/* Attributes 1 to 3 are ints, the rest 64-bit (cuda.h, CUmemPool_attribute). */
static int is_int(int attr) { return attr >= 1 && attr <= 3; }

CUresult cwi_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	struct cw_pool *p = cw_pool_get(pool);
	uint64_t v = 0;
	if (!p || !value)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult res = p->managed ? cw_managed_pool_get(p, (int)attr, &v) : cwop_PoolGetAttribute(p->o.id, (int)attr, &v);
	if (res == 0)
		memcpy(value, &v, is_int((int)attr) ? 4 : 8);
	return res;
}

CUresult cwi_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	struct cw_pool *p = cw_pool_get(pool);
	uint64_t v = 0;
	if (!p || !value)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&v, value, is_int((int)attr) ? 4 : 8);
	return p->managed ? cw_managed_pool_change(p, (int)attr, v) : cwop_PoolSetAttribute(p->o.id, (int)attr, v);
}

CUresult cwi_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	struct cw_pool *p = cw_pool_get(pool);
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	return p->managed ? cw_managed_pool_trim(p, keep) : cwop_PoolTrimTo(p->o.id, keep);
}

/* Physical memory of cuMemCreate: its handles and what is asked about them. */
#include <string.h>

#include "memory/vmm.h"

/* Where memory can be. Host memory of the driver would be the host's, which no guest process can
 * map: refused, so that libraries that probe for it fall back. */
static CUresult check_prop(const CUmemAllocationProp *p)
{
	if (!p || p->type != CW_MEM_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	switch (p->location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		if (!cw_device_get(p->location.id))
			return CUDA_ERROR_INVALID_DEVICE;
		break;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_ERROR_NOT_SUPPORTED;
	default: return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)
{
	uint64_t g = 0;
	CUresult res;
	if (!granularity || !prop)
		return CUDA_ERROR_INVALID_VALUE;
	/* The driver looks at nothing else (observed on 580), and libraries ask before they know
	 * what is supported. */
	res = cwop_MemGetAllocationGranularity(cw_device_get(prop->location.id) ? (uint32_t)prop->location.id : 0,
					       (uint32_t)prop->requestedHandleTypes, (uint32_t)option, &g);
	if (res == 0)
		*granularity = g;
	return res;
}

CUresult cwi_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult res = check_prop(prop);
	if (!handle || size == 0 || flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (res != 0)
		return res;
	struct cw_memhandle *m = (struct cw_memhandle *)cw_handle_alloc();
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->size = size;
	m->device = prop->location.id;
	m->handles = (uint32_t)prop->requestedHandleTypes;
	m->flags = prop->allocFlags.compressionType | (uint32_t)prop->allocFlags.gpuDirectRDMACapable << 8 |
		   (uint32_t)prop->allocFlags.usage << 16;
	m->refs = 1;
	cw_handle_publish(&m->o, CW_KIND_MEMHANDLE);
	res = CW_WITH_ROOM(size, cwop_MemCreate(m->o.id, (uint32_t)m->device, size, m->handles, m->flags, CW_MEM_ON_DEVICE));
	if (res != 0)
		cw_handle_free(CW_KIND_MEMHANDLE, &m->o);
	else
		*handle = (CUmemGenericAllocationHandle)(uintptr_t)m;
	return res;
}

CUresult cw_memhandle_settle(struct cw_memhandle *m)
{
	if (m->refs > 0 || m->maps > 0)
		return CUDA_SUCCESS;
	uint32_t id = m->o.id;
	CUresult res = cwop_MemRelease(id);
	cw_handle_free(CW_KIND_MEMHANDLE, &m->o);
	return res;
}

CUresult cwi_cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&cw_vmm_lock);
	struct cw_memhandle *m = cw_memhandle_get(handle);
	if (m) {
		m->refs--;
		res = cw_memhandle_settle(m);
	}
	cw_lock_release(&cw_vmm_lock);
	return res;
}

CUresult cwi_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	struct cw_range r;
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&cw_vmm_lock);
	if (cw_range_find((uintptr_t)addr, &r) && r.kind == CW_RANGE_MAPPED) {
		r.mapping->mem->refs++;
		*handle = (CUmemGenericAllocationHandle)(uintptr_t)r.mapping->mem;
		res = CUDA_SUCCESS;
	}
	cw_lock_release(&cw_vmm_lock);
	return res;
}

CUresult cwi_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	if (!prop)
		return CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&cw_vmm_lock);
	struct cw_memhandle *m = cw_memhandle_get(handle);
	if (m) {
		memset(prop, 0, sizeof *prop);
		prop->type = CW_MEM_PINNED;
		prop->requestedHandleTypes = (CUmemAllocationHandleType)m->handles;
		prop->location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, m->device};
		prop->allocFlags.compressionType = (unsigned char)m->flags;
		prop->allocFlags.gpuDirectRDMACapable = (unsigned char)(m->flags >> 8);
		prop->allocFlags.usage = (unsigned short)(m->flags >> 16);
		res = CUDA_SUCCESS;
	}
	cw_lock_release(&cw_vmm_lock);
	return res;
}

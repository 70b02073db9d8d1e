/* What is asked about pointers, answered from the range map. */
#include <string.h>

#include "memory/vmm.h"

/* Bytes that each CUpointer_attribute writes (cuda.h says the types in words). 0: none such. */
static unsigned attr_size(int attr)
{
	static const uint8_t size[] = {0, 8, 4, 8, 8, 16, 4, 8, 4, 4, 4, 8, 8, 4, 4, 4, 4, 8, 8, 8, 8, 4};
	return attr > 0 && attr < (int)sizeof size ? size[attr] : 0;
}

struct answer {
	uint8_t bytes[16];
	unsigned size;
};

static CUresult put64(struct answer *a, uint64_t v)
{
	memcpy(a->bytes, &v, sizeof v); /* little-endian: the 4-byte attributes take the low half */
	return CUDA_SUCCESS;
}

static int host_kind(const struct cw_range *r)
{
	return r->kind == CW_RANGE_PINNED || r->kind == CW_RANGE_HOST || r->kind == CW_RANGE_REGISTERED;
}

static CUresult answer(const struct cw_range *r, int attr, uint64_t ptr, struct answer *a)
{
	uint64_t off = ptr - r->base, mapped = 0;
	CUresult res;
	int host = host_kind(r);
	if (r->kind == CW_RANGE_MAPPED && cw_mapping_answer(r, ptr, attr, &mapped, &res)) {
		put64(a, mapped);
		return res;
	}
	switch (attr) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		/* Memory of a pool belongs to a device, not to a context. */
		return put64(a, r->pool ? 0 : (uintptr_t)cw_handle_by_id(CW_KIND_CTX, r->ctx));
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return put64(a, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return r->dev ? put64(a, r->dev + off) : CUDA_ERROR_INVALID_VALUE;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER: return host || r->kind == CW_RANGE_MANAGED ? put64(a, ptr) : CUDA_ERROR_INVALID_VALUE;
	case CU_POINTER_ATTRIBUTE_P2P_TOKENS: return CUDA_ERROR_INVALID_VALUE;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return put64(a, r->sync_memops);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case 20: /* MEMORY_BLOCK_ID: an allocation is one block */ return put64(a, r->id);
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return put64(a, r->kind == CW_RANGE_DEVICE && r->pool == 0);
	case CU_POINTER_ATTRIBUTE_IS_MANAGED: return put64(a, r->kind == CW_RANGE_MANAGED);
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		/* No NIC of the guest reaches this memory. */
	case 21: /* IS_HW_DECOMPRESS_CAPABLE */ return put64(a, 0);
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put64(a, (uint32_t)r->device);
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case 19: /* MAPPING_BASE_ADDR */ return put64(a, r->dev ? r->dev : r->base);
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case 18: /* MAPPING_SIZE */ return put64(a, r->size);
	case CU_POINTER_ATTRIBUTE_MAPPED: return put64(a, r->dev != 0);
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return put64(a, 3); /* CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE */
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return put64(a, (uintptr_t)(r->pool ? cw_handle_by_id(CW_KIND_POOL, r->pool) : NULL));
	default: return CUDA_ERROR_INVALID_VALUE;
	}
}

/* A range of ours, or a module's global that cuMemcpy or cuModuleGetGlobal has met. */
static int find(CUdeviceptr ptr, struct cw_range *r) { return ptr != 0 && cw_range_find(ptr, r); }

CUresult cwi_cuPointerGetAttribute(void *data, CUpointer_attribute attr, CUdeviceptr ptr)
{
	struct answer a = {{0}, attr_size((int)attr)};
	struct cw_range r;
	if (!data || a.size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!find(ptr, &r))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult res = answer(&r, (int)attr, ptr, &a);
	if (res == 0)
		memcpy(data, a.bytes, a.size);
	return res;
}

/* Unlike the singular form: memory that is not CUDA's, and what does not apply, is all zeros. */
CUresult cwi_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attrs, void **data, CUdeviceptr ptr)
{
	struct cw_range r;
	if (count == 0 || !attrs || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++)
		if (attr_size((int)attrs[i]) == 0 || !data[i])
			return CUDA_ERROR_INVALID_VALUE;
	int known = find(ptr, &r);
	for (unsigned i = 0; i < count; i++) {
		struct answer a = {{0}, attr_size((int)attrs[i])};
		if (known && answer(&r, (int)attrs[i], ptr, &a) != 0)
			memset(a.bytes, 0, sizeof a.bytes);
		memcpy(data[i], a.bytes, a.size);
	}
	return CUDA_SUCCESS;
}

CUresult cwi_cuPointerSetAttribute(const void *value, CUpointer_attribute attr, CUdeviceptr ptr)
{
	struct cw_range r;
	if (!value || attr != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !find(ptr, &r))
		return CUDA_ERROR_INVALID_VALUE;
	int on;
	memcpy(&on, value, sizeof on);
	cw_range_set_sync(ptr, on);
	return CUDA_SUCCESS;
}

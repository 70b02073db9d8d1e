/* Memory and events of other processes: cuIpc*. */
#include <stdlib.h>
#include <string.h>

#include "memory/share.h"
#include "session/lock.h"

enum { OPENED = 1 << CW_RANGE_IPC };
enum { LAZY_PEER_ACCESS = 1 }; /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag, and it must be there */

_Static_assert(sizeof(CUipcMemHandle) == sizeof(struct cw_shared), "CUipcMemHandle");
_Static_assert(sizeof(CUipcEventHandle) == sizeof(struct cw_shared), "CUipcEventHandle");

/* How often each address is open. Held across requests, so that an open and a close do not cross. */
static struct {
	struct cw_lock lock;
	struct opened {
		uint64_t ptr;
		uint32_t count;
	} *all;
	uint32_t count, cap;
} open_;

static struct opened *find(uint64_t ptr)
{
	for (uint32_t i = 0; i < open_.count; i++)
		if (open_.all[i].ptr == ptr)
			return &open_.all[i];
	return NULL;
}

static struct opened *add(uint64_t ptr)
{
	if (open_.count == open_.cap) {
		uint32_t cap = open_.cap ? open_.cap * 2 : 16;
		struct opened *all = realloc(open_.all, cap * sizeof *all);
		if (!all)
			return NULL;
		open_.all = all;
		open_.cap = cap;
	}
	open_.all[open_.count] = (struct opened){ptr, 0};
	return &open_.all[open_.count++];
}

static void forget(struct opened *o) { *o = open_.all[--open_.count]; }

CUresult cwi_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	struct cw_shared s;
	struct cw_range r;
	struct cw_ctx *c;
	size_t len = 0;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	/* Memory of cuMemAlloc, by any address in it. */
	if (!handle || !cw_range_find(ptr, &r) || r.kind != CW_RANGE_DEVICE || r.pool != 0)
		return CUDA_ERROR_INVALID_VALUE;
	cw_share_init(&s, CW_SHARE_MEMORY);
	res = cwop_IpcGetMemHandle(r.base, s.token, sizeof s.token, &len);
	if (res == 0 && len != sizeof s.token)
		res = CUDA_ERROR_UNKNOWN;
	if (res == 0)
		memcpy(handle, &s, sizeof s);
	return res;
}

/* Under the lock. */
static CUresult opened(struct cw_ctx *c, uint64_t ptr, uint64_t size, uint32_t dev)
{
	struct cw_range r = {.base = ptr, .size = size, .kind = CW_RANGE_IPC, .ctx = c->o.id, .device = (int)dev, .dev = ptr};
	struct opened *o = find(ptr);
	if (o && !cw_range_overlaps(ptr, 1)) { /* the context that it was opened in is gone */
		forget(o);
		o = NULL;
	}
	if (!o) {
		o = add(ptr);
		if (!o || cw_range_add(&r) != 0) {
			if (o)
				forget(o);
			cwop_IpcCloseMemHandle(ptr);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	o->count++;
	return CUDA_SUCCESS;
}

static CUresult open_mem(CUdeviceptr *out, const CUipcMemHandle *handle, unsigned int flags)
{
	struct cw_shared s;
	struct cw_ctx *c;
	uint64_t ptr = 0, size = 0;
	uint32_t dev = 0;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	memcpy(&s, handle, sizeof s);
	if (!out || !(flags & LAZY_PEER_ACCESS) || !cw_share_is(&s, CW_SHARE_MEMORY))
		return CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&open_.lock);
	res = cwop_IpcOpenMemHandle(LAZY_PEER_ACCESS, s.token, sizeof s.token, &ptr, &size, &dev);
	if (res == 0)
		res = opened(c, ptr, size, dev);
	cw_lock_release(&open_.lock);
	if (res == 0)
		*out = ptr;
	return res;
}

CUresult cwi_cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	return open_mem(ptr, &handle, flags);
}

CUresult cwi_cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	return open_mem(ptr, &handle, flags);
}

CUresult cwi_cuIpcCloseMemHandle(CUdeviceptr ptr)
{
	struct cw_range r;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	cw_lock_acquire(&open_.lock);
	struct opened *o = find(ptr);
	if (!o) {
		res = CUDA_ERROR_INVALID_VALUE;
	} else if (--o->count == 0) {
		forget(o);
		res = cw_range_take(ptr, OPENED, &r) ? cwop_IpcCloseMemHandle(ptr) : CUDA_ERROR_INVALID_VALUE;
	}
	cw_lock_release(&open_.lock);
	return res;
}

/* --- events -------------------------------------------------------------------------------------------------------- */

CUresult cwi_cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
	struct cw_event *e = (struct cw_event *)cw_handle_get(CW_KIND_EVENT, event);
	struct cw_shared s;
	size_t len = 0;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (!e || !(e->o.flags & CU_EVENT_INTERPROCESS)) /* an opened event does not have the flag either */
		return CUDA_ERROR_INVALID_HANDLE;
	cw_share_init(&s, CW_SHARE_EVENT);
	CUresult res = cwop_IpcGetEventHandle(e->o.id, s.token, sizeof s.token, &len);
	if (res == 0 && len != sizeof s.token)
		res = CUDA_ERROR_UNKNOWN;
	if (res == 0)
		memcpy(handle, &s, sizeof s);
	return res;
}

CUresult cwi_cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
	struct cw_shared s;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	memcpy(&s, &handle, sizeof s);
	if (!event)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cw_share_is(&s, CW_SHARE_EVENT))
		return CUDA_ERROR_MAP_FAILED;
	struct cw_event *e = (struct cw_event *)cw_handle_alloc();
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->o.ctx = c->o.id;
	e->o.flags = CU_EVENT_DISABLE_TIMING;
	atomic_store_explicit(&e->recorded, 1, memory_order_relaxed); /* perhaps, by another process */
	cw_handle_publish(&e->o, CW_KIND_EVENT);
	res = cwop_IpcOpenEventHandle(e->o.id, s.token, sizeof s.token);
	if (res != 0)
		cw_handle_free(CW_KIND_EVENT, &e->o);
	else
		*event = (CUevent)e;
	return res;
}

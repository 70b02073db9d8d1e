/* Memory and events of other processes: cuIpc*. */
#include <stdlib.h>
#include <string.h>

#include "memory/share.h"
#include "memory/vmm.h"
#include "session/lock.h"

enum { OPENED = 1 << CW_RANGE_IPC };
/* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag, and it must be there */
enum { LAZY_PEER_ACCESS = 1 };

_Static_assert(sizeof(CUipcMemHandle) == sizeof(struct cw_shared), "CUipcMemHandle");
_Static_assert(sizeof(CUipcEventHandle) == sizeof(struct cw_shared), "CUipcEventHandle");

enum { PAGE = 4096, TRIES = 5, NEAR_MIB = 256 };

/* How often each address is open, and the pages around it that are taken here. Held across
 * requests, so that an open and a close do not cross. */
static struct {
	struct cw_lock lock;
	struct opened {
		uint64_t ptr, page, pages;
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
	open_.all[open_.count] = (struct opened){.ptr = ptr};
	return &open_.all[open_.count++];
}

/* Memory of the exporter's that lies side by side there shares pages here. This is how far the
 * pages from at on are alike: others' as well, or not. */
static uint64_t stretch(uint64_t at, uint64_t end, int *others)
{
	*others = 0;
	for (uint32_t i = 0; i < open_.count; i++) {
		uint64_t lo = open_.all[i].page, hi = lo + open_.all[i].pages;
		if (lo <= at && at < hi) {
			*others = 1;
			return hi < end ? hi : end;
		}
		if (at < lo && lo < end && open_.all[i].pages != 0)
			end = lo;
	}
	return end;
}

/* Gives back what no other memory has. */
static void give(uint64_t at, uint64_t end)
{
	int others;
	for (uint64_t next; at < end; at = next) {
		next = stretch(at, end, &others);
		if (!others)
			cw_addresses_give(at, next - at);
	}
}

static void forget(struct opened *o)
{
	uint64_t page = o->page, pages = o->pages;
	*o = open_.all[--open_.count];
	give(page, page + pages);
}

/* Whether the addresses of opened memory are free in this process, or already its own. Takes
 * them. */
static int take(struct opened *o, uint64_t size)
{
	uint64_t page = o->ptr & ~(uint64_t)(PAGE - 1), end = (o->ptr + size + PAGE - 1) & ~(uint64_t)(PAGE - 1);
	int others;
	for (uint64_t at = page, next; at < end; at = next) {
		next = stretch(at, end, &others);
		if (!others && !cw_addresses_take(at, next - at)) {
			give(page, at);
			return 0;
		}
	}
	o->page = page;
	o->pages = end - page;
	return 1;
}

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

enum { OPENED_HERE = -1 }; /* no CUresult: the addresses are in use */

/* Under the lock. The worker has opened it. */
static int opened(struct cw_ctx *c, uint64_t ptr, uint64_t size, uint32_t dev)
{
	struct cw_range r = {.base = ptr, .size = size, .kind = CW_RANGE_IPC, .ctx = c->o.id, .device = (int)dev, .dev = ptr};
	struct opened *o = find(ptr);
	if (o && !cw_range_overlaps(ptr, 1)) { /* the context that it was opened in is gone */
		forget(o);
		o = NULL;
	}
	if (!o) {
		int clash = 0;
		o = add(ptr);
		if (!o || (clash = !take(o, size)) || cw_range_add(&r) != 0) {
			if (o)
				forget(o);
			cwop_IpcCloseMemHandle(ptr);
			return clash ? OPENED_HERE : (int)CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	o->count++;
	return 0;
}

/* The driver maps such memory among its own process's mappings (0x7f...), where this one may have
 * its libraries: then elsewhere. */
static CUresult open_somewhere(struct cw_ctx *c, const struct cw_shared *s, uint64_t *ptr)
{
	uint64_t size = 0, avoid = 0;
	uint32_t dev = 0, distance = 0;
	for (int i = 0; i < TRIES; i++) {
		CUresult res = cwop_IpcOpenMemHandle(LAZY_PEER_ACCESS, distance, avoid, s->token, sizeof s->token, ptr, &size, &dev);
		if (res != 0)
			return res;
		int r = opened(c, *ptr, size, dev);
		if (r != OPENED_HERE)
			return (CUresult)r;
		avoid = *ptr;
		distance = distance ? distance * 4 : NEAR_MIB;
	}
	return CUDA_ERROR_MAP_FAILED;
}

static CUresult open_mem(CUdeviceptr *out, const CUipcMemHandle *handle, unsigned int flags)
{
	struct cw_shared s;
	struct cw_ctx *c;
	uint64_t ptr = 0;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	memcpy(&s, handle, sizeof s);
	if (!out || !(flags & LAZY_PEER_ACCESS) || !cw_share_is(&s, CW_SHARE_MEMORY))
		return CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&open_.lock);
	res = open_somewhere(c, &s, &ptr);
	cw_lock_release(&open_.lock);
	if (res == 0)
		*out = ptr;
	return res;
}

CUresult cwi_cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags) { return open_mem(ptr, &handle, flags); }

CUresult cwi_cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags) { return open_mem(ptr, &handle, flags); }

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

/* --- events ----------------------------------------------------------------------------------- */

CUresult cwi_cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
	struct cw_event *e = (struct cw_event *)cw_handle_get(CW_KIND_EVENT, event);
	struct cw_shared s;
	size_t len = 0;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	/* An opened event does not have the flag either. */
	if (!e || !(e->o.flags & CU_EVENT_INTERPROCESS))
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
	e->shared = 1;
	/* Perhaps, by another process. */
	atomic_store_explicit(&e->recorded, 1, memory_order_relaxed);
	cw_handle_publish(&e->o, CW_KIND_EVENT);
	res = cwop_IpcOpenEventHandle(e->o.id, s.token, sizeof s.token);
	if (res != 0)
		cw_handle_free(CW_KIND_EVENT, &e->o);
	else
		*event = (CUevent)e;
	return res;
}

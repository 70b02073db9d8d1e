/*
 * Pieces of managed memory whose device memory is changed for other, in their place. Of another GPU
 * of the vGPU, where the program prefetches them to; and those for which the GPU has no room, where
 * the worker cannot map this process's memory (a carrier over a network), or not much of it (a VM's
 * loans): they lie in memory of the worker's machine, which its driver makes, at the same
 * addresses. To this process they are as what lies at the GPU, and the GPU reaches them over that
 * machine's link. To change places nothing crosses the carrier: the worker copies the bytes to
 * other memory, which is mapped instead. Which pieces do is room.c's matter, as of those that lie
 * here. Under the resident lock.
 */
#include <stdlib.h>
#include <string.h>

#include "memory/pieces.h"
#include "memory/spare.h"
#include "memory/vmm.h"
#include "session/internal.h"

enum { AGAIN_MS = 10000 };

/* --- where ------------------------------------------------------------------------------------ */

/* CAUSEWAY_MANAGED_BEYOND has it one of the two ways where both can be had: "host", "guest". */
static int choose(void)
{
	const char *e = getenv("CAUSEWAY_MANAGED_BEYOND");
	if (!cw_can_map())
		return 1;
	if (!(cw_session_info()->caps & CW_CAP_MEM_ON_HOST))
		return 0;
	if (e && (!strcmp(e, "host") || !strcmp(e, "guest")))
		return !strcmp(e, "host");
	return cw_s.carrier->scarce;
}

int cw_beyond_far(void)
{
	static _Atomic int known; /* 1: yes, 2: no. It must not change while pieces are beyond. */
	int k = atomic_load(&known);
	if (k == 0) {
		k = choose() ? 1 : 2;
		atomic_store(&known, k);
	}
	return k == 1;
}

/* --- how much --------------------------------------------------------------------------------- */

/* When there was no memory there for a piece, ms; 0: there always was. Launches would wait for each
 * try. */
static _Atomic int64_t refused;
static _Atomic uint64_t lies; /* bytes that lie there */

int cw_beyond_room(void)
{
	int64_t at = atomic_load(&refused);
	return at == 0 || cw_now_ms() - at >= AGAIN_MS;
}

/*
 * A VM has no more memory of its host's in place of its own than it has itself: the host sees to
 * that, for all processes together. Here it is said early, and of a container by what that has.
 * Over a network the other machine's budget is all that counts.
 */
static int within_own(uint64_t now)
{
	uint64_t all = cw_memory_all();
	return !cw_can_map() || all == UINT64_MAX || now + CW_SPARE <= all;
}

static void say(const struct cw_area *a, CUresult res, int own)
{
	if (!cw_beyond_room()) /* it was said */
		return;
	unsigned long long mib = a->backed >> 20;
	if (!own)
		cw_log(CW_LOG_INFO,
		       "%llu MiB of managed memory find no room at the GPU, and what lies on its machine is as much as this one has memory",
		       mib);
	else if (res == CUDA_ERROR_NOT_SUPPORTED)
		cw_log(CW_LOG_INFO,
		       "%llu MiB of managed memory find no room at the GPU, and the driver of its machine makes none there (attribute 141)",
		       mib);
	else
		cw_log(CW_LOG_INFO,
		       "%llu MiB of managed memory find no room at the GPU nor on its machine (%d): there the vGPU's host-memory is all "
		       "that its programs may have, one of them half of it (--host-memory SIZE raises it), and all of a VM's together as "
		       "much as the VM has memory",
		       mib, (int)res);
}

/* Memory beyond the GPU's. That there is none is for whoever allocates no other thing than that the
 * GPU has none. */
CUresult cw_beyond_create(struct cw_area *a)
{
	int own = within_own(atomic_fetch_add(&lies, a->backed) + a->backed);
	a->beyond = 1;
	CUresult res = own ? cw_area_create(a) : CUDA_ERROR_OUT_OF_MEMORY;
	if (res == 0)
		return res;
	a->beyond = 0;
	atomic_fetch_sub(&lies, a->backed);
	say(a, res, own);
	atomic_store(&refused, cw_now_ms());
	return res == CUDA_ERROR_NOT_SUPPORTED ? CUDA_ERROR_OUT_OF_MEMORY : res;
}

void cw_beyond_released(const struct cw_area *a) { atomic_fetch_sub(&lies, a->backed); }

/* --- other memory in its place ---------------------------------------------------------------- */

static CUresult copy(struct cw_area *a, uint64_t to)
{
	struct cw_voice v;
	CUresult res = cw_voice_begin(a, &v);
	if (res != 0)
		return res;
	res = cwop_Memcpy(to, a->base, a->size, v.stream);
	if (res == 0)
		res = cw_own_wait(v.stream);
	cw_voice_end(&v);
	return res;
}

/* The piece's bytes as they are at the GPU, into other memory for it. */
static CUresult fill(struct cw_area *a, struct cw_area *other)
{
	struct cw_group *g = a->group;
	CUresult res = g->beside ? CUDA_SUCCESS : cw_addresses_reserve(g->piece, 0, &g->beside);
	if (res != 0)
		return res;
	other->base = g->beside->base;
	res = cw_area_map(other, g->beside);
	if (res == 0 && !a->fresh) /* else the GPU's bytes are nobody's */
		res = copy(a, other->base);
	cw_area_unmap(other);
	return res;
}

static void exchange(struct cw_area *a, struct cw_area *other)
{
	uint32_t memory = a->memory;
	uint8_t beyond = a->beyond;
	int device = a->device;
	a->memory = other->memory;
	a->beyond = other->beyond;
	a->device = other->device;
	other->memory = memory;
	other->beyond = beyond;
	other->device = device;
}

/* The other memory in its place, or what it had again. */
static CUresult replace(struct cw_area *a, struct cw_area *other)
{
	const struct cw_resv *resv = a->resv ? a->resv : a->group->resv;
	cw_area_unmap(a);
	exchange(a, other);
	CUresult res = cw_area_map(a, resv);
	if (res == 0)
		return res;
	a->group->still = 1;
	exchange(a, other);
	if (cw_area_map(a, resv) != 0)
		cw_log(CW_LOG_ERROR, "managed memory at %#llx is lost to the GPU (%d)", (unsigned long long)a->base, (int)res);
	return res;
}

static CUresult elsewhere(struct cw_area *a, int device, int beyond)
{
	struct cw_area other = {.backed = a->backed, .device = device};
	if (a->group->still)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult res = beyond ? cw_beyond_create(&other) : cw_area_create(&other);
	if (res != 0)
		return res;
	res = fill(a, &other);
	if (res == 0)
		res = replace(a, &other);
	cw_area_unback(&other);
	return res;
}

CUresult cw_piece_beyond(struct cw_area *a, int beyond)
{
	return a->beyond == beyond ? CUDA_ERROR_NOT_SUPPORTED : elsewhere(a, a->device, beyond);
}

CUresult cw_piece_to(struct cw_area *a, int device)
{
	uint32_t ctx = cw_ctx_on(device); /* in whose name its bytes travel then */
	if (cw_piece_away(a) || !a->memory || a->device == device || !ctx)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult res = elsewhere(a, device, 0);
	if (res == 0)
		a->ctx = ctx;
	return res;
}

/*
 * Pieces of managed memory whose device memory is changed for other, in their place. Of another GPU of the vGPU, where the program prefetches them to; and those
 * for which the GPU has no room, where the worker cannot map this process's memory (a carrier over a network): they lie in
 * memory of the worker's machine, which its driver makes, at the same addresses. To this process they are as what lies at the GPU, and the GPU reaches
 * them over that machine's link. To change places nothing crosses the network: the worker copies the bytes to other memory, which is mapped instead.
 * Which pieces do is room.c's matter, as of those that lie here. Under the resident lock.
 */
#include "memory/pieces.h"
#include "memory/vmm.h"
#include "session/internal.h"

enum { AGAIN_MS = 10000 };

/* When that machine had no memory for a piece, ms; 0: it always had. Launches would wait for each try. */
static _Atomic int64_t refused;

int cw_beyond_room(void)
{
	int64_t at = atomic_load(&refused);
	return at == 0 || cw_now_ms() - at >= AGAIN_MS;
}

/* Memory beyond the GPU's. That there is none is for whoever allocates no other thing than that the GPU has none. */
CUresult cw_beyond_create(struct cw_area *a)
{
	a->beyond = 1;
	CUresult res = cw_area_create(a);
	if (res == 0)
		return res;
	a->beyond = 0;
	atomic_store(&refused, cw_now_ms());
	return res == CUDA_ERROR_NOT_SUPPORTED ? CUDA_ERROR_OUT_OF_MEMORY : res;
}

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

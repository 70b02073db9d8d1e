/*
 * Regions: further memory that the worker reaches (staging, pinned). The carrier makes the pages reachable, then RegionAdd
 * maps them in the worker. A pinned region is mapped there at the same address, which may be taken: then another is tried.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gen/ops.h"
#include "session/internal.h"

static CUresult add_once(struct cw_session *s, struct cw_region *r, uint32_t flags)
{
	int err = s->carrier->add_region(s, r);
	if (err != 0) {
		cw_log(CW_LOG_INFO, "region of %zu bytes refused by the carrier: %s", r->size, strerror(-err));
		return r->adopted ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult res = cwop_RegionAdd(r->id, r->kind, r->at, r->size, flags, &r->dev);
	if (res != 0)
		s->carrier->end_region(s, r);
	return res;
}

/* What a region is made from: new memory, or the app's own at va, which may map a file. */
struct source {
	void *va;
	int file;
	uint64_t file_at;
	uint64_t at; /* new memory: where the worker maps it, 0: where it lies here */
	int parted;
};

static CUresult region_new(struct cw_session *s, uint32_t kind, const struct source *from, size_t size, uint32_t flags,
			   struct cw_region **out)
{
	void *va = from->va;
	CUresult res = cw_session_open();
	if (res != 0)
		return res;
	struct cw_region *r = calloc(1, sizeof *r);
	if (!r)
		return CUDA_ERROR_OUT_OF_MEMORY;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	cw_lock_acquire(&s->region_lock);
	for (int attempt = 0; attempt < 3; attempt++) {
		r->id = ++s->next_region;
		r->kind = kind;
		r->size = (size + page - 1) & ~(page - 1);
		r->adopted = va != NULL;
		r->va = va;
		r->file = from->file;
		r->file_at = from->file_at;
		r->parted = from->parted;
		r->mem = -1;
		r->dev = 0;
		if (!va) {
			if (s->next_va == 0)
				s->next_va = CW_REGION_VA_BASE;
			r->va = (uint8_t *)(uintptr_t)s->next_va;
			s->next_va += (r->size + (2u << 20) - 1) & ~(uint64_t)((2u << 20) - 1);
		}
		r->at = from->at ? from->at : (uintptr_t)r->va;
		res = add_once(s, r, flags);
		if (res == 0 || va || from->at || res == CUDA_ERROR_OUT_OF_MEMORY || cw_is_dead(s))
			break;
		s->next_va += 1ull << 36; /* the worker could not map there */
	}
	if (res == 0) {
		r->next = s->regions;
		s->regions = r;
		*out = r;
	} else {
		free(r);
	}
	cw_lock_release(&s->region_lock);
	return res;
}

CUresult cw_region_add(uint32_t kind, size_t size, uint32_t flags, struct cw_region **out)
{
	return region_new(&cw_s, kind, &(struct source){.file = -1}, size, flags, out);
}

CUresult cw_region_adopt(void *va, size_t size, uint32_t flags, struct cw_region **out)
{
	return region_new(&cw_s, CW_REGION_PINNED, &(struct source){.va = va, .file = -1}, size, flags, out);
}

CUresult cw_region_adopt_parted(void *va, size_t size, uint32_t flags, struct cw_region **out)
{
	if (!cw_s.carrier->private_after_fork)
		return CUDA_ERROR_NOT_SUPPORTED;
	return region_new(&cw_s, CW_REGION_PINNED, &(struct source){.va = va, .file = -1, .parted = 1}, size, flags, out);
}

CUresult cw_region_add_at(uint64_t at, size_t size, uint32_t flags, struct cw_region **out)
{
	return region_new(&cw_s, CW_REGION_PINNED, &(struct source){.file = -1, .at = at}, size, flags, out);
}

CUresult cw_region_adopt_file(void *va, size_t size, int file, uint64_t at, uint32_t flags, struct cw_region **out)
{
	return region_new(&cw_s, CW_REGION_PINNED, &(struct source){.va = va, .file = file, .file_at = at}, size, flags, out);
}

CUresult cw_region_drop(struct cw_region *r)
{
	struct cw_session *s = &cw_s;
	CUresult res = cwop_RegionDrop(r->id);
	cw_lock_acquire(&s->region_lock);
	for (struct cw_region **p = &s->regions; *p; p = &(*p)->next)
		if (*p == r) {
			*p = r->next;
			break;
		}
	s->carrier->end_region(s, r);
	cw_lock_release(&s->region_lock);
	free(r);
	return res;
}

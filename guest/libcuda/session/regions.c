/*
 * Regions: further memory that the worker reaches (staging, pinned). The carrier makes the pages
 * reachable, then RegionAdd maps them in the worker. A pinned region is mapped there at the same
 * address, which may be taken: then another is tried.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gen/ops.h"
#include "session/internal.h"

static void send_add(struct cw_region *r)
{
	struct cw_moving *p = r->moving;
	p->told = cw_begin(&p->tx, CW_OP_REGION_ADD, sizeof(struct cw_in_RegionAdd), 0, 1);
	if (p->told != 0)
		return;
	*(struct cw_in_RegionAdd *)(p->tx.rec + sizeof(struct cw_record)) =
		(struct cw_in_RegionAdd){.region = r->id, .kind = r->kind, .va = r->at, .size = r->size, .flags = p->flags};
	cw_send(&p->tx);
}

/* Until the worker has let go of a region, as it was asked to with this result: work of the
 * program's may use it, or anything, which some drivers wait for, for a while. Were it to end
 * before, the host would end the session. */
static CUresult let_go(const struct cw_region *r, CUresult res)
{
	while (res == CUDA_ERROR_NOT_READY && cw_check_alive() == 0)
		res = cwop_RegionDrop(r->id);
	return res;
}

/*
 * Adds a region whose pages are to take the place of the app's. The worker maps and registers them
 * while they are filled here. Another thread's write after its page was copied is lost, so this is
 * for memory that is handed over for good (cuMemHostRegister), where the API asks for no concurrent
 * use.
 */
static CUresult add_filling(struct cw_region *r, uint32_t flags)
{
	struct cw_out_RegionAdd out = {0};
	struct cw_reply rep;
	r->moving->flags = flags;
	int err = cw_moving_fill(r, send_add);
	CUresult res = r->moving->told;
	if (res == 0)
		res = cw_await(&r->moving->tx, &rep);
	if (res == 0) {
		res = rep.result;
		if (res == 0 && rep.len < sizeof out)
			res = CUDA_ERROR_UNKNOWN;
		if (res == 0)
			memcpy(&out, rep.data, sizeof out);
		cw_reply_release(&rep);
	}
	r->dev = out.dev;
	if (r->parted &&
	    /* In one file, which goes with the region; if that could not be filled, the app's pages
	     * are still there. */
	    err == 0) {
		r->mem = r->moving->file[0];
		r->moving->file[0] = -1;
		cw_own_note(r->mem, CW_MARK_NONE, &r->mem_own);
	}
	if (res == 0 && err != 0) {
		let_go(r, cwop_RegionDrop(r->id));
		res = CUDA_ERROR_NOT_SUPPORTED;
	}
	cw_moving_end(r);
	return res;
}

static CUresult add_once(struct cw_session *s, struct cw_region *r, uint32_t flags)
{
	int err = s->carrier->add_region(s, r);
	if (err != 0) {
		cw_log(CW_LOG_INFO, "region of %zu bytes refused by the carrier: %s", r->size,
		       err == -ENOBUFS ? "the GPU may reach no more memory of this process" : strerror(-err));
		return r->adopted ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult res = r->moving ? add_filling(r, flags) : cwop_RegionAdd(r->id, r->kind, r->at, r->size, flags, &r->dev);
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
	const struct cw_region_hands *hands;
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
		r->hands = from->hands;
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
	r->hands = NULL; /* the caller's, for this call */
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

CUresult cw_region_adopt(void *va, size_t size, uint32_t flags, const struct cw_region_hands *hands, struct cw_region **out)
{
	return region_new(&cw_s, CW_REGION_PINNED, &(struct source){.va = va, .file = -1, .hands = hands}, size, flags, out);
}

static void by_itself(uint32_t count, void (*work)(void *arg, uint32_t k), void *arg)
{
	for (uint32_t k = 0; k < count; k++)
		work(arg, k);
}

static const struct cw_region_hands alone = {1, by_itself};

CUresult cw_region_adopt_parted(void *va, size_t size, uint32_t flags, struct cw_region **out)
{
	if (!cw_s.carrier->private_after_fork)
		return CUDA_ERROR_NOT_SUPPORTED;
	return region_new(&cw_s, CW_REGION_PINNED, &(struct source){.va = va, .file = -1, .parted = 1, .hands = &alone}, size, flags, out);
}

CUresult cw_region_add_at(uint64_t at, size_t size, uint32_t flags, struct cw_region **out)
{
	return region_new(&cw_s, CW_REGION_PINNED, &(struct source){.file = -1, .at = at}, size, flags, out);
}

CUresult cw_region_adopt_file(void *va, size_t size, int file, uint64_t at, uint32_t flags, struct cw_region **out)
{
	return region_new(&cw_s, CW_REGION_PINNED, &(struct source){.va = va, .file = file, .file_at = at}, size, flags, out);
}

void cw_region_let(struct cw_region *r, struct cw_tx *tx)
{
	tx->size = 0;
	if (cw_begin(tx, CW_OP_REGION_DROP, sizeof(struct cw_in_RegionDrop), 0, 1) != 0)
		return;
	((struct cw_in_RegionDrop *)(tx->rec + sizeof(struct cw_record)))->region = r->id;
	cw_send(tx);
}

CUresult cw_region_end(struct cw_region *r, struct cw_tx *tx)
{
	struct cw_session *s = &cw_s;
	struct cw_reply rep;
	CUresult res = tx->size ? cw_await(tx, &rep) : CUDA_ERROR_LAUNCH_FAILED;
	if (res == 0) {
		res = rep.result;
		cw_reply_release(&rep);
	}
	res = let_go(r, res);
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

CUresult cw_region_drop(struct cw_region *r)
{
	struct cw_tx tx;
	cw_region_let(r, &tx);
	return cw_region_end(r, &tx);
}

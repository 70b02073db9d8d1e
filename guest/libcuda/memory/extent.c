/*
 * Copies by extents: as through staging, but the host's CPUs move the bytes between the
 * application's pages and the chunks. For guests with few CPUs. One thread of the application keeps
 * several requests in flight and moves nothing itself, but for pieces that the host could not copy.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "memory/extent.h"
#include "session/extent.h"

/* LEAST: smaller copies do not pay for their requests. */
enum { AHEAD = 8, LEAST = 4 << 20, PAGE = 4096 };
_Static_assert((int)AHEAD <= (int)CW_EXTENTS, "requests in flight");

struct piece {
	struct cw_chunk *c;
	uint64_t at;
	uint32_t len;
};

struct copy {
	uint32_t direction, stream;
	uint64_t device, size, next; /* next: where the next piece begins */
	uint8_t *host;
	struct piece piece[AHEAD];
	/* From the device: pieces are asked for in order, and their READs begin in order. */
	uint32_t asked, begun;
	uint32_t flying; /* requests */
	CUresult res;	 /* the first error */
};

static _Atomic int mode;    /* 0: not asked yet */
static _Atomic int refused; /* the host knows no extents */

enum { STAGING = 1, EXTENTS };

static int wanted(uint32_t direction, uint64_t size)
{
	int m = atomic_load_explicit(&mode, memory_order_relaxed);
	if (m == 0) {
		const char *e = getenv("CAUSEWAY_COPY");
		m = e && !strcmp(e, "extents") ? EXTENTS : STAGING;
		atomic_store_explicit(&mode, m, memory_order_relaxed);
	}
	return m == EXTENTS && size >= LEAST && !atomic_load_explicit(&refused, memory_order_relaxed) &&
	       (direction == CW_TO_DEVICE || cw_extent_pins());
}

/* The first piece ends with a page, so that the others begin with one. */
static uint32_t next_length(const struct copy *x)
{
	uint64_t most = CW_CHUNK_SIZE - ((uintptr_t)(x->host + x->next) & (PAGE - 1)), rest = x->size - x->next;
	return (uint32_t)(rest < most ? rest : most);
}

static void fail(struct copy *x, CUresult res)
{
	if (x->res == 0)
		x->res = res;
}

static CUresult send(const struct copy *x, const struct piece *p)
{
	return cwop_MemcpyStaged(x->direction, p->c->region, p->c->offset, p->len, x->device + p->at, x->stream, p->c->word, p->c->value);
}

/* The host has moved a piece, or this thread does. */
static void moved(struct copy *x, struct piece *p, int by_host)
{
	if (x->direction == CW_TO_DEVICE && x->res == 0) {
		if (!by_host)
			cw_chunk_fill(p->c->mem, x->host + p->at, p->len);
		fail(x, send(x, p));
		cw_chunk_put_busy(p->c, x->stream);
	} else {
		if (x->direction == CW_FROM_DEVICE && !by_host)
			memcpy(x->host + p->at, p->c->mem, p->len);
		if (x->direction == CW_FROM_DEVICE)
			cw_chunk_renew(p->c);
		cw_chunk_put(p->c);
	}
	p->c = NULL;
}

static void begin(struct copy *x, struct piece *p)
{
	if (cw_extent_submit(p->c->region, p->c->offset, x->host + p->at, p->len, x->direction == CW_TO_DEVICE, p) == 0)
		x->flying++;
	else
		moved(x, p, 0);
}

static void reap(struct copy *x, int wait)
{
	struct cw_extent_end ends[CW_EXTENTS];
	int n = x->flying > 0 ? cw_extent_reap(ends, CW_EXTENTS, wait) : 0;
	if (n < 0) { /* the kernel knows of no requests */
		atomic_store_explicit(&refused, 1, memory_order_relaxed);
		fail(x, CUDA_ERROR_UNKNOWN);
		x->flying = 0;
	}
	for (int i = 0; i < n; i++) {
		struct piece *p = ends[i].tag;
		int whole = ends[i].res == (int64_t)p->len;
		if (ends[i].res == -EINVAL || ends[i].res == -ENOSYS || ends[i].res == -EOPNOTSUPP)
			atomic_store_explicit(&refused, 1, memory_order_relaxed);
		x->flying--;
		moved(x, p, whole);
	}
}

/* A chunk for the next piece. It waits for one only while this thread holds none. */
static struct piece *next_piece(struct copy *x, struct piece *p, int holds)
{
	CUresult res = 0;
	struct cw_chunk *c = cw_chunk_take(x->stream, holds ? CW_NO_WAIT : CW_LONG_WAIT, &res);
	if (!c) {
		fail(x, res == 0 && !holds ? CUDA_ERROR_UNKNOWN : res);
		return NULL;
	}
	*p = (struct piece){c, x->next, next_length(x)};
	x->next += p->len;
	return p;
}

static struct piece *unused(struct copy *x)
{
	for (int i = 0; i < AHEAD; i++)
		if (!x->piece[i].c)
			return &x->piece[i];
	return NULL;
}

static void to_device(struct copy *x)
{
	while ((x->res == 0 && x->next < x->size) || x->flying > 0) {
		struct piece *p = NULL;
		if (x->res == 0 && x->next < x->size && (p = unused(x)) != NULL)
			p = next_piece(x, p, x->flying > 0);
		if (p)
			begin(x, p);
		reap(x, !p);
	}
}

/* Piece number n of those asked for is in place n % AHEAD: the places are taken in order, and wait
 * for the oldest. */
static void from_device(struct copy *x)
{
	while ((x->res == 0 && x->next < x->size) || x->begun < x->asked || x->flying > 0) {
		struct piece *p = &x->piece[x->asked % AHEAD];
		if (x->res == 0 && x->next < x->size && !p->c && next_piece(x, p, x->begun < x->asked || x->flying > 0)) {
			CUresult res = send(x, p);
			fail(x, res);
			if (res == 0) {
				x->asked++;
			} else {
				cw_chunk_put_busy(p->c, x->stream);
				p->c = NULL;
			}
			continue;
		}
		if (x->begun < x->asked) {
			p = &x->piece[x->begun++ % AHEAD];
			fail(x, cw_chunk_wait(p->c, x->stream, p->at + p->len < x->size ? CW_AMID : p->at > 0 ? CW_LAST : CW_ALONE));
			if (x->res == 0) {
				begin(x, p);
			} else {
				cw_chunk_renew(p->c);
				cw_chunk_put(p->c);
				p->c = NULL;
			}
			reap(x, 0);
			continue;
		}
		reap(x, 1);
	}
}

int cw_copy_extents(uint32_t direction, uint64_t device, const void *host, uint64_t size, uint32_t stream, CUresult *res)
{
	if (cw_likely(!wanted(direction, size)) || cw_extent_take() == 0)
		return 0;
	struct copy x = {.direction = direction, .stream = stream, .device = device, .size = size, .host = (uint8_t *)(uintptr_t)host};
	cw_staging_want(AHEAD);
	if (direction == CW_TO_DEVICE)
		to_device(&x);
	else
		from_device(&x);
	cw_extent_give();
	*res = x.res;
	return 1;
}

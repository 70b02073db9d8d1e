/*
 * What slices wait for, as streams. See streamorder.h. A stream may end before its work: nothing
 * can be recorded in it then. So before it does, a stream of the library's waits for that work and
 * stands for it, as long as somebody may want what is free behind it, or what was attached to it.
 */
#include <stdlib.h>

#include "api/capture.h"
#include "api/context.h"
#include "api/newstream.h"
#include "memory/memory.h"
#include "memory/streamorder.h"
#include "session/lock.h"

enum { NO_TIMING = 2 /* CU_EVENT_DISABLE_TIMING */, NON_BLOCKING = 1 /* CU_STREAM_NON_BLOCKING */, LEGACY = 1, PER_THREAD = 2 };

struct cw_behind cw_behind(uint32_t stream)
{
	/* Stands for the thread, whose own stream has the number of everybody's. */
	static _Thread_local char self;
	struct cw_stream *s = stream > PER_THREAD ? (struct cw_stream *)cw_handle_by_id(CW_KIND_STREAM, stream) : NULL;
	struct cw_behind b = {s ? s->o.ctx : cw_current_ctx_id(), stream, 0, 0};
	b.uid = s ? s->uid : stream == PER_THREAD ? (uintptr_t)&self : 0;
	return b;
}

/* Whether the stream can be recorded from here: it is there, and captures nothing. */
static int can_record(const struct cw_behind *b)
{
	struct cw_stream *s = (struct cw_stream *)cw_handle_by_id(CW_KIND_STREAM, b->stream);
	struct cw_ctx *c = (struct cw_ctx *)cw_handle_by_id(CW_KIND_CTX, b->ctx);
	int captures = 0;
	if (!c || atomic_load(&c->state) != CW_CTX_LIVE || b->stream == PER_THREAD || (b->stream > PER_THREAD && (!s || s->uid != b->uid)))
		return 0;
	return !cw_capture_any() || (cw_capture_status(b->stream, &captures) == 0 && !captures);
}

CUresult cw_order_behind(uint32_t stream, const struct cw_behind *b)
{
	uint32_t current = cw_current_ctx_id();
	struct cw_obj *e = can_record(b) ? cw_handle_new(CW_KIND_EVENT) : NULL;
	if (!e)
		return CUDA_ERROR_NOT_READY;
	e->ctx = b->ctx;
	cw_set_current_ctx_id(b->ctx);
	CUresult res = cwop_EventCreate(e->id, NO_TIMING);
	int made = res == 0;
	if (made)
		res = cwop_EventRecord(e->id, b->stream, 0);
	cw_set_current_ctx_id(current);
	if (res == 0)
		res = cwop_StreamWaitEvent(stream, e->id, 0);
	if (made)
		cwop_EventDestroy(e->id);
	cw_handle_free(CW_KIND_EVENT, e);
	return res;
}

/* --- streams that end ------------------------------------------------------------------------- */

/* One for each context whose streams have left something; its object ends with its context. Under
 * the lock, which is a leaf but for requests. */
struct heir {
	struct heir *next;
	struct cw_behind is;
};
static struct heir *heirs;
static struct cw_lock lock;

static int there(const struct cw_behind *b)
{
	const struct cw_stream *s = b->stream ? (const struct cw_stream *)cw_handle_by_id(CW_KIND_STREAM, b->stream) : NULL;
	return s && s->uid == b->uid;
}

/* In the current context. */
static struct heir *heir_of(uint32_t ctx)
{
	struct heir *h = heirs, *gone = NULL;
	for (; h && (h->is.ctx != ctx || !there(&h->is)); h = h->next)
		gone = there(&h->is) ? gone : h;
	if (h)
		return h;
	h = gone ? gone : calloc(1, sizeof *h);
	if (!h)
		return NULL;
	if (!gone) {
		h->next = heirs;
		heirs = h;
	}
	struct cw_stream *s;
	if (cw_stream_make(ctx, NON_BLOCKING, 0, &s) != 0)
		return NULL;
	h->is = (struct cw_behind){ctx, s->o.id, s->uid, 0};
	return h;
}

int cw_order_left(const struct cw_behind *from, struct cw_behind *to)
{
	uint32_t current = cw_current_ctx_id();
	int known = 0;
	*to = (struct cw_behind){0};
	if (!can_record(from))
		return 0;
	cw_set_current_ctx_id(from->ctx);
	if (!cw_capture_any()) {
		CUresult res = cwop_StreamQuery(from->stream);
		known = res == 0;
		/* With the answer comes what went wrong before, of whatever stream. */
		if (res != CUDA_ERROR_NOT_READY)
			cw_own_said(res);
	}
	cw_lock_acquire(&lock);
	struct heir *h = known ? NULL : heir_of(from->ctx);
	if (h && cw_order_behind(h->is.stream, from) == 0) {
		*to = h->is;
		known = 1;
	}
	cw_lock_release(&lock);
	cw_set_current_ctx_id(current);
	return known;
}

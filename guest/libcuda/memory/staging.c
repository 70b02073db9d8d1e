/*
 * Staging: regions of chunks, added when they are first needed: a small one first, which takes a
 * millisecond to make, larger ones for copies that keep more chunks in flight. A chunk is free,
 * taken by one thread, or busy with a copy whose completion word will say that it is free again. A
 * thread that holds a chunk never waits for another, so chunks cannot deadlock.
 */
#include <stdlib.h>
#include <string.h>

#include "memory/copypool.h"
#include "memory/memory.h"
#include "session/lock.h"

enum { FREE = 0, TAKEN, BUSY };
enum { POLL_NAPS = 40, SPIN_FACTOR = 8 };

static struct {
	struct cw_lock lock;
	struct cw_chunk chunk[CW_CHUNKS_MOST];
	uint32_t count; /* of chunks that are there */
	uint64_t uses;	/* uses that began */
	int adding;	/* a thread is adding a region */
	int exhausted;	/* the last attempt to add one failed */
} st;

_Static_assert(CW_CHUNKS_MOST < CW_WORD_COUNT, "one completion word a chunk");

static uint32_t word_of(const struct cw_chunk *c) { return atomic_load_explicit(cw_word(c->word), memory_order_acquire); }

/* Whether a chunk's copy has ended, well or not. */
static int done(const struct cw_chunk *c) { return (word_of(c) & ~CW_WORD_FAILED) == c->value; }

/* Looks for the end of a chunk's copy for a while, poll_done for longer amid others. Where cores
 * are plenty that is as long as a full window of chunks takes: a nap here and there halves a
 * pipeline's throughput. */
static int spin_done(const struct cw_chunk *c)
{
	uint32_t n = cw_spin_limit() * (cw_copypool_size() > 1 ? SPIN_FACTOR : 1);
	for (uint32_t i = 0; i < n; i++) {
		if (done(c))
			return 1;
		cw_pause();
	}
	return done(c);
}

static int poll_done(const struct cw_chunk *c, enum cw_among among)
{
	/* A worker of another machine answers later than any look is worth: the question for the
	 * end leaves with the copy, and is one answer with it. */
	if (among == CW_ALONE && !cw_can_map())
		return done(c);
	if (spin_done(c))
		return 1;
	for (int i = 0; i < POLL_NAPS && among == CW_AMID; i++) {
		struct timespec nap = {0, 20000};
		nanosleep(&nap, NULL);
		if (done(c))
			return 1;
	}
	return done(c);
}

void cw_chunk_renew(struct cw_chunk *c) { c->value = c->value + 1 < CW_WORD_FAILED ? c->value + 1 : 1; }

/* Under the lock: the first chunk that is free, or whose copy has ended. Always the first: the
 * bytes of chunks used again and again stay in the CPU's cache. */
static struct cw_chunk *find_free(void)
{
	for (uint32_t i = 0; i < st.count; i++) {
		struct cw_chunk *c = &st.chunk[i];
		if (c->state == FREE || (c->state == BUSY && done(c))) {
			c->state = TAKEN;
			cw_chunk_renew(c);
			return c;
		}
	}
	return NULL;
}

/* Under the lock: the busy chunk that was given out longest ago, on stream or (0) on any, and how
 * many there are. */
static struct cw_chunk *oldest_busy(uint32_t stream, uint32_t *count)
{
	struct cw_chunk *oldest = NULL;
	*count = 0;
	for (uint32_t i = 0; i < st.count; i++) {
		struct cw_chunk *c = &st.chunk[i];
		if (c->state != BUSY || (stream != 0 && c->stream != stream))
			continue;
		++*count;
		if (!oldest || c->use < oldest->use)
			oldest = c;
	}
	return oldest;
}

/* Under the lock, which is dropped meanwhile. */
static CUresult add_region(void)
{
	struct cw_region *r;
	uint32_t n = st.count == 0 ? CW_CHUNKS_FIRST : CW_CHUNKS - st.count % CW_CHUNKS;
	st.adding = 1;
	cw_lock_release(&st.lock);
	CUresult res = cw_region_add(CW_REGION_STAGING, (size_t)CW_CHUNK_SIZE * n, 0, &r);
	cw_lock_acquire(&st.lock);
	st.adding = 0;
	st.exhausted = res != 0;
	if (res != 0)
		return res;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = st.count + i;
		st.chunk[k] = (struct cw_chunk){
			.region = r->id, .offset = i * CW_CHUNK_SIZE, .word = k + 1, .mem = r->va + (size_t)i * CW_CHUNK_SIZE};
	}
	st.count += n;
	return 0;
}

/* Under the lock: whether there may be more chunks. */
static int may_grow(void) { return !st.adding && st.count < CW_CHUNKS_MOST && !(st.exhausted && st.count > 0); }

void cw_staging_want(uint32_t chunks)
{
	cw_lock_acquire(&st.lock);
	while (st.count < chunks && may_grow() && add_region() == 0)
		;
	cw_lock_release(&st.lock);
}

/* Waits, for as long as it takes, until the copy that uses a taken chunk has ended. An error of
 * that copy is for whoever synchronises with it. 0, or why the session is over. */
static CUresult reclaim(struct cw_chunk *c)
{
	if (poll_done(c, CW_AMID))
		return 0;
	/* Asked in the name of the thread that used it: its stream may be that thread's own, or
	 * destroyed since. */
	uint32_t thread = cw_thread_ordinal(), ctx = cw_current_ctx_id();
	cw_thread_as(c->thread, c->ctx);
	cw_own_wait(c->stream);
	if (!done(c))
		cwop_CtxSynchronize();
	cw_thread_as(thread, ctx);
	return done(c) ? 0 : cw_check_alive();
}

struct cw_chunk *cw_chunk_take(uint32_t stream, enum cw_patience patience, CUresult *res)
{
	*res = 0;
	cw_lock_acquire(&st.lock);
	for (;;) {
		struct cw_chunk *c = find_free();
		if (c || patience == CW_NO_WAIT) {
			cw_lock_release(&st.lock);
			return c;
		}
		/* More staging is for copies that would wait for other streams; one stream's own
		 * wait for its link to the GPU. */
		uint32_t count;
		struct cw_chunk *oldest = oldest_busy(stream, &count);
		if (count < CW_CHUNKS_FIRST && may_grow()) {
			*res = add_region();
			if (*res != 0 && st.count == 0) {
				cw_lock_release(&st.lock);
				return NULL;
			}
			*res = 0;
			continue;
		}
		if (!oldest)
			oldest = oldest_busy(0, &count);
		if (oldest)
			oldest->state = TAKEN; /* each waiter has a chunk of its own to wait for */
		cw_lock_release(&st.lock);
		if (oldest && patience == CW_SHORT_WAIT && !spin_done(oldest)) {
			cw_lock_acquire(&st.lock);
			oldest->state = BUSY;
			cw_lock_release(&st.lock);
			return NULL;
		}
		if (oldest) {
			*res = reclaim(oldest);
			if (*res == 0) {
				cw_chunk_renew(oldest);
				return oldest;
			}
			cw_chunk_put(oldest);
			return NULL;
		}
		struct timespec nap = {0, 20000};
		nanosleep(&nap, NULL);
		cw_lock_acquire(&st.lock);
	}
}

void cw_chunk_put(struct cw_chunk *c)
{
	cw_lock_acquire(&st.lock);
	c->state = FREE;
	cw_lock_release(&st.lock);
}

void cw_chunk_put_busy(struct cw_chunk *c, uint32_t stream)
{
	cw_lock_acquire(&st.lock);
	c->stream = stream;
	c->thread = cw_thread_ordinal();
	c->ctx = cw_current_ctx_id();
	c->use = ++st.uses;
	c->state = BUSY;
	cw_lock_release(&st.lock);
}

CUresult cw_chunk_wait(struct cw_chunk *c, uint32_t stream, enum cw_among among)
{
	if (poll_done(c, among) && word_of(c) == c->value)
		return 0;
	/* Long work is ahead of the copy, or the copy failed: the stream's end answers the one, the
	 * next reply says why of the other. */
	CUresult res = cw_own_wait(stream);
	if (res == 0 && word_of(c) == c->value)
		return 0;
	return res != 0 ? res : CUDA_ERROR_UNKNOWN;
}

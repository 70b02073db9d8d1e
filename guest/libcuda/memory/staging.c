/*
 * Staging: regions of 16 chunks each, added when they are first needed. A chunk is free, taken by one thread, or busy with a
 * copy whose completion word will say that it is free again. A thread that holds a chunk never waits for another, so chunks
 * cannot deadlock.
 */
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "session/lock.h"

enum { FREE = 0, TAKEN, BUSY };
enum { POLL_NAPS = 40 };

static struct {
	struct cw_lock lock;
	struct cw_chunk chunk[CW_STAGING_REGIONS * CW_CHUNKS];
	uint32_t regions; /* in use */
	uint32_t next;	  /* where the next search begins */
	int adding;	  /* a thread is adding a region */
	int exhausted;	  /* the last attempt to add one failed */
} st;

_Static_assert(CW_STAGING_REGIONS * CW_CHUNKS < CW_WORD_COUNT, "one completion word a chunk");

static int done(const struct cw_chunk *c)
{
	return atomic_load_explicit(cw_word(c->word), memory_order_acquire) == c->value;
}

/* Under the lock: a chunk that is free, or whose copy has ended. */
static struct cw_chunk *find_free(void)
{
	uint32_t n = st.regions * CW_CHUNKS;
	for (uint32_t i = 0; i < n; i++) {
		struct cw_chunk *c = &st.chunk[(st.next + i) % n];
		if (c->state == FREE || (c->state == BUSY && done(c))) {
			c->state = TAKEN;
			if (++c->value == 0)
				c->value = 1;
			st.next = (st.next + i + 1) % n;
			return c;
		}
	}
	return NULL;
}

/* Under the lock: the busy chunk that was given out longest ago. */
static struct cw_chunk *oldest_busy(void)
{
	uint32_t n = st.regions * CW_CHUNKS;
	for (uint32_t i = 0; i < n; i++) {
		struct cw_chunk *c = &st.chunk[(st.next + i) % n];
		if (c->state == BUSY)
			return c;
	}
	return NULL;
}

/* Under the lock, which is dropped meanwhile. */
static CUresult add_region(void)
{
	struct cw_region *r;
	st.adding = 1;
	cw_lock_release(&st.lock);
	CUresult res = cw_region_add(CW_REGION_STAGING, (size_t)CW_CHUNK_SIZE * CW_CHUNKS, 0, &r);
	cw_lock_acquire(&st.lock);
	st.adding = 0;
	st.exhausted = res != 0;
	if (res != 0)
		return res;
	for (uint32_t i = 0; i < CW_CHUNKS; i++) {
		uint32_t k = st.regions * CW_CHUNKS + i;
		st.chunk[k] = (struct cw_chunk){
			.region = r->id, .offset = i * CW_CHUNK_SIZE, .word = k + 1, .mem = r->va + (size_t)i * CW_CHUNK_SIZE};
	}
	st.regions++;
	return 0;
}

struct cw_chunk *cw_chunk_take(int may_wait, CUresult *res)
{
	*res = 0;
	cw_lock_acquire(&st.lock);
	for (;;) {
		struct cw_chunk *c = find_free();
		if (c || !may_wait) {
			cw_lock_release(&st.lock);
			return c;
		}
		if (!st.adding && st.regions < CW_STAGING_REGIONS && !(st.exhausted && st.regions > 0)) {
			*res = add_region();
			if (*res != 0 && st.regions == 0) {
				cw_lock_release(&st.lock);
				return NULL;
			}
			*res = 0;
			continue;
		}
		struct cw_chunk busy = {0}, *oldest = oldest_busy();
		if (oldest)
			busy = *oldest;
		cw_lock_release(&st.lock);
		if (oldest) {
			/* An error of that copy is for whoever synchronises with it; here the chunk only has to be unused. */
			if (cw_chunk_wait(&busy, busy.stream, 0) != 0 && (*res = cw_check_alive()) != 0)
				return NULL;
			cw_lock_acquire(&st.lock);
			if (oldest->state == BUSY && oldest->value == busy.value)
				oldest->state = FREE;
		} else {
			struct timespec nap = {0, 20000};
			nanosleep(&nap, NULL);
			cw_lock_acquire(&st.lock);
		}
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
	c->state = BUSY;
	cw_lock_release(&st.lock);
}

CUresult cw_chunk_wait(struct cw_chunk *c, uint32_t stream, int last)
{
	for (uint32_t i = 0, n = cw_spin_turns(); i < n; i++) {
		if (done(c))
			return 0;
		cw_pause();
	}
	for (int i = 0; i < POLL_NAPS && !last; i++) {
		struct timespec nap = {0, 20000};
		nanosleep(&nap, NULL);
		if (done(c))
			return 0;
	}
	/* Long work is ahead of the copy, or the copy failed before it began: the stream's end answers both. */
	CUresult res = cwop_StreamSynchronize(stream);
	if (done(c))
		return 0;
	return res != 0 ? res : CUDA_ERROR_UNKNOWN;
}

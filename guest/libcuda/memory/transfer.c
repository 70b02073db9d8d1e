/*
 * The two pipelines through staging. Several threads (copypool.h) move pieces between the
 * application's memory and chunks while the GPU copies other chunks; the bytes in flight stay few
 * enough for the CPU's last cache.
 */
#include <string.h>

#include "memory/copypool.h"
#include "memory/memory.h"
#include "memory/streaming.h"
#include "session/lock.h"

/*
 * Hands: streaming, a core moves 17 to 20 GB/s into staging and 23 out of it, the link to the GPU
 * some 50. More hands than that needs only wait for each other. A wake-up costs as much as 300 KiB
 * of copying, and as 160 KiB of pages that have to be made. A worker of another machine has the
 * network's speed.
 */
enum { WINDOW = CW_CHUNKS, MOST_UP = 4, MOST_FAR = 5, MOST_DOWN = 3 };
enum { PER_HAND_UP = 2, PER_HAND_FAR = 4, PER_HAND_DOWN = 4 /* pieces */ };

static uint32_t hands(uint64_t worth, uint32_t most)
{
	uint64_t n = worth > most ? most : worth;
	n = n > cw_copypool_size() ? cw_copypool_size() : n;
	return n == 0 ? 1 : (uint32_t)n;
}

/* --- to the device: a piece is moved, then sent, by the thread that picked it ----------------- */

struct upload {
	const struct cw_transfer *t;
	_Atomic uint64_t next;
	_Atomic uint32_t res; /* the first error */
};

static void failed(_Atomic uint32_t *res, CUresult why)
{
	uint32_t none = 0;
	if (why != 0)
		atomic_compare_exchange_strong(res, &none, (uint32_t)why);
}

/* Behind work that takes long helpers leave; the caller waits, and calls them back when chunks are
 * free again. */
static void upload(void *arg)
{
	struct upload *u = arg;
	const struct cw_transfer *t = u->t;
	while (atomic_load_explicit(&u->res, memory_order_relaxed) == 0 &&
	       atomic_load_explicit(&u->next, memory_order_relaxed) < t->pieces) {
		CUresult res = 0;
		struct cw_chunk *c = cw_chunk_take(t->stream, CW_SHORT_WAIT, &res);
		if (!c && res == 0) {
			if (cw_copypool_is_helper())
				return;
			c = cw_chunk_take(t->stream, CW_LONG_WAIT, &res);
			cw_copypool_recall(u);
		}
		uint64_t k = c ? atomic_fetch_add_explicit(&u->next, 1, memory_order_relaxed) : 0;
		if (c && k >= t->pieces) {
			cw_chunk_put(c);
			return;
		}
		if (c) {
			t->move(t->arg, k, c->mem);
			res = t->send(t->arg, k, c);
			cw_chunk_put_busy(c, t->stream);
		}
		failed(&u->res, res);
	}
}

void cw_chunk_fill(uint8_t *chunk, const void *from, uint64_t n)
{
	enum { LEAST = 4096 }; /* less gains less than its fence costs */
	if (n >= LEAST && cw_can_map())
		cw_copy_streaming(chunk, from, n);
	else
		memcpy(chunk, from, n);
}

uint32_t cw_transfer_hands(uint64_t pieces)
{
	return cw_can_map() ? hands(pieces / PER_HAND_UP, MOST_UP) : hands(pieces / PER_HAND_FAR, MOST_FAR);
}

CUresult cw_transfer_to_device(const struct cw_transfer *t)
{
	struct upload u = {.t = t};
	if (t->pieces >= 2 * CW_CHUNKS_FIRST)
		cw_staging_want(WINDOW);
	cw_copypool_run(t->hands ? t->hands : cw_transfer_hands(t->pieces), upload, &u);
	if (t->pieces > 1)
		cw_copypool_copied();
	return (CUresult)atomic_load(&u.res);
}

/* --- from the device: a window of chunks is asked for ahead; hands share the parts of the oldest,
 * and who moves the last part of one asks for the next piece with it
 * --------------------------------------------------------------------------------------------- */

/* A chunk and the piece that it is in flight with. */
struct flight {
	struct cw_chunk *c;
	uint32_t parts, taken, left;
};

struct download {
	const struct cw_transfer *t;
	struct cw_lock lock;
	struct flight fly[WINDOW];
	/* Piece k, of which next <= k < asked, is in order[k % WINDOW]: each of them holds a
	 * chunk. */
	struct flight *order[WINDOW];
	uint64_t asked, next; /* next: the oldest with parts that nobody took */
	CUresult res;
};

/* Under the lock: asks for the next piece with a chunk whose value is a fresh one, or gives the
 * chunk back. */
static void ask(struct download *d, struct flight *f)
{
	struct cw_chunk *c = f->c;
	const struct cw_transfer *t = d->t;
	if (d->res != 0 || d->asked == t->pieces) {
		cw_chunk_put(c);
		return;
	}
	d->res = t->send(t->arg, d->asked, c);
	if (d->res != 0) {
		cw_chunk_put_busy(c, t->stream);
		return;
	}
	f->parts = f->left = t->parts ? t->parts(t->arg, d->asked) : 1;
	f->taken = 0;
	d->order[d->asked++ % WINDOW] = f;
}

static void download(void *arg)
{
	struct download *d = arg;
	const struct cw_transfer *t = d->t;
	cw_lock_spin(&d->lock);
	while (d->next < d->asked) {
		uint64_t k = d->next;
		struct flight *f = d->order[k % WINDOW];
		struct cw_chunk *c = f->c;
		uint32_t part = f->taken++;
		CUresult res = d->res;
		if (f->taken == f->parts)
			d->next++;
		cw_lock_release(&d->lock);
		CUresult r = cw_chunk_wait(c, t->stream, t->pieces == 1 ? CW_ALONE : k + 1 == t->pieces ? CW_LAST : CW_AMID);
		if (r == 0 && res == 0 && t->move_part)
			t->move_part(t->arg, k, part, c->mem);
		else if (r == 0 && res == 0)
			t->move(t->arg, k, c->mem);
		cw_lock_spin(&d->lock);
		if (d->res == 0)
			d->res = r;
		if (--f->left == 0) {
			cw_chunk_renew(c);
			ask(d, f);
		}
	}
	cw_lock_release(&d->lock);
}

CUresult cw_transfer_from_device(const struct cw_transfer *t)
{
	struct download d = {.t = t};
	uint32_t n = t->fresh ? hands(t->pieces, UINT32_MAX) : hands(t->pieces / PER_HAND_DOWN, MOST_DOWN);
	uint32_t ahead = n == 1 ? WINDOW / 2 : WINDOW;
	if (t->pieces >= 2 * CW_CHUNKS_FIRST)
		cw_staging_want(ahead);
	for (uint32_t i = 0; i < ahead && d.res == 0 && d.asked < t->pieces; i++) {
		CUresult why;
		struct cw_chunk *c = cw_chunk_take(t->stream, i == 0 ? CW_LONG_WAIT : CW_NO_WAIT, &why);
		if (!c && i == 0)
			return why;
		if (!c)
			break;
		d.fly[i].c = c;
		ask(&d, &d.fly[i]);
	}
	/* What is ahead of the copy may take long: helpers begin when its first bytes are here. */
	if (n > 1 && d.asked > 0) {
		cw_copypool_rouse(n);
		cw_chunk_wait(d.fly[0].c, t->stream, CW_AMID);
	}
	cw_copypool_run(n, download, &d);
	return d.res;
}

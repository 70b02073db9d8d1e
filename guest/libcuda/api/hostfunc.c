/*
 * Host functions. The host knows them by numbers: index into a table that grows, and the generation
 * of the entry, so that a number that has become stale names nothing.
 */
#include "api/callback.h"
#include "api/capture.h"
#include "session/ahead.h"

#include <stdlib.h>

enum { CHUNK = 256, CHUNKS = 4096, NONE = 0xffffffff };

struct hostfn {
	union {
		CUhostFn fn;
		CUstreamCallback stream_fn;
	} call;
	void *data;
	CUstream stream;
	uint32_t generation;
	uint32_t next; /* of the free list */
	uint8_t live, keep, of_stream;
	uint32_t ahead; /* on a stream, once: cw_host_add */
};

static struct {
	struct cw_lock lock;
	struct hostfn *chunk[CHUNKS];
	uint32_t count; /* entries in all chunks */
	uint32_t free_; /* first free entry + 1; 0: none */
	_Atomic uint32_t kept;
} table;

static struct hostfn *at(uint32_t i) { return &table.chunk[i / CHUNK][i % CHUNK]; }

/* Under the lock. */
static struct hostfn *find(uint64_t id)
{
	uint32_t i = (uint32_t)id;
	struct hostfn *h = i < table.count ? at(i) : NULL;
	return h && h->live && h->generation == id >> 32 ? h : NULL;
}

static void end(struct hostfn *h, uint32_t i)
{
	h->live = 0;
	h->generation++;
	table.kept -= h->keep;
	h->next = table.free_;
	table.free_ = i + 1;
}

/* Under the lock: adds a chunk to the free list. */
static int grow(void)
{
	uint32_t n = table.count / CHUNK;
	struct hostfn *c = n < CHUNKS ? calloc(CHUNK, sizeof *c) : NULL;
	if (!c)
		return -1;
	table.chunk[n] = c;
	for (uint32_t i = CHUNK; i-- > 0;) {
		c[i].generation = 1;
		c[i].next = table.free_;
		table.free_ = table.count + i + 1;
	}
	table.count += CHUNK;
	return 0;
}

static CUresult add(const struct hostfn *f, uint64_t *id)
{
	CUresult res = cw_callbacks_open();
	if (res != 0)
		return res;
	cw_lock_acquire(&table.lock);
	if (table.free_ == 0 && grow() != 0) {
		cw_lock_release(&table.lock);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	uint32_t i = table.free_ - 1, generation = at(i)->generation;
	table.free_ = at(i)->next;
	*at(i) = *f;
	at(i)->generation = generation;
	at(i)->live = 1;
	table.kept += f->keep;
	*id = (uint64_t)generation << 32 | i;
	cw_lock_release(&table.lock);
	return CUDA_SUCCESS;
}

CUresult cw_hostfn_new(CUhostFn fn, void *data, int keep, uint64_t *id)
{
	struct hostfn f = {.call.fn = fn, .data = data, .keep = keep != 0};
	return add(&f, id);
}

CUresult cw_hostfn_new_stream(CUstreamCallback fn, CUstream stream, void *data, uint64_t *id)
{
	struct hostfn f = {.call.stream_fn = fn, .data = data, .stream = stream, .of_stream = 1};
	return add(&f, id);
}

void cw_hostfn_drop(uint64_t id)
{
	cw_lock_acquire(&table.lock);
	struct hostfn *h = find(id);
	if (h)
		end(h, (uint32_t)id);
	cw_lock_release(&table.lock);
}

int cw_hostfns_kept(void) { return atomic_load_explicit(&table.kept, memory_order_relaxed) != 0; }

int cw_hostfn_find(uint64_t id, CUhostFn *fn, void **data)
{
	cw_lock_acquire(&table.lock);
	const struct hostfn *h = find(id);
	int known = h && !h->of_stream;
	if (known) {
		*fn = h->call.fn;
		*data = h->data;
	}
	cw_lock_release(&table.lock);
	return known;
}

uint32_t cw_hostfn_run(uint64_t id, CUresult status)
{
	cw_lock_acquire(&table.lock);
	struct hostfn *h = find(id), f;
	if (h) {
		f = *h;
		if (!h->keep)
			end(h, (uint32_t)id);
	}
	cw_lock_release(&table.lock);
	if (!h)
		return 0;
	if (f.of_stream)
		f.call.stream_fn(f.stream, status, f.data);
	else
		f.call.fn(f.data);
	return f.ahead;
}

static CUresult enqueue(uint32_t stream, uint64_t id, uint32_t status)
{
	uint32_t ahead = cw_host_add(stream);
	cw_lock_acquire(&table.lock);
	struct hostfn *h = find(id);
	int once = h && !h->keep;
	if (once)
		h->ahead = ahead;
	cw_lock_release(&table.lock);
	if (!once) {
		cw_host_done(ahead);
		ahead = 0;
	}
	CUresult res = cw_settle(cwop_LaunchHostFunc(stream, id, status), stream);
	if (res != 0) {
		cw_hostfn_drop(id);
		cw_host_done(ahead);
	}
	return res;
}

CUresult cwi_cuLaunchHostFunc(int ptds, CUstream stream, CUhostFn fn, void *data)
{
	struct cw_ctx *c;
	uint32_t id;
	uint64_t callback;
	int keep = 0;
	CUresult res = cw_ctx_current(&c);
	if (res == 0)
		res = cw_stream_id(stream, ptds, &id);
	if (res == 0 && !fn)
		res = CUDA_ERROR_INVALID_VALUE;
	/* captured, it runs with each launch of each graph that the capture ends up in */
	if (res == 0 && cw_unlikely(cw_capture_any()))
		res = cw_capture_status(id, &keep);
	if (res == 0)
		res = cw_hostfn_new(fn, data, keep, &callback);
	return res ? res : enqueue(id, callback, 0);
}

CUresult cwi_cuStreamAddCallback(int ptds, CUstream stream, CUstreamCallback fn, void *data, unsigned int flags)
{
	struct cw_ctx *c;
	uint32_t id;
	uint64_t callback;
	CUresult res = cw_ctx_current(&c);
	if (res == 0)
		res = cw_stream_id(stream, ptds, &id);
	if (res == 0 && (!fn || flags != 0))
		res = CUDA_ERROR_INVALID_VALUE;
	if (res == 0)
		res = cw_hostfn_new_stream(fn, stream, data, &callback);
	return res ? res : enqueue(id, callback, 1);
}

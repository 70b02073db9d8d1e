/* Linear copies: which way a copy travels. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api/capture.h"
#include "memory/copypool.h"
#include "memory/extent.h"
#include "memory/resident.h"
#include "memory/streaming.h"
#include "session/ahead.h"

/* From here on what is copied to the application would drive more from the CPU's caches than it is
 * worth there. */
enum { STREAMING_LEAST = 4 << 20 };

struct linear {
	uint64_t device;
	uint8_t *host;
	uint64_t size, piece;
	uint32_t direction, stream;
	uint32_t hands; /* whose first pieces differ */
};

/* Pieces small enough that the memcpy of one overlaps the DMA of another, large enough that what
 * each costs the GPU, some 4 us, does not count. */
static uint64_t piece_size(uint64_t size)
{
	if (size <= 256 << 10)
		return size;
	return size < 2 << 20 ? 256 << 10 : size < 8 << 20 ? 512 << 10 : CW_CHUNK_SIZE;
}

/* Threads that begin together with pieces of one size come to the GPU together, which waits for the
 * first of them and is the longer behind the last. So their first pieces are parts of a piece, one
 * as much larger than the other: of four threads a quarter, a half and three quarters. */
static uint64_t nominal(const struct linear *l, uint64_t k)
{
	enum { PAGE = 4096 };
	return k + 1 < l->hands ? l->piece / l->hands * (k + 1) & ~(uint64_t)(PAGE - 1) : l->piece;
}

static uint64_t start(const struct linear *l, uint64_t k)
{
	uint64_t at = 0, i = 0;
	for (; i < k && i + 1 < l->hands; i++)
		at += nominal(l, i);
	return at + (k - i) * l->piece;
}

static uint64_t length(const struct linear *l, uint64_t k)
{
	uint64_t rest = l->size - start(l, k), n = nominal(l, k);
	return rest < n ? rest : n;
}

static uint64_t count(const struct linear *l)
{
	uint64_t first = l->hands - 1;
	return first + (l->size - start(l, first) + l->piece - 1) / l->piece;
}

/* How many threads copy to the device. A copy of less is over when a thread has woken, which costs
 * its caller as much as the thread would spare it: such copies are shared where they follow each
 * other, as helpers look for the next one for a while. */
static uint32_t hands_up(const struct linear *l)
{
	enum { WORTH_WAKING = 2 << 20 };
	uint32_t n = cw_transfer_hands(l->size / l->piece);
	return n > 1 && l->size < WORTH_WAKING && !cw_copypool_in_row() ? 1 : n;
}

static void move(const void *arg, uint64_t k, uint8_t *chunk)
{
	const struct linear *l = arg;
	cw_chunk_fill(chunk, l->host + start(l, k), length(l, k));
}

/* From the device: a part of a piece, so that the last piece's hands do not wait for one of
 * them. */
enum { PART = 256 << 10 };

static uint32_t parts(const void *arg, uint64_t k) { return (uint32_t)((length(arg, k) + PART - 1) / PART); }

static void move_part(const void *arg, uint64_t k, uint32_t part, uint8_t *chunk)
{
	const struct linear *l = arg;
	uint64_t at = (uint64_t)part * PART, rest = length(l, k) - at, n = rest < PART ? rest : PART;
	uint8_t *to = l->host + start(l, k) + at;
	if (l->size < STREAMING_LEAST)
		memcpy(to, chunk + at, n);
	else
		cw_copy_streaming(to, chunk + at, n);
}

static CUresult send(const void *arg, uint64_t k, const struct cw_chunk *c)
{
	const struct linear *l = arg;
	return cwop_MemcpyStaged(l->direction, c->region, c->offset, length(l, k), l->device + start(l, k), l->stream, c->word, c->value);
}

/* Whether most of a buffer's pages do not exist yet, by a look at some of them. */
static int is_fresh(const void *host, uint64_t size)
{
	enum { LOOKS = 8 };
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	int absent = 0;
	for (uint64_t i = 0; i < LOOKS; i++) {
		unsigned char there = 1;
		uint64_t at = ((uintptr_t)host + size / LOOKS * i + page) & ~(page - 1);
		absent += mincore((void *)(uintptr_t)at, page, &there) == 0 && !(there & 1);
	}
	return absent > LOOKS / 2;
}

static CUresult staged(uint32_t direction, uint64_t device, const void *host, uint64_t size, uint32_t stream)
{
	CUresult res;
	cw_host_before_copy();
	if (cw_copy_extents(direction, device, host, size, stream, &res))
		return res;
	struct linear l = {device, (uint8_t *)(uintptr_t)host, size, piece_size(size), direction, stream, 1};
	struct cw_transfer t = {.stream = stream, .move = move, .send = send, .arg = &l};
	if (direction == CW_TO_DEVICE)
		t.hands = hands_up(&l);
	if (t.hands > 1 && cw_can_map())
		l.hands = t.hands;
	t.pieces = count(&l);
	t.parts = parts;
	t.move_part = move_part;
	t.fresh = direction == CW_FROM_DEVICE && size >= STREAMING_LEAST && is_fresh(host, size);
	return direction == CW_TO_DEVICE ? cw_transfer_to_device(&t) : cw_transfer_from_device(&t);
}

CUresult cw_copy_landed(CUresult res, uint64_t size, uint32_t stream, int wait)
{
	if (res != 0 || !wait || size <= CW_EARLY_MOST)
		return res;
	return cw_own_wait(stream);
}

static CUresult to_device(uint64_t dst, const void *src, uint64_t size, uint32_t stream, int wait)
{
	CUresult res = cw_copy_begin(stream, wait);
	if (res != 0)
		return res;
	if (size <= CW_MAX_INLINE_DATA)
		return cwop_MemcpyHtoD(dst, stream, src, size);
	return cw_copy_landed(staged(CW_TO_DEVICE, dst, src, size, stream), size, stream, wait);
}

/* A few bytes travel inside the reply: as a span, or, from a GPU that answered by itself, at the
 * start of its payload. */
static CUresult inside_reply(void *dst, uint64_t src, uint32_t size, uint32_t stream)
{
	struct cw_tx tx;
	struct cw_reply rep;
	struct cw_in_MemcpyDtoH in = {.src = src, .size = size, .stream = stream};
	struct cw_span span = {size, 0};
	CUresult res = cw_begin(&tx, CW_OP_MEMCPY_DTO_H, sizeof in, 0, 1);
	if (res != 0)
		return res;
	memcpy(tx.rec + sizeof(struct cw_record), &in, sizeof in);
	res = cw_commit_wait(&tx, &rep);
	if (res != 0)
		return res;
	res = rep.result;
	if (res == 0 && rep.len >= sizeof span)
		memcpy(&span, rep.data, sizeof span);
	if (res == 0 && (span.len != size || (rep.len > 0 && (span.off > rep.len || size > rep.len - span.off))))
		res = CUDA_ERROR_UNKNOWN;
	if (res == 0)
		memcpy(dst, rep.data + span.off, size);
	cw_reply_release(&rep);
	return res;
}

static CUresult from_device(void *dst, uint64_t src, uint64_t size, uint32_t stream)
{
	uint64_t work = cw_work();
	if (size <= CW_INLINE_REPLY)
		return cw_came(inside_reply(dst, src, (uint32_t)size, stream), stream, work);
	return cw_waited(staged(CW_FROM_DEVICE, src, dst, size, stream), stream, work);
}

static CUresult copy(const struct cw_operand *dst, const struct cw_operand *src, uint64_t size, uint32_t stream, int wait)
{
	if (cw_unlikely(cw_capture_any())) {
		int pageable;
		CUresult res = cw_capture_copy(stream, dst->worker && src->worker, wait, &pageable);
		if (res != 0 || pageable)
			return res != 0 ? res : cw_capture_pageable(dst, src, size, stream);
	}
	if (dst->worker && src->worker) {
		/* Between device addresses even the synchronous form does not wait (CUDA driver
		 * API, "API synchronization behavior"). */
		if (wait && !(dst->device && src->device)) {
			uint64_t work = cw_work();
			return cw_waited(cwop_MemcpyWait(dst->addr, src->addr, size, stream), stream, work);
		}
		return cwop_Memcpy(dst->addr, src->addr, size, stream);
	}
	if (dst->device)
		return to_device(dst->addr, (const void *)(uintptr_t)src->addr, size, stream, wait);
	if (src->device)
		return from_device((void *)(uintptr_t)dst->addr, src->addr, size, stream);
	/* Host to host, one side perhaps pinned (whose address is the same on both sides): after
	 * what the stream still does. */
	CUresult res = cw_own_wait(stream);
	if (res == 0)
		memmove((void *)(uintptr_t)dst->addr, (const void *)(uintptr_t)src->addr, size);
	return res;
}

/* Where pieces of managed memory meet. */
static CUresult cut(const struct cw_operand *dst, const struct cw_operand *src, uint64_t size, uint32_t stream, int wait)
{
	struct cw_operand d = *dst, s = *src;
	CUresult res = CUDA_SUCCESS;
	for (uint64_t n; size > 0 && res == 0; size -= n, d.addr += n, s.addr += n) {
		uint64_t to = cw_operand_reach(&d, d.addr), from = cw_operand_reach(&s, s.addr);
		n = size < to ? size : to;
		n = n < from ? n : from;
		res = copy(&d, &s, n, stream, wait);
	}
	return res;
}

CUresult cw_copy_linear(const struct cw_operand *dst, const struct cw_operand *src, uint64_t size, uint32_t stream, int wait)
{
	if (size == 0)
		return CUDA_SUCCESS;
	CUresult res = cw_operands_use(dst, src);
	if (res == 0)
		res = cw_unlikely(dst->area || src->area) ? cut(dst, src, size, stream, wait) : copy(dst, src, size, stream, wait);
	cw_operands_done(dst, src);
	return res;
}

/* How a copy through staging is cut and shared, without threads: every byte travels once, the
 * threads' first pieces differ to the GPU where it is of this machine, and small copies are shared
 * only in a row. */
#include <stdlib.h>
#include <string.h>

#include "session/tests/check.h"

#include "memory/linear.c"

/* What other ways of a copy need, none of which is gone here. */
_Atomic uint32_t cw_captures;
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define NOT_HERE(what) \
	what { abort(); }
NOT_HERE(CUresult cw_begin(struct cw_tx *tx, uint16_t op, uint32_t fixed_size, uint32_t var_size, int reply))
NOT_HERE(CUresult cw_commit_wait(struct cw_tx *tx, struct cw_reply *rep))
NOT_HERE(void cw_reply_release(struct cw_reply *rep))
NOT_HERE(CUresult cw_came(CUresult res, uint32_t stream, uint64_t work))
NOT_HERE(CUresult cw_waited(CUresult res, uint32_t stream, uint64_t work))
NOT_HERE(CUresult cw_own_wait(uint32_t stream))
NOT_HERE(void cw_chunk_fill(uint8_t *chunk, const void *from, uint64_t n))
NOT_HERE(CUresult cw_copy_begin(uint32_t stream, int wait))
NOT_HERE(uint64_t cw_work(void))
NOT_HERE(CUresult cw_capture_copy(uint32_t stream, int direct, int wait, int *pageable))
NOT_HERE(CUresult cw_capture_pageable(const struct cw_operand *dst, const struct cw_operand *src, size_t size, uint32_t stream))
NOT_HERE(uint64_t cw_operand_reach(const struct cw_operand *side, uint64_t addr))
NOT_HERE(CUresult cw_operands_use_area(const struct cw_operand *dst, const struct cw_operand *src))
NOT_HERE(void cw_operands_done_area(const struct cw_operand *dst))
NOT_HERE(CUresult cwop_Memcpy(uint64_t dst, uint64_t src, uint64_t size, uint32_t stream))
NOT_HERE(CUresult cwop_MemcpyWait(uint64_t dst, uint64_t src, uint64_t size, uint32_t stream))
NOT_HERE(CUresult cwop_MemcpyHtoD(uint64_t dst, uint32_t stream, const void *src, size_t src_len))

void cw_host_before_copy(void) {}
int cw_copy_extents(uint32_t direction, uint64_t device, const void *host, uint64_t size, uint32_t stream, CUresult *res)
{
	(void)direction, (void)device, (void)host, (void)size, (void)stream, (void)res;
	return 0;
}

static int can_map, in_row;
const struct cw_info *cw_session_info(void)
{
	static struct cw_info info;
	info.caps = can_map ? CW_CAP_MAP : 0;
	return &info;
}

static uint32_t threads; /* what cw_transfer_hands may give */
static struct {
	uint32_t direction, hands, pieces;
	uint64_t device, end; /* where the next piece begins; the copy's end */
	uint64_t size[4096];
} seen;

int cw_copypool_in_row(void) { return in_row; }
uint32_t cw_transfer_hands(uint64_t pieces)
{
	uint64_t n = pieces / 2;
	return n == 0 ? 1 : n < threads ? (uint32_t)n : threads;
}

/* Sends the pieces in their order. */
static CUresult transfer(const struct cw_transfer *t)
{
	struct cw_chunk c = {.region = 3, .offset = 4096, .word = 2, .value = 9};
	seen.hands = t->hands;
	CHECK(t->pieces <= sizeof seen.size / sizeof seen.size[0] && t->stream == 5);
	for (uint64_t k = 0; k < t->pieces; k++)
		CHECK(t->send(t->arg, k, &c) == 0);
	CHECK(seen.pieces == t->pieces && seen.device == seen.end);
	return CUDA_SUCCESS;
}
CUresult cw_transfer_to_device(const struct cw_transfer *t) { return transfer(t); }
CUresult cw_transfer_from_device(const struct cw_transfer *t) { return transfer(t); }

CUresult cwop_MemcpyStaged(uint32_t direction, uint32_t region, uint64_t offset, uint64_t size, uint64_t device, uint32_t stream,
			   uint32_t word, uint32_t value)
{
	CHECK(region == 3 && offset == 4096 && stream == 5 && word == 2 && value == 9 && direction == seen.direction);
	CHECK(size > 0 && size <= CW_CHUNK_SIZE && device == seen.device && size <= seen.end - device);
	seen.size[seen.pieces++] = size;
	seen.device += size;
	return CUDA_SUCCESS;
}

static void cut_up(uint32_t direction, uint64_t size)
{
	memset(&seen, 0, sizeof seen);
	seen.direction = direction;
	seen.device = 0x7000000000ull;
	seen.end = seen.device + size;
	CHECK(staged(direction, seen.device, &seen, size, 5) == 0);
}

/* All pieces but the last are as large as the copy's, from the first on. */
static void equal(uint32_t from)
{
	for (uint32_t k = from; k + 1 < seen.pieces; k++)
		CHECK(seen.size[k] == seen.size[from]);
	CHECK(seen.size[seen.pieces - 1] <= seen.size[from]);
}

static void shared(uint64_t size, uint32_t hands)
{
	cut_up(CW_TO_DEVICE, size);
	CHECK(seen.hands == hands && seen.pieces > hands);
	uint64_t whole = seen.size[hands - 1];
	for (uint32_t k = 0; k + 1 < hands; k++) /* in even steps, up to a page */
		CHECK(seen.size[k] <= whole * (k + 1) / hands && seen.size[k] + 4096 * (k + 2) > whole * (k + 1) / hands);
	equal(hands - 1);
}

int main(void)
{
	static const uint64_t sizes[] = {16 << 10,    256 << 10,	 (256 << 10) + 1, 1 << 20,  (1 << 20) + 5,  (2 << 20) - 1,
					 2 << 20,     4 << 20,		 (8 << 20) + 1,	  16 << 20, (16 << 20) - 1, (18 << 20) + 12345,
					 64ull << 20, (256ull << 20) + 3};
	for (int i = 0; i < 4; i++)
		for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
			for (threads = 1; threads <= 7; threads++) {
				can_map = i & 1;
				in_row = i >> 1;
				cut_up(CW_TO_DEVICE, sizes[s]);
				cut_up(CW_FROM_DEVICE, sizes[s]);
				equal(0);
			}
	threads = 6;
	can_map = in_row = 1;
	shared(1 << 20, 2);
	shared(2 << 20, 2);
	shared(4 << 20, 4);
	shared(16 << 20, 6);
	shared((64ull << 20) + 1, 6);
	in_row = 0; /* who would have to be woken for a small copy sleeps on */
	cut_up(CW_TO_DEVICE, 1 << 20);
	CHECK(seen.hands == 1);
	equal(0);
	shared(2 << 20, 2);
	can_map = 0; /* across a network pieces come as fast as it has room for them */
	cut_up(CW_TO_DEVICE, 16 << 20);
	CHECK(seen.hands == 6 && seen.size[0] == CW_CHUNK_SIZE);
	equal(0);
	puts("linear_test ok");
	return 0;
}

/*
 * Slices of memory that a pool has had in larger pieces (stocks), with what they wait for: a slice
 * that was freed in stream order may be used at once in that stream, and elsewhere when that stream
 * has come to the free. Nothing here makes a request or takes a lock.
 */
#ifndef CW_MEMORY_SLICES_H
#define CW_MEMORY_SLICES_H

#include "memory/memory.h"

#pragma GCC visibility push(hidden)

enum { CW_SLICE = 512 /* slices are multiples of it */ };

/* The work that a slice is free behind: all that the stream was given before free number `when`.
 * stream 0: none. */
struct cw_behind {
	uint32_t ctx, stream;
	uint64_t uid; /* of the stream: ids are given out again */
	uint64_t when;
};

struct cw_stock {
	struct cw_stock *next;
	struct cw_range range; /* what it stands for */
	uint64_t size;
	struct cw_slice *first;
};

struct cw_slice {
	struct cw_slice *before, *after; /* in the order of addresses */
	struct cw_stock *of;
	uint64_t base, size;
	struct cw_behind behind;
	uint8_t used;
};

struct cw_slices {
	struct cw_stock *all;
	uint64_t reserved, used; /* bytes */
};

/* A stock of [range->base, +size), all of it free. NULL: no memory. */
struct cw_stock *cw_slices_add(struct cw_slices *s, const struct cw_range *range, uint64_t size);
/* The smallest free slice of at least size bytes that the stream may use; others: that another
 * stream may have to be waited for. */
struct cw_slice *cw_slices_find(const struct cw_slices *s, uint64_t size, const struct cw_behind *stream, int others);
/* Takes size bytes from the beginning of a free slice; the rest is a slice of its own, if there is
 * memory to know it. */
void cw_slices_take(struct cw_slices *s, struct cw_slice *x, uint64_t size);
/* Gives a slice back, free behind what is said. */
void cw_slices_give(struct cw_slices *s, struct cw_slice *x, const struct cw_behind *behind);
/* A stream (all of the context's: 0) has come past free number `when`. */
void cw_slices_settle(struct cw_slices *s, const struct cw_behind *passed);
/* Whether some are free behind that stream; and has them be free behind another, or (stream 0) at
 * once. */
int cw_slices_behind(const struct cw_slices *s, const struct cw_behind *stream);
void cw_slices_inherit(struct cw_slices *s, const struct cw_behind *from, const struct cw_behind *to);
/* Takes out a stock that is free and waits for nothing, of at most `most` bytes. NULL: there is
 * none. The caller frees it. */
struct cw_stock *cw_slices_remove(struct cw_slices *s, uint64_t most);

static inline int cw_behind_same(const struct cw_behind *a, const struct cw_behind *b)
{
	return a->stream == b->stream && (a->stream == 0 || (a->ctx == b->ctx && a->uid == b->uid));
}

#pragma GCC visibility pop
#endif

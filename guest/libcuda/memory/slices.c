/* See slices.h. */
#include <stdlib.h>

#include "memory/slices.h"

struct cw_stock *cw_slices_add(struct cw_slices *s, const struct cw_range *range, uint64_t size)
{
	struct cw_stock *k = calloc(1, sizeof *k);
	struct cw_slice *x = calloc(1, sizeof *x);
	if (!k || !x) {
		free(k);
		free(x);
		return NULL;
	}
	*x = (struct cw_slice){.of = k, .base = range->base, .size = size};
	*k = (struct cw_stock){.next = s->all, .range = *range, .size = size, .first = x};
	s->all = k;
	s->reserved += size;
	return k;
}

static int may_use(const struct cw_slice *x, const struct cw_behind *stream, int others)
{
	return x->behind.stream == 0 || others || cw_behind_same(&x->behind, stream);
}

struct cw_slice *cw_slices_find(const struct cw_slices *s, uint64_t size, const struct cw_behind *stream, int others)
{
	struct cw_slice *best = NULL;
	for (const struct cw_stock *k = s->all; k; k = k->next)
		for (struct cw_slice *x = k->first; x; x = x->after)
			if (!x->used && x->size >= size && (!best || x->size < best->size) && may_use(x, stream, others))
				best = x;
	return best;
}

void cw_slices_take(struct cw_slices *s, struct cw_slice *x, uint64_t size)
{
	struct cw_slice *rest = size < x->size ? calloc(1, sizeof *rest) : NULL;
	if (rest) {
		*rest = (struct cw_slice){
			.before = x, .after = x->after, .of = x->of, .base = x->base + size, .size = x->size - size, .behind = x->behind};
		if (x->after)
			x->after->before = rest;
		x->after = rest;
		x->size = size;
	}
	x->used = 1;
	s->used += x->size;
}

/* Two neighbours that are free behind the same become one, behind the later. */
static void join(struct cw_slice *a, struct cw_slice *b)
{
	if (!a || !b || a->used || b->used || !cw_behind_same(&a->behind, &b->behind))
		return;
	if (b->behind.when > a->behind.when)
		a->behind.when = b->behind.when;
	a->size += b->size;
	a->after = b->after;
	if (b->after)
		b->after->before = a;
	free(b);
}

void cw_slices_give(struct cw_slices *s, struct cw_slice *x, const struct cw_behind *behind)
{
	struct cw_slice *before = x->before;
	x->used = 0;
	x->behind = *behind;
	s->used -= x->size;
	join(x, x->after);
	join(before, x);
}

static void join_all(struct cw_stock *k)
{
	for (struct cw_slice *x = k->first; x; x = x->after)
		while (x->after && !x->used && !x->after->used && cw_behind_same(&x->behind, &x->after->behind))
			join(x, x->after);
}

void cw_slices_settle(struct cw_slices *s, const struct cw_behind *passed)
{
	for (struct cw_stock *k = s->all; k; k = k->next) {
		for (struct cw_slice *x = k->first; x; x = x->after)
			if (!x->used && x->behind.ctx == passed->ctx && x->behind.when <= passed->when &&
			    (passed->stream == 0 || cw_behind_same(&x->behind, passed)))
				x->behind = (struct cw_behind){0};
		join_all(k);
	}
}

static int waits_for(const struct cw_slice *x, const struct cw_behind *stream)
{
	return !x->used && x->behind.stream != 0 && cw_behind_same(&x->behind, stream);
}

int cw_slices_behind(const struct cw_slices *s, const struct cw_behind *stream)
{
	for (const struct cw_stock *k = s->all; k; k = k->next)
		for (const struct cw_slice *x = k->first; x; x = x->after)
			if (waits_for(x, stream))
				return 1;
	return 0;
}

void cw_slices_inherit(struct cw_slices *s, const struct cw_behind *from, const struct cw_behind *to)
{
	for (struct cw_stock *k = s->all; k; k = k->next) {
		for (struct cw_slice *x = k->first; x; x = x->after)
			if (waits_for(x, from))
				x->behind = (struct cw_behind){to->ctx, to->stream, to->uid, to->stream ? x->behind.when : 0};
		join_all(k);
	}
}

struct cw_stock *cw_slices_remove(struct cw_slices *s, uint64_t most)
{
	for (struct cw_stock **p = &s->all; *p; p = &(*p)->next) {
		struct cw_stock *k = *p;
		if (k->size > most || k->first->used || k->first->after || k->first->behind.stream != 0)
			continue;
		*p = k->next;
		s->reserved -= k->size;
		free(k->first);
		return k;
	}
	return NULL;
}

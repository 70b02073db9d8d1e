/* Pieces of managed memory: between pieces.c (allocations) and shift.c (changes of places). Under
 * the resident lock, but for what says otherwise. */
#ifndef CW_MEMORY_PIECES_H
#define CW_MEMORY_PIECES_H

#include "memory/resident.h"

#pragma GCC visibility push(hidden)

/* What a driver gives at an address that it is asked for: it takes host addresses for its
 * reservations in blocks of so many bytes, nothing else finds room in one of which it has a part,
 * and what is smaller it puts among its process's own mappings, whatever was asked for (580;
 * scripts/bench/probe/reserve.c). */
enum { CW_PIECE_BLOCK = 32 << 20 };

/* Bytes of a group. No lock. */
static inline uint64_t cw_group_size(const struct cw_group *g)
{
	const struct cw_area *last = g->all[g->count - 1];
	return (uint64_t)last->index * g->piece + last->backed;
}

/* Bytes of addresses that so many bytes of a group have: whole blocks, but where the program has
 * chosen smaller pieces. No lock. */
static inline uint64_t cw_span(const struct cw_group *g, uint64_t size)
{
	return g->piece % CW_PIECE_BLOCK ? size : (size + CW_PIECE_BLOCK - 1) & ~(uint64_t)(CW_PIECE_BLOCK - 1);
}
static inline uint64_t cw_group_span(const struct cw_group *g) { return cw_span(g, cw_group_size(g)); }
static inline uint64_t cw_piece_span(const struct cw_area *a) { return cw_span(a->group, a->backed); }

/* A reservation for each piece that has device memory, in place of one for all. */
CUresult cw_group_cut(struct cw_group *g);
/* A piece that never was at the GPU and that nobody knows yet begins here. */
CUresult cw_piece_begin(struct cw_area *a);
/* The worker lets go of a piece that lies here. No lock, if the piece is not in the list. */
void cw_piece_leave(struct cw_area *a);
/* Bytes of this machine's memory that are left to others. */
#define CW_SPARE (64ull << 20)

/* Where pieces lie for which the GPU has no room: in memory of the worker's machine (beyond.c);
 * else in this process's. The same for as long as the process lives. No lock. */
int cw_beyond_far(void);
/* Device memory for it that is not the GPU's but of that machine's; that it was released; and
 * whether there was some when it was asked for last, or that is long ago. No lock. */
CUresult cw_beyond_create(struct cw_area *a);
void cw_beyond_released(const struct cw_area *a);
int cw_beyond_room(void);
/* Other device memory in its place, of the GPU's or not. The GPU has done with it. */
CUresult cw_piece_beyond(struct cw_area *a, int beyond);
/* It is about to be freed. No lock. */
void cw_piece_end(const struct cw_area *a);

#pragma GCC visibility pop
#endif

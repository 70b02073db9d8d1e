/*
 * How much launches named a piece of managed memory lately: each warms it, all cool with each
 * launch. One piece takes another's place at the GPU if it is much warmer, which takes several
 * launches that named the one and not the other: to change the places of two costs what three
 * (copies alone) to 14 (with the pages that they take, H100) kernels cost that read and write one
 * over the link. Others of the same allocation come along at once if they are warmer at all, for a
 * launch that names one means all behind it.
 */
#ifndef CW_MEMORY_WARMTH_H
#define CW_MEMORY_WARMTH_H

#include <stdint.h>

enum { CW_WARM = 256, CW_COOLER = 14 /* sixteenths, with each launch */, CW_MUCH_WARMER = 2 * CW_WARM, CW_WISHED = 2 * 8 * CW_WARM };

struct cw_warmth {
	uint64_t launch; /* the last that warmed it */
	uint32_t heat;	 /* then */
	uint32_t by;	 /* by so much */
};

static inline uint32_t cw_heat(const struct cw_warmth *w, uint64_t launch)
{
	uint64_t h = w->heat;
	for (uint64_t n = launch - w->launch; n > 0 && h > 0; n--)
		h = h * CW_COOLER / 16;
	return (uint32_t)h;
}

/* At most once for a launch, by the most that it says. */
static inline void cw_warm(struct cw_warmth *w, uint64_t launch, uint32_t by)
{
	uint32_t before = cw_heat(w, launch) - (w->launch == launch ? w->by : 0);
	if (w->launch == launch && w->by > by)
		by = w->by;
	*w = (struct cw_warmth){launch, before + by, by};
}

/* By how much a launch warms piece i of count in all, if it names piece first: what lies behind
 * that one may be meant too, a little less. */
static inline uint32_t cw_warm_by(uint32_t i, uint32_t first, uint32_t count)
{
	return CW_WARM - (uint32_t)((uint64_t)CW_WARM / 4 * (i - first) / (count - first));
}

static inline int cw_warmer(uint32_t heat, uint32_t than, uint32_t by) { return heat >= than + by && 4ull * heat >= 5ull * than; }
static inline int cw_much_warmer(uint32_t heat, uint32_t than) { return cw_warmer(heat, than, CW_MUCH_WARMER); }

#endif

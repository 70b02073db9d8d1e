/*
 * Between copies (memory/extent.c) and the carrier of a VM. One transfer of the process has extents
 * at a time: from take to give.
 */
#ifndef CW_SESSION_EXTENT_H
#define CW_SESSION_EXTENT_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { CW_EXTENTS = 16 }; /* in flight at most */

/* A request that has ended: the bytes that the host copied, or -errno. */
struct cw_extent_end {
	void *tag;
	int64_t res;
};

/* The bytes that one FUSE request carries, longer ones become several; 0: the carrier has no
 * extents, or another thread uses them. */
uint32_t cw_extent_take(void);
void cw_extent_give(void);
/* Whether the kernel pins pages so that a fork during a READ cannot part them from this process:
 * Linux 6.9 and newer. */
int cw_extent_pins(void);
/* Begins copying between p and a region, and returns. -errno: it has not begun. */
int cw_extent_submit(uint32_t region, uint32_t offset, void *p, uint32_t len, int to_region, void *tag);
/* What has ended since, at most CW_EXTENTS; waits for one if asked to. -errno. */
int cw_extent_reap(struct cw_extent_end *ends, int most, int wait);

#pragma GCC visibility pop
#endif

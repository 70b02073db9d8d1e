/* What this process has mapped. */
#ifndef CW_MEMORY_MAPPINGS_H
#define CW_MEMORY_MAPPINGS_H

#include <stdint.h>
#include <sys/ioctl.h>

#pragma GCC visibility push(hidden)

/* Whether all of [at, at+size) is mapped, to be read and written: the program may have protected
 * some of it. Linux tells one mapping at a time from 6.11 on; before, all that lie below are looked
 * at, 0.3 us each. */
int cw_mapped_plainly(uint64_t at, uint64_t size);

#pragma GCC visibility pop

/* struct procmap_query of linux/fs.h: what Linux 6.11 says of one mapping. */
struct cw_mapping_query {
	uint64_t size, flags, addr; /* in */
	uint64_t lo, hi, vma_flags, page_size, at, inode;
	uint32_t major, minor;
	uint32_t name_size, build_id_size; /* in, out */
	uint64_t name, build_id;	   /* in */
};
_Static_assert(sizeof(struct cw_mapping_query) == 104, "PROCMAP_QUERY");

/* Flags of a query. With one of the first three it is for such a mapping alone. */
enum { CW_VMA_READABLE = 1, CW_VMA_WRITABLE = 2, CW_VMA_SHARED = 8, CW_QUERY_OR_NEXT = 0x10 };

/* Asks an open /proc/self/maps. 0, or -1 and errno: ENOENT says that there is no such mapping. */
static inline int cw_mapping_ask(int maps, struct cw_mapping_query *q)
{
	q->size = sizeof *q;
	return ioctl(maps, _IOWR('f', 17, struct cw_mapping_query), q);
}

#endif

/* What this process has mapped. */
#ifndef CW_MEMORY_MAPPINGS_H
#define CW_MEMORY_MAPPINGS_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Whether all of [at, at+size) is mapped, to be read and written: the program may have protected
 * some of it. Linux tells one mapping at a time from 6.11 on; before, all that lie below are looked
 * at, 0.3 us each. */
int cw_mapped_plainly(uint64_t at, uint64_t size);

#pragma GCC visibility pop
#endif

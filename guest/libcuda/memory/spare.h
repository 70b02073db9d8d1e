/* How much memory this process may yet have: the machine's, and what a container or a service was
 * given of it. */
#ifndef CW_MEMORY_SPARE_H
#define CW_MEMORY_SPARE_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Bytes; UINT64_MAX where nobody says. The page cache counts as spare. */
uint64_t cw_memory_spare(void);
/* All that there is, spare or not. Asked once. */
uint64_t cw_memory_all(void);

#pragma GCC visibility pop
#endif

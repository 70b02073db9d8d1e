/* XXH64 with seed 0 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md): finds accidents, at the speed
 * of memory. No defence against intent. */
#ifndef CW_CACHE_XXH64_H
#define CW_CACHE_XXH64_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

uint64_t cw_xxh64(const void *data, size_t len);

#pragma GCC visibility pop
#endif

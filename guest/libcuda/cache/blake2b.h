/* BLAKE2b (RFC 7693) without a key, 32 bytes of digest. */
#ifndef CW_CACHE_BLAKE2B_H
#define CW_CACHE_BLAKE2B_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { CW_DIGEST = 32 };

struct cw_blake2b {
	uint64_t h[8];
	uint64_t count; /* bytes before buf */
	uint8_t buf[128];
	size_t fill;
};

void cw_blake2b_init(struct cw_blake2b *b);
void cw_blake2b_add(struct cw_blake2b *b, const void *data, size_t len);
void cw_blake2b_end(struct cw_blake2b *b, uint8_t digest[CW_DIGEST]);

#pragma GCC visibility pop
#endif

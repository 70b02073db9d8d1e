/* RFC 7693, section 3, for messages below 2^64 bytes. */
#include "cache/blake2b.h"

#include <string.h>

enum { BLOCK = 128, ROUNDS = 12 };

static const uint64_t iv[8] = {
	0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
	0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

/* Which words a round mixes in; rounds 10 and 11 repeat the first two. */
static const uint8_t sigma[10][16] = {
	{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
	{11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
	{9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
	{12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
	{6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static inline uint64_t turn(uint64_t v, int n) { return v >> n | v << (64 - n); }

#define MIX(a, b, c, d, x, y) \
	do { \
		a += b + (x), d = turn(d ^ a, 32), c += d, b = turn(b ^ c, 24); \
		a += b + (y), d = turn(d ^ a, 16), c += d, b = turn(b ^ c, 63); \
	} while (0)

static void compress(struct cw_blake2b *b, const uint8_t *block, uint64_t count, uint64_t last)
{
	uint64_t m[16], v[16];

	memcpy(m, block, BLOCK); /* words are little-endian, as this library's machines are */
	for (int i = 0; i < 8; i++)
		v[i] = b->h[i], v[i + 8] = iv[i];
	v[12] ^= count;
	v[14] ^= last;
	for (int r = 0; r < ROUNDS; r++) {
		const uint8_t *s = sigma[r % 10];

		MIX(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
		MIX(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
		MIX(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
		MIX(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
		MIX(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
		MIX(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
		MIX(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
		MIX(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
	}
	for (int i = 0; i < 8; i++)
		b->h[i] ^= v[i] ^ v[i + 8];
}

void cw_blake2b_init(struct cw_blake2b *b)
{
	memset(b, 0, sizeof *b);
	memcpy(b->h, iv, sizeof iv);
	b->h[0] ^= 0x01010000 ^ CW_DIGEST; /* parameters: fan-out and depth 1, no key */
}

/* The last block is compressed by the end alone, so a full buffer waits for more. */
void cw_blake2b_add(struct cw_blake2b *b, const void *data, size_t len)
{
	const uint8_t *p = data;

	while (len > 0) {
		size_t n;

		if (b->fill == BLOCK) {
			b->count += BLOCK;
			compress(b, b->buf, b->count, 0);
			b->fill = 0;
		}
		for (; b->fill == 0 && len > BLOCK; p += BLOCK, len -= BLOCK) {
			b->count += BLOCK;
			compress(b, p, b->count, 0);
		}
		n = len < BLOCK - b->fill ? len : BLOCK - b->fill;
		memcpy(b->buf + b->fill, p, n);
		b->fill += n;
		p += n;
		len -= n;
	}
}

void cw_blake2b_end(struct cw_blake2b *b, uint8_t digest[CW_DIGEST])
{
	memset(b->buf + b->fill, 0, BLOCK - b->fill);
	b->count += b->fill;
	compress(b, b->buf, b->count, ~0ull);
	memcpy(digest, b->h, CW_DIGEST);
}

#include "cache/xxh64.h"

#include <string.h>

static const uint64_t p1 = 0x9e3779b185ebca87, p2 = 0xc2b2ae3d27d4eb4f, p3 = 0x165667b19e3779f9, p4 = 0x85ebca77c2b2ae63,
		      p5 = 0x27d4eb2f165667c5;

static inline uint64_t turn(uint64_t v, int n) { return v << n | v >> (64 - n); }

static inline uint64_t word(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof v);
	return v;
}

static inline uint64_t lane(uint64_t acc, uint64_t v) { return turn(acc + v * p2, 31) * p1; }

static uint64_t finish(uint64_t acc, const uint8_t *p, size_t len)
{
	for (; len >= 8; p += 8, len -= 8)
		acc = turn(acc ^ lane(0, word(p)), 27) * p1 + p4;
	if (len >= 4) {
		uint32_t v;

		memcpy(&v, p, sizeof v);
		acc = turn(acc ^ v * p1, 23) * p2 + p3;
		p += 4;
		len -= 4;
	}
	for (; len > 0; p++, len--)
		acc = turn(acc ^ *p * p5, 11) * p1;
	acc = (acc ^ acc >> 33) * p2;
	acc = (acc ^ acc >> 29) * p3;
	return acc ^ acc >> 32;
}

uint64_t cw_xxh64(const void *data, size_t len)
{
	const uint8_t *p = data;
	uint64_t v[4] = {p1 + p2, p2, 0, 0 - p1}, acc = p5;
	size_t left = len;

	if (len >= 32) {
		for (; left >= 32; p += 32, left -= 32)
			for (int i = 0; i < 4; i++)
				v[i] = lane(v[i], word(p + 8 * i));
		acc = turn(v[0], 1) + turn(v[1], 7) + turn(v[2], 12) + turn(v[3], 18);
		for (int i = 0; i < 4; i++)
			acc = (acc ^ lane(0, v[i])) * p1 + p4;
	}
	return finish(acc + len, p, left);
}

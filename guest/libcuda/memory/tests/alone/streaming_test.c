/* A streaming copy of every length near what its loop takes at once, to and from every place in a
 * line of the cache: the bytes come over, and those beside them stay. */
#include <string.h>

#include "session/tests/check.h"

#include "memory/streaming.h"

enum { LINE = 64, ROOM = 4096 + 4 * LINE };

static uint8_t from[ROOM], to[ROOM] __attribute__((aligned(64)));

static void copy(size_t at, size_t source, size_t n)
{
	memset(to, 0xee, sizeof to);
	cw_copy_streaming(to + at, from + source, n);
	CHECK(memcmp(to + at, from + source, n) == 0);
	for (size_t i = 0; i < sizeof to; i++)
		CHECK((i >= at && i < at + n) || to[i] == 0xee);
}

int main(void)
{
	for (size_t i = 0; i < sizeof from; i++)
		from[i] = (uint8_t)(i * 151 + i / 256);
	for (size_t at = 0; at < LINE; at++)
		for (size_t source = 0; source < LINE; source += 7) {
			for (size_t n = 0; n < 6 * LINE; n += 5)
				copy(at, source, n);
			for (size_t n = 4096 - 2; n <= 4096 + 2; n++)
				copy(at, source, n);
		}
	puts("streaming_test ok");
	return 0;
}

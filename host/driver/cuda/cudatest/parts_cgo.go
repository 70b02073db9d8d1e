package cudatest

/*
#include <stdint.h>
#include <string.h>

// A driver whose device can be cut: each resource holds a word that only this process's driver knows.
enum { TYPE = 1, COUNT_AT = 96, SIZE = 144, INVALID = 1, DENIED = 800 };
static uint32_t whole, secret;

static void put_part(uint8_t *d, uint32_t first, uint32_t count) {
	uint32_t type = TYPE;
	memset(d, 0, SIZE);
	memcpy(d, &type, 4);
	memcpy(d + 8, &secret, 4);
	memcpy(d + 12, &first, 4);
	memcpy(d + COUNT_AT, &count, 4);
}
static int get_part(int dev, uint8_t *d, uint32_t type) {
	if (dev != 1 || type != TYPE)
		return INVALID;
	put_part(d, 0, whole);
	return 0;
}
static int split_part(uint8_t *list, uint32_t *n, const uint8_t *from, uint8_t *rest, uint32_t flags, uint32_t least) {
	uint32_t know, first, count;
	memcpy(&know, from + 8, 4);
	memcpy(&first, from + 12, 4);
	memcpy(&count, from + COUNT_AT, 4);
	if (know != secret || flags || !least)
		return DENIED;
	if (*n > count / least)
		*n = count / least;
	for (uint32_t i = 0; i < *n; i++)
		put_part(list + i * SIZE, first + i * least, least);
	if (rest)
		put_part(rest, first + *n * least, count - *n * least);
	return 0;
}
static int describe_parts(uint64_t *desc, const uint8_t *list, uint32_t n) {
	uint32_t know, first;
	*desc = 1;
	for (uint32_t i = 0; i < n; i++) {
		memcpy(&know, list + i * SIZE + 8, 4);
		memcpy(&first, list + i * SIZE + 12, 4);
		if (know != secret)
			return DENIED;
		*desc = *desc * 1000 + first;
	}
	return 0;
}
static uint64_t part_entry(int which) {
	return which == 0 ? (uint64_t)(uintptr_t)get_part : which == 1 ? (uint64_t)(uintptr_t)split_part : (uint64_t)(uintptr_t)describe_parts;
}
static void set_parts(uint32_t w, uint32_t s) { whole = w; secret = s; }
*/
import "C"

// Parts are the functions of a driver whose device 1 can be cut. One test at a time.
func Parts() map[string]uint64 {
	names := []string{"cuDeviceGetDevResource", "cuDevSmResourceSplitByCount", "cuDevResourceGenerateDesc"}
	m := map[string]uint64{}
	for i, n := range names {
		m[n] = uint64(C.part_entry(C.int(i)))
	}
	return m
}

// SetParts begins another process, of whose device there is so much, and whose driver knows its
// resources by a secret.
func SetParts(multiprocessors, secret uint32) {
	C.set_parts(C.uint32_t(multiprocessors), C.uint32_t(secret))
}

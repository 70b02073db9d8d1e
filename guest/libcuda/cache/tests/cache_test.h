/* What the tests of cache/ share: a folder of their own, entries whose bytes follow from a
 * number. */
#ifndef CW_CACHE_TEST_H
#define CW_CACHE_TEST_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/cache.h"

#define CHECK(x) \
	do { \
		if (!(x)) { \
			fprintf(stderr, "%s:%d: %s (errno %s)\n", __FILE__, __LINE__, #x, strerror(errno)); \
			abort(); \
		} \
	} while (0)

static struct cw_cache_settings cache = {.max = 1 << 30};
static char ours[PATH_MAX + 32];

/* An empty folder below TMPDIR, and no limit to speak of. */
static inline void fresh_cache(void)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(cache.folder, sizeof cache.folder, "%s/cache-test-XXXXXX", tmp ? tmp : "/tmp");
	CHECK(mkdtemp(cache.folder));
	snprintf(ours, sizeof ours, "%s/causeway-%u", cache.folder, (unsigned)geteuid());
	cache.max = 1 << 30;
}

static inline void remove_cache(void)
{
	char cmd[PATH_MAX + 32];

	snprintf(cmd, sizeof cmd, "rm -rf '%s'", cache.folder);
	CHECK(system(cmd) == 0);
}

static inline struct cw_cache_key key_of(int n)
{
	struct cw_cache_source src = {.kind = n, .options = "-arch=sm_90", .host = "HOST64"};
	struct cw_cache_key key;

	cw_cache_key(&key, &src);
	return key;
}

static inline void fill(unsigned char *p, size_t size, int n)
{
	unsigned x = (unsigned)n * 2654435761u + 1;

	for (size_t i = 0; i < size; i++)
		x ^= x << 13, x ^= x >> 17, x ^= x << 5, p[i] = (unsigned char)x;
}

static inline int put(int n, size_t size)
{
	struct cw_cache_key key = key_of(n);
	unsigned char *p = malloc(size + 1);
	int res;

	fill(p, size, n);
	res = cw_cache_put(&cache, &key, p, size);
	free(p);
	return res;
}

/* 0 for a hit, whose bytes must be entry n's. */
static inline int get(int n, size_t size)
{
	struct cw_cache_found f = {(void *)1, 2};
	struct cw_cache_key key = key_of(n);
	unsigned char *want;
	int res = cw_cache_get(&cache, &key, 16, &f);

	if (res) {
		CHECK(f.memory == (void *)1 && f.size == 2); /* untouched */
		return res;
	}
	want = malloc(size + 1);
	fill(want, size, n);
	CHECK(f.size == size && !memcmp((char *)f.memory + 16, want, size));
	free(want);
	free(f.memory);
	return 0;
}

static inline void entry_path(char path[2 * PATH_MAX], int n)
{
	struct cw_cache_key key = key_of(n);
	char name[CW_CACHE_NAME];

	cw_cache_name(name, &key);
	snprintf(path, 2 * PATH_MAX, "%s/%s", ours, name);
}

static inline int there(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0;
}

/* Runs f in a child, as another user where this is root: root passes over permissions. */
static inline int in_child(int (*f)(void), int as_nobody)
{
	int st;
	pid_t p = fork();

	CHECK(p >= 0);
	if (p == 0) {
		if (as_nobody && geteuid() == 0)
			CHECK(setgid(65534) == 0 && setuid(65534) == 0);
		_exit(f());
	}
	CHECK(waitpid(p, &st, 0) == p);
	return st;
}

/* Blocks of all entries, and how many there are. */
static inline uint64_t taken(int *count)
{
	uint64_t sum = 0;
	DIR *d = opendir(ours);

	*count = 0;
	CHECK(d);
	for (struct dirent *e; (e = readdir(d));) {
		struct stat st;

		if (strlen(e->d_name) == CW_CACHE_NAME - 1 && fstatat(dirfd(d), e->d_name, &st, 0) == 0)
			sum += cw_cache_cost((uint64_t)st.st_size), ++*count;
	}
	closedir(d);
	return sum;
}

#endif

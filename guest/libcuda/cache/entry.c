/* Keys, and the files of entries. */
#include "cache/cache.h"
#include "cache/xxh64.h"
#include "session/compat.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char magic[8] = "CWCACHE";

enum { VERSION = 1, AGE_KNOWN = 60 /* seconds: a use is noted at most this often */ };

struct header {
	char magic[8];
	uint32_t version, size;
	uint8_t key[CW_DIGEST];
	uint64_t length;
	uint64_t data_sum, sum; /* of the data; of the fields above */
};
_Static_assert(sizeof(struct header) == 72, "the file's layout");

void cw_cache_data_key(struct cw_cache_key *key, const void *data, size_t size)
{
	struct cw_blake2b b;

	cw_blake2b_init(&b);
	cw_blake2b_add(&b, data, size);
	cw_blake2b_end(&b, key->digest);
}

/* With its end, or without, so that no two sources give the same bytes. */
static void add_text(struct cw_blake2b *b, const char *text)
{
	uint8_t there = text != NULL;

	cw_blake2b_add(b, &there, 1);
	if (text)
		cw_blake2b_add(b, text, strlen(text) + 1);
}

void cw_cache_key(struct cw_cache_key *key, const struct cw_cache_source *src)
{
	const uint32_t words[4] = {VERSION, (uint32_t)src->kind, src->arch, src->variant};
	struct cw_blake2b b;

	cw_blake2b_init(&b);
	cw_blake2b_add(&b, words, sizeof words);
	cw_blake2b_add(&b, src->data.digest, CW_DIGEST);
	cw_blake2b_add(&b, src->from.digest, CW_DIGEST);
	add_text(&b, src->options);
	add_text(&b, src->host);
	add_text(&b, src->compiler);
	cw_blake2b_end(&b, key->digest);
}

void cw_cache_name(char name[CW_CACHE_NAME], const struct cw_cache_key *key)
{
	for (int i = 0; i < CW_DIGEST; i++)
		snprintf(name + 2 * i, 3, "%02x", key->digest[i]);
}

static void fill_header(struct header *h, const struct cw_cache_key *key, const void *data, size_t size)
{
	memcpy(h->magic, magic, sizeof magic);
	h->version = VERSION;
	h->size = sizeof *h;
	memcpy(h->key, key->digest, sizeof h->key);
	h->length = size;
	h->data_sum = cw_xxh64(data, size);
	h->sum = cw_xxh64(h, offsetof(struct header, sum));
}

static int read_all(int fd, void *p, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = read(fd, (char *)p + done, len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EBADMSG;
		done += (size_t)n;
	}
	return 0;
}

static int write_all(int fd, const void *p, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = write(fd, (const char *)p + done, len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ENOSPC;
		done += (size_t)n;
	}
	return 0;
}

/* --- look up ---------------------------------------------------------------------------------- */

/* -EBADMSG: the file is not an entry of this key. */
static int read_entry(int fd, const struct stat *st, const struct cw_cache_key *key, uint64_t max, size_t front,
		      struct cw_cache_found *found)
{
	struct header h, want;
	size_t size;
	char *memory;
	int res;

	if (!S_ISREG(st->st_mode) || st->st_uid != geteuid() || (st->st_mode & (S_IWGRP | S_IWOTH)) || st->st_size < (off_t)sizeof h ||
	    (uint64_t)st->st_size > max)
		return -EBADMSG;
	res = read_all(fd, &h, sizeof h);
	if (res)
		return res;
	if (h.length != (uint64_t)st->st_size - sizeof h)
		return -EBADMSG;
	size = h.length;
	memory = malloc(front + size + 1);
	if (!memory)
		return -ENOMEM;
	res = read_all(fd, memory + front, size);
	if (!res) {
		fill_header(&want, key, memory + front, size);
		res = memcmp(&want, &h, sizeof h) ? -EBADMSG : 0;
	}
	if (res)
		free(memory);
	else
		*found = (struct cw_cache_found){memory, size};
	return res;
}

/* Eviction goes by the time of change. A folder that cannot be written keeps what it has. */
static void note_use(int fd, const struct stat *st)
{
	if (time(NULL) - st->st_mtime > AGE_KNOWN)
		futimens(fd, NULL);
}

int cw_cache_get(const struct cw_cache_settings *s, const struct cw_cache_key *key, size_t front, struct cw_cache_found *found)
{
	int dir = cw_cache_folder(s, 0), fd, res;
	char name[CW_CACHE_NAME];
	struct stat st;

	if (dir < 0)
		return dir;
	cw_cache_name(name, key);
	fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	res = fd < 0 || cw_fstat(fd, &st) ? -errno : 0;
	if (!res)
		res = read_entry(fd, &st, key, s->max, front, found);
	if (!res)
		note_use(fd, &st);
	if (fd >= 0)
		close(fd);
	if (res == -EBADMSG || res == -ELOOP)
		unlinkat(dir, name, 0);
	close(dir);
	return res;
}

/* --- insert ----------------------------------------------------------------------------------- */

/* A name that no other process or thread has, in a cache that containers with equal process ids may
 * share. */
static int create_new(int dir, char *name, size_t cap)
{
	static _Atomic unsigned turn;

	for (int i = 0; i < 16; i++) {
		struct timespec t;
		int fd;

		clock_gettime(CLOCK_REALTIME, &t);
		snprintf(name, cap, ".new-%lx-%lx-%lx-%x", (unsigned long)getpid(), (unsigned long)t.tv_sec, (unsigned long)t.tv_nsec,
			 atomic_fetch_add(&turn, 1));
		fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (fd >= 0 || errno != EEXIST)
			return fd >= 0 ? fd : -errno;
	}
	return -EEXIST;
}

static int write_entry(int dir, const struct cw_cache_key *key, const void *data, size_t size)
{
	char temporary[96], name[CW_CACHE_NAME];
	struct header h;
	int fd = create_new(dir, temporary, sizeof temporary), res;

	if (fd < 0)
		return fd;
	fill_header(&h, key, data, size);
	res = write_all(fd, &h, sizeof h);
	if (!res)
		res = write_all(fd, data, size);
	if (close(fd) && !res)
		res = -errno;
	cw_cache_name(name, key);
	if (!res && renameat(dir, temporary, dir, name))
		res = -errno;
	if (res)
		unlinkat(dir, temporary, 0);
	return res;
}

/* A file beyond the process's limit would bring a signal that ends the program. */
static int too_large(uint64_t bytes, uint64_t max)
{
	struct rlimit r;

	if (bytes > max || cw_cache_cost(bytes) > max)
		return 1;
	return getrlimit(RLIMIT_FSIZE, &r) == 0 && r.rlim_cur != RLIM_INFINITY && (bytes > r.rlim_cur || max / CW_CACHE_BLOCK > r.rlim_cur);
}

int cw_cache_put(const struct cw_cache_settings *s, const struct cw_cache_key *key, const void *data, size_t size)
{
	uint64_t bytes = sizeof(struct header) + (uint64_t)size;
	int dir, res;

	if (size > SIZE_MAX / 2 || too_large(bytes, s->max))
		return -EFBIG;
	dir = cw_cache_folder(s, 1);
	if (dir < 0)
		return dir;
	res = cw_cache_reserve(dir, cw_cache_cost(bytes), s->max);
	if (!res)
		res = write_entry(dir, key, data, size);
	if (!res)
		cw_cache_count(dir, cw_cache_cost(bytes));
	close(dir);
	return res;
}

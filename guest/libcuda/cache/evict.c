/*
 * How much the entries take, and making room. One pass over the folder for each eviction, which
 * frees an eighth of the cache or CANDIDATES entries at least, so that its work is shared by as
 * many insertions; memory is bounded by CANDIDATES.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cache/cache.h"
#include "session/compat.h"

enum { CANDIDATES = 4096, ABANDONED = 3600 /* seconds after which an unfinished file is nobody's */ };

struct candidate {
	struct timespec used;
	uint64_t cost;
	char name[CW_CACHE_NAME];
};

struct survey {
	int dir;
	uint64_t total; /* what the entries cost */
	size_t count;
	/* Those unused for longest are among the first CANDIDATES after a sort. */
	struct candidate *list;
};

static const char usage_name[] = "usage";

/* -errno. *fresh: it was not there, so it says nothing. One that is not ours to trust is
 * removed. */
static int open_usage(int dir, int *fresh)
{
	enum { HOW = O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC };
	int fd = openat(dir, usage_name, HOW);
	struct stat st;

	*fresh = fd < 0 && errno == ENOENT;
	if (*fresh)
		fd = openat(dir, usage_name, HOW | O_CREAT, 0600);
	if (fd < 0)
		return -errno;
	if (cw_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid())
		return fd;
	close(fd);
	unlinkat(dir, usage_name, 0);
	return -EBADMSG;
}

static uint64_t usage_blocks(int fd)
{
	struct stat st;

	return cw_fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* One byte for a block. */
static void add_blocks(int fd, uint64_t n)
{
	static const char zeros[4096];

	while (n > 0) {
		ssize_t done = write(fd, zeros, n < sizeof zeros ? n : sizeof zeros);

		if (done <= 0)
			return;
		n -= (uint64_t)done;
	}
}

void cw_cache_count(int dir, uint64_t cost)
{
	int fresh, fd = open_usage(dir, &fresh);

	if (fd < 0)
		return;
	add_blocks(fd, cost / CW_CACHE_BLOCK);
	close(fd);
}

/* --- a survey --------------------------------------------------------------------------------- */

static int by_use(const void *a, const void *b)
{
	const struct timespec *x = &((const struct candidate *)a)->used, *y = &((const struct candidate *)b)->used;

	if (x->tv_sec != y->tv_sec)
		return x->tv_sec < y->tv_sec ? -1 : 1;
	return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static int is_entry(const char *name) { return strlen(name) == CW_CACHE_NAME - 1 && strspn(name, "0123456789abcdef") == CW_CACHE_NAME - 1; }

static void survey_file(struct survey *s, const char *name)
{
	struct candidate *c;
	struct stat st;

	if (cw_fstatat(s->dir, name, &st, AT_SYMLINK_NOFOLLOW))
		return;
	if (!is_entry(name)) {
		if (!strncmp(name, ".new-", 5) && time(NULL) - st.st_mtime > ABANDONED)
			unlinkat(s->dir, name, 0);
		return;
	}
	if (s->count == 2 * CANDIDATES) {
		qsort(s->list, s->count, sizeof *s->list, by_use);
		s->count = CANDIDATES;
	}
	c = &s->list[s->count++];
	c->used = st.st_mtim;
	c->cost = cw_cache_cost((uint64_t)st.st_size);
	memcpy(c->name, name, CW_CACHE_NAME);
	s->total += c->cost;
}

static int survey(struct survey *s)
{
	int fd = openat(s->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d) {
		int err = -errno;

		if (fd >= 0)
			close(fd);
		return err;
	}
	for (struct dirent *e; (e = readdir(d)) != NULL;)
		survey_file(s, e->d_name);
	closedir(d);
	qsort(s->list, s->count, sizeof *s->list, by_use);
	if (s->count > CANDIDATES)
		s->count = CANDIDATES;
	return 0;
}

/* --- eviction --------------------------------------------------------------------------------- */

static int evict(int dir, int usage, uint64_t cost, uint64_t max)
{
	struct survey s = {.dir = dir, .list = malloc(2 * CANDIDATES * sizeof *s.list)};
	uint64_t goal = max - max / 8 > cost ? max - max / 8 - cost : 0;
	int res = s.list ? survey(&s) : -ENOMEM;

	if (!res && s.total + cost > max)
		for (size_t i = 0; i < s.count && s.total > goal; i++)
			if (unlinkat(dir, s.list[i].name, 0) == 0 || errno == ENOENT)
				s.total -= s.list[i].cost;
	free(s.list);
	if (!res && ftruncate(usage, (off_t)(s.total / CW_CACHE_BLOCK)))
		res = -errno;
	return res ? res : s.total + cost > max ? -ENOSPC : 0;
}

int cw_cache_reserve(int dir, uint64_t cost, uint64_t max)
{
	int fresh, fd = open_usage(dir, &fresh), res = 0;

	if (fd < 0)
		return fd;
	if (fresh || usage_blocks(fd) * CW_CACHE_BLOCK + cost > max) {
		/* Not waited for: a stopped process may hold it. */
		if (flock(fd, LOCK_EX | LOCK_NB))
			res = fresh ? 0 : errno == EWOULDBLOCK ? -EAGAIN : -errno;
		else {
			res = evict(dir, fd, cost, max);
			flock(fd, LOCK_UN); /* a child forked meanwhile has the descriptor too */
		}
	}
	close(fd);
	return res;
}

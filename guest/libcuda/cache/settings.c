/* What the environment says of the driver's cache, and our folder in it. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/cache.h"
#include "session/compat.h"

static const uint64_t default_size = 1ull << 30, largest_size = 4ull << 30;

/* The driver takes the number at the beginning, 0 if there is none. */
static uint64_t size_limit(const char *text)
{
	long long v;

	if (!text)
		return default_size;
	v = strtoll(text, NULL, 10);
	return v < 0 ? 0 : (uint64_t)v > largest_size ? largest_size : (uint64_t)v;
}

void cw_cache_settings_read(struct cw_cache_settings *s)
{
	const char *disable = secure_getenv("CUDA_CACHE_DISABLE"), *path = secure_getenv("CUDA_CACHE_PATH"), *home = secure_getenv("HOME");
	int n = 0;

	s->disabled = disable && !strcmp(disable, "1");
	s->max = size_limit(secure_getenv("CUDA_CACHE_MAXSIZE"));
	s->folder[0] = 0;
	if (path) /* an empty one is no folder to the driver either */
		n = snprintf(s->folder, sizeof s->folder, "%s", path);
	else if (home && *home)
		n = snprintf(s->folder, sizeof s->folder, "%s/.nv/ComputeCache", home);
	if (n < 0 || (size_t)n >= sizeof s->folder)
		s->folder[0] = 0;
}

/* Whoever is first publishes; a lock would stay locked in a child that was forked meanwhile. */
const struct cw_cache_settings *cw_cache_settings(void)
{
	static const struct cw_cache_settings none = {.disabled = 1};
	static struct cw_cache_settings *_Atomic known;
	struct cw_cache_settings *s = atomic_load_explicit(&known, memory_order_acquire), *mine;

	if (s)
		return s;
	mine = malloc(sizeof *mine);
	if (!mine)
		return &none;
	cw_cache_settings_read(mine);
	if (atomic_compare_exchange_strong_explicit(&known, &s, mine, memory_order_acq_rel, memory_order_acquire))
		return mine;
	free(mine);
	return s;
}

/* Makes path and what is missing above it. */
static void make_folders(const char *path)
{
	char part[PATH_MAX];

	for (size_t i = 0; i < sizeof part; i++) {
		part[i] = path[i];
		if (i > 0 && (path[i] == '/' || path[i] == 0)) {
			part[i] = 0;
			mkdir(part, 0700);
			part[i] = path[i];
		}
		if (path[i] == 0)
			return;
	}
}

static int ours_alone(int fd)
{
	struct stat st;

	return cw_fstat(fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* The way to the driver's folder is the user's own and may have links; ours may not be one. */
int cw_cache_folder(const struct cw_cache_settings *s, int create)
{
	enum { FOLDER = O_RDONLY | O_DIRECTORY | O_CLOEXEC };
	char name[32];
	int base, fd, err;

	if (!s->folder[0])
		return -ENOENT;
	base = open(s->folder, FOLDER);
	if (base < 0 && errno == ENOENT && create) {
		make_folders(s->folder);
		base = open(s->folder, FOLDER);
	}
	if (base < 0)
		return -errno;
	snprintf(name, sizeof name, "causeway-%lu", (unsigned long)geteuid());
	if (create)
		mkdirat(base, name, 0700);
	fd = openat(base, name, FOLDER | O_NOFOLLOW);
	err = fd < 0 ? -errno : 0;
	close(base);
	if (fd >= 0 && !ours_alone(fd)) {
		close(fd);
		return -EPERM;
	}
	return fd < 0 ? err : fd;
}

int cw_cache_ready(const struct cw_cache_settings *s)
{
	int fd = cw_cache_folder(s, 1);

	if (fd < 0)
		return fd;
	close(fd);
	return 0;
}

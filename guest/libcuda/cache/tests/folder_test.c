/* Whose folder it is, its limit, full disks, and many processes at once. */
#include <pthread.h>
#include <signal.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <time.h>

#include "cache/tests/cache_test.h"

/* --- whose ------------------------------------------------------------------------------------ */

static int use_once(void)
{
	snprintf(ours, sizeof ours, "%s/causeway-%u", cache.folder, (unsigned)geteuid());
	return put(1, 100) == 0 && get(1, 100) == 0 ? 0 : 1;
}

static int cannot_use(void)
{
	int a = put(1, 100), b = get(1, 100);

	return a < 0 && b < 0 ? 0 : 1;
}

static int reads_only(void)
{
	snprintf(ours, sizeof ours, "%s/causeway-%u", cache.folder, (unsigned)geteuid());
	return get(1, 100) == 0 && get(2, 100) == -ENOENT && put(2, 100) < 0 ? 0 : 1;
}

static void mode_is(const char *path, unsigned mode)
{
	struct stat st;

	CHECK(lstat(path, &st) == 0 && (st.st_mode & 07777) == mode);
}

static void folders(void)
{
	char path[2 * PATH_MAX], deep[PATH_MAX];

	fresh_cache();
	CHECK(get(1, 100) == -ENOENT && !there(ours)); /* looking makes nothing */
	CHECK(use_once() == 0);
	mode_is(ours, 0700);
	entry_path(path, 1);
	mode_is(path, 0600);
	CHECK(chmod(ours, 0770) == 0);
	CHECK(get(1, 100) == -EPERM && put(1, 100) == -EPERM);
	CHECK(chmod(ours, 0700) == 0 && get(1, 100) == 0);
	CHECK(snprintf(path, sizeof path, "%s/elsewhere", cache.folder) > 0 && rename(ours, path) == 0 && symlink(path, ours) == 0);
	CHECK(get(1, 100) < 0 && put(1, 100) < 0); /* somebody else's way to make us read */
	CHECK(unlink(ours) == 0);
	snprintf(deep, sizeof deep, "%.3000s/a/b//c/", cache.folder);
	strcpy(cache.folder, deep);
	CHECK(use_once() == 0);
	*strstr(cache.folder, "/a/b//c") = 0;
	remove_cache();
	cache.folder[0] = 0;
	CHECK(get(1, 100) == -ENOENT && put(1, 100) == -ENOENT);
	strcpy(cache.folder, "/proc/nothing/here");
	CHECK(cannot_use() == 0);
	strcpy(cache.folder, "/dev/null");
	CHECK(cannot_use() == 0);
}

/* A folder that users share, and what permissions forbid. Only root can play two users. */
static void users(void)
{
	struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
	char path[2 * PATH_MAX];

	fresh_cache();
	CHECK(chmod(cache.folder, 01777) == 0);
	CHECK(use_once() == 0 && in_child(use_once, 1) == 0);
	if (geteuid() != 0) {
		remove_cache();
		return;
	}
	snprintf(path, sizeof path, "%s/causeway-65534", cache.folder);
	mode_is(path, 0700);
	CHECK(chmod(path, 0500) == 0 && in_child(reads_only, 1) == 0);
	entry_path(path, 1); /* a use that cannot be noted */
	CHECK(utimensat(AT_FDCWD, path, old, 0) == 0 && in_child(reads_only, 1) == 0);
	snprintf(path, sizeof path, "%s/causeway-65534", cache.folder);
	/* A folder that another user laid there. */
	CHECK(chown(path, 0, 0) == 0 && chmod(path, 0755) == 0);
	CHECK(in_child(cannot_use, 1) == 0);
	remove_cache();
}

/* --- the limit -------------------------------------------------------------------------------- */

static void age(int n, time_t seconds)
{
	struct timespec t[2] = {{.tv_sec = time(NULL) - seconds}, {.tv_sec = time(NULL) - seconds}};
	char path[2 * PATH_MAX];

	entry_path(path, n);
	CHECK(utimensat(AT_FDCWD, path, t, 0) == 0);
}

static void limit(void)
{
	enum { MAX = 64 * CW_CACHE_BLOCK, SIZE = 3 * CW_CACHE_BLOCK - 100 };
	char index[2 * PATH_MAX], digit[2 * PATH_MAX], cmd[8 * PATH_MAX];
	int count;

	fresh_cache();
	cache.max = MAX;
	snprintf(index, sizeof index, "%s/index", cache.folder);
	snprintf(digit, sizeof digit, "%s/3/7/0123456789abcd", cache.folder);
	snprintf(cmd, sizeof cmd, "echo index >%s; mkdir -p %s; touch %s/x", index, digit, digit);
	CHECK(system(cmd) == 0);
	for (int i = 0; i < 300; i++) {
		CHECK(put(i, SIZE) == 0 && get(i, SIZE) == 0);
		/* The first is the oldest, but is used again and again. */
		age(i, 1000000 - i * 1000);
		if (i % 5 == 0)
			CHECK(get(0, SIZE) == 0);
		CHECK(taken(&count) <= MAX);
	}
	CHECK(taken(&count) >= MAX / 2 && get(299, SIZE) == 0 && get(1, SIZE) == -ENOENT && get(200, SIZE) == -ENOENT);
	CHECK(put(1000, MAX) == -EFBIG && put(1001, MAX - 1000) == 0);
	CHECK(taken(&count) <= MAX && count == 1 && get(1001, MAX - 1000) == 0);
	CHECK(there(index) && there(digit)); /* the driver's own */
	cache.max = 0;
	CHECK(put(1, 1) == -EFBIG && get(1001, MAX - 1000) == -EBADMSG);
	remove_cache();
}

/* More files than a survey remembers. */
static void many(void)
{
	enum { MAX = 9000 * CW_CACHE_BLOCK };
	int count;

	fresh_cache();
	cache.max = MAX;
	for (int i = 0; i < 9000; i++)
		CHECK(put(i, 10) == 0);
	for (int i = 0; i < 9000; i += 3)
		age(i, 5000 + i);
	for (int i = 9000; i < 9010; i++)
		CHECK(put(i, 10) == 0);
	CHECK(taken(&count) <= MAX && count > 7500 && count < 8000);
	CHECK(get(8997, 10) == -ENOENT && get(1, 10) == 0 && get(9009, 10) == 0);
	/* Those unused for longest went, and no other. */
	for (int i = 0, last = 0; i < 9010; i++) {
		char path[2 * PATH_MAX];

		entry_path(path, i);
		if (access(path, F_OK) != 0) {
			CHECK(i % 3 == 0 && i < 9000);
			last = i;
			continue;
		}
		CHECK(last == 0 || i % 3 != 0 || i >= 9000);
	}
	remove_cache();
}

static void usage_damaged(void)
{
	enum { MAX = 64 * CW_CACHE_BLOCK, SIZE = CW_CACHE_BLOCK };
	char path[2 * PATH_MAX], other[2 * PATH_MAX], stale[2 * PATH_MAX];
	struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
	int count, n = 0;

	fresh_cache();
	cache.max = MAX;
	CHECK(put(n++, SIZE) == 0);
	snprintf(path, sizeof path, "%s/usage", ours);
	snprintf(other, sizeof other, "%s/other", cache.folder);
	snprintf(stale, sizeof stale, "%s/.new-1-2-3-4", ours);
	for (int round = 0; round < 5; round++) {
		CHECK(unlink(path) == 0);
		if (round == 1)
			CHECK(symlink(other, path) == 0 && put(n++, SIZE) < 0 && unlink(path) == 0);
		else if (round == 2)
			CHECK(mkfifo(path, 0600) == 0 && put(n++, SIZE) < 0 && unlink(path) == 0);
		else if (round == 3) /* as if all were full */
			CHECK(close(open(path, O_CREAT | O_WRONLY, 0600)) == 0 && truncate(path, 1ll << 40) == 0);
		else if (round == 4)
			CHECK(close(open(stale, O_CREAT | O_WRONLY, 0600)) == 0 && utimensat(AT_FDCWD, stale, old, 0) == 0);
		for (int i = 0; i < 100; i++)
			CHECK(put(n++, SIZE) == 0 && taken(&count) <= MAX);
		CHECK(get(n - 1, SIZE) == 0);
	}
	CHECK(!there(other) && !there(stale));
	remove_cache();
}

/* A process that stopped in the middle of making room stops nobody else. */
static void stopped(void)
{
	char path[2 * PATH_MAX];
	int fd;

	fresh_cache();
	cache.max = 4 * CW_CACHE_BLOCK;
	CHECK(put(1, 5000) == 0 && put(2, 5000) == 0);
	snprintf(path, sizeof path, "%s/usage", ours);
	fd = open(path, O_WRONLY);
	CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
	CHECK(put(3, 5000) == -EAGAIN && get(1, 5000) == 0);
	CHECK(close(fd) == 0 && put(3, 5000) == 0);
	remove_cache();
}

/* --- no room on the disk ---------------------------------------------------------------------- */

/* Files that are no entries yet, or any more. */
static int unfinished(void)
{
	DIR *d = opendir(ours);
	int n = 0;

	CHECK(d);
	for (struct dirent *e; (e = readdir(d)) != NULL;)
		n += !strncmp(e->d_name, ".new-", 5);
	closedir(d);
	return n;
}

static int full_disk(void)
{
	int stored = 0, hits = 0, failed = 0;

	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", cache.folder, "tmpfs", 0, "size=256k"))
		return 77;
	for (int i = 0; i < 40; i++) {
		int res = put(i, 20000);

		CHECK(res == 0 || res == -ENOSPC);
		stored += res == 0;
		failed += res != 0;
	}
	for (int i = 0; i < 40; i++)
		hits += get(i, 20000) == 0;
	CHECK(stored > 5 && failed > 5 && hits == stored);
	CHECK(unfinished() == 0);
	return 0;
}

static int small_files(void)
{
	struct rlimit r = {30000, 30000};

	cache.max = 1 << 20;
	CHECK(setrlimit(RLIMIT_FSIZE, &r) == 0);
	CHECK(put(1, 20000) == 0 && put(2, 40000) == -EFBIG && get(1, 20000) == 0);
	return 0;
}

static void no_room(void)
{
	int st;

	fresh_cache();
	st = in_child(full_disk, 0);
	CHECK(st == 0 || (WIFEXITED(st) && WEXITSTATUS(st) == 77));
	if (st)
		fprintf(stderr, "folder_test: no right to mount: the full disk was not tried\n");
	CHECK(in_child(small_files, 0) == 0);
	remove_cache();
}

/* --- many at once ----------------------------------------------------------------------------- */

enum { KEYS = 40, TURNS = 400 };

/* get checks what a hit holds. */
static void *worker(void *seed)
{
	unsigned x = (unsigned)(uintptr_t)seed * 7919 + 1;
	uintptr_t hits = 0;

	for (int i = 0; i < TURNS; i++) {
		int n, res;

		x ^= x << 13, x ^= x >> 17, x ^= x << 5;
		n = 10 + (int)(x % KEYS);
		res = get(n, 1000 + 997 * (size_t)n);
		CHECK(res == 0 || res == -ENOENT);
		hits += res == 0;
		if (res) {
			res = put(n, 1000 + 997 * (size_t)n);
			CHECK(res == 0 || res == -EAGAIN || res == -ENOSPC);
		}
	}
	return (void *)hits;
}

/* The sanitizer's allocator, unlike the C library's, may be locked for ever in a child of
 * threads. */
#ifdef __SANITIZE_ADDRESS__
enum { CHILDREN = 0 };
#else
enum { CHILDREN = 3 };
#endif

static int child_of_threads(void)
{
	int a = put(1, 100), b = get(1, 100);

	return (a == 0 || a == -EAGAIN || a == -ENOSPC) && (b == 0 || b == -ENOENT) ? 0 : 1;
}

static int process(void)
{
	pthread_t t[3];
	uintptr_t hits = 0;

	for (uintptr_t i = 0; i < 3; i++)
		CHECK(pthread_create(&t[i], NULL, worker, (void *)((uintptr_t)getpid() + i)) == 0);
	for (int i = 0; i < CHILDREN; i++) { /* of a process whose threads are inside */
		CHECK(in_child(child_of_threads, 0) == 0);
		usleep(1000);
	}
	for (int i = 0; i < 3; i++) {
		void *h;

		CHECK(pthread_join(t[i], &h) == 0);
		hits += (uintptr_t)h;
	}
	return hits > 0 ? 0 : 1;
}

static void crowd(uint64_t max)
{
	enum { PROCESSES = 6 };
	pid_t p[PROCESSES], killed;
	int st;

	fresh_cache();
	cache.max = max;
	for (int i = 0; i < PROCESSES; i++)
		if ((p[i] = fork()) == 0)
			_exit(process());
	for (int i = 0; i < 20; i++) { /* and some that die in the middle */
		if ((killed = fork()) == 0)
			for (int n = 0;; n++)
				put(10 + n % KEYS, 1000 + 997 * (size_t)(10 + n % KEYS));
		usleep(3000);
		CHECK(kill(killed, SIGKILL) == 0 && waitpid(killed, &st, 0) == killed);
	}
	for (int i = 0; i < PROCESSES; i++)
		CHECK(waitpid(p[i], &st, 0) == p[i] && st == 0);
	worker((void *)99);
	remove_cache();
}

int main(void)
{
	alarm(1100);
	umask(0);
	folders();
	users();
	limit();
	many();
	usage_damaged();
	stopped();
	no_room();
	crowd(1 << 30);
	crowd(40 * CW_CACHE_BLOCK);
	return 0;
}

/*
 * Forks. A child has no session and gets none. Memory that the application registered is its own
 * all the same: natively the pages are pinned, and the kernel copies pinned private pages for a
 * child when it forks (Linux 5.10). Where registering put files of ours in the pages' place
 * (moving.c), which the kernel would share with the child, the child copies them before fork
 * returns there, and the parent waits for it, as it would for the kernel. That holds for all such
 * memory, whatever became of its registration, and whether one is under way: what is ours the child
 * finds among its own mappings. Other files of ours are not inherited at all (MADV_DONTFORK).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "session/internal.h"
#include "session/lock.h"

enum { PATIENCE_MS = 60000, LINE = 256 };

static struct {
	struct cw_lock lock; /* from before the fork until after it: one at a time */
	int moved;	     /* this process has memory in files of ours, or will have soon */
	/* The child of this fork copies; done tells its parent, or the end of the file if the child
	 * died. */
	int copying;
	int done[2];
} forks;

void cw_fork_moved(void)
{
	cw_lock_acquire(&forks.lock);
	forks.moved = 1;
	cw_lock_release(&forks.lock);
}

static void before(void)
{
	cw_lock_acquire(&forks.lock);
	forks.copying = forks.moved;
	forks.done[0] = forks.done[1] = -1;
	if (forks.copying && syscall(SYS_pipe2, forks.done, O_CLOEXEC) != 0)
		cw_log(CW_LOG_INFO, "a forked child may see registered memory as it is later: %s", strerror(errno));
}

static void in_parent(void)
{
	int err = errno; /* of a fork that failed */
	if (forks.done[0] >= 0) {
		struct pollfd p = {.fd = forks.done[0], .events = POLLIN};
		close(forks.done[1]);
		while (poll(&p, 1, PATIENCE_MS) < 0 && errno == EINTR)
			;
		close(forks.done[0]);
	}
	cw_lock_release(&forks.lock);
	errno = err;
}

/* --- the child: async-signal-safe ------------------------------------------------------------- */

int cw_fork_own(uint8_t *lo, uint8_t *hi, int prot)
{
	size_t size = (size_t)(hi - lo);
	uint8_t *here = __builtin_frame_address(0);
	int runs_there = here >= lo && here < hi;
	uint8_t *copy = runs_there ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (copy == MAP_FAILED)
		goto failed;
	memcpy(copy, lo, size);
	if (mprotect(copy, size, prot) == 0 && mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, lo) == lo)
		return 1;
	munmap(copy, size);
failed:
	if (!runs_there)
		mprotect(lo, size, PROT_READ);
	return 0;
}

static uint8_t *address(const char **p)
{
	uint64_t v = 0;
	for (;; (*p)++) {
		char c = **p;
		int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
		if (digit < 0)
			return (uint8_t *)(uintptr_t)v;
		v = v << 4 | (uint64_t)digit;
	}
}

/* A line of /proc/self/maps: "LO-HI rwxs ...  PATH". */
static int own_if_ours(const char *line)
{
	const char *p = line, *path = strchr(line, '/');
	uint8_t *lo = address(&p), *hi = *p == '-' ? (p++, address(&p)) : lo;
	if (!path || strlen(p) < 5 || p[1] != 'r' || p[4] != 's' ||
	    (strncmp(path, "/memfd:causeway", 15) != 0 && strncmp(path, "/dev/shm/causeway-", 18) != 0))
		return 1;
	return cw_fork_own(lo, hi, PROT_READ | (p[2] == 'w' ? PROT_WRITE : 0) | (p[3] == 'x' ? PROT_EXEC : 0));
}

/* 0: some of the memory is still shared. */
static int own_all(void)
{
	static char text[1 << 14], line[LINE];
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC), all = fd >= 0;
	size_t n = 0;
	for (ssize_t got; fd >= 0 && (got = read(fd, text, sizeof text)) != 0;) {
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0) {
			all = 0;
			break;
		}
		for (ssize_t i = 0; i < got; i++) {
			if (text[i] != '\n') {
				if (n < sizeof line - 1)
					line[n++] = text[i];
				continue;
			}
			line[n] = 0;
			n = 0;
			all &= own_if_ours(line);
		}
	}
	if (fd >= 0)
		close(fd);
	return all;
}

static void in_child(void)
{
	int err = errno, all = !forks.copying || own_all();
	if (forks.done[0] >= 0) {
		ssize_t n = write(forks.done[1], "", 1);
		(void)n; /* the end of the file says it too */
		close(forks.done[0]);
		close(forks.done[1]);
	}
	forks.moved = 0;
	cw_session_forked(all);
	cw_lock_release(&forks.lock);
	errno = err;
}

void cw_fork_watch(void) { pthread_atfork(before, in_parent, in_child); }

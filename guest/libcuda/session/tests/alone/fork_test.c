/*
 * Forks alone: fork.c, whose memory, list of mappings and other process are the test's own. Which
 * mappings a child makes its own and how, what it can no longer write where it could not, that its
 * parent waits for it and for how long, and that no descriptor and no lock is left, whatever fails.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "session/internal.h"
#include "session/lock.h"
#include "session/tests/check.h"

static int f_open(const char *path, int flags);
static ssize_t f_read(int fd, void *p, size_t n);
static ssize_t f_write(int fd, const void *p, size_t n);
static int f_close(int fd);
static int f_poll(struct pollfd *p, int ms);
static void *f_mmap(void *p, size_t n, int prot, int flags, int fd, off_t at);
static int f_munmap(void *p, size_t n);
static int f_mprotect(void *p, size_t n, int prot);
static void *f_mremap(void *p, size_t old, size_t n, int flags, void *to);
static long f_pipe(long number, int fds[2], int flags);
static int f_atfork(void (*a)(void), void (*b)(void), void (*c)(void));

#define open(path, flags) f_open(path, flags)
#define read(fd, p, n) f_read(fd, p, n)
#define write(fd, p, n) f_write(fd, p, n)
#define close(fd) f_close(fd)
#define poll(p, n, ms) f_poll(p, ms)
#define mmap(p, n, prot, flags, fd, at) f_mmap(p, n, prot, flags, fd, at)
#define munmap(p, n) f_munmap(p, n)
#define mprotect(p, n, prot) f_mprotect(p, n, prot)
#define mremap(p, old, n, flags, to) f_mremap(p, old, n, flags, to)
#define memcpy(to, from, n) f_memcpy(to, from, n)
#define syscall(number, fds, flags) f_pipe(number, fds, flags)
#define pthread_atfork(a, b, c) f_atfork(a, b, c)
static void *f_memcpy(void *to, const void *from, size_t n);
#include "session/fork.c"
#undef memcpy
#undef syscall

enum { MAPS = 60, HEAR, TELL };

static char list[40000]; /* of mappings */
static size_t list_at, piece;
static int is_open[70], open_fails, read_fails, read_eintr, map_fails, protect_fails, move_fails, pipe_fails, told, eintr, poll_ms, polls;
static uint8_t copy[64];
static int copies, copied, freed;
static struct owned {
	uintptr_t lo, hi;
	int prot, read_only;
} owned[16];
static int owns;

static int f_open(const char *path, int flags)
{
	CHECK(!strcmp(path, "/proc/self/maps") && flags == (O_RDONLY | O_CLOEXEC) && !is_open[MAPS]);
	if (open_fails)
		return -1;
	list_at = 0;
	is_open[MAPS] = 1;
	return MAPS;
}

static ssize_t f_read(int fd, void *p, size_t n)
{
	CHECK(fd == MAPS && is_open[MAPS]);
	if (read_eintr > 0) {
		read_eintr--;
		errno = EINTR;
		return -1;
	}
	if (read_fails && list_at > 0) {
		errno = EIO;
		return -1;
	}
	size_t k = strlen(list) - list_at;
	k = k < piece ? k : piece;
	k = k < n ? k : n;
	memcpy(p, list + list_at, k);
	list_at += k;
	return (ssize_t)k;
}

static ssize_t f_write(int fd, const void *p, size_t n)
{
	CHECK(fd == TELL && is_open[TELL] && n == 1 && p);
	told++;
	return 1;
}

static int f_close(int fd)
{
	CHECK(is_open[fd]);
	is_open[fd] = 0;
	return 0;
}

static int f_poll(struct pollfd *p, int ms)
{
	/* Or the end of a child that died is never seen. */
	CHECK(p->fd == HEAR && p->events == POLLIN && is_open[HEAR] && !is_open[TELL]);
	polls++;
	poll_ms = ms;
	CHECK(polls < 100);
	errno = EINTR; /* where it says that there is something, an older call's */
	return eintr-- > 0 ? -1 : 1;
}

static void *f_mmap(void *p, size_t n, int prot, int flags, int fd, off_t at)
{
	CHECK(!p && n > 0 && prot == (PROT_READ | PROT_WRITE) && flags == (MAP_PRIVATE | MAP_ANONYMOUS) && fd == -1 && at == 0);
	if (map_fails)
		return MAP_FAILED;
	copies++;
	return copy;
}

static void *f_memcpy(void *to, const void *from, size_t n)
{
	CHECK(to == copy && from && n > 0);
	copied++;
	return to;
}

static int f_munmap(void *p, size_t n)
{
	CHECK(p == copy && n > 0);
	freed++;
	return 0;
}

static int f_mprotect(void *p, size_t n, int prot)
{
	if (p != copy) {
		CHECK(prot == PROT_READ && owns < 16);
		owned[owns++] = (struct owned){(uintptr_t)p, (uintptr_t)p + n, prot, 1};
		return 0;
	}
	owned[owns].prot = prot;
	return protect_fails ? -1 : 0;
}

static void *f_mremap(void *p, size_t old, size_t n, int flags, void *to)
{
	CHECK(p == copy && old == n && flags == (MREMAP_MAYMOVE | MREMAP_FIXED) && copied == copies && owns < 16);
	if (move_fails)
		return MAP_FAILED;
	owned[owns].lo = (uintptr_t)to;
	owned[owns++].hi = (uintptr_t)to + n;
	return to;
}

static long f_pipe(long number, int fds[2], int flags)
{
	CHECK(number == SYS_pipe2 && flags == O_CLOEXEC);
	if (pipe_fails) {
		errno = EMFILE;
		return -1;
	}
	fds[0] = HEAR;
	fds[1] = TELL;
	is_open[HEAR] = is_open[TELL] = 1;
	return 0;
}

static void (*prepare)(void), (*parent)(void), (*child)(void);
static int f_atfork(void (*a)(void), void (*b)(void), void (*c)(void))
{
	prepare = a;
	parent = b;
	child = c;
	return 0;
}

static int logs;
void cw_log(enum cw_log_level level, const char *fmt, ...)
{
	CHECK(level == CW_LOG_INFO && fmt);
	logs++;
}

static int ended, all_owned;
void cw_session_forked(int all)
{
	CHECK(forks.lock.word == 1);
	ended++;
	all_owned = all;
}

_Atomic uint32_t cw_signals_waiting;
__thread uint32_t cw_signals_held __attribute__((tls_model("initial-exec")));
void cw_signals_hold(void) {}
void cw_signals_let(void) {}
void cw_lock_slow(struct cw_lock *l) { CHECK(!l); } /* nobody else is there */

static void anew(const char *maps, int moved)
{
	snprintf(list, sizeof list, "%s", maps);
	memset(&forks, 0, sizeof forks);
	memset(is_open, 0, sizeof is_open);
	memset(owned, 0, sizeof owned);
	open_fails = read_fails = read_eintr = map_fails = protect_fails = move_fails = pipe_fails = told = eintr = poll_ms = polls = 0;
	copies = copied = freed = owns = logs = ended = 0;
	all_owned = -1;
	piece = sizeof list;
	if (moved)
		cw_fork_moved();
}

static void forks_child(void)
{
	prepare();
	CHECK(forks.lock.word == 1);
	errno = ENOTTY;
	child();
	CHECK(errno == ENOTTY && forks.lock.word == 0 && ended == 1 && !is_open[HEAR] && !is_open[TELL] && !is_open[MAPS] && !forks.moved);
}

#define OURS "7f0000-7f3000 rw-s 00000000 00:01 77 /memfd:causeway-0000abcd (deleted)\n"

/* Which mappings are the child's to copy. */
static void mappings(void)
{
	static const struct {
		const char *line;
		uintptr_t lo, hi;
		int prot;
	} all[] = {
		{OURS, 0x7f0000, 0x7f3000, PROT_READ | PROT_WRITE},
		{"7fabcdef9000-7fabcdefa000 r--s 00000000 00:01 77 /memfd:causeway-0000abcd (deleted)\n", 0x7fabcdef9000, 0x7fabcdefa000,
		 PROT_READ},
		{"1000-2000 r-xs 00000000 00:01 77 /dev/shm/causeway-12-3 (deleted)\n", 0x1000, 0x2000, PROT_READ | PROT_EXEC},
		{"1000-2000 rwxs 00000000 00:01 77 /dev/shm/causeway-12-3\n", 0x1000, 0x2000, PROT_READ | PROT_WRITE | PROT_EXEC},
		{"7f0000-7f3000 ---s 00000000 00:01 77 /memfd:causeway-0000abcd (deleted)\n", 0, 0, 0},
		{"7f0000-7f3000 -w-s 00000000 00:01 77 /memfd:causeway-0000abcd (deleted)\n", 0, 0, 0},
		{"7f0000-7f3000 rw-p 00000000 00:01 77 /memfd:causeway-0000abcd (deleted)\n", 0, 0, 0},
		{"7f0000-7f3000 rw-s 00000000 00:01 77 /memfd:causewa\n", 0, 0, 0},
		{"7f0000-7f3000 rw-s 00000000 00:01 77 /dev/shm/causeway\n", 0, 0, 0},
		{"7f0000-7f3000 rw-s 00000000 00:01 77 /srv/memfd:causeway\n", 0, 0, 0},
		{"7f0000-7f3000 rw-s 00000000 00:01 77\n", 0, 0, 0},
		{"7f0000-7f3000 rw-p 00000000 00:00 0 [heap]\n", 0, 0, 0},
		{"/memfd:causeway\n", 0, 0, 0},
		{"\n", 0, 0, 0},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		anew(all[i].line, 1);
		forks_child();
		int mine = all[i].hi != 0;
		CHECK(owns == mine && copies == mine && freed == 0 && all_owned == 1 && told == 1);
		CHECK(!mine ||
		      (owned[0].lo == all[i].lo && owned[0].hi == all[i].hi && owned[0].prot == all[i].prot && !owned[0].read_only));
	}
}

/* The list comes in pieces of any size, and with lines of any length. */
static void pieces(void)
{
	static char maps[4000];
	snprintf(maps, sizeof maps,
		 "1000-2000 r--p 0 00:00 0 /%0300d\n" OURS "%0255d\n%0254d\n9000-a000 r--s 00000000 00:01 77 /memfd:causeway-1\n", 0, 0, 0);
	for (size_t n = 1; n < strlen(maps) + 2; n += n < 90 ? 1 : 37) {
		anew(maps, 1);
		piece = n;
		read_eintr = 2;
		forks_child();
		CHECK(owns == 2 && owned[0].lo == 0x7f0000 && owned[1].lo == 0x9000 && owned[1].hi == 0xa000 && all_owned == 1 &&
		      read_eintr == 0);
	}
}

/* Memory that stays shared can no longer be written there, and the rest of the library knows. */
static void failures(void)
{
	static int *const all[] = {&map_fails, &protect_fails, &move_fails};
	for (size_t i = 0; i < 3; i++) {
		anew(OURS "9000-a000 r--s 00000000 00:01 77 /memfd:causeway-1\n", 1);
		*all[i] = 1;
		forks_child();
		CHECK(owns == 2 && owned[0].read_only && owned[0].lo == 0x7f0000 && owned[0].hi == 0x7f3000 && owned[1].read_only &&
		      all_owned == 0);
		CHECK(freed == copies && copies == (i == 0 ? 0 : 2));
	}
	anew(OURS, 1);
	open_fails = 1;
	forks_child();
	CHECK(owns == 0 && all_owned == 0 && told == 1);
	anew(OURS OURS, 1);
	piece = sizeof OURS - 1;
	read_fails = 1;
	forks_child();
	CHECK(owns == 1 && all_owned == 0);
	/* It cannot take away what it runs on. */
	char maps[128];
	uintptr_t here = (uintptr_t)__builtin_frame_address(0) & ~(uintptr_t)4095;
	for (int beside = 0; beside < 2; beside++) {
		uintptr_t lo = beside ? here + (1 << 20) : here - (1 << 20);
		snprintf(maps, sizeof maps, "%lx-%lx rw-s 00000000 00:01 77 /memfd:causeway-1\n", (unsigned long)lo,
			 (unsigned long)(lo + (2 << 20)));
		anew(maps, 1);
		forks_child();
		CHECK(beside ? owns == 1 && all_owned == 1 : owns == 0 && copies == 0 && all_owned == 0);
	}
}

static void nothing_moved(void)
{
	anew(OURS, 0);
	open_fails = 1; /* nobody looks */
	forks_child();
	CHECK(owns == 0 && all_owned == 1 && told == 0);
	anew(OURS, 0);
	prepare();
	errno = EAGAIN;
	parent();
	CHECK(errno == EAGAIN && polls == 0 && forks.lock.word == 0 && ended == 0);
}

static void parents(void)
{
	anew(OURS, 1);
	prepare();
	CHECK(is_open[HEAR] && is_open[TELL]);
	eintr = 2;
	errno = EAGAIN;
	parent();
	CHECK(errno == EAGAIN && polls == 3 && poll_ms == 60000 && !is_open[HEAR] && !is_open[TELL] && forks.lock.word == 0 &&
	      forks.moved && owns == 0);
	anew(OURS, 1);
	pipe_fails = 1; /* the child copies all the same, and nobody waits for it */
	prepare();
	CHECK(logs == 1);
	parent();
	CHECK(polls == 0 && forks.lock.word == 0);
	prepare();
	child();
	CHECK(owns == 1 && told == 0 && all_owned == 1);
}

int main(void)
{
	cw_fork_watch();
	CHECK(prepare && parent && child);
	mappings();
	pieces();
	failures();
	nothing_moved();
	parents();
	puts("fork_test ok");
	return 0;
}

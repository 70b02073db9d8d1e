/*
 * The carrier of a process on the host alone: carrier_unix.c between sockets, files and memory of
 * the test's own. What it sends with which files, what it makes of each answer, and that whatever
 * fails, and whenever, gives back all that it had taken, and nothing else.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "session/internal.h"
#include "session/tests/check.h"

static int f_socket(int domain, int type, int protocol);
static int f_connect(int fd, const struct sockaddr *a, socklen_t len);
static int f_close(int fd);
static ssize_t f_sendmsg(int fd, const struct msghdr *m, int flags);
static int f_poll(struct pollfd *p, nfds_t n, int ms);
static ssize_t f_recv(int fd, void *p, size_t n, int flags);
static ssize_t f_write(int fd, const void *p, size_t n);
static int f_eventfd(unsigned value, int flags);
static void *f_mmap(void *p, size_t n, int prot, int flags, int fd, off_t at);
static int f_munmap(void *p, size_t n);
static int f_shutdown(int fd, int how);
static int f_wait(_Atomic uint32_t *word, uint32_t value, int flags, const struct timespec *limit);

#define socket(domain, type, protocol) f_socket(domain, type, protocol)
#define connect(fd, a, len) f_connect(fd, a, len)
#define close(fd) f_close(fd)
#define sendmsg(fd, m, flags) f_sendmsg(fd, m, flags)
#define poll(p, n, ms) f_poll(p, n, ms)
#define recv(fd, p, n, flags) f_recv(fd, p, n, flags)
#define write(fd, p, n) f_write(fd, p, n)
#define eventfd(value, flags) f_eventfd(value, flags)
#define mmap(p, n, prot, flags, fd, at) f_mmap(p, n, prot, flags, fd, at)
#define munmap(p, n) f_munmap(p, n)
#define shutdown(fd, how) f_shutdown(fd, how)
#define cw_futex_wait(word, value, flags, limit) f_wait(word, value, flags, limit)
#include "session/carrier_unix.c"
#undef close

#include "session/tests/alone/unix_fakes.h"
#define OWN_CLOSE f_close
#include "session/tests/alone/own_fakes.h"

static int owned_pages;
int cw_fork_own(uint8_t *lo, uint8_t *hi, int prot)
{
	CHECK(lo == memory && hi > lo && prot == (PROT_READ | PROT_WRITE));
	owned_pages++;
	return 1;
}

/* --- what is tried ---------------------------------------------------------------------------- */

static void anew(void)
{
	memset(s, 0, sizeof *s);
	s->bell = -1;
	memset(is_open, 0, sizeof is_open);
	maps = step = fails_at = send_errno = send_eintr = poll_eintr = recv_eintr = resets = write_eintr = write_errno = writes = asked =
		shut = 0;
	sends = with_count = disowned = wait_errno = welcome_err = moving_err = moving_ended = 0;
	fail_errno = EMFILE;
	poll_result = 1;
	came = 64;
}

static int said(const char *what) { return strstr(s->why, what) != NULL; }

static void paths(void)
{
	char path[sizeof to.sun_path + 2];
	for (size_t n = 0; n < sizeof path; n++)
		for (int abstract = 0; abstract < 2; abstract++) {
			anew();
			memset(path, 0, sizeof path);
			memset(path, 'x', n);
			path[0] = n == 0 ? 0 : abstract ? '@' : '/';
			int err = c->open(s, path);
			if (n == 0 || n >= sizeof to.sun_path) {
				CHECK(err == -EINVAL && step == 0 && said(n == 0 ? "the path is empty" : "the path is too long"));
				continue;
			}
			CHECK(err == 0 && to_len == offsetof(struct sockaddr_un, sun_path) + n + (size_t)!abstract);
			CHECK(to.sun_path[0] == (abstract ? 0 : '/') && !memcmp(to.sun_path + 1, path + 1, n - 1));
			CHECK(n + 1 >= sizeof to.sun_path || to.sun_path[n] == 0);
		}
}

static void opens(void)
{
	anew();
	CHECK(c->open(s, "/run/x") == 0 && s->fd == SOCK && s->bell == BELL && s->base == memory && files() == 2 && maps == 1 &&
	      !is_open[MEM]);
	CHECK(mapped_size == CW_REGION0_SIZE && !hint_ && sends == 1 && sent.type == CW_MSG_HELLO && sent.region == 0 &&
	      sent.va == (uintptr_t)memory && sent.size == CW_REGION0_SIZE && with_count == 2 && with[0] == MEM && with[1] == BELL);
	c->close(s);
	CHECK(shut == 1 && files() == 2 && maps == 1); /* threads may be inside */
	c->abandon(s);
	CHECK(files() == 0 && maps == 0 && !s->base);
	int most = step; /* whatever fails, once */
	for (int at = 1; at <= most; at++) {
		anew();
		fails_at = at;
		int err = c->open(s, "/run/x");
		if (err >= 0 || !s->why[0] || files() || maps)
			fprintf(stderr, "step %d: %d, %d files, %d maps, %s\n", at, err, files(), maps, s->why);
		CHECK(err < 0 && s->why[0] && files() == 0 && maps == 0 && !s->base);
	}
	CHECK(most == 9);
	anew();
	send_eintr = poll_eintr = recv_eintr = 2;
	CHECK(c->open(s, "/run/x") == 0 && send_eintr == 0 && poll_eintr == 0 && recv_eintr == 0);
}

/* What a worker says that ends at once, or does not take the hello. */
static void answers(void)
{
	static const struct {
		int send_errno, welcome_err, resets, poll_result;
		ssize_t came;
		int want, asked;
		const char *said;
	} all[] = {
		{0, -EBUSY, 0, 1, 64, -EBUSY, 1, "refused"},
		{0, 0, 1, 1, 64, 0, 1, ""},
		{0, -EBUSY, 1, 1, 64, -EBUSY, 1, "refused"},
		{0, 0, 2, 1, 64, -EPIPE, 1, "ended during the handshake"},
		{0, 0, 0, 1, 0, -EPIPE, 1, "ended during the handshake"},
		{0, 0, 0, -1, 64, 0, 1, ""}, /* the receiving says what is wrong */
		{0, 0, 0, 0, 64, -ETIMEDOUT, 1, "did not answer within 60 s"},
		{EPIPE, -EBUSY, 0, 1, 64, -EBUSY, 1, "refused"},
		{ECONNRESET, -EBUSY, 1, 1, 64, -EBUSY, 1, "refused"},
		{EPIPE, 0, 0, 1, 64, -EPIPE, 1, "ended during the handshake: Broken pipe"},
		{ECONNRESET, 0, 0, 1, 64, -ECONNRESET, 1, "ended during the handshake: Connection reset"},
		{ENOBUFS, -EBUSY, 0, 1, 64, -ENOBUFS, 0, "ended during the handshake: No buffer"},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		anew();
		send_errno = all[i].send_errno;
		welcome_err = all[i].welcome_err;
		resets = all[i].resets;
		poll_result = all[i].poll_result;
		came = all[i].came;
		int err = c->open(s, "/run/x");
		if (err != all[i].want || !said(all[i].said))
			fprintf(stderr, "row %zu: %d, %s\n", i, err, s->why);
		CHECK(err == all[i].want && asked == all[i].asked && said(all[i].said));
		CHECK(files() == (err == 0 ? 2 : 0) && maps == (err == 0));
	}
}

static struct cw_region region(int adopted, int file)
{
	anew();
	s->fd = SOCK;
	is_open[SOCK] = 1;
	if (file >= 0)
		is_open[file] = 1;
	mapped_size = 12288;
	return (struct cw_region){.id = 5,
				  .size = 12288,
				  .va = adopted ? memory : memory + 8,
				  .at = (uintptr_t)memory + 8,
				  .adopted = adopted,
				  .file = file,
				  .file_at = 4096,
				  .mem = -1};
}

static void new_regions(void)
{
	struct cw_region r = region(0, -1);
	void *wanted = r.va;
	CHECK(c->add_region(s, &r) == 0 && r.va == memory && hint_ == wanted && r.at == (uintptr_t)memory && maps == 1 && files() == 1);
	CHECK(sent.type == CW_MSG_REGION && sent.region == 5 && sent.va == (uintptr_t)memory && sent.size == 12288 && sent.offset == 0 &&
	      sent.flags == 0 && sent.part == 0 && with_count == 1 && with[0] == MEM);
	c->end_region(s, &r);
	CHECK(sent.type == CW_MSG_REGION_END && sent.region == 5 && sent.va == (uintptr_t)memory && sent.size == 12288 && with_count == 0 &&
	      maps == 0 && files() == 1);
	r = region(0, -1);
	r.at = 77; /* where the worker has it, and this process does not */
	CHECK(c->add_region(s, &r) == 0 && r.at == 77 && sent.va == 77);
	static const int want[] = {0, -EMFILE, -ENOMEM, -EMFILE};
	for (int at = 1; at <= 3; at++) {
		r = region(0, -1);
		fails_at = at;
		CHECK(c->add_region(s, &r) == want[at] && maps == 0 && files() == 1 && sends == (at == 3));
	}
}

static void adopted_regions(void)
{
	struct cw_region r = region(1, 75); /* of a file that others have, too */
	CHECK(c->add_region(s, &r) == 0 && r.va == memory && r.at == (uintptr_t)memory + 8 && maps == 0 && files() == 2 && !r.moving);
	CHECK(sent.offset == 4096 && sent.flags == CW_REGION_SHARED && sent.part == 0 && with_count == 1 && with[0] == 75);
	c->end_region(s, &r);
	CHECK(files() == 2 && disowned == 0);
	r = region(1, 75);
	fails_at = 1;
	CHECK(c->add_region(s, &r) == -EMFILE && files() == 2 && maps == 0 && moving_ended == 0);

	for (uint32_t count = 1; count < 4; count += 2) { /* of files that take its place */
		for (int err = 0; err < 2; err++) {
			r = region(1, -1);
			moving = (struct cw_moving){.count = count, .size = 4096, .file = {80, 81, 82}};
			is_open[80] = is_open[81] = is_open[82] = 1;
			fails_at = err;
			CHECK(c->add_region(s, &r) == (err ? -EMFILE : 0) && moving_ended == err && (r.moving != NULL) == !err &&
			      files() == 4 && maps == 0);
			CHECK(sent.offset == 0 && sent.flags == 0 && sent.part == (count > 1 ? 4096 : 0) && with_count == (int)count &&
			      !memcmp(with, moving.file, count * sizeof(int)));
		}
	}
	r = region(1, -1);
	moving_err = -EDQUOT;
	CHECK(c->add_region(s, &r) == -EDQUOT && sends == 0 && moving_ended == 0);
	r = region(1, -1);
	r.mem = 80; /* of a parted one */
	is_open[80] = 1;
	c->end_region(s, &r);
	CHECK(disowned == 1 && !is_open[80] && r.mem == -1 && sends == 1 && files() == 1);
}

static void bells(void)
{
	anew();
	s->bell = BELL;
	write_eintr = 2;
	c->doorbell(s);
	CHECK(writes == 3);
	write_errno = EAGAIN; /* it has rung, and nobody looked yet */
	c->doorbell(s);
	CHECK(writes == 4);
	write_errno = 0;
	errno = EINTR; /* an older call's */
	c->doorbell(s);
	CHECK(writes == 5);
}

static void lives(void)
{
	static const struct {
		ssize_t came;
		int err, want;
	} all[] = {{0, EAGAIN, -EPIPE}, {1, ECONNRESET, 0}, {-1, EAGAIN, 0}, {-1, EINTR, 0}, {-1, ECONNRESET, -EPIPE}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		anew();
		s->fd = SOCK;
		is_open[SOCK] = 1;
		came = all[i].came;
		fail_errno = all[i].err;
		CHECK(c->alive(s) == all[i].want && asked == 1);
		wait_errno = ETIMEDOUT; /* only who has waited for long asks */
		CHECK(c->wait_slot(s, 3, (_Atomic uint32_t *)(void *)memory) == all[i].want && asked == 2);
		wait_errno = EAGAIN;
		CHECK(c->wait_slot(s, 3, (_Atomic uint32_t *)(void *)memory) == 0 && asked == 2);
		wait_errno = 0;
		errno = ETIMEDOUT; /* an older call's */
		CHECK(c->wait_slot(s, 3, (_Atomic uint32_t *)(void *)memory) == 0 && asked == 2);
	}
}

/* A child's: descriptors go, and what the parent's memory has of files is the child's own, or is
 * made so. */
static void forks(void)
{
	for (int owned = 0; owned < 2; owned++) {
		anew();
		s->fd = SOCK;
		s->bell = BELL;
		struct cw_region parted = {.va = memory, .size = 12288, .mem = 80, .adopted = 1},
				 whole = {.va = memory, .mem = -1, .next = &parted};
		s->regions = &whole;
		is_open[SOCK] = is_open[BELL] = is_open[80] = 1;
		c->forked(s, owned);
		CHECK(files() == 0 && disowned == !owned && whole.mem == -1 && shut == 0);
	}
}

/* Under the numbers are files of the program's: nothing is done to them. */
static void closed_by_the_program(void)
{
	struct cw_region parted = {.va = memory, .size = 12288, .mem = 80, .adopted = 1}, r = region(0, -1);
	for (int owned = 0; owned < 2; owned++) {
		anew();
		own_gone = 1;
		owned_pages = 0;
		s->fd = SOCK;
		s->bell = BELL;
		s->regions = &parted;
		parted.mem = 80;
		is_open[SOCK] = is_open[BELL] = is_open[80] = 1;
		c->doorbell(s);
		CHECK(writes == 0);
		c->forked(s, owned);
		CHECK(files() == 3 && disowned == 0 && owned_pages == !owned && shut == 0);
	}
	parted.mem = 80;
	c->end_region(s, &parted);
	CHECK(files() == 3 && disowned == 0 && owned_pages == 1 && parted.mem == -1 && sends == 0);
	CHECK(c->add_region(s, &r) < 0 && sends == 0 && maps == 0);
	own_gone = 0;
}

int main(void)
{
	paths();
	closed_by_the_program();
	opens();
	answers();
	new_regions();
	adopted_regions();
	bells();
	lives();
	forks();
	puts("unix_test ok");
	return 0;
}

/* Small parts by themselves: what a host answers to a hello, what of the environment it is told,
 * who listens to the log, extents of the kernel's, and completion words that nobody wakes. The
 * kernel is the test's where it matters. */
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "session/extent.h"
#include "session/internal.h"
#include "session/loan.h"
#include "session/logring.h"
#include "session/tests/fake_worker.h"

/* --- the kernel --- */

static const char *release_ = "6.12.0";
int uname(struct utsname *u)
{
	memset(u, 0, sizeof *u);
	if (!release_)
		return -1;
	strcpy(u->release, release_);
	return 0;
}

static struct iocb sent;
static int setups, io_fails, interrupted, none;
static long ended;
static int reaped_least, waits;
static long ios(long n, long a, long b, long c, long d, long e)
{
	if (interrupted > 0 && n != SYS_io_setup) {
		interrupted--;
		errno = EINTR;
		return -1;
	}
	if (n == SYS_io_setup) {
		setups++;
		CHECK(a == CW_EXTENTS);
		if (!io_fails)
			*(aio_context_t *)b = 99;
		errno = io_fails;
		return io_fails ? -1 : 0;
	}
	if (n == SYS_io_submit) {
		CHECK(a == 99 && b == 1);
		sent = **(struct iocb **)c;
		errno = io_fails;
		return io_fails ? -1 : none ? 0 : 1;
	}
	CHECK(a == 99);
	reaped_least = (int)b;
	waits = e == 0;
	errno = io_fails;
	if (io_fails)
		return -1;
	CHECK(ended <= c);
	for (long i = 0; i < ended; i++)
		((struct io_event *)d)[i] = (struct io_event){.data = (uint64_t)(1000 + i), .res = i == 1 ? -EIO : 4096 + i};
	return ended;
}

__attribute__((no_sanitize_address)) long syscall(long n, ...)
{
	long v[6];
	va_list ap;
	va_start(ap, n);
	for (int i = 0; i < 6; i++)
		v[i] = va_arg(ap, long);
	va_end(ap);
	if (n == SYS_io_setup || n == SYS_io_submit || n == SYS_io_getevents)
		return ios(n, v[0], v[1], v[2], v[3], v[4]);
	long r;
	register long r10 __asm__("r10") = v[3], r8 __asm__("r8") = v[4], r9 __asm__("r9") = v[5];
	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "a"(n), "D"(v[0]), "S"(v[1]), "d"(v[2]), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	if (r < 0 && r > -4096) {
		errno = (int)-r;
		return -1;
	}
	return r;
}

static int naps, until;
static long longest, shortest = 1 << 30, second;
static _Atomic uint32_t *awaited;
int nanosleep(const struct timespec *t, struct timespec *left)
{
	(void)left;
	CHECK(t->tv_sec == 0);
	longest = t->tv_nsec > longest ? t->tv_nsec : longest;
	shortest = t->tv_nsec < shortest ? t->tv_nsec : shortest;
	if (++naps == 2)
		second = t->tv_nsec;
	if (naps == until)
		atomic_store(awaited, 7);
	return 0;
}

/* --- what is tried --- */

static void pins(void)
{
	static const struct {
		const char *release;
		int pins;
	} all[] = {{"6.9.0", 1}, {"6.8.12", 0}, {"6.10", 1}, {"6.9", 1}, {"7.0.1-rc1", 1}, {"5.19.0", 0},
		   {"6", 0},	 {"10.1", 1},	{"6-9", 0},  {"x", 0},	 {NULL, 0}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		int st = -1;
		pid_t p = fork(); /* it is asked once */
		if (p == 0) {
			release_ = all[i].release;
			int first = cw_extent_pins();
			release_ = all[i].pins ? "5.0" : "9.0";
			_exit(first == all[i].pins && cw_extent_pins() == first ? 0 : 1);
		}
		CHECK(waitpid(p, &st, 0) == p);
		if (st != 0)
			fprintf(stderr, "small_test: %s\n", all[i].release ? all[i].release : "(none)");
		CHECK(st == 0);
	}
}

static void extents(void)
{
	static const struct cw_carrier other;
	struct cw_extent_end e[CW_EXTENTS + 1];
	char p[8];
	cw_loans.max_read = 12345;
	cw_s.fd = 33;
	memset(&cw_s.fd_own, 0, sizeof cw_s.fd_own); /* of a handshake's */
	cw_s.carrier = &other;
	CHECK(cw_extent_take() == 0 && setups == 0);
	cw_s.carrier = &cw_carrier_virtiofs;
	CHECK(cw_extent_take() == 12345 && setups == 1);
	CHECK(cw_extent_take() == 0); /* another has them */
	interrupted = 2;
	CHECK(cw_extent_submit(5, 4096, p, 100, 1, p + 1) == 0 && interrupted == 0);
	CHECK(sent.aio_lio_opcode == IOCB_CMD_PWRITE && sent.aio_fildes == 33 && sent.aio_buf == (uintptr_t)p && sent.aio_nbytes == 100);
	CHECK(sent.aio_offset == (int64_t)(CW_FILE_EXTENT | 5ull << 44 | 4096) && sent.aio_data == (uintptr_t)(p + 1));
	CHECK(cw_extent_submit(6, 0, p, 1, 0, p) == 0 && sent.aio_lio_opcode == IOCB_CMD_PREAD &&
	      sent.aio_offset == (int64_t)(CW_FILE_EXTENT | 6ull << 44));
	none = 1;
	CHECK(cw_extent_submit(6, 0, p, 1, 0, p) == -EAGAIN);
	none = 0;
	io_fails = EIO;
	CHECK(cw_extent_submit(6, 0, p, 1, 0, p) == -EIO && cw_extent_reap(e, 1, 0) == -EIO);
	io_fails = 0;
	interrupted = 1;
	ended = 3;
	CHECK(cw_extent_reap(e, CW_EXTENTS + 1, 0) == 3 && interrupted == 0 && reaped_least == 0 && !waits);
	CHECK(e[0].tag == (void *)1000 && e[0].res == 4096 && e[1].res == -EIO && e[2].tag == (void *)1002);
	CHECK(cw_extent_reap(e, 3, 1) == 3 && reaped_least == 1 && waits);
	ended = 0;
	CHECK(cw_extent_reap(e, 1, 0) == 0);
	cw_extent_give();
	CHECK(cw_extent_take() == 12345 && setups == 1);
	cw_extent_give();
}

static void no_context(void)
{
	int st = -1;
	pid_t p = fork();
	if (p == 0) {
		cw_s.carrier = &cw_carrier_virtiofs;
		cw_loans.max_read = 1;
		io_fails = EAGAIN;
		/* asked once, and the lock is free */
		CHECK(cw_extent_take() == 0 && cw_extent_take() == 0 && setups == 1);
		_exit(0);
	}
	CHECK(waitpid(p, &st, 0) == p && st == 0);
}

static void welcomes(void)
{
	struct {
		struct cw_hello h;
		char text[16];
	} m, good = {.h = {.magic = CW_HELLO_MAGIC, .version = CW_PROTOCOL_VERSION, .type = CW_MSG_WELCOME}};
#define SAID(change, n, result, sentence) \
	do { \
		m = good; \
		change; \
		strcpy(cw_s.why, ""); \
		CHECK(cw_welcome_check(&cw_s, &m, n) == (result)); \
		if (strcmp(cw_s.why, sentence)) \
			fprintf(stderr, "%s\n", cw_s.why); \
		CHECK(!strcmp(cw_s.why, sentence)); \
	} while (0)
	size_t all = sizeof m.h;
	SAID((void)0, all, 0, "");
	SAID((void)0, all - 1, -EPROTO, "the host answered with 63 bytes instead of a welcome");
	SAID(m.h.magic++, all, -EPROTO, "the host does not speak Causeway's protocol");
	SAID(m.h.type = CW_MSG_HELLO, all, -EPROTO, "the host does not speak Causeway's protocol");
	SAID(m.h.status = EBUSY, all, -EBUSY, "the host refused the session: Device or resource busy");
	SAID((m.h.status = EBUSY, m.h.text_len = 3, memcpy(m.text, "no room", 8)), all + 7, -EBUSY, "the host refused the session: no ");
	SAID((m.h.status = EBUSY, m.h.text_len = 99, memcpy(m.text, "no room", 8)), all + 7, -EBUSY,
	     "the host refused the session: no room");
	static const char steers[] = "a\x1b[2J\r\n\xc2\x9b"
				     "b\xc3\xa9\x7f";
	SAID((m.h.status = EBUSY, m.h.text_len = sizeof steers - 1, memcpy(m.text, steers, sizeof steers)), all + sizeof steers - 1, -EBUSY,
	     "the host refused the session: a?[2J? ??b\xc3\xa9?");
	SAID((m.h.status = EBUSY, m.h.text_len = 99), all, -EBUSY, "the host refused the session: Device or resource busy");
	SAID((m.h.status = 4095, m.h.text_len = 1, m.text[0] = 'x'), all + 1, -4095, "the host refused the session: x");
	SAID((m.h.status = 4096, m.h.text_len = 1, m.text[0] = 'x'), all + 1, -EPROTO, "the host refused the session: x");
	m = good;
	m.h.version++;
	CHECK(cw_welcome_check(&cw_s, &m, all) == -EPROTONOSUPPORT && strstr(cw_s.why, "use the libcuda.so.1 that the host provides"));
}

static uint32_t told(const char *a, const char *b)
{
	extern char **environ;
	char *list[] = {(char *)(uintptr_t)"PATH=/", (char *)(uintptr_t)a, (char *)(uintptr_t)b, NULL}, **was = environ;
	struct cw_hello h, region;
	environ = list;
	cw_hello_fill(&h, CW_MSG_HELLO, 3, list, 17);
	cw_hello_fill(&region, CW_MSG_REGION, 4, NULL, 18);
	environ = was;
	CHECK(h.magic == CW_HELLO_MAGIC && h.version == CW_PROTOCOL_VERSION && h.type == CW_MSG_HELLO && h.region == 3 && h.size == 17 &&
	      h.pid == (uint32_t)getpid());
	CHECK(h.va == (uintptr_t)list && h.status == 0 && h.text_len == 0 && h.offset == 0 && region.flags == 0 && region.region == 4);
	return h.flags;
}

static void environment(void)
{
	CHECK(told(NULL, NULL) == 0 && told("CUDAX=1", NULL) == 0);
	CHECK(told("CUDA_HOME=/x", "CUDA_CACHE_MAXSIZE=5") == 0);
	CHECK(told("CUDA_HOM=/x", NULL) == CW_ENV_OWN_DRIVER && told("CUDA_HOME2=/x", NULL) == CW_ENV_OWN_DRIVER);
	CHECK(told("CUDA_VISIBLE_DEVICES=0", NULL) == CW_ENV_FIRST_DEVICE && told("CUDA_VISIBLE_DEVICES=1", NULL) == CW_ENV_OWN_DRIVER);
	CHECK(told("CUDA_VISIBLE_DEVICES=0", "CUDA_DEVICE_MAX_CONNECTIONS=1") == (CW_ENV_FIRST_DEVICE | CW_ENV_OWN_DRIVER));
}

static char heard[64];
static int hears;
static void listener(void *data, int level, char *message, size_t length)
{
	hears++;
	CHECK(strlen(message) == length && level == 1);
	snprintf(heard, sizeof heard, "%s:%.30s", (const char *)data, message);
}

static void logs(void)
{
	struct cw_log_line l;
	char name[] = "a", more[] = "b", longest_[CW_LOG_TEXT + 9];
	uint64_t before = cw_logring_count();
	uint32_t id = cw_logring_listen(listener, name), ids[CW_LOG_LISTENERS];
	CHECK(id != 0 && !cw_logring_unlisten(id + 1) && !cw_logring_unlisten(0));
	cw_logring_add(1, "hello there", 5);
	CHECK(hears == 1 && !strcmp(heard, "a:hello") && cw_logring_count() == before + 1);
	CHECK(cw_logring_get(before, &l) && !strcmp(l.text, "hello") && l.len == 5 && l.level == 1 && l.number == before &&
	      !cw_logring_get(before + 1, &l));
	memset(longest_, 'x', sizeof longest_);
	cw_logring_add(1, longest_, sizeof longest_);
	CHECK(cw_logring_get(before + 1, &l) && l.len == CW_LOG_TEXT - 1 && strlen(l.text) == CW_LOG_TEXT - 1);
	for (int i = 1; i < CW_LOG_LISTENERS; i++)
		CHECK((ids[i] = cw_logring_listen(listener, more)) != 0 && ids[i] != id);
	CHECK(cw_logring_listen(listener, more) == 0);
	hears = 0;
	cw_logring_add(1, "all", 3);
	CHECK(hears == CW_LOG_LISTENERS);
	CHECK(cw_logring_unlisten(id) && !cw_logring_unlisten(id));
	hears = 0;
	cw_logring_add(1, "rest", 4);
	CHECK(hears == CW_LOG_LISTENERS - 1 && !strcmp(heard, "b:rest"));
	for (int i = 1; i < CW_LOG_LISTENERS; i++)
		CHECK(cw_logring_unlisten(ids[i]));
	hears = 0;
	for (int i = 0; i < CW_LOG_LINES; i++)
		cw_logring_add(1, "line", 4);
	uint64_t n = cw_logring_count();
	CHECK(hears == 0 && cw_logring_get(n - CW_LOG_LINES, &l) && l.number == n - CW_LOG_LINES &&
	      !cw_logring_get(n - CW_LOG_LINES - 1, &l));
}

static int asked, gone;
static int host_alive(struct cw_session *s)
{
	(void)s;
	asked++;
	return gone ? -EPIPE : 0;
}

static void words(void)
{
	static _Alignas(4096) uint8_t base[CW_REGION0_SIZE];
	static const struct cw_carrier c = {.alive = host_alive};
	cw_s.carrier = &c;
	cw_s.base = base;
	cw_s.ctl = (struct cw_control_page *)base;
	cw_g.ctl = cw_s.ctl;
	cw_s.spin_max = 10;
	awaited = cw_word(3);
	CHECK((uint8_t *)awaited == base + CW_WORDS_OFFSET + 12);
	atomic_store(awaited, 7);
	CHECK(cw_word_wait(3, 7) == 0 && naps == 0);
	until = 100;
	atomic_store(awaited, 0);
	CHECK(cw_word_wait(3, 7) == 0 && naps == until && asked == 0);
	CHECK(shortest == 2000 && second == 2501 && longest >= 200000 && longest < 250002);
	until = naps = 0;
	gone = 1;
	atomic_store(awaited, 0);
	CHECK(cw_word_wait(3, 7) == CUDA_ERROR_LAUNCH_FAILED && asked == 1 && naps == 1024 && cw_is_dead(&cw_s));
	naps = 0;
	CHECK(cw_word_wait(3, 7) == CUDA_ERROR_LAUNCH_FAILED && naps == 0);
}

/* A host that accepts, reads the hello or not, answers n bytes, and goes. */
static int opens(const char *path, int reads, const void *answer, size_t n)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strcpy(a.sun_path, path);
	unlink(path);
	int l = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), st = -1;
	CHECK(bind(l, (struct sockaddr *)&a, sizeof a) == 0 && listen(l, 1) == 0);
	pid_t p = fork();
	if (p == 0) {
		char hello[256];
		int fd = accept(l, NULL, NULL);
		struct pollfd in = {.fd = fd, .events = POLLIN};
		poll(&in, 1, -1);
		if (reads)
			CHECK(recv(fd, hello, sizeof hello, 0) == sizeof(struct cw_hello));
		if (answer)
			CHECK(send(fd, answer, n, 0) == (ssize_t)n);
		close(fd);
		_exit(0);
	}
	close(l);
	memset(&cw_s, 0, sizeof cw_s);
	int err = cw_carrier_unix.open(&cw_s, path);
	CHECK(waitpid(p, &st, 0) == p && st == 0);
	if (err == 0) {
		CHECK(cw_s.base && cw_s.ctl->magic == CW_HELLO_MAGIC && cw_s.ctl->ring_size == CW_RING_SIZE);
		CHECK(cw_carrier_unix.alive(&cw_s) == -EPIPE);
		cw_carrier_unix.abandon(&cw_s);
	}
	CHECK(!cw_s.base);
	unlink(path);
	return err;
}

static int descriptors(void)
{
	int n = 0;
	for (int fd = 0; fd < 100; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void handshakes(void)
{
	struct {
		struct cw_hello h;
		char text[8];
	} m = {.h = {.magic = CW_HELLO_MAGIC, .version = CW_PROTOCOL_VERSION, .type = CW_MSG_WELCOME}};
	char dir[] = "/tmp/causeway-small-XXXXXX", path[64];
	CHECK(mkdtemp(dir) != NULL);
	snprintf(path, sizeof path, "%s/session", dir);
	int before = descriptors();
	CHECK(opens(path, 1, &m, sizeof m.h) == 0);
	CHECK(opens(path, 1, NULL, 0) == -EPIPE && !strncmp(cw_s.why, "the worker ended during the handshake", 37));
	CHECK(opens(path, 0, NULL, 0) == -EPIPE && !strncmp(cw_s.why, "the worker ended during the handshake", 37));
	CHECK(opens(path, 1, &m, 3) == -EPROTO);
	m.h.status = EBUSY;
	m.h.text_len = 4;
	memcpy(m.text, "full", 4);
	for (int reads = 0; reads < 2; reads++) /* also if it resets the connection */
		CHECK(opens(path, reads, &m, sizeof m.h + 4) == -EBUSY && !strcmp(cw_s.why, "the host refused the session: full"));
	CHECK(cw_carrier_unix.open(&cw_s, path) < 0 && cw_s.why[0]);
	CHECK(descriptors() == before);
	rmdir(dir);
}

int main(void)
{
	setenv("CAUSEWAY_LOG", "none", 1);
	alarm(500);
	handshakes();
	pins();
	no_context();
	extents();
	welcomes();
	environment();
	logs();
	words();
	puts("small_test ok");
	return 0;
}

/*
 * The carrier of a GPU server alone: carrier_tcp.c between names, sockets and frames of the test's
 * own. Which addresses are tried, what each answer to the greeting becomes, that whatever fails
 * gives back all that it had taken, and which regions the server may name.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

#include "session/tcp.h"
#include "session/tests/check.h"

static int f_resolve(const char *host, const char *port, const struct addrinfo *hint, struct addrinfo **list);
static void f_forget(struct addrinfo *list);
static int f_socket(int domain, int type, int protocol);
static int f_connect(int fd, const struct sockaddr *a, socklen_t len);
static int f_option(int fd, int level, int name, const void *p, socklen_t n);
static int f_close(int fd);
static int f_shutdown(int fd, int how);
static int f_munmap(void *p, size_t n);
static int f_nap(const struct timespec *t);
static long f_wait(_Atomic uint32_t *word, uint32_t value, int op, const struct timespec *limit);

#define getaddrinfo(host, port, hint, list) f_resolve(host, port, hint, list)
#define freeaddrinfo(list) f_forget(list)
#define socket(domain, type, protocol) f_socket(domain, type, protocol)
#define connect(fd, a, len) f_connect(fd, a, len)
#define setsockopt(fd, level, name, p, n) f_option(fd, level, name, p, n)
#define close(fd) f_close(fd)
#define shutdown(fd, how) f_shutdown(fd, how)
#define munmap(p, n) f_munmap(p, n)
#define nanosleep(t, left) f_nap(t)
#define cw_futex_wait(word, value, op, limit) f_wait(word, value, op, limit)
#include "session/carrier_tcp.c"
#undef close
#undef munmap
#define OWN_CLOSE f_close
#include "session/tests/alone/own_fakes.h"
#undef cw_futex_wait
#include "session/lock.c"
#include "session/signals.c"

struct cw_session cw_s;
struct cw_tcp cw_tcp;
const struct cw_stream cw_tcp_plain;
static const struct cw_carrier *const c = &cw_carrier_tcp;
static struct cw_session *const s = &(struct cw_session){0};

enum { FIRST = 70 };
static uint8_t place[64];
static int is_open[80], sockets, maps, step, fails_at, fail_errno, nodelay, timeouts, shut, naps, lists;
static time_t limit_then; /* of reads, when the hello was sent */
static time_t limit_;
static char host_[300], port_[32];
static int addresses, refusing; /* the first so many refuse */
static int errno_of[4];
static size_t map_size;

static int fails(void)
{
	if (++step != fails_at)
		return 0;
	errno = fail_errno;
	return 1;
}

static struct addrinfo list_[4];
static int f_resolve(const char *host, const char *port, const struct addrinfo *hint, struct addrinfo **list)
{
	CHECK(hint->ai_socktype == SOCK_STREAM && hint->ai_family == 0);
	snprintf(host_, sizeof host_, "%s", host);
	snprintf(port_, sizeof port_, "%s", port);
	if (addresses == 0)
		return EAI_NONAME;
	for (int i = 0; i < addresses; i++)
		list_[i] = (struct addrinfo){.ai_family = AF_INET,
					     .ai_socktype = SOCK_STREAM,
					     .ai_addrlen = (socklen_t)(i + 1),
					     .ai_next = i + 1 < addresses ? &list_[i + 1] : NULL};
	*list = list_;
	lists++;
	return 0;
}

static void f_forget(struct addrinfo *list)
{
	CHECK(list == list_);
	lists--;
}

static int f_socket(int domain, int type, int protocol)
{
	CHECK(domain == AF_INET && type == (SOCK_STREAM | SOCK_CLOEXEC) && protocol == 0);
	if (fails())
		return -1;
	is_open[FIRST + sockets] = 1;
	return FIRST + sockets++;
}

static int f_connect(int fd, const struct sockaddr *a, socklen_t len)
{
	CHECK(is_open[fd] && !a);
	errno = (int)len <= refusing ? errno_of[len - 1] : 0;
	return errno ? -1 : 0;
}

static int f_option(int fd, int level, int name, const void *p, socklen_t n)
{
	CHECK(is_open[fd]);
	if (level == IPPROTO_TCP) {
		CHECK(name == TCP_NODELAY && n == sizeof(int) && *(const int *)p == 1);
		nodelay++;
		return 0;
	}
	CHECK(level == SOL_SOCKET && name == SO_RCVTIMEO && n == sizeof(struct timeval) && ((const struct timeval *)p)->tv_usec == 0);
	limit_ = ((const struct timeval *)p)->tv_sec;
	timeouts++;
	return 0;
}

static int f_close(int fd)
{
	CHECK(is_open[fd]);
	is_open[fd] = 0;
	return 0;
}

static int f_shutdown(int fd, int how)
{
	CHECK(is_open[fd] && how == SHUT_RDWR);
	shut++;
	return 0;
}

static int f_munmap(void *p, size_t n)
{
	CHECK(p == place && n == map_size && maps > 0);
	maps--;
	return 0;
}

static int f_nap(const struct timespec *t)
{
	CHECK(t->tv_sec == 0 && t->tv_nsec > 0 && shut > 0);
	if (++naps == 3)
		atomic_store(&cw_tcp.running, 0);
	return 0;
}

static int waits;
static long f_wait(_Atomic uint32_t *word, uint32_t value, int op, const struct timespec *limit)
{
	CHECK(word == (void *)place && value == 1 && op == CW_FUTEX_PRIVATE && limit->tv_sec == 0 && limit->tv_nsec == 250000000);
	waits++;
	return 0;
}

void cw_why(struct cw_session *of, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(of->why, sizeof of->why, fmt, ap);
	va_end(ap);
}

void cw_hello_fill(struct cw_hello *h, uint32_t type, uint32_t region, const void *va, size_t size)
{
	*h = (struct cw_hello){.type = type, .region = region, .va = (uintptr_t)va, .size = size};
}

void *cw_map_shared(int fd, size_t size, void *hint)
{
	CHECK(fd == -1 && (!hint || hint == place || hint == place + 8));
	map_size = size;
	if (fails())
		return NULL;
	maps++;
	return place;
}

int cw_region0_init(struct cw_session *of, void *base)
{
	of->base = base;
	if (!base)
		cw_why(of, "no memory");
	return base ? 0 : -ENOMEM;
}

/* --- frames ----------------------------------------------------------------------------------- */

static struct cw_hello sent;
static uint16_t sent_type;
static uint64_t sent_arg;
static int sends, send_err;
int cw_tcp_send(struct cw_session *of, uint16_t type, uint16_t flags, uint64_t arg, const void *p, size_t n)
{
	CHECK(of == s && flags == 0 && (n == 0 ? !p : n == sizeof sent));
	if (p)
		memcpy(&sent, p, sizeof sent);
	sent_type = type;
	sent_arg = arg;
	sends++;
	limit_then = limit_;
	return send_err ? send_err : fails() ? -EPIPE : 0;
}

static struct cw_frame answer;
static int takes;
int cw_tcp_take(struct cw_session *of, void *out, size_t n)
{
	CHECK(of == s && n == (takes == 0 ? sizeof answer : answer.len));
	if (fails())
		return -ECONNRESET;
	if (takes++ == 0)
		memcpy(out, &answer, sizeof answer);
	else
		memset(out, 0x5a, n);
	return 0;
}

int cw_welcome_check(struct cw_session *of, const void *msg, size_t n)
{
	CHECK(of == s && n == answer.len && ((const uint8_t *)msg)[n - 1] == 0x5a);
	if (!fails())
		return 0;
	cw_why(of, "refused");
	return -EBUSY;
}

int cw_tcp_start(struct cw_session *of)
{
	CHECK(of == s && limit_ == 1);
	return fails() ? -EAGAIN : 0;
}

void cw_tcp_publish(struct cw_session *of) { CHECK(of == s); }

/* --- what is tried ---------------------------------------------------------------------------- */

static void anew(void)
{
	memset(s, 0, sizeof *s);
	s->base = place + 1; /* as another try has left it */
	memset(is_open, 0, sizeof is_open);
	memset(&cw_tcp, 0xee, sizeof cw_tcp);
	memset(&cw_tcp.region_lock, 0, sizeof cw_tcp.region_lock);
	atomic_store(&cw_tcp.running, 0);
	sockets = maps = step = fails_at = nodelay = timeouts = shut = naps = lists = refusing = sends = send_err = takes = waits = 0;
	limit_ = -1;
	fail_errno = EMFILE;
	addresses = 1;
	answer = (struct cw_frame){.type = CW_FRAME_WELCOME, .len = sizeof(struct cw_hello)};
}

static int files(void)
{
	int n = 0;
	for (int i = 0; i < 80; i++)
		n += is_open[i];
	return n;
}

static int said(const char *what) { return strstr(s->why, what) != NULL; }

static void targets(void)
{
	static char longest[300];
	static const struct {
		const char *target, *host, *port; /* no host: it is refused */
	} all[] = {{"gpu1:7000", "gpu1", "7000"},
		   {"[fd00::1]:7000", "fd00::1", "7000"},
		   {"fd00::1:7000", "fd00::1", "7000"},
		   {"[x:7000", "[x", "7000"},
		   {"x]:7000", "x]", "7000"},
		   {"gpu1", NULL, NULL},
		   {":7000", NULL, NULL},
		   {"gpu1:", NULL, NULL},
		   {"", NULL, NULL},
		   {":", NULL, NULL}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		anew();
		int err = c->open(s, all[i].target);
		CHECK(all[i].host ? err == 0 && !strcmp(host_, all[i].host) && !strcmp(port_, all[i].port)
				  : err == -EINVAL && said("expected tcp://HOST:PORT"));
	}
	for (size_t n = 254; n < 258; n++) {
		anew();
		memset(longest, 'h', sizeof longest);
		memcpy(longest + n, ":1", 3);
		int err = c->open(s, longest);
		CHECK(n < 256 ? err == 0 && strlen(host_) == n : err == -EINVAL && step == 0);
	}
	anew();
	addresses = 0;
	CHECK(c->open(s, "gpu1:1") == -ENOENT && said("cannot resolve gpu1:1") && step == 0);
}

static void addresses_(void)
{
	for (int good = 0; good < 3; good++) { /* the first that answers is taken */
		anew();
		addresses = 3;
		refusing = good;
		errno_of[0] = errno_of[1] = ECONNREFUSED;
		CHECK(c->open(s, "gpu1:1") == 0 && sockets == good + 1 && s->fd == FIRST + good && files() == 1 && nodelay == 1 &&
		      lists == 0);
	}
	static const struct {
		int is, want;
	} all[] = {{ECONNREFUSED, -ECONNREFUSED}, {ETIMEDOUT, -ENOENT}, {EHOSTUNREACH, -ENOENT}, {ENETUNREACH, -ENOENT}, {EACCES, -EACCES}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		anew();
		addresses = refusing = 2;
		errno_of[0] = EPERM;
		errno_of[1] = all[i].is; /* the last counts */
		CHECK(c->open(s, "gpu1:1") == all[i].want && sockets == 2 && files() == 0 && lists == 0 && maps == 0 &&
		      said(strerror(all[i].is)));
	}
}

static void opens(void)
{
	anew();
	CHECK(c->open(s, "gpu1:1") == 0 && cw_tcp.io == &cw_tcp_plain && cw_tcp.pushed == 0 && cw_tcp.at == 0 && cw_tcp.end == 0 &&
	      !atomic_load(&cw_tcp.gone));
	CHECK(s->base == place && maps == 1 && map_size == CW_REGION0_SIZE && sent.type == CW_MSG_HELLO && sent_type == CW_FRAME_HELLO &&
	      sent.va == (uintptr_t)place && sent.size == CW_REGION0_SIZE && limit_then == 60 && limit_ == 1 && timeouts == 2);
	for (int i = 0; i < CW_TCP_REGIONS; i++)
		CHECK(cw_tcp.region[i].size == 0);
	int most = step;
	c->close(s);
	CHECK(shut == 1 && files() == 1 && maps == 1);
	atomic_store(&cw_tcp.running, 1);
	c->abandon(s);
	CHECK(naps == 3 && files() == 0 && maps == 0 && !s->base);
	CHECK(most == 7);
	for (int at = 1; at <= most; at++) {
		anew();
		fails_at = at;
		int err = c->open(s, "gpu1:1");
		CHECK(err < 0 && s->why[0] && files() == 0 && maps == 0 && (at == 1 || !s->base));
	}
	for (uint32_t len = 0; len < 700; len++) /* of a welcome, whose text has its bound */
		for (int other = 0; other < 2; other++) {
			anew();
			answer.len = len;
			answer.type = other ? CW_FRAME_HEAD : CW_FRAME_WELCOME;
			int err = c->open(s, "gpu1:1");
			if (!other && len >= sizeof sent && len <= sizeof sent + 512)
				CHECK(err == 0 && takes == 2);
			else
				CHECK(err == -EPROTO && takes == 1 && said("does not speak") && files() == 0 && maps == 0);
		}
}

static void regions(void)
{
	static struct cw_region all[CW_TCP_REGIONS + 1];
	anew();
	CHECK(c->open(s, "gpu1:1") == 0);
	maps = 0;
	struct cw_region pinned = {.id = 1, .kind = CW_REGION_PINNED, .size = 4096, .va = place + 8},
			 adopted = {.id = 1, .kind = CW_REGION_STAGING, .adopted = 1, .size = 4096, .va = place};
	CHECK(c->add_region(s, &pinned) == -EOPNOTSUPP && c->add_region(s, &adopted) == -EOPNOTSUPP && maps == 0);
	for (int i = 0; i <= CW_TCP_REGIONS; i++) {
		all[i] = (struct cw_region){
			.id = (uint32_t)i + 5, .kind = CW_REGION_STAGING, .size = 4096 + 4096 * (size_t)(i % 3), .va = place + 8};
		int before = sends, err = c->add_region(s, &all[i]);
		if (i < CW_TCP_REGIONS) {
			CHECK(err == 0 && all[i].va == place && maps == i + 1 && sent_type == CW_FRAME_REGION && sent_arg == all[i].id &&
			      sent.type == CW_MSG_REGION && sent.region == all[i].id && sent.va == (uintptr_t)place &&
			      sent.size == all[i].size);
			CHECK(cw_tcp.region[i].id == all[i].id && cw_tcp.region[i].va == place && cw_tcp.region[i].size == all[i].size);
		} else
			CHECK(err == -ENOSPC && maps == CW_TCP_REGIONS && sends == before);
	}
	for (int i = CW_TCP_REGIONS - 1; i >= 0; i -= 11) {
		/* A place that is free again is taken again. */
		map_size = all[i].size;
		c->end_region(s, &all[i]);
		CHECK(cw_tcp.region[i].size == 0 && sent_type == CW_FRAME_REGION_END && sent_arg == all[i].id &&
		      maps == CW_TCP_REGIONS - 1);
		CHECK(i == 0 || cw_tcp.region[i - 1].size != 0);
		all[i].id += 5000;
		CHECK(c->add_region(s, &all[i]) == 0 && cw_tcp.region[i].id == all[i].id);
	}
	map_size = all[3].size;
	c->end_region(s, &all[3]);
	send_err = -EPIPE;
	CHECK(c->add_region(s, &all[3]) == -EPIPE && maps == CW_TCP_REGIONS - 1);
	fails_at = step + 1;
	all[2].va = place + 8;
	int before = sends;
	CHECK(c->add_region(s, &all[2]) == -ENOMEM && sends == before);
}

static void waiting(void)
{
	anew();
	atomic_store(&cw_tcp.gone, 0);
	CHECK(c->alive(s) == 0 && c->wait_slot(s, 1, (_Atomic uint32_t *)(void *)place) == 0 && waits == 1);
	atomic_store(&cw_tcp.gone, 1);
	CHECK(c->alive(s) == -EPIPE && c->wait_slot(s, 1, (_Atomic uint32_t *)(void *)place) == -EPIPE && waits == 1);
	s->fd = FIRST;
	is_open[FIRST] = 1;
	c->forked(s, 1);
	CHECK(files() == 0 && shut == 0); /* the parent's session goes on */
}

int main(void)
{
	targets();
	addresses_();
	opens();
	regions();
	waiting();
	puts("tcp_test ok");
	return 0;
}

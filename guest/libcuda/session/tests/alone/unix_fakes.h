/* For unix_test.c, which includes carrier_unix.c before it: sockets, files, memory and a worker's
 * answers as the test wants them, and what was done. */
#ifndef CW_UNIX_FAKES_H
#define CW_UNIX_FAKES_H

/* --- the kernel ------------------------------------------------------------------------------- */

enum { SOCK = 70, BELL, MEM, FILES = 90 };
static const struct cw_carrier *const c = &cw_carrier_unix;
static struct cw_session *const s = &(struct cw_session){0};
static uint8_t memory[64]; /* where the next mapping lies; it is not touched */
static int is_open[FILES], maps, step, fails_at, fail_errno;
static int send_errno, send_eintr, poll_eintr, poll_result, recv_eintr, resets, write_eintr, write_errno, writes, asked, shut;
static ssize_t came;
static struct sockaddr_un to;
static socklen_t to_len;
static struct cw_hello sent;
static int sends, with[CW_REGION_PARTS], with_count;
static size_t mapped_size;
static void *hint_;

static int fails(void)
{
	if (++step != fails_at)
		return 0;
	errno = fail_errno;
	return 1;
}

static int interrupted(int *left, int err)
{
	if (*left == 0)
		return 0;
	--*left;
	errno = err;
	return 1;
}

static int opened(int fd)
{
	if (fails())
		return -1;
	CHECK(!is_open[fd]);
	is_open[fd] = 1;
	return fd;
}

static int files(void)
{
	int n = 0;
	for (int i = 0; i < FILES; i++)
		n += is_open[i];
	return n;
}

static int f_close(int fd)
{
	CHECK(fd >= 0 && fd < FILES && is_open[fd]);
	is_open[fd] = 0;
	return 0;
}

static int f_socket(int domain, int type, int protocol)
{
	CHECK(domain == AF_UNIX && type == (SOCK_SEQPACKET | SOCK_CLOEXEC) && protocol == 0);
	return opened(SOCK);
}

static int f_connect(int fd, const struct sockaddr *a, socklen_t len)
{
	CHECK(fd == SOCK && a->sa_family == AF_UNIX && len <= sizeof to);
	memcpy(&to, a, sizeof to);
	to_len = len;
	return fails() ? -1 : 0;
}

static int f_eventfd(unsigned value, int flags)
{
	CHECK(value == 0 && flags == (EFD_CLOEXEC | EFD_NONBLOCK));
	return opened(BELL);
}

static ssize_t f_sendmsg(int fd, const struct msghdr *m, int flags)
{
	if (fd < 0) {
		errno = EBADF;
		return -1;
	}
	CHECK(fd == SOCK && flags == MSG_NOSIGNAL && m->msg_iovlen == 1 && m->msg_iov->iov_len == sizeof sent && is_open[SOCK]);
	if (interrupted(&send_eintr, EINTR))
		return -1;
	memcpy(&sent, m->msg_iov->iov_base, sizeof sent);
	sends++;
	with_count = 0;
	if (m->msg_controllen > 0) {
		struct cmsghdr *h = CMSG_FIRSTHDR(m);
		CHECK(h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS);
		with_count = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		CHECK(m->msg_controllen == CMSG_SPACE((size_t)with_count * sizeof(int)));
		memcpy(with, CMSG_DATA(h), (size_t)with_count * sizeof(int));
	}
	for (int i = 0; i < with_count; i++)
		CHECK(is_open[with[i]]);
	errno = send_errno;
	return send_errno || fails() ? -1 : (ssize_t)sizeof sent;
}

static int f_poll(struct pollfd *p, nfds_t n, int ms)
{
	CHECK(n == 1 && p->fd == SOCK && p->events == POLLIN && ms == 60000);
	if (interrupted(&poll_eintr, EINTR))
		return -1;
	asked++;
	if (++step == fails_at)
		return 0; /* in time */
	errno = EBADF;
	return poll_result;
}

static ssize_t f_recv(int fd, void *p, size_t n, int flags)
{
	CHECK(fd == SOCK && is_open[SOCK]);
	if (flags == 0) {
		CHECK(n >= sizeof sent);
		if (interrupted(&recv_eintr, EINTR) || interrupted(&resets, ECONNRESET) || fails())
			return -1;
		memset(p, 0x5a, n);
		return came;
	}
	CHECK(flags == (MSG_PEEK | MSG_DONTWAIT) && n == 1);
	asked++;
	errno = fail_errno;
	return came;
}

static ssize_t f_write(int fd, const void *p, size_t n)
{
	CHECK(fd == BELL && n == 8 && *(const uint64_t *)p == 1);
	writes++;
	if (interrupted(&write_eintr, EINTR))
		return -1;
	errno = write_errno;
	return write_errno ? -1 : 8;
}

static int disowned;
static void *f_mmap(void *p, size_t n, int prot, int flags, int fd, off_t at)
{
	CHECK(p == memory && n == mapped_size && prot == (PROT_READ | PROT_WRITE) && flags == (MAP_PRIVATE | MAP_FIXED) && at == 0 &&
	      is_open[fd]);
	disowned++;
	return p;
}

static int f_munmap(void *p, size_t n)
{
	CHECK(p == memory && n == mapped_size && maps > 0);
	maps--;
	return 0;
}

static int f_shutdown(int fd, int how)
{
	CHECK(fd == SOCK && how == SHUT_RDWR && is_open[SOCK]);
	shut++;
	return 0;
}

static int wait_errno;
static int f_wait(_Atomic uint32_t *word, uint32_t value, int flags, const struct timespec *limit)
{
	CHECK(word == (void *)memory && value == 1 && flags == 0 && limit->tv_sec == 0 && limit->tv_nsec == 250000000);
	errno = wait_errno;
	return wait_errno ? -1 : 0;
}

/* --- the layer beside it ---------------------------------------------------------------------- */

void cw_why(struct cw_session *of, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	vsnprintf(of->why, sizeof of->why, fmt, args);
	va_end(args);
}

void cw_hello_fill(struct cw_hello *h, uint32_t type, uint32_t region, const void *va, size_t size)
{
	*h = (struct cw_hello){.type = type, .region = region, .va = (uintptr_t)va, .size = size};
}

int cw_memfd(size_t size)
{
	mapped_size = size;
	int fd = opened(MEM);
	return fd < 0 ? -fail_errno : fd;
}

void *cw_map_shared(int fd, size_t size, void *hint)
{
	CHECK(is_open[fd] && size == mapped_size);
	hint_ = hint;
	if (fails())
		return NULL;
	maps++;
	return memory;
}

int cw_region0_init(struct cw_session *of, void *base)
{
	of->base = base;
	if (!base)
		cw_why(of, "no memory");
	return base ? 0 : -ENOMEM;
}

static int welcome_err;
int cw_welcome_check(struct cw_session *of, const void *msg, size_t n)
{
	CHECK(n == (size_t)came && *(const uint8_t *)msg == 0x5a);
	if (fails() || welcome_err) {
		cw_why(of, "refused");
		return welcome_err ? welcome_err : -EBUSY;
	}
	return 0;
}

static struct cw_moving moving;
static int moving_err, moving_ended;
int cw_moving_make(struct cw_region *r)
{
	if (moving_err == 0)
		r->moving = &moving;
	return moving_err;
}

void cw_moving_end(struct cw_region *r)
{
	CHECK(r->moving == &moving);
	r->moving = NULL;
	moving_ended++;
}

#endif

/*
 * unix:/path - a socket of packets to a worker on this machine. Regions are memfds that both sides
 * map; the doorbell is an eventfd; waits are futexes on the shared words. The end of the socket is
 * the end of the session, for either side.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "session/internal.h"

enum { WELCOME_MS = 60000, WAIT_MS = 250 };

static int send_fds(int sock, const struct cw_hello *h, const int *fds, unsigned n)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(CW_REGION_PARTS * sizeof(int))];
	} control;
	struct iovec iov = {(void *)(uintptr_t)h, sizeof *h};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	if (n > 0) {
		memset(&control, 0, sizeof control);
		m.msg_control = control.buf;
		m.msg_controllen = CMSG_SPACE(n * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	}
	ssize_t done;
	do
		done = sendmsg(sock, &m, MSG_NOSIGNAL);
	while (done < 0 && errno == EINTR);
	return done < 0 ? -errno : 0;
}

static int connect_to(struct cw_session *s, const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	size_t len = strlen(path);
	if (len == 0 || len >= sizeof a.sun_path) {
		cw_why(s, "CAUSEWAY=unix:%s: the path is %s", path, len == 0 ? "empty" : "too long");
		return -EINVAL;
	}
	memcpy(a.sun_path, path, len);
	if (path[0] == '@')
		a.sun_path[0] = 0; /* abstract name */
	socklen_t alen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (path[0] == '@' ? 0 : 1));
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&a, alen) != 0) {
		int err = errno;
		cw_why(s, "cannot reach a worker at unix:%s: %s; is `causeway run` or `causeway serve` running?", path, strerror(err));
		if (fd >= 0)
			close(fd);
		return -err;
	}
	return fd;
}

static int await_welcome(struct cw_session *s)
{
	char buf[1024];
	struct pollfd p = {.fd = s->fd, .events = POLLIN};
	ssize_t n;
	do
		n = poll(&p, 1, WELCOME_MS);
	while (n < 0 && errno == EINTR);
	if (n == 0) {
		cw_why(s, "the worker did not answer within %d s", WELCOME_MS / 1000);
		return -ETIMEDOUT;
	}
	/* Who refuses without having read the hello resets the connection: that is said once, then
	 * comes what was written before. */
	for (int reset = 0; (n = recv(s->fd, buf, sizeof buf, 0)) < 0 && (errno == EINTR || (errno == ECONNRESET && reset++ == 0));)
		;
	if (n <= 0) {
		cw_why(s, "the worker ended during the handshake");
		return -EPIPE;
	}
	return cw_welcome_check(s, buf, (size_t)n);
}

static void unix_abandon(struct cw_session *s)
{
	if (s->base)
		munmap(s->base, CW_REGION0_SIZE);
	cw_own_close(s->bell, &s->bell_own);
	cw_own_close(s->fd, &s->fd_own);
	s->base = NULL;
}

static int unix_open(struct cw_session *s, const char *path)
{
	int mem = -1, err = connect_to(s, path);
	if (err < 0)
		return err;
	s->bell = -1;
	s->fd = err = cw_own_take(err, CW_MARK_SESSION, &s->fd_own);
	if (err < 0) {
		cw_why(s, "no descriptor: %s", strerror(-err));
		return err;
	}
	mem = cw_memfd(CW_REGION0_SIZE);
	void *base = mem >= 0 ? cw_map_shared(mem, CW_REGION0_SIZE, NULL) : NULL;
	s->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int no_bell = s->bell < 0 ? -errno : 0;
	if (no_bell == 0 && (s->bell = cw_own_take(s->bell, CW_MARK_BELL, &s->bell_own)) < 0)
		no_bell = s->bell;
	err = cw_region0_init(s, base);
	if (err == 0 && no_bell != 0) {
		err = no_bell;
		cw_why(s, "eventfd: %s", strerror(-err));
	}
	if (err == 0) {
		struct cw_hello h;
		int fds[2] = {mem, s->bell};
		cw_hello_fill(&h, CW_MSG_HELLO, 0, base, CW_REGION0_SIZE);
		int sent = send_fds(s->fd, &h, fds, 2);
		/* Which may be a refusal. */
		err = sent == 0 || sent == -EPIPE || sent == -ECONNRESET ? await_welcome(s) : sent;
		if (sent != 0 && err == 0)
			err = sent;
		if (err != 0 && err == sent)
			cw_why(s, "the worker ended during the handshake: %s", strerror(-err));
	}
	if (mem >= 0)
		close(mem);
	if (err != 0)
		unix_abandon(s);
	return err;
}

static int unix_add_region(struct cw_session *s, struct cw_region *r)
{
	int mem = r->file, err = 0;
	if (r->adopted && r->file < 0)
		err = cw_moving_make(r);
	else if (!r->adopted)
		err = (mem = cw_memfd(r->size)) < 0 ? mem : 0;
	if (err == 0 && !r->adopted) {
		uint64_t wanted = (uintptr_t)r->va;
		r->va = cw_map_shared(mem, r->size, r->va);
		if (!r->va)
			err = -ENOMEM;
		else if (r->at == wanted)
			r->at = (uintptr_t)r->va;
	}
	if (err == 0) {
		struct cw_hello h;
		cw_hello_fill(&h, CW_MSG_REGION, r->id, (void *)(uintptr_t)r->at, r->size);
		h.offset = r->adopted && !r->moving ? r->file_at : 0;
		h.flags = r->adopted && !r->moving ? CW_REGION_SHARED : 0;
		h.part = r->moving && r->moving->count > 1 ? r->moving->size : 0;
		int fd = cw_fd(s);
		err = r->moving ? send_fds(fd, &h, r->moving->file, r->moving->count) : send_fds(fd, &h, &mem, 1);
		if (err != 0 && r->moving)
			cw_moving_end(r);
		else if (err != 0 && !r->adopted)
			munmap(r->va, r->size);
	}
	if (mem >= 0 && !r->adopted)
		close(mem);
	return err;
}

/* Makes the pages of a parted region this process's own again, with what they hold: a heap hands
 * them out to others one day. Async-signal-safe. */
static void disown(struct cw_region *r)
{
	if (cw_own_is(r->mem, &r->mem_own)) {
		mmap(r->va, r->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, r->mem, 0);
		close(r->mem);
	} else {
		cw_fork_own(r->va, r->va + r->size, PROT_READ | PROT_WRITE);
	}
	r->mem = -1;
}

static void unix_end_region(struct cw_session *s, struct cw_region *r)
{
	struct cw_hello h;
	cw_hello_fill(&h, CW_MSG_REGION_END, r->id, (void *)(uintptr_t)r->at, r->size);
	send_fds(cw_fd(s), &h, NULL, 0);
	if (!r->adopted)
		munmap(r->va, r->size);
	else if (r->mem >= 0)
		disown(r);
}

static void unix_doorbell(struct cw_session *s)
{
	uint64_t one = 1;
	ssize_t n;
	int bell = cw_bell(s);
	if (bell < 0)
		return;
	do
		n = write(bell, &one, sizeof one);
	while (n < 0 && errno == EINTR);
}

static int unix_alive(struct cw_session *s)
{
	char c;
	ssize_t n = recv(cw_fd(s), &c, 1, MSG_PEEK | MSG_DONTWAIT);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		return -EPIPE;
	return 0;
}

static int unix_wait_slot(struct cw_session *s, uint32_t slot, _Atomic uint32_t *word)
{
	(void)slot;
	struct timespec t = {0, WAIT_MS * 1000000l};
	if (cw_futex_wait(word, 1, 0, &t) != 0 && errno == ETIMEDOUT)
		return unix_alive(s);
	return 0;
}

static void unix_forked(struct cw_session *s, int owned)
{
	cw_own_close(s->fd, &s->fd_own);
	cw_own_close(s->bell, &s->bell_own);
	for (struct cw_region *r = s->regions; r; r = r->next)
		if (r->mem >= 0 && owned)
			cw_own_close(r->mem, &r->mem_own);
		else if (r->mem >= 0)
			disown(r);
}

static void unix_close(struct cw_session *s) { shutdown(cw_fd(s), SHUT_RDWR); }

const struct cw_carrier cw_carrier_unix = {
	.name = "unix",
	.private_after_fork = 1,
	.spin_us = 50,
	.spin_far_us = 5,
	.open = unix_open,
	.add_region = unix_add_region,
	.end_region = unix_end_region,
	.doorbell = unix_doorbell,
	.wait_slot = unix_wait_slot,
	.alive = unix_alive,
	.forked = unix_forked,
	.close = unix_close,
	.abandon = unix_abandon,
};

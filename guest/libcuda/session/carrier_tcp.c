/*
 * tcp://HOST:PORT - frames over one connection; tcp_frames.h is the format, tcp_net.c moves them.
 * The host mirrors region 0 and reaches other regions by one-sided reads and writes; nothing can be
 * mapped.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "session/tcp.h"

enum { WAIT_MS = 250, WELCOME_S = 60 };

/* HOST:PORT or [HOST]:PORT. */
static int connect_to(struct cw_session *s, const char *target)
{
	char host[256];
	const char *colon = strrchr(target, ':');
	size_t len = colon ? (size_t)(colon - target) : 0;
	if (!colon || len == 0 || len >= sizeof host || !colon[1]) {
		cw_why(s, "CAUSEWAY=tcp://%s: expected tcp://HOST:PORT", target);
		return -EINVAL;
	}
	memcpy(host, target, len);
	host[len] = 0;
	char *name = host;
	if (host[0] == '[' && host[len - 1] == ']') {
		host[len - 1] = 0;
		name++;
	}
	struct addrinfo hint = {.ai_socktype = SOCK_STREAM}, *list = NULL;
	int rc = getaddrinfo(name, colon + 1, &hint, &list);
	if (rc != 0) {
		cw_why(s, "cannot resolve %s: %s", target, gai_strerror(rc));
		return -ENOENT;
	}
	int fd = -1, err = -ENOENT;
	for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
		if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0)
			break;
		err = -errno;
		if (fd >= 0)
			close(fd);
		fd = -1;
	}
	freeaddrinfo(list);
	if (fd < 0) {
		cw_why(s, "cannot reach a GPU server at tcp://%s: %s", target, strerror(-err));
		return err == -ETIMEDOUT || err == -EHOSTUNREACH || err == -ENETUNREACH ? -ENOENT : err;
	}
	int one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

void cw_tcp_begin(const struct cw_stream *io)
{
	cw_tcp.io = io;
	cw_tcp.pushed = 0;
	atomic_store(&cw_tcp.given, 0);
	cw_tcp.at = cw_tcp.end = 0;
	memset(cw_tcp.region, 0, sizeof cw_tcp.region);
	atomic_store(&cw_tcp.gone, 0);
}

int cw_tcp_greet(struct cw_session *s)
{
	struct {
		struct cw_hello h;
		char text[512];
	} w;
	struct cw_frame f;
	struct cw_hello h;
	cw_hello_fill(&h, CW_MSG_HELLO, 0, s->base, CW_REGION0_SIZE);
	int err = cw_tcp_send(s, CW_FRAME_HELLO, 0, 0, &h, sizeof h);
	if (err == 0)
		err = cw_tcp_take(s, &f, sizeof f);
	if (err == 0 && (f.type != CW_FRAME_WELCOME || f.len < sizeof w.h || f.len > sizeof w)) {
		cw_why(s, "the server does not speak Causeway's protocol");
		return -EPROTO;
	}
	if (err == 0)
		err = cw_tcp_take(s, &w, f.len);
	if (err != 0) {
		cw_why(s, "the server ended the connection during the handshake: %s", strerror(-err));
		return err;
	}
	return cw_welcome_check(s, &w, f.len);
}

static int handshake(struct cw_session *s)
{
	/* Then who receives looks each second whether the program has closed the connection. */
	struct timeval limit = {WELCOME_S, 0}, turn = {1, 0};
	setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	int err = cw_tcp_greet(s);
	setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, &turn, sizeof turn);
	return err;
}

static void tcp_abandon(struct cw_session *s)
{
	shutdown(cw_fd(s), SHUT_RDWR);
	while (atomic_load(&cw_tcp.running)) {
		struct timespec nap = {0, 1000000};
		nanosleep(&nap, NULL);
	}
	cw_own_close(s->fd, &s->fd_own);
	if (s->base)
		munmap(s->base, CW_REGION0_SIZE);
	s->base = NULL;
}

static int tcp_open(struct cw_session *s, const char *target)
{
	int err = connect_to(s, target);
	if (err < 0)
		return err;
	s->fd = err = cw_own_take(err, CW_MARK_SESSION, &s->fd_own);
	if (err < 0) {
		cw_why(s, "no descriptor: %s", strerror(-err));
		return err;
	}
	cw_tcp_begin(&cw_tcp_plain);
	s->base = NULL;
	err = cw_region0_init(s, cw_map_shared(-1, CW_REGION0_SIZE, NULL));
	if (err == 0)
		err = handshake(s);
	if (err == 0 && (err = cw_tcp_start(s)) != 0)
		cw_why(s, "cannot start a thread: %s", strerror(-err));
	if (err != 0)
		tcp_abandon(s);
	return err;
}

int cw_tcp_add_region(struct cw_session *s, struct cw_region *r)
{
	if (r->kind == CW_REGION_PINNED || r->adopted)
		return -EOPNOTSUPP; /* nothing here can be mapped by the worker */
	r->va = cw_map_shared(-1, r->size, r->va);
	if (!r->va)
		return -ENOMEM;
	int slot = -1;
	cw_lock_acquire(&cw_tcp.region_lock);
	for (int i = 0; i < CW_TCP_REGIONS && slot < 0; i++)
		if (cw_tcp.region[i].size == 0)
			slot = i;
	if (slot >= 0) {
		cw_tcp.region[slot].id = r->id;
		cw_tcp.region[slot].va = r->va;
		cw_tcp.region[slot].size = r->size;
	}
	cw_lock_release(&cw_tcp.region_lock);
	struct cw_hello h;
	cw_hello_fill(&h, CW_MSG_REGION, r->id, r->va, r->size);
	if (slot >= 0 && cw_tcp_send(s, CW_FRAME_REGION, 0, r->id, &h, sizeof h) == 0)
		return 0;
	munmap(r->va, r->size);
	return slot < 0 ? -ENOSPC : -EPIPE;
}

void cw_tcp_end_region(struct cw_session *s, struct cw_region *r)
{
	cw_lock_acquire(&cw_tcp.region_lock);
	for (int i = 0; i < CW_TCP_REGIONS; i++)
		if (cw_tcp.region[i].size != 0 && cw_tcp.region[i].id == r->id)
			cw_tcp.region[i].size = 0;
	cw_lock_release(&cw_tcp.region_lock);
	cw_tcp_send(s, CW_FRAME_REGION_END, 0, r->id, NULL, 0);
	munmap(r->va, r->size);
}

int cw_tcp_alive(struct cw_session *s)
{
	(void)s;
	return atomic_load(&cw_tcp.gone) ? -EPIPE : 0;
}

int cw_tcp_wait_slot(struct cw_session *s, uint32_t slot, _Atomic uint32_t *word)
{
	(void)slot;
	struct timespec limit = {0, WAIT_MS * 1000000l};
	if (!atomic_load(&cw_tcp.gone))
		cw_futex_wait(word, 1, CW_FUTEX_PRIVATE, &limit);
	return cw_tcp_alive(s);
}

static void tcp_forked(struct cw_session *s, int owned)
{
	(void)owned;
	cw_own_close(s->fd, &s->fd_own);
}

static void tcp_close(struct cw_session *s) { shutdown(cw_fd(s), SHUT_RDWR); }

const struct cw_carrier cw_carrier_tcp = {
	.name = "tcp",
	.spin_us = 20,
	.open = tcp_open,
	.add_region = cw_tcp_add_region,
	.end_region = cw_tcp_end_region,
	.publish = cw_tcp_publish,
	.wait_slot = cw_tcp_wait_slot,
	.alive = cw_tcp_alive,
	.forked = tcp_forked,
	.close = tcp_close,
	.abandon = tcp_abandon,
};

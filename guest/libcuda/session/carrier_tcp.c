/*
 * tcp://HOST:PORT - frames over one connection; tcp_frames.h is the format. The host mirrors region 0: whoever publishes records
 * pushes them, the net thread applies what comes back (heads, replies, words) and serves one-sided reads and writes of regions.
 *
 * send_lock orders outgoing frames. Pushing is combined: a thread that finds the lock taken leaves its records to the holder,
 * who looks again after releasing. The net thread takes region_lock, then send_lock; it never waits for the worker.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "session/internal.h"
#include "session/tcp_frames.h"

enum { WAIT_MS = 250, STACK = 256 * 1024, REGIONS = 1024, WELCOME_S = 60 };

static struct {
	struct cw_lock send_lock, region_lock;
	uint64_t pushed; /* ring position, under send_lock */
	struct {
		uint32_t id;
		uint8_t *va;
		uint64_t size; /* 0: unused */
	} region[REGIONS];
	_Atomic int gone, running;
	/* incoming bytes, net thread only (and open, before it starts) */
	uint8_t buf[65536];
	size_t at, end;
} t;

/* --- sending ------------------------------------------------------------------------------------------------------ */

static int send_all(int fd, struct iovec *iov, int n)
{
	while (n > 0) {
		struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)n};
		ssize_t done = sendmsg(fd, &m, MSG_NOSIGNAL);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return -errno;
		while (n > 0 && (size_t)done >= iov->iov_len) {
			done -= (ssize_t)iov->iov_len;
			iov++, n--;
		}
		if (n > 0) {
			iov->iov_base = (uint8_t *)iov->iov_base + done;
			iov->iov_len -= (size_t)done;
		}
	}
	return 0;
}

static void lost(int err)
{
	if (err != 0)
		atomic_store(&t.gone, 1);
}

/* Under send_lock: everything that was published since the last push. */
static void push_locked(struct cw_session *s)
{
	uint64_t tail = __atomic_load_n(&s->ctl->tail, __ATOMIC_ACQUIRE), from = t.pushed;
	if (tail == from)
		return;
	uint8_t *ring = s->base + CW_RING_OFFSET;
	size_t len = (size_t)(tail - from), off = (size_t)(from & (CW_RING_SIZE - 1));
	size_t first = CW_RING_SIZE - off < len ? CW_RING_SIZE - off : len;
	struct cw_frame f = {(uint32_t)len, CW_FRAME_RING, 0, from};
	struct iovec iov[3] = {{&f, sizeof f}, {ring + off, first}, {ring, len - first}};
	lost(send_all(s->fd, iov, first == len ? 2 : 3));
	t.pushed = tail;
}

/* Releases send_lock, then pushes what others left meanwhile. */
static void release_and_push(struct cw_session *s)
{
	for (;;) {
		uint64_t pushed = t.pushed;
		cw_lock_release(&t.send_lock);
		atomic_thread_fence(memory_order_seq_cst);
		if (atomic_load(&t.gone) || __atomic_load_n(&s->ctl->tail, __ATOMIC_ACQUIRE) == pushed)
			return;
		if (!cw_lock_try(&t.send_lock))
			return; /* whoever holds it looks after releasing */
		push_locked(s);
	}
}

static void tcp_publish(struct cw_session *s)
{
	atomic_thread_fence(memory_order_seq_cst);
	if (!cw_lock_try(&t.send_lock))
		return;
	push_locked(s);
	release_and_push(s);
}

static int send_frame(struct cw_session *s, uint16_t type, uint16_t flags, uint64_t arg, const void *p, size_t n)
{
	struct cw_frame f = {(uint32_t)n, type, flags, arg};
	struct iovec iov[2] = {{&f, sizeof f}, {(void *)(uintptr_t)p, n}};
	cw_lock_acquire(&t.send_lock);
	int err = send_all(s->fd, iov, n > 0 ? 2 : 1);
	lost(err);
	release_and_push(s);
	return err;
}

/* --- receiving ---------------------------------------------------------------------------------------------------- */

/* Exactly n bytes: what is buffered, then straight into place if they are many. */
static int take(int fd, void *out, size_t n)
{
	uint8_t *p = out;
	while (n > 0) {
		size_t have = t.end - t.at, k = have < n ? have : n;
		memcpy(p, t.buf + t.at, k);
		t.at += k;
		p += k;
		n -= k;
		if (n == 0)
			break;
		int direct = n >= sizeof t.buf / 2;
		ssize_t got = direct ? recv(fd, p, n, 0) : recv(fd, t.buf, sizeof t.buf, 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got == 0 ? -EPIPE : -errno;
		if (direct) {
			p += got;
			n -= (size_t)got;
		} else {
			t.at = 0;
			t.end = (size_t)got;
		}
	}
	return 0;
}

static void wake(uint32_t *word)
{
	_Atomic uint32_t *w = (_Atomic uint32_t *)word;
	if (atomic_exchange(w, 0) == 1)
		cw_futex_wake(w, 1 << 30, CW_FUTEX_PRIVATE);
}

static int on_slot(struct cw_session *s, const struct cw_frame *f)
{
	struct {
		uint32_t seq, result, payload_len, reply_len;
	} h;
	if (f->arg >= CW_SLOT_COUNT || f->len < sizeof h || f->len > sizeof h + CW_SLOT_PAYLOAD)
		return -EPROTO;
	int err = take(s->fd, &h, sizeof h);
	if (err != 0 || h.payload_len != f->len - sizeof h)
		return err ? err : -EPROTO;
	struct cw_slot *slot = cw_slot_at(s, (uint32_t)f->arg);
	err = take(s->fd, slot + 1, h.payload_len);
	if (err != 0)
		return err;
	slot->result = h.result;
	slot->payload_len = h.payload_len;
	slot->reply_len = h.reply_len;
	__atomic_store_n(&slot->seq_done, h.seq, __ATOMIC_RELEASE);
	wake(&slot->waiting);
	return 0;
}

static int on_control(struct cw_session *s, uint64_t arg)
{
	uint32_t off = (uint32_t)arg, value = (uint32_t)(arg >> 32), *at;
	if (off == offsetof(struct cw_control_page, worker_state))
		at = &s->ctl->worker_state;
	else if (off == offsetof(struct cw_control_page, sticky))
		at = &s->ctl->sticky;
	else if (off == offsetof(struct cw_control_page, console))
		at = &s->ctl->console;
	else
		return -EPROTO;
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
	return 0;
}

/* Under region_lock: where an extent lies, or NULL. */
static uint8_t *locate(const struct cw_frame_extent *e)
{
	for (int i = 0; i < REGIONS; i++)
		if (t.region[i].size != 0 && t.region[i].id == e->region)
			return e->offset <= t.region[i].size && e->size <= t.region[i].size - e->offset ? t.region[i].va + e->offset
													 : NULL;
	return NULL;
}

static int on_read(struct cw_session *s, const struct cw_frame *f)
{
	struct cw_frame_extent e;
	if (f->len != sizeof e)
		return -EPROTO;
	int err = take(s->fd, &e, sizeof e);
	if (err != 0)
		return err;
	cw_lock_acquire(&t.region_lock);
	uint8_t *p = e.size != 0 && e.size <= CW_FRAME_EXTENT_MAX ? locate(&e) : NULL;
	if (!p)
		err = send_frame(s, CW_FRAME_DATA, CW_FRAME_ERROR, f->arg, NULL, 0);
	for (uint64_t done = 0; p && err == 0 && done < e.size;) {
		uint64_t n = e.size - done < CW_FRAME_MAX ? e.size - done : CW_FRAME_MAX;
		err = send_frame(s, CW_FRAME_DATA, 0, f->arg, p + done, n);
		done += n;
	}
	cw_lock_release(&t.region_lock);
	return err;
}

static int on_write(struct cw_session *s, const struct cw_frame *f)
{
	struct cw_frame_extent e;
	if (f->len < sizeof e)
		return -EPROTO;
	int err = take(s->fd, &e, sizeof e);
	if (err != 0 || e.size != f->len - sizeof e)
		return err ? err : -EPROTO;
	cw_lock_acquire(&t.region_lock);
	uint8_t *p = locate(&e);
	err = p ? take(s->fd, p, e.size) : -EPROTO;
	cw_lock_release(&t.region_lock);
	return err;
}

static int on_frame(struct cw_session *s, const struct cw_frame *f)
{
	if (f->len > CW_FRAME_MAX)
		return -EPROTO;
	switch (f->type) {
	case CW_FRAME_SLOT:
		return on_slot(s, f);
	case CW_FRAME_READ:
		return on_read(s, f);
	case CW_FRAME_WRITE:
		return on_write(s, f);
	case CW_FRAME_HEAD:
	case CW_FRAME_WORD:
	case CW_FRAME_CONTROL:
		break;
	default:
		return -EPROTO;
	}
	if (f->len != 0)
		return -EPROTO;
	if (f->type == CW_FRAME_CONTROL)
		return on_control(s, f->arg);
	if (f->type == CW_FRAME_HEAD) {
		__atomic_store_n(&s->ctl->head, f->arg, __ATOMIC_RELEASE);
		atomic_thread_fence(memory_order_seq_cst);
		wake(&s->ctl->space_waiters);
		return 0;
	}
	if ((uint32_t)f->arg >= CW_WORD_COUNT)
		return -EPROTO;
	atomic_store_explicit((_Atomic uint32_t *)(s->base + CW_WORDS_OFFSET) + (uint32_t)f->arg, (uint32_t)(f->arg >> 32),
			      memory_order_release);
	return 0;
}

static void *net_thread(void *arg)
{
	struct cw_session *s = arg;
	struct cw_frame f;
	int err;
	prctl(PR_SET_NAME, "causeway-net");
	do {
		err = take(s->fd, &f, sizeof f);
		if (err == 0)
			err = on_frame(s, &f);
	} while (err == 0);
	if (err == -EPROTO)
		cw_log(CW_LOG_ERROR, "the host broke the frame protocol (frame %u, %u bytes)", f.type, f.len);
	atomic_store(&t.gone, 1);
	shutdown(s->fd, SHUT_RDWR);
	for (uint32_t i = 0; i < CW_SLOT_COUNT; i++)
		wake(&cw_slot_at(s, i)->waiting);
	wake(&s->ctl->space_waiters);
	atomic_store(&t.running, 0);
	return NULL;
}

static int start_net_thread(struct cw_session *s)
{
	sigset_t all, old;
	pthread_attr_t attr;
	pthread_t id;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	atomic_store(&t.running, 1);
	int err = pthread_create(&id, &attr, net_thread, s);
	if (err != 0)
		atomic_store(&t.running, 0);
	pthread_attr_destroy(&attr);
	sigprocmask(SIG_SETMASK, &old, NULL);
	return -err;
}

/* --- the carrier -------------------------------------------------------------------------------------------------- */

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

static int handshake(struct cw_session *s)
{
	struct {
		struct cw_hello h;
		char text[512];
	} w;
	struct cw_frame f;
	struct cw_hello h;
	struct timeval limit = {WELCOME_S, 0}, none = {0, 0};
	cw_hello_fill(&h, CW_MSG_HELLO, 0, s->base, CW_REGION0_SIZE);
	int err = send_frame(s, CW_FRAME_HELLO, 0, 0, &h, sizeof h);
	setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	if (err == 0)
		err = take(s->fd, &f, sizeof f);
	if (err == 0 && (f.type != CW_FRAME_WELCOME || f.len < sizeof w.h || f.len > sizeof w)) {
		cw_why(s, "the server does not speak Causeway's protocol");
		return -EPROTO;
	}
	if (err == 0)
		err = take(s->fd, &w, f.len);
	setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
	if (err != 0) {
		cw_why(s, "the server ended the connection during the handshake: %s", strerror(-err));
		return err;
	}
	return cw_welcome_check(s, &w, f.len);
}

static void tcp_abandon(struct cw_session *s)
{
	shutdown(s->fd, SHUT_RDWR);
	while (atomic_load(&t.running)) {
		struct timespec nap = {0, 1000000};
		nanosleep(&nap, NULL);
	}
	close(s->fd);
	if (s->base)
		munmap(s->base, CW_REGION0_SIZE);
	s->base = NULL;
}

static int tcp_open(struct cw_session *s, const char *target)
{
	int err = connect_to(s, target);
	if (err < 0)
		return err;
	s->fd = err;
	t.pushed = 0;
	t.at = t.end = 0;
	atomic_store(&t.gone, 0);
	s->base = NULL;
	err = cw_region0_init(s, cw_map_shared(-1, CW_REGION0_SIZE, NULL));
	if (err == 0)
		err = handshake(s);
	if (err == 0 && (err = start_net_thread(s)) != 0)
		cw_why(s, "cannot start a thread: %s", strerror(-err));
	if (err != 0)
		tcp_abandon(s);
	return err;
}

static int tcp_add_region(struct cw_session *s, struct cw_region *r)
{
	if (r->kind == CW_REGION_PINNED || r->adopted)
		return -EOPNOTSUPP; /* nothing here can be mapped by the worker */
	r->va = cw_map_shared(-1, r->size, r->va);
	if (!r->va)
		return -ENOMEM;
	int slot = -1;
	cw_lock_acquire(&t.region_lock);
	for (int i = 0; i < REGIONS && slot < 0; i++)
		if (t.region[i].size == 0)
			slot = i;
	if (slot >= 0) {
		t.region[slot].id = r->id;
		t.region[slot].va = r->va;
		t.region[slot].size = r->size;
	}
	cw_lock_release(&t.region_lock);
	struct cw_hello h;
	cw_hello_fill(&h, CW_MSG_REGION, r->id, r->va, r->size);
	if (slot >= 0 && send_frame(s, CW_FRAME_REGION, 0, r->id, &h, sizeof h) == 0)
		return 0;
	munmap(r->va, r->size);
	return slot < 0 ? -ENOSPC : -EPIPE;
}

static void tcp_end_region(struct cw_session *s, struct cw_region *r)
{
	cw_lock_acquire(&t.region_lock);
	for (int i = 0; i < REGIONS; i++)
		if (t.region[i].size != 0 && t.region[i].id == r->id)
			t.region[i].size = 0;
	cw_lock_release(&t.region_lock);
	send_frame(s, CW_FRAME_REGION_END, 0, r->id, NULL, 0);
	munmap(r->va, r->size);
}

static int tcp_alive(struct cw_session *s)
{
	(void)s;
	return atomic_load(&t.gone) ? -EPIPE : 0;
}

static int tcp_wait_slot(struct cw_session *s, uint32_t slot, _Atomic uint32_t *word)
{
	(void)slot;
	struct timespec limit = {0, WAIT_MS * 1000000l};
	if (!atomic_load(&t.gone))
		cw_futex_wait(word, 1, CW_FUTEX_PRIVATE, &limit);
	return tcp_alive(s);
}

static void tcp_forked(struct cw_session *s) { close(s->fd); }

static void tcp_close(struct cw_session *s) { shutdown(s->fd, SHUT_RDWR); }

const struct cw_carrier cw_carrier_tcp = {
	.name = "tcp",
	.spin_us = 20,
	.open = tcp_open,
	.add_region = tcp_add_region,
	.end_region = tcp_end_region,
	.publish = tcp_publish,
	.wait_slot = tcp_wait_slot,
	.alive = tcp_alive,
	.forked = tcp_forked,
	.close = tcp_close,
	.abandon = tcp_abandon,
};

/*
 * A session with a GPU server whose RDMA end is this process: an adapter of the VM's (a virtual
 * function) carries the frames of tcp_frames.h, and the server reads and writes staging memory in
 * this process by itself. What goes out of band (queue pairs, whether bytes come through, the end)
 * goes by the host: through the session file of the mount, or a Unix socket. The host has the keys
 * to the server, and sees none of what is carried. If it does not come to that, the session is the
 * mount's, as without.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "session/rdma_lasting.h"

const char *cw_rdma_sysfs = "/sys/class/infiniband";
enum { PORTS = 16, WORD = 16, STACK = 128 * 1024, WELCOME_MS = 70000 };
/* Where the session is, while its queue pair is lost: asked for another, which the host has or has
 * not brought about. */
enum phase { THERE, ASKED, NONE };
int64_t cw_rdma_leave_ms = 500;
/* Of memory that the adapter pins; what is beyond goes in frames. */
#define MOST_GRANTED ((uint64_t)256 << 20)

char cw_rdma_apart[256];

static struct {
	struct cw_rdma *r;
	struct cw_rdma_port port;
	int reach; /* the server reaches memory by itself */
	_Atomic uint32_t phase;
	uint64_t far;	  /* how many bytes the server has, once it is no more asked */
	uint64_t granted; /* under region_lock */
	int refused;
	_Atomic int running, acked, ended;
	int64_t until; /* of the handshake's reads; 0 */
} d;

/* --- the stream below frames ------------------------------------------------------------------ */

static int stream_send(struct cw_session *s, struct iovec *iov, int n) { return cw_lasting_send(s, iov, n); }

static ssize_t stream_recv(struct cw_session *s, void *p, size_t n) { return cw_lasting_recv(s, p, n, d.until); }

static void stream_cut(struct cw_session *s)
{
	char why[400];
	cw_rdma_why(d.r, why, sizeof why);
	if (why[0] && !atomic_load(&cw_rdma_oob.stop))
		cw_log(CW_LOG_ERROR, "%s", why);
	cw_rdma_fail(d.r, -EPIPE, "the session has ended");
	if (!cw_rdma_oob.mount) {
		shutdown(cw_fd(s), SHUT_RDWR);
		return;
	}
	struct cw_hello h;
	cw_hello_fill(&h, CW_MSG_REGION_END, 0, NULL, 0);
	ssize_t n = pwrite(cw_fd(s), &h, sizeof h, CW_FILE_CONTROL);
	(void)n; /* the host has ended it before */
}

static const struct cw_stream stream = {stream_send, stream_recv, stream_cut};

static void now_at(enum phase p)
{
	atomic_store(&d.phase, (uint32_t)p);
	cw_futex_wake(&d.phase, 1 << 30, CW_FUTEX_PRIVATE);
}

/* As struct cw_lasting has it: the host, which is told, makes a connection to the server, and
 * oob_thread agrees inside of that. */
static int another(struct cw_session *s, uint64_t got, int64_t until, uint64_t *far)
{
	uint8_t b[WORD] = "CWVLST\0\1";
	cw_rdma_put(b + 8, got, 8);
	if (cw_rdma_shut(d.r) != 0) {
		cw_why(s, "the adapter does not let go of the queue pair");
		return -EIO;
	}
	atomic_store(&d.phase, ASKED);
	if (cw_rdma_oob_send(s, b, WORD) != 0)
		return -EPIPE;
	while (atomic_load(&d.phase) == ASKED) {
		struct timespec nap = {0, 250000000};
		if (!atomic_load(&d.running) || atomic_load(&cw_rdma_oob.stop) || cw_now_ms() >= until)
			return -EPIPE;
		cw_futex_wait(&d.phase, ASKED, CW_FUTEX_PRIVATE, &nap);
	}
	*far = d.far;
	return atomic_load(&d.phase) == THERE ? 0 : -ECONNRESET;
}

/* Words of the host's, of a queue pair that is lost. 0, or it breaks the rules. */
static int lost_word(struct cw_session *s, const uint8_t *b)
{
	uint32_t phase = atomic_load(&d.phase);
	if (!memcmp(b, "CWVLST\0\1", 8)) { /* which may have been found here before */
		if (phase == THERE)
			cw_rdma_lose(d.r, "the GPU server's end of the RDMA connection is lost");
		return 0;
	}
	if (memcmp(b, "CWVGOT\0\1", 8) || phase != ASKED)
		return -EPROTO;
	d.far = cw_rdma_get(b + 8, 8);
	int reach, err = cw_rdma_lift(s, &d.r, &d.port, &reach, 1);
	if (err == 0 || err == -ECONNRESET)
		now_at(err == 0 ? THERE : NONE);
	return err == -ECONNRESET ? 0 : err;
}

/* There is no more of the channel out of band. Where the queue pair was lost before, that is what
 * the program is told first: whoever has the session go on says it, with this as why there is no
 * other. */
static void oob_over(struct cw_session *s, int err, const char *why)
{
	char first[400], both[500];
	if (atomic_load(&d.phase) != THERE) {
		cw_why(s, "%s", why);
		return;
	}
	cw_rdma_why(d.r, first, sizeof first);
	snprintf(both, sizeof both, "%s%s%s", first, first[0] ? "; " : "", why);
	cw_rdma_fail(d.r, err, both);
}

/* Follows the channel out of band until that ends, and the session with it. */
static void *oob_thread(void *arg)
{
	struct cw_session *s = arg;
	uint8_t b[WORD];
	for (;;) {
		int err = cw_rdma_oob_recv(s, b, WORD, 0);
		if (err != 0) {
			if (!atomic_load(&d.ended))
				oob_over(s, -EPIPE,
					 cw_fd(s) < 0 ? CW_CLOSED_BY_PROGRAM : "the GPU server, or this VM's host, has ended the session");
			break;
		}
		if (!memcmp(b, "CWVBYE\0\1", 8)) {
			cw_rdma_ended(d.r, cw_rdma_get(b + 8, 8));
			memcpy(b, "CWVACK\0\1", 8);
			cw_rdma_oob_send(s, b, WORD);
		} else if (!memcmp(b, "CWVACK\0\1", 8)) {
			atomic_store(&d.acked, 1);
		} else if ((err = lost_word(s, b)) != 0) {
			oob_over(s, -EIO,
				 err == -EPROTO ? "what came out of band, by the host, is no word of this protocol"
						: "this VM's host does not go on");
			break;
		}
	}
	if (atomic_load(&d.phase) == ASKED)
		now_at(NONE);
	atomic_store(&d.running, 0); /* nothing of it is this thread's any more */
	return NULL;
}

/* --- opening ---------------------------------------------------------------------------------- */

int cw_rdma_wanted(const char *mount)
{
	const char *e = getenv("CAUSEWAY_RDMA");
	char path[4200], text[2048];
	if (e && !strcmp(e, "off"))
		return 0;
	if (!mount)
		return e && *e;
	if (snprintf(path, sizeof path, "%s/info", mount) >= (int)sizeof path)
		return 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	return strstr(text, "\ndirect=1\n") != NULL;
}

static int reach_host(struct cw_session *s, const char *target)
{
	struct cw_hello h;
	cw_hello_fill(&h, CW_MSG_DIRECT, 0, NULL, 0);
	if (cw_rdma_oob.mount) {
		char path[4200];
		snprintf(path, sizeof path, "%s/session", target);
		s->fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
		if (s->fd >= 0 && (s->fd = cw_own_take(s->fd, CW_MARK_SESSION, &s->fd_own)) >= 0 &&
		    pwrite(s->fd, &h, sizeof h, CW_FILE_CONTROL) == (ssize_t)sizeof h)
			return 0;
	} else {
		struct sockaddr_un a = {.sun_family = AF_UNIX};
		if (strlen(target) >= sizeof a.sun_path)
			return -ENAMETOOLONG;
		memcpy(a.sun_path, target, strlen(target) + 1);
		s->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		if (s->fd >= 0 && (s->fd = cw_own_take(s->fd, CW_MARK_SESSION, &s->fd_own)) >= 0 &&
		    connect(s->fd, (struct sockaddr *)&a, sizeof a) == 0)
			return cw_rdma_oob_send(s, &h, sizeof h);
	}
	return -errno;
}

/* The host's answer; server gets the GPU server's address. */
static int welcome(struct cw_session *s, char *server, size_t cap)
{
	struct {
		struct cw_hello h;
		char text[512];
	} w;
	int64_t until = cw_now_ms() + WELCOME_MS;
	int err = cw_rdma_oob_recv(s, &w.h, sizeof w.h, until);
	if (err == 0 && w.h.text_len > sizeof w.text)
		err = -EPROTO;
	if (err == 0)
		err = cw_rdma_oob_recv(s, w.text, w.h.text_len, until);
	if (err != 0) {
		cw_why(s, "this VM's host does not answer: %s", strerror(-err));
		return err;
	}
	snprintf(server, cap, "%.*s", (int)w.h.text_len, w.text);
	return cw_welcome_check(s, &w, sizeof w.h + w.h.text_len);
}

static void rdma_abandon(struct cw_session *s)
{
	atomic_store(&cw_rdma_oob.stop, 1);
	atomic_store(&cw_lasting.on, 0);
	if (d.r)
		cw_rdma_fail(d.r, -EPIPE, "the session was given up");
	if (!cw_rdma_oob.mount && s->fd >= 0)
		shutdown(cw_fd(s), SHUT_RDWR);
	while (atomic_load(&cw_tcp.running) || atomic_load(&d.running)) {
		struct timespec nap = {0, 1000000};
		nanosleep(&nap, NULL);
	}
	cw_lasting_free();
	if (d.r)
		cw_rdma_free(d.r);
	d.r = NULL;
	cw_own_close(s->fd, &s->fd_own);
	s->fd = -1;
	if (s->base)
		munmap(s->base, CW_REGION0_SIZE);
	s->base = NULL;
}

static int rdma_open(struct cw_session *s, const char *target)
{
	struct cw_rdma_port ports[PORTS], *port = NULL;
	char server[64];
	const char *why = cw_rdma_load();
	int n = why ? 0 : cw_rdma_ports(cw_rdma_sysfs, getenv("CAUSEWAY_RDMA"), ports, PORTS);
	if (n == 0) {
		cw_why(s, "%s", why ? why : "this machine has no active RDMA port");
		return -ENODEV;
	}
	memset(&d, 0, sizeof d);
	atomic_store(&cw_rdma_oob.stop, 0);
	cw_rdma_oob.at = cw_rdma_oob.end = 0;
	s->base = NULL;
	s->fd = -1;
	cw_tcp_begin(&stream);
	int err = reach_host(s, target);
	if (err != 0)
		cw_why(s, "this VM's host takes no RDMA of its programs: %s", strerror(-err));
	else
		err = welcome(s, server, sizeof server);
	if (err == 0 && !(port = cw_rdma_choose(cw_rdma_sysfs, ports, n, server))) {
		cw_why(s, "no RDMA port has an address on the network of the GPU server %s", server);
		err = -ENODEV;
	}
	if (err == 0) {
		d.port = *port;
		err = cw_rdma_lift(s, &d.r, &d.port, &d.reach, 0);
	}
	if (err == 0)
		err = cw_lasting_begin(d.r);
	if (err == 0)
		err = cw_region0_init(s, cw_map_shared(-1, CW_REGION0_SIZE, NULL));
	d.until = cw_now_ms() + WELCOME_MS;
	if (err == 0)
		err = cw_tcp_greet(s);
	d.until = 0;
	if (err == 0) {
		atomic_store(&d.running, 1);
		if ((err = -cw_thread_begin(STACK, 0, oob_thread, s)) != 0)
			atomic_store(&d.running, 0);
	}
	cw_lasting.again = another;
	atomic_store(&cw_lasting.on, err == 0);
	if (err == 0)
		err = cw_tcp_start(s);
	if (err != 0 && !s->why[0])
		cw_why(s, "%s", strerror(-err));
	if (err != 0)
		rdma_abandon(s);
	else
		cw_log(CW_LOG_INFO, "this process is the RDMA end itself, by %s port %d: nothing of the session goes by this VM's host",
		       port->device, port->number);
	return err;
}

/* --- regions ---------------------------------------------------------------------------------- */

static int rdma_add_region(struct cw_session *s, struct cw_region *r)
{
	struct {
		uint64_t address, size;
		uint32_t key, rsvd;
	} g = {0, r->size, 0, 0};
	int err = cw_tcp_add_region(s, r);
	if (err != 0 || !d.reach || r->size > MOST_GRANTED)
		return err;
	cw_lock_acquire(&cw_tcp.region_lock);
	int room = d.granted + r->size <= MOST_GRANTED;
	d.granted += room ? r->size : 0;
	cw_lock_release(&cw_tcp.region_lock);
	int rc = room ? cw_rdma_register(d.r, r->va, r->size, &r->carrier, &g.key) : -ENOSPC;
	if (rc == 0) {
		g.address = (uintptr_t)r->va;
		/* A stream that ends ends the session. */
		cw_tcp_send(s, CW_FRAME_GRANT, 0, r->id, &g, sizeof g);
		return 0;
	}
	cw_lock_acquire(&cw_tcp.region_lock);
	d.granted -= room ? r->size : 0;
	int first = !d.refused;
	d.refused = 1;
	cw_lock_release(&cw_tcp.region_lock);
	if (first)
		cw_log(CW_LOG_INFO, "the GPU server does not reach memory of this process by itself, copies go in frames: %s%s",
		       strerror(-rc), rc == -ENOMEM ? ": the limit of locked memory (ulimit -l) may be too low" : "");
	return 0;
}

static void rdma_end_region(struct cw_session *s, struct cw_region *r)
{
	if (r->carrier) { /* the worker has let go of it; who has not ends the stream here */
		if (cw_rdma_deregister(d.r, r->carrier) != 0)
			cw_rdma_fail(d.r, -EIO, "memory that the GPU server reaches is not taken back");
		cw_lock_acquire(&cw_tcp.region_lock);
		d.granted -= r->size;
		cw_lock_release(&cw_tcp.region_lock);
		r->carrier = NULL;
	}
	cw_tcp_end_region(s, r);
}

static void rdma_forked(struct cw_session *s, int owned)
{
	(void)owned;
	cw_own_close(s->fd, &s->fd_own);
	if (d.r)
		cw_rdma_forked(d.r);
}

/* The server is told how much there was, so that it ends at once; a process that is killed leaves
 * that to the host. */
static void rdma_close(struct cw_session *s)
{
	int64_t until = cw_now_ms() + cw_rdma_leave_ms, sent = cw_lasting_leave(until);
	uint8_t b[WORD] = "CWVBYE\0\1";
	if (sent < 0)
		return;
	cw_rdma_put(b + 8, (uint64_t)sent, 8);
	atomic_store(&d.ended, 1);
	if (cw_rdma_oob_send(s, b, WORD) != 0)
		return;
	while (!atomic_load(&d.acked) && atomic_load(&d.running) && cw_now_ms() < until) {
		struct timespec nap = {0, 2000000};
		nanosleep(&nap, NULL);
	}
	atomic_store(&cw_rdma_oob.stop, 1);
	stream_cut(s);
}

const struct cw_carrier cw_carrier_rdma = {
	.name = "rdma",
	.spin_us = 20,
	.open = rdma_open,
	.add_region = rdma_add_region,
	.end_region = rdma_end_region,
	.publish = cw_tcp_publish,
	.wait_slot = cw_tcp_wait_slot,
	.alive = cw_tcp_alive,
	.forked = rdma_forked,
	.close = rdma_close,
	.abandon = rdma_abandon,
};

/* See rdma_lasting.h. Acknowledgements are between frames, of neither end's stream, and go with a
 * queue pair. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "session/rdma_lasting.h"

enum { ACK_EACH = 512 << 10, DIRECT = 32 << 10, FIRST_NAP_MS = 20, MOST_NAP_MS = 500 };

struct cw_lasting cw_lasting;
int64_t cw_lasting_limit_ms = 10000;
static struct cw_lasting *const l = &cw_lasting;

static int thread_id(void) { return (int)syscall(SYS_gettid); }

int cw_lasting_begin(struct cw_rdma *r)
{
	void *p = mmap(NULL, CW_LASTING_KEPT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return -ENOMEM;
	madvise(p, CW_LASTING_KEPT, MADV_DONTFORK);
	l->r = r;
	l->kept = p;
	l->end = l->rest = l->got = l->told = 0;
	l->at = l->to = 0;
	l->receiver = 0;
	atomic_store(&l->on, 0);
	return 0;
}

void cw_lasting_free(void)
{
	if (l->kept)
		munmap(l->kept, CW_LASTING_KEPT);
	l->kept = NULL;
	l->r = NULL;
}

/* --- sending ---------------------------------------------------------------------------------- */

static void keep(const struct iovec *iov, int n)
{
	for (int i = 0; i < n; i++)
		for (size_t done = 0; done < iov[i].iov_len;) {
			size_t at = (size_t)(l->end % CW_LASTING_KEPT), k = iov[i].iov_len - done;
			if (k > CW_LASTING_KEPT - at)
				k = CW_LASTING_KEPT - at;
			memcpy(l->kept + at, (const uint8_t *)iov[i].iov_base + done, k);
			done += k;
			l->end += k;
		}
}

/* Sends what is kept from a position on. */
static int send_kept(uint64_t from)
{
	size_t at = (size_t)(from % CW_LASTING_KEPT), n = (size_t)(l->end - from),
	       first = CW_LASTING_KEPT - at < n ? CW_LASTING_KEPT - at : n;
	struct iovec v[2] = {{l->kept + at, first}, {l->kept, n - first}};
	return cw_rdma_send(l->r, v, 2);
}

static void nap(int64_t ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};
	nanosleep(&t, NULL);
}

/* The thread that receives has the stream go on: it alone knows how far it is. Who sends waits for
 * wire meanwhile. 0, or what there is an end for. */
static int go_on(struct cw_session *s)
{
	char first[400], why[700];
	int64_t until = cw_now_ms() + cw_lasting_limit_ms, wait = FIRST_NAP_MS;
	uint64_t far = 0;
	int err = 0;
	cw_rdma_why(l->r, first, sizeof first);
	cw_log(CW_LOG_INFO, "%s: the session goes on over another, if there is one within %d s", first, (int)(cw_lasting_limit_ms / 1000));
	cw_lock_acquire(&l->wire);
	l->at = l->to = 0; /* what was read ahead comes again */
	s->why[0] = 0;
	for (;;) {
		err = l->again(s, l->got, until, &far);
		l->told = l->got;
		if (err == 0 && (far > l->end || l->end - far > CW_LASTING_KEPT))
			err = -EPROTO;
		if (err == 0)
			err = send_kept(far);
		if (err != -ECONNRESET || cw_now_ms() + wait >= until)
			break;
		nap(wait);
		wait = 2 * wait < MOST_NAP_MS ? 2 * wait : MOST_NAP_MS;
	}
	cw_lock_release(&l->wire);
	if (err == 0) {
		cw_log(CW_LOG_INFO, "the session goes on over another RDMA connection");
		return 0;
	}
	if (err == -EPROTO)
		snprintf(s->why, sizeof s->why, "the GPU server says that it has %llu bytes of %llu", (unsigned long long)far,
			 (unsigned long long)l->end);
	snprintf(why, sizeof why, "%s; there was no other within %d s%s%.200s", first, (int)(cw_lasting_limit_ms / 1000),
		 s->why[0] ? ": " : "", s->why);
	atomic_store(&l->on, 0);
	cw_rdma_fail(l->r, -EPIPE, why);
	return -EPIPE;
}

int cw_lasting_send(struct cw_session *s, struct iovec *iov, int n)
{
	int own = ((const struct cw_frame *)iov->iov_base)->type == CW_FRAME_ACK;
	cw_lock_acquire(&l->wire);
	if (!own)
		keep(iov, n);
	int err = cw_rdma_send(l->r, iov, n);
	cw_lock_release(&l->wire);
	if (err != -ECONNRESET || !atomic_load(&l->on))
		return err;
	/* What is kept goes over the next, which the thread that receives is about to have; it has
	 * itself to be the one where it sends, as it does with what it was asked to read. */
	return own || thread_id() != l->receiver ? 0 : go_on(s);
}

int64_t cw_lasting_leave(int64_t until)
{
	int64_t n = -ECONNRESET;
	do { /* one that is lost has the time to be found */
		if (cw_lock_try(&l->wire)) {
			n = cw_rdma_drain(l->r, until);
			cw_lock_release(&l->wire);
		}
		if (n == -ECONNRESET)
			nap(2);
	} while (n == -ECONNRESET && atomic_load(&l->on) && cw_now_ms() < until);
	atomic_store(&l->on, 0);
	return n;
}

/* --- receiving -------------------------------------------------------------------------------- */

/* Hands out of buf what is the session's. */
static ssize_t deliver(uint8_t *p, size_t n)
{
	size_t done = 0;
	while (done < n) {
		size_t have = l->to - l->at, k = n - done;
		if (l->rest == 0) {
			struct cw_frame f;
			if (have < sizeof f)
				break;
			memcpy(&f, l->buf + l->at, sizeof f);
			if (f.type == CW_FRAME_ACK) {
				/* Of what the server has: credit has said as much. */
				if (f.len != 0)
					return -EPROTO;
				l->at += sizeof f;
				continue;
			}
			l->rest = sizeof f + (uint64_t)f.len;
		}
		k = k < have ? k : have;
		k = k < l->rest ? k : (size_t)l->rest;
		if (k == 0)
			break;
		memcpy(p + done, l->buf + l->at, k);
		l->at += k;
		l->rest -= k;
		l->got += k;
		done += k;
	}
	return (ssize_t)done;
}

/* Some bytes, straight into place if they are many. 0: there is the next to hand out. */
static ssize_t fill(uint8_t *p, size_t n, int64_t until, int *end)
{
	ssize_t k;
	if (l->at == l->to && l->rest >= DIRECT && n >= DIRECT) {
		k = cw_rdma_recv(l->r, p, n < l->rest ? n : (size_t)l->rest, until);
		if (k > 0) {
			l->rest -= (uint64_t)k;
			l->got += (uint64_t)k;
		}
		*end = k == 0;
		return k;
	}
	memmove(l->buf, l->buf + l->at, l->to - l->at);
	l->to -= l->at;
	l->at = 0;
	k = cw_rdma_recv(l->r, l->buf + l->to, sizeof l->buf - l->to, until);
	*end = k == 0;
	if (k <= 0)
		return k;
	l->to += (size_t)k;
	return 0;
}

ssize_t cw_lasting_recv(struct cw_session *s, void *p, size_t n, int64_t until)
{
	int end = 0;
	if (atomic_load(&l->on) && l->receiver == 0)
		l->receiver = thread_id();
	for (;;) {
		ssize_t k = deliver(p, n);
		if (k == 0)
			k = fill(p, n, until, &end);
		if (k == -ECONNRESET && atomic_load(&l->on)) {
			int err = go_on(s);
			if (err != 0)
				return err;
			continue;
		}
		if (k == 0 && !end)
			continue;
		if (k > 0 && l->got - l->told >= ACK_EACH) {
			l->told = l->got;
			/* What comes of it is found at the next. */
			cw_tcp_send(s, CW_FRAME_ACK, 0, l->got, NULL, 0);
		}
		return k;
	}
}

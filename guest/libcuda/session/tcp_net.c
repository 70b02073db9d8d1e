/*
 * Frames of the TCP carrier. Whoever publishes records pushes them; the net thread applies what
 * comes back (heads, replies, words) and serves one-sided reads and writes of regions.
 *
 * send_lock orders outgoing frames. Pushing is combined: a thread that finds the lock taken leaves
 * its records to the holder, who looks again after releasing. The net thread takes region_lock,
 * then send_lock; it never waits for the worker.
 */
#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "session/tcp.h"

enum { STACK = 256 * 1024 };

struct cw_tcp cw_tcp = {.io = &cw_tcp_plain};

/* --- sending ---------------------------------------------------------------------------------- */

static int plain_send(struct cw_session *s, struct iovec *iov, int n)
{
	while (n > 0) {
		struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)n};
		ssize_t done = sendmsg(cw_fd(s), &m, MSG_NOSIGNAL);
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

static ssize_t plain_recv(struct cw_session *s, void *p, size_t n)
{
	ssize_t got;
	do
		got = recv(cw_fd(s), p, n, 0);
	while (got < 0 && (errno == EINTR || (errno == EAGAIN && atomic_load(&cw_tcp.running))));
	return got < 0 ? -errno : got;
}

static void plain_cut(struct cw_session *s) { shutdown(cw_fd(s), SHUT_RDWR); }

const struct cw_stream cw_tcp_plain = {plain_send, plain_recv, plain_cut};

static void lost(int err)
{
	if (err != 0)
		atomic_store(&cw_tcp.gone, 1);
}

/* Under send_lock: everything that was published since the last push. */
static void push_locked(struct cw_session *s)
{
	uint64_t tail = __atomic_load_n(&s->ctl->tail, __ATOMIC_ACQUIRE), from = cw_tcp.pushed;
	if (tail == from)
		return;
	uint8_t *ring = s->base + CW_RING_OFFSET;
	size_t len = (size_t)(tail - from), off = (size_t)(from & (CW_RING_SIZE - 1));
	size_t first = CW_RING_SIZE - off < len ? CW_RING_SIZE - off : len;
	struct cw_frame f = {(uint32_t)len, CW_FRAME_RING, 0, from};
	struct iovec iov[3] = {{&f, sizeof f}, {ring + off, first}, {ring, len - first}};
	/* The server may answer before all has left. */
	atomic_store_explicit(&cw_tcp.given, tail, memory_order_release);
	lost(cw_tcp.io->send(s, iov, first == len ? 2 : 3));
	cw_tcp.pushed = tail;
}

/* Releases send_lock, then pushes what others left meanwhile. */
static void release_and_push(struct cw_session *s)
{
	for (;;) {
		uint64_t pushed = cw_tcp.pushed;
		cw_lock_release(&cw_tcp.send_lock);
		atomic_thread_fence(memory_order_seq_cst);
		if (atomic_load(&cw_tcp.gone) || __atomic_load_n(&s->ctl->tail, __ATOMIC_ACQUIRE) == pushed)
			return;
		if (!cw_lock_try(&cw_tcp.send_lock))
			return; /* whoever holds it looks after releasing */
		push_locked(s);
	}
}

void cw_tcp_publish(struct cw_session *s)
{
	atomic_thread_fence(memory_order_seq_cst);
	if (!cw_lock_try(&cw_tcp.send_lock))
		return;
	push_locked(s);
	release_and_push(s);
}

int cw_tcp_send(struct cw_session *s, uint16_t type, uint16_t flags, uint64_t arg, const void *p, size_t n)
{
	struct cw_frame f = {(uint32_t)n, type, flags, arg};
	struct iovec iov[2] = {{&f, sizeof f}, {(void *)(uintptr_t)p, n}};
	cw_lock_acquire(&cw_tcp.send_lock);
	int err = cw_tcp.io->send(s, iov, n > 0 ? 2 : 1);
	lost(err);
	release_and_push(s);
	return err;
}

/* --- receiving -------------------------------------------------------------------------------- */

/* Exactly n bytes: what is buffered, then straight into place if they are many. */
int cw_tcp_take(struct cw_session *s, void *out, size_t n)
{
	uint8_t *p = out;
	while (n > 0) {
		size_t have = cw_tcp.end - cw_tcp.at, k = have < n ? have : n;
		memcpy(p, cw_tcp.buf + cw_tcp.at, k);
		cw_tcp.at += k;
		p += k;
		n -= k;
		if (n == 0)
			break;
		int direct = n >= sizeof cw_tcp.buf / 2;
		ssize_t got = direct ? cw_tcp.io->recv(s, p, n) : cw_tcp.io->recv(s, cw_tcp.buf, sizeof cw_tcp.buf);
		if (got <= 0)
			return got == 0 ? -EPIPE : (int)got;
		if (direct) {
			p += got;
			n -= (size_t)got;
		} else {
			cw_tcp.at = 0;
			cw_tcp.end = (size_t)got;
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
	int err = cw_tcp_take(s, &h, sizeof h);
	if (err != 0 || h.payload_len != f->len - sizeof h)
		return err ? err : -EPROTO;
	struct cw_slot *slot = cw_slot_at(s, (uint32_t)f->arg);
	err = cw_tcp_take(s, slot + 1, h.payload_len);
	if (err != 0)
		return err;
	slot->result = h.result;
	slot->payload_len = h.payload_len;
	slot->reply_len = h.reply_len;
	__atomic_store_n(&slot->seq_done, h.seq, __ATOMIC_RELEASE);
	wake(&slot->waiting);
	return 0;
}

/* A head beyond what was sent would have records written over others that are not, and more than
 * the ring be sent: memory behind it. */
static int on_head(struct cw_session *s, uint64_t head)
{
	if (head < s->ctl->head || head > atomic_load_explicit(&cw_tcp.given, memory_order_acquire))
		return -EPROTO;
	__atomic_store_n(&s->ctl->head, head, __ATOMIC_RELEASE);
	atomic_thread_fence(memory_order_seq_cst);
	wake(&s->ctl->space_waiters);
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
	for (int i = 0; i < CW_TCP_REGIONS; i++)
		if (cw_tcp.region[i].size != 0 && cw_tcp.region[i].id == e->region)
			return e->offset <= cw_tcp.region[i].size && e->size <= cw_tcp.region[i].size - e->offset
				       ? cw_tcp.region[i].va + e->offset
				       : NULL;
	return NULL;
}

static int on_read(struct cw_session *s, const struct cw_frame *f)
{
	struct cw_frame_extent e;
	if (f->len != sizeof e)
		return -EPROTO;
	int err = cw_tcp_take(s, &e, sizeof e);
	if (err != 0)
		return err;
	cw_lock_acquire(&cw_tcp.region_lock);
	uint8_t *p = e.size != 0 && e.size <= CW_FRAME_EXTENT_MAX ? locate(&e) : NULL;
	/* Region 0 is never written by extents; what the host reads there are the callbacks' done
	 * words. */
	if (e.region == 0 && e.size != 0 && e.offset <= CW_REGION0_SIZE && e.size <= CW_REGION0_SIZE - e.offset)
		p = s->base + e.offset;
	if (!p)
		err = cw_tcp_send(s, CW_FRAME_DATA, CW_FRAME_ERROR, f->arg, NULL, 0);
	for (uint64_t done = 0; p && err == 0 && done < e.size;) {
		uint64_t n = e.size - done < CW_FRAME_MAX ? e.size - done : CW_FRAME_MAX;
		err = cw_tcp_send(s, CW_FRAME_DATA, 0, f->arg, p + done, n);
		done += n;
	}
	cw_lock_release(&cw_tcp.region_lock);
	return err;
}

static int on_write(struct cw_session *s, const struct cw_frame *f)
{
	struct cw_frame_extent e;
	if (f->len < sizeof e)
		return -EPROTO;
	int err = cw_tcp_take(s, &e, sizeof e);
	if (err != 0 || e.size != f->len - sizeof e)
		return err ? err : -EPROTO;
	cw_lock_acquire(&cw_tcp.region_lock);
	uint8_t *p = locate(&e);
	err = p ? cw_tcp_take(s, p, e.size) : -EPROTO;
	cw_lock_release(&cw_tcp.region_lock);
	return err;
}

static int on_frame(struct cw_session *s, const struct cw_frame *f)
{
	if (f->len > CW_FRAME_MAX)
		return -EPROTO;
	switch (f->type) {
	case CW_FRAME_SLOT: return on_slot(s, f);
	case CW_FRAME_READ: return on_read(s, f);
	case CW_FRAME_WRITE: return on_write(s, f);
	case CW_FRAME_HEAD:
	case CW_FRAME_WORD:
	case CW_FRAME_CONTROL: break;
	default: return -EPROTO;
	}
	if (f->len != 0)
		return -EPROTO;
	if (f->type == CW_FRAME_CONTROL)
		return on_control(s, f->arg);
	if (f->type == CW_FRAME_HEAD)
		return on_head(s, f->arg);
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
		err = cw_tcp_take(s, &f, sizeof f);
		if (err == 0)
			err = on_frame(s, &f);
	} while (err == 0);
	if (err == -EPROTO)
		cw_log(CW_LOG_ERROR, "the host broke the frame protocol (frame %u, %u bytes)", f.type, f.len);
	atomic_store(&cw_tcp.gone, 1);
	cw_tcp.io->cut(s);
	for (uint32_t i = 0; i < CW_SLOT_COUNT; i++)
		wake(&cw_slot_at(s, i)->waiting);
	wake(&s->ctl->space_waiters);
	atomic_store(&cw_tcp.running, 0);
	return NULL;
}

int cw_tcp_start(struct cw_session *s)
{
	atomic_store(&cw_tcp.running, 1);
	int err = cw_thread_begin(STACK, 0, net_thread, s);
	if (err != 0)
		atomic_store(&cw_tcp.running, 0);
	return -err;
}

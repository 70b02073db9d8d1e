/*
 * The bytes of rdma.h's stream. Whoever waits, for bytes or for room, takes completions for all if
 * nobody does (polling), and others sleep on turn. lock guards all that is not said otherwise, and
 * is not held while anything is waited for; the bytes of window and out are the reader's and the
 * writer's.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>

#include "session/rdma_stream.h"

enum { MESSAGES = 128, RESERVED = 64, SIGNAL_EACH = 32, CHUNK = 64 << 10, NAP_MS = 250 };
/* A link on which nothing moves is probed, and given up when that is not acknowledged: docs/VF.md
 * has both. Adapters give up by themselves before (TIMEOUT, and the retries of ibv/shim.h), if they
 * do. */
enum { PROBE_MS = 5000, LOST_MS = 20000 };
/* Immediates: see remote/verbs/progress.go. */
#define CREDIT_BIT (1u << 31)
enum { CREDIT_SHIFT = 21 };

/* --- under lock ------------------------------------------------------------------------------- */

/* The first failure that is no consequence of another is the reason. -ECONNRESET: another queue
 * pair may do; an end of the session goes before. */
static void fail_locked(struct cw_rdma *r, int err, const char *why, int flushed)
{
	if (r->err != 0 && !(r->err == -ECONNRESET && (err != -ECONNRESET || (r->flushed && !flushed))))
		return;
	r->err = err;
	r->flushed = flushed;
	snprintf(r->why, sizeof r->why, "%s", why);
}

static const char *status_text(uint32_t status)
{
	switch (status) {
	case 4: return "local protection error: the memory is not registered";
	case 5: return "flushed: the queue pair had failed, or the other end's had";
	case 8: return "local access error: the other end used memory as it may not";
	case 9: return "remote invalid request error";
	case 10: return "remote access error: the memory there is not, or no more, registered for it";
	case 12: return "retry exceeded: the other end, or the way to it, is gone";
	case 13: return "receiver not ready, retry exceeded";
	default: return "error";
	}
}

static struct cw_work work(struct cw_rdma *r, uint32_t op, uint64_t at, uint32_t n)
{
	return (struct cw_work){.local = (uintptr_t)r->out + at,
				.remote = r->peer_address + at,
				.length = n,
				.lkey = r->out_mr->lkey,
				.rkey = r->peer_key,
				.opcode = op,
				.flags = n > 0 && n <= r->inlined ? IBV_SEND_INLINE : 0};
}

static void post_locked(struct cw_rdma *r, struct cw_work *w, int n)
{
	for (int i = 0; i < n; i++) {
		w[i].id = ++r->posted;
		if (++r->unsignaled >= SIGNAL_EACH)
			w[i].flags |= IBV_SEND_SIGNALED;
		if (w[i].flags & IBV_SEND_SIGNALED)
			r->unsignaled = 0;
	}
	/* Posting is a system call where the kernel makes the packets. */
	int has = !r->software || cw_rdma_has_files(r), err = has ? cw_post(r->queue.qp, w, n) : 0;
	if (!has)
		fail_locked(r, -EPIPE, CW_CLOSED_BY_PROGRAM, 0);
	else if (err)
		fail_locked(r, -ECONNRESET, "the adapter takes no work", 0);
}

/* Tells the peer what is free again, once that is worth it. */
static void credit_locked(struct cw_rdma *r)
{
	if (r->err || r->ends || (r->owed_bytes < CW_RDMA_WINDOW / 4 && r->owed_count < MESSAGES / 4) ||
	    r->posted - r->done >= CW_RDMA_SENDS)
		return;
	struct cw_work w = work(r, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0);
	w.immediate = CREDIT_BIT | r->owed_count << CREDIT_SHIFT | (uint32_t)r->owed_bytes;
	r->owed_bytes = 0;
	r->owed_count = 0;
	post_locked(r, &w, 1);
}

static void immediate_locked(struct cw_rdma *r, uint32_t v)
{
	if (!(v & CREDIT_BIT)) {
		if (v == 0 || v > CW_RDMA_WINDOW - (r->got - r->taken) - r->owed_bytes) {
			fail_locked(r, -EIO, "the server wrote more than fits", 0);
			return;
		}
		if (r->owed_count >= MESSAGES) {
			fail_locked(r, -EIO, "the server wrote more often than it may", 0);
			return;
		}
		r->got += v;
		r->owed_count++;
		return;
	}
	uint32_t bytes = v & ((1u << CREDIT_SHIFT) - 1), messages = (v & ~CREDIT_BIT) >> CREDIT_SHIFT;
	if (bytes > r->sent - r->credited || messages > r->messages) {
		fail_locked(r, -EIO, "the server gave credit for what was not sent", 0);
		return;
	}
	r->credited += bytes;
	r->messages -= messages;
}

static void apply_locked(struct cw_rdma *r, const struct cw_completion *c, int n)
{
	int came = 0;
	for (int i = 0; i < n; i++) {
		if (c[i].status != 0) {
			char text[200];
			snprintf(text, sizeof text, "the RDMA connection failed: %s (status %u, vendor %#x)", status_text(c[i].status),
				 c[i].status, c[i].vendor);
			fail_locked(r, -ECONNRESET, text, c[i].status == 5);
		} else if (c[i].received) {
			came++;
			immediate_locked(r, c[i].immediate);
		} else {
			r->done = c[i].id;
		}
	}
	if (r->err || came == 0)
		return;
	int err = cw_post_receive(r->queue.qp, came);
	if (err)
		fail_locked(r, -ECONNRESET, "the adapter takes no receives", 0);
	credit_locked(r);
}

/* --- waiting ---------------------------------------------------------------------------------- */

static void changed(struct cw_rdma *r)
{
	atomic_fetch_add(&r->turn, 1);
	if (atomic_load(&r->waiters) != 0)
		cw_futex_wake(&r->turn, 1 << 30, CW_FUTEX_PRIVATE);
}

/* Takes completions, after a while of none; it sleeps for NAP_MS at most. Negative: the queue is
 * broken; -EBADF: the program has closed its descriptors. */
static int take(struct cw_rdma *r, struct cw_completion *c)
{
	int n = 0;
	for (uint32_t i = 0, turns = cw_s.cpus > 1 ? 400 : 1; i < turns && n == 0; i++) {
		n = cw_poll(r->queue.cq, c);
		if (n == 0)
			cw_pause();
	}
	if (n != 0)
		return n;
	if (!cw_rdma_has_files(r)) /* from here on the kernel is asked */
		return -EBADF;
	if (cw_arm(r->queue.cq))
		return -1;
	if ((n = cw_poll(r->queue.cq, c)) != 0)
		return n;
	struct pollfd p = {.fd = r->queue.channel->fd, .events = POLLIN};
	if (poll(&p, 1, NAP_MS) == 1)
		/* Another thread cannot have taken it: there is one that polls. */
		cw_event(&cw_rdma_lib, &r->queue);
	return cw_poll(r->queue.cq, c);
}

/*
 * Who takes completions looks after each turn whether any came. Without one for PROBE_MS the peer
 * is written nothing, which its adapter acknowledges whatever its program does; without that for
 * LOST_MS more the link is gone. A program that waits for its reply posts nothing that could fail,
 * and an adapter may repeat for ever. What passes unseen, as the time of a VM that is paused,
 * counts as little.
 */
static void watch_locked(struct cw_rdma *r)
{
	uint64_t progress = r->done + r->got + r->credited;
	int64_t now = cw_now_ms(), passed = now - r->looked;
	r->looked = now;
	if (progress != r->progress) {
		r->progress = progress;
		r->quiet_ms = 0;
		r->probing = 0;
		return;
	}
	r->quiet_ms += (uint32_t)(passed < 2 * NAP_MS ? passed : 2 * NAP_MS);
	if (r->err || r->quiet_ms < PROBE_MS)
		return;
	if (!r->probing && !r->ends && r->posted - r->done < CW_RDMA_SENDS) {
		struct cw_work w = work(r, IBV_WR_RDMA_WRITE, 0, 0);
		w.flags |= IBV_SEND_SIGNALED;
		post_locked(r, &w, 1);
	}
	r->probing = 1;
	if (r->quiet_ms >= PROBE_MS + LOST_MS)
		fail_locked(r, -EIO, "the RDMA link is gone: the GPU server's adapter has acknowledged nothing for 20 s", 0);
}

enum what { BYTES, ROOM, DRAINED };

static int ready_locked(struct cw_rdma *r, enum what what)
{
	switch (what) {
	case BYTES: return r->got > r->taken || (r->ends && r->taken >= r->final);
	case ROOM:
		return r->ends || (r->sent - r->credited < r->out_size && r->messages < MESSAGES &&
				   r->posted - r->done + 2 <= CW_RDMA_SENDS - RESERVED);
	default: return r->done == r->posted;
	}
}

/* Under lock, which is not held meanwhile. */
static int await_locked(struct cw_rdma *r, enum what what, int64_t until)
{
	for (;;) {
		if (ready_locked(r, what))
			return 0;
		if (r->err)
			return r->err;
		if (until && cw_now_ms() >= until)
			return -ETIMEDOUT;
		if (r->polling) {
			struct timespec nap = {0, NAP_MS * 1000000l};
			uint32_t turn = atomic_load(&r->turn);
			atomic_fetch_add(&r->waiters, 1);
			cw_lock_release(&r->lock);
			cw_futex_wait(&r->turn, turn, CW_FUTEX_PRIVATE, &nap);
			atomic_fetch_sub(&r->waiters, 1);
			cw_lock_acquire(&r->lock);
			continue;
		}
		struct cw_completion c[CW_CHAIN];
		r->polling = 1;
		cw_lock_release(&r->lock);
		int n = take(r, c);
		cw_lock_acquire(&r->lock);
		r->polling = 0;
		if (n == -EBADF)
			fail_locked(r, -EPIPE, CW_CLOSED_BY_PROGRAM, 0);
		else if (n < 0)
			fail_locked(r, -ECONNRESET, "the completion queue is broken", 0);
		else
			apply_locked(r, c, n);
		watch_locked(r);
		changed(r);
	}
}

/* --- bytes ------------------------------------------------------------------------------------ */

/* Copies what iov has next, at most most bytes, to where byte from of the stream lies. */
static size_t gather(struct cw_rdma *r, uint64_t from, struct iovec **iov, int *n, size_t most)
{
	size_t done = 0;
	while (*n > 0 && done < most) {
		struct iovec *v = *iov;
		size_t at = (size_t)((from + done) & (r->out_size - 1)), k = v->iov_len;
		if (k > most - done)
			k = most - done;
		if (k > r->out_size - at)
			k = r->out_size - at;
		if (k > 0)
			memcpy(r->out + at, v->iov_base, k);
		v->iov_base = (uint8_t *)v->iov_base + k;
		v->iov_len -= k;
		done += k;
		if (v->iov_len == 0)
			(*iov)++, (*n)--;
	}
	return done;
}

static void push_locked(struct cw_rdma *r, size_t n)
{
	uint32_t at = (uint32_t)(r->sent & (r->out_size - 1)), first = r->out_size - at;
	struct cw_work w[2];
	int count = 1;
	r->sent += n;
	r->messages++;
	if (n > first) {
		w[0] = work(r, IBV_WR_RDMA_WRITE, at, first);
		w[count++] = work(r, IBV_WR_RDMA_WRITE_WITH_IMM, 0, (uint32_t)(n - first));
	} else {
		w[0] = work(r, IBV_WR_RDMA_WRITE_WITH_IMM, at, (uint32_t)n);
	}
	w[count - 1].immediate = (uint32_t)n;
	post_locked(r, w, count);
}

int cw_rdma_send(struct cw_rdma *r, struct iovec *iov, int n)
{
	int err = 0;
	while (err == 0) {
		while (n > 0 && iov->iov_len == 0)
			iov++, n--;
		if (n == 0)
			break;
		cw_lock_acquire(&r->lock);
		err = await_locked(r, ROOM, 0);
		size_t room = (size_t)(r->out_size - (r->sent - r->credited));
		if (err == 0 && r->ends)
			err = -EPIPE;
		uint64_t from = r->sent;
		cw_lock_release(&r->lock);
		if (err != 0)
			break;
		size_t k = gather(r, from, &iov, &n, room < CHUNK ? room : CHUNK);
		cw_lock_acquire(&r->lock);
		if (r->err == 0)
			push_locked(r, k);
		err = r->err;
		cw_lock_release(&r->lock);
	}
	return err;
}

ssize_t cw_rdma_recv(struct cw_rdma *r, void *p, size_t n, int64_t until)
{
	cw_lock_acquire(&r->lock);
	int err = await_locked(r, BYTES, until);
	uint64_t from = r->taken, have = r->got - r->taken;
	cw_lock_release(&r->lock);
	if (err != 0)
		return err;
	if (n > have)
		n = (size_t)have;
	size_t at = (size_t)(from & (CW_RDMA_WINDOW - 1)), first = CW_RDMA_WINDOW - at < n ? CW_RDMA_WINDOW - at : n;
	memcpy(p, r->window + at, first);
	memcpy((uint8_t *)p + first, r->window, n - first);
	cw_lock_acquire(&r->lock);
	r->taken += n;
	r->owed_bytes += n;
	credit_locked(r);
	cw_lock_release(&r->lock);
	return (ssize_t)n;
}

int64_t cw_rdma_drain(struct cw_rdma *r, int64_t until)
{
	cw_lock_acquire(&r->lock);
	if (r->err == 0 && !r->ends && r->posted - r->done < CW_RDMA_SENDS) {
		struct cw_work w = work(r, IBV_WR_RDMA_WRITE, 0, 0);
		w.flags |= IBV_SEND_SIGNALED;
		post_locked(r, &w, 1);
	}
	int64_t n = await_locked(r, DRAINED, until);
	if (n == 0)
		n = (int64_t)r->sent;
	cw_lock_release(&r->lock);
	return n;
}

void cw_rdma_ended(struct cw_rdma *r, uint64_t n)
{
	cw_lock_acquire(&r->lock);
	if (!r->ends) {
		r->ends = 1;
		r->final = n;
	}
	cw_lock_release(&r->lock);
	changed(r);
}

void cw_rdma_fail(struct cw_rdma *r, int err, const char *why)
{
	cw_lock_acquire(&r->lock);
	fail_locked(r, err, why, 0);
	cw_lock_release(&r->lock);
	changed(r);
}

void cw_rdma_lose(struct cw_rdma *r, const char *why) { cw_rdma_fail(r, -ECONNRESET, why); }

int cw_rdma_fresh(struct cw_rdma *r)
{
	cw_lock_acquire(&r->lock);
	int err = r->err == -ECONNRESET ? 0 : r->err;
	if (err == 0) {
		r->err = r->flushed = r->ends = r->probing = 0;
		r->sent = r->credited = r->posted = r->done = r->got = r->taken = r->final = r->owed_bytes = r->progress = 0;
		r->messages = r->unsignaled = r->owed_count = r->quiet_ms = 0;
		r->looked = cw_now_ms();
		r->why[0] = 0;
	}
	cw_lock_release(&r->lock);
	return err;
}

void cw_rdma_why(struct cw_rdma *r, char *out, size_t cap)
{
	cw_lock_acquire(&r->lock);
	snprintf(out, cap, "%s", r->why);
	cw_lock_release(&r->lock);
}

/*
 * The command ring, producer's side. Many threads append under one lock; the worker consumes. A
 * record is published by the store of tail; what the worker needs to see is written before it.
 *
 * Every record's size is a multiple of 32, so the rest before the ring's end always holds at least
 * an OpSkip header.
 *
 * Doorbell: after the store of tail and a full fence, worker_state Sleeping means that the worker
 * may miss the record, so the bell is rung. A burst while the worker wakes up would ring for each
 * record; rung_head saves that: if head is still what it was when the bell was last rung (with at
 * least one record pending), the worker has not slept again since, because it sleeps only after it
 * consumed everything.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/ahead.h"
#include "session/internal.h"
#include "gen/ops.h"

#define RING_MASK (CW_RING_SIZE - 1)

static int has_room(struct cw_session *s, uint64_t need)
{
	if (s->tail + need - s->head_seen <= CW_RING_SIZE)
		return 1;
	uint64_t head = __atomic_load_n(&s->ctl->head, __ATOMIC_ACQUIRE);
	/* A head that runs backwards or past the tail is the host's fault; ignoring it only keeps
	 * this session waiting. */
	if (head - s->head_seen <= s->tail - s->head_seen)
		s->head_seen = head;
	return s->tail + need - s->head_seen <= CW_RING_SIZE;
}

void cw_nudge(struct cw_session *s)
{
	if (s->carrier->doorbell && __atomic_load_n(&s->ctl->worker_state, __ATOMIC_ACQUIRE) == CW_WORKER_SLEEPING &&
	    __atomic_load_n(&s->ctl->head, __ATOMIC_ACQUIRE) != __atomic_load_n(&s->ctl->tail, __ATOMIC_ACQUIRE))
		s->carrier->doorbell(s);
}

/* has_room for those who do not hold the ring lock: only worth a try at it. */
static int seems_room(struct cw_session *s, uint64_t need)
{
	uint64_t tail = __atomic_load_n(&s->ctl->tail, __ATOMIC_RELAXED);
	return tail + need - __atomic_load_n(&s->ctl->head, __ATOMIC_ACQUIRE) <= CW_RING_SIZE;
}

/* Waits for room without the ring lock, one thread at a time: threads that fill the ring take
 * turns, so that the worker finds the work of all of them in it. */
static CUresult wait_room(struct cw_session *s, uint64_t need)
{
	_Atomic uint32_t *waiters = (_Atomic uint32_t *)&s->ctl->space_waiters;
	/* For several records at once: along a full ring each one would fetch the line of head that
	 * the worker writes to. */
	uint64_t some = need > CW_RING_SIZE / 32 ? need : CW_RING_SIZE / 32;
	CUresult r = 0;
	cw_lock_acquire(&s->room_lock);
	for (uint32_t i = 0; i < s->spin_max; i++) {
		if (seems_room(s, some))
			goto out;
		cw_pause();
	}
	while (!seems_room(s, need)) {
		if (cw_is_dead(s)) {
			r = CUDA_ERROR_LAUNCH_FAILED;
			break;
		}
		atomic_store(waiters, 1);
		if (seems_room(s, need))
			break;
		if (s->carrier->wait_slot(s, CW_SLOT_COUNT, waiters) == -EPIPE)
			cw_mark_dead(s, "the host ended the session");
		cw_nudge(s);
		cw_lock_release(&s->room_lock); /* signals that wait have their turn */
		cw_lock_acquire(&s->room_lock);
	}
	atomic_store_explicit(waiters, 0, memory_order_relaxed);
out:
	cw_lock_release(&s->room_lock);
	return r;
}

static void put_header(uint8_t *at, uint32_t size, uint16_t op, uint16_t flags, uint32_t slot, uint32_t seq)
{
	struct cw_record *r = (struct cw_record *)at;
	r->size = size;
	r->op = op;
	r->flags = flags;
	r->slot = slot;
	r->seq = seq;
	r->ctx = cw_current_ctx_id();
	r->thread = cw_thread_ordinal();
	r->rsvd = 0;
}

/* In pieces of 32 bytes, some of which the caller writes anyway: for few bytes a call takes longer
 * than the stores. */
static void zero(uint8_t *at, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += 32)
		memset(at + i, 0, 32);
}

CUresult cw_begin_slot(struct cw_session *s, struct cw_tx *tx, uint16_t op, uint32_t fixed, uint32_t var, uint32_t slot)
{
	const uint32_t header = sizeof(struct cw_record);
	if (cw_unlikely(fixed > CW_MAX_RECORD || var > CW_MAX_RECORD))
		return CUDA_ERROR_INVALID_VALUE;
	uint32_t used = header + ((fixed + 7) & ~7u) + ((var + 7) & ~7u);
	uint32_t size = (used + 31) & ~31u;
	if (cw_unlikely(size > CW_MAX_RECORD))
		return CUDA_ERROR_INVALID_VALUE;

	uint32_t off, pad;
	for (;;) {
		cw_lock_acquire(&s->ring_lock);
		off = (uint32_t)(s->tail & RING_MASK);
		pad = CW_RING_SIZE - off >= size ? 0 : (uint32_t)CW_RING_SIZE - off;
		if (cw_likely(has_room(s, (uint64_t)pad + size)))
			break;
		cw_lock_release(&s->ring_lock);
		CUresult r = wait_room(s, (uint64_t)pad + size);
		if (r != 0)
			return r;
	}
	uint8_t *ring = s->base + CW_RING_OFFSET;
	if (pad != 0) {
		put_header(ring + off, pad, CW_OP_SKIP, 0, 0, 0);
		s->tail += pad;
		off = 0;
	}
	uint32_t seq = 0;
	if (slot != CW_NO_SLOT) {
		seq = s->slot_seq[slot] + 1;
		if (seq == 0)
			seq = 1;
		s->slot_seq[slot] = seq;
	}
	uint8_t *rec = ring + off;
	put_header(rec, size, op, slot != CW_NO_SLOT ? CW_RECORD_REPLY : 0, slot != CW_NO_SLOT ? slot : 0, seq);
	zero(rec + header, (fixed + 31) & ~31u);
	if (size != used)
		zero(rec + size - 32, 32);
	if (op < sizeof cw_op_works && cw_op_works[op])
		__atomic_store_n(&s->work, s->work + 1, __ATOMIC_RELAXED);
	tx->rec = rec;
	tx->size = size;
	tx->slot = slot;
	tx->seq = seq;
	tx->flags = 0;
	return 0;
}

static _Atomic uint64_t early; /* copies beside those records */

uint64_t cw_work(void) { return __atomic_load_n(&cw_s.work, __ATOMIC_RELAXED) + atomic_load_explicit(&early, memory_order_relaxed); }

void cw_work_add(void) { atomic_fetch_add_explicit(&early, 1, memory_order_relaxed); }

_Atomic(void (*)(void)) cw_around_requests;
_Atomic uint64_t cw_copies;
_Atomic uint32_t cw_starved;

/* Else threads that never stop giving the GPU work would keep others from managed memory for ever.
 * Not for longer, as a kernel may wait for what comes. */
static void let_others(void)
{
	enum { TURNS = 50 };
	for (int i = 0; i < TURNS && atomic_load_explicit(&cw_starved, memory_order_relaxed) != 0; i++) {
		struct timespec nap = {0, 1000000};
		nanosleep(&nap, NULL);
	}
}

static void around_request(void)
{
	void (*fn)(void) = atomic_load_explicit(&cw_around_requests, memory_order_relaxed);
	if (cw_unlikely(fn != NULL))
		fn();
}

static CUresult begin_check(struct cw_session *s)
{
	uint32_t state = atomic_load_explicit(&cw_g.state, memory_order_acquire);
	if (cw_likely(state == CW_OPEN))
		return 0;
	if (state == CW_CLOSED) {
		if (atomic_load(&s->opener) == cw_thread_ordinal())
			return 0;
		return cw_session_open();
	}
	return cw_check_slow();
}

/* Publishes the record and drops the ring lock. */
static void publish(struct cw_session *s, uint32_t size)
{
	uint64_t tail = s->tail += size;
	__atomic_store_n(&s->ctl->tail, tail, __ATOMIC_RELEASE);
	cw_lock_release_fenced(&s->ring_lock);
	if (s->carrier->publish) {
		s->carrier->publish(s);
		return;
	}
	if (cw_likely(__atomic_load_n(&s->ctl->worker_state, __ATOMIC_RELAXED) != CW_WORKER_SLEEPING))
		return;
	uint64_t head = __atomic_load_n(&s->ctl->head, __ATOMIC_ACQUIRE);
	/* Consumed meanwhile: a ring noted at this head would keep the next record's from being
	 * sent. */
	if (head >= tail)
		return;
	if (atomic_load_explicit(&s->rung_head, memory_order_acquire) == head)
		return;
	s->carrier->doorbell(s);
	atomic_store_explicit(&s->rung_head, head, memory_order_release);
}

void cw_take_back(struct cw_session *s, struct cw_tx *tx)
{
	struct cw_record *r = (struct cw_record *)tx->rec;
	r->op = CW_OP_SKIP;
	r->flags = 0;
	publish(s, tx->size);
}

/* A record of work that may touch managed memory. Nobody has a copy of that when its ring lock is
 * taken and it is counted. */
static CUresult begin_work(struct cw_session *s, struct cw_tx *tx, uint16_t op, uint32_t fixed, uint32_t var, uint32_t slot)
{
	if (cw_unlikely(atomic_load_explicit(&cw_starved, memory_order_relaxed) != 0))
		let_others();
	if (cw_unlikely(cw_host_is_ahead()))
		cw_host_let_run();
	for (;;) {
		CUresult r = atomic_load_explicit(&cw_copies, memory_order_relaxed) < CW_COPY ? 0 : cw_before_work();
		if (r == 0)
			r = cw_begin_slot(s, tx, op, fixed, var, slot);
		if (r != 0)
			return r;
		atomic_thread_fence(memory_order_seq_cst);
		if (atomic_load_explicit(&cw_copies, memory_order_relaxed) < CW_COPY)
			return 0;
		cw_take_back(s, tx);
	}
}

CUresult cw_begin(struct cw_tx *tx, uint16_t op, uint32_t fixed_size, uint32_t var_size, int reply)
{
	struct cw_session *s = &cw_s;
	CUresult r = begin_check(s);
	if (cw_unlikely(r != 0))
		return r;
	around_request();
	uint32_t slot = CW_NO_SLOT;
	if (reply) {
		slot = cw_slot_claim(s);
		if (slot == CW_NO_SLOT)
			return CUDA_ERROR_LAUNCH_FAILED;
	}
	if (cw_unlikely(atomic_load_explicit(&cw_copies, memory_order_relaxed) != 0) && op < sizeof cw_op_runs && cw_op_runs[op])
		r = begin_work(s, tx, op, fixed_size, var_size, slot);
	else if (op < sizeof cw_op_drains && cw_unlikely(cw_op_drains[op]))
		r = cw_host_begin_after(tx, op, fixed_size, var_size, slot);
	else
		r = cw_begin_slot(s, tx, op, fixed_size, var_size, slot);
	if (cw_unlikely(r != 0) && slot != CW_NO_SLOT)
		cw_slot_release(s, slot);
	return r;
}

CUresult cw_commit(struct cw_tx *tx)
{
	struct cw_session *s = &cw_s;
	publish(s, tx->size);
	if (cw_unlikely(__atomic_load_n(&s->ctl->worker_state, __ATOMIC_RELAXED) == CW_WORKER_DEAD)) {
		cw_mark_dead(s, "the worker ended");
		return CUDA_ERROR_LAUNCH_FAILED;
	}
	return (CUresult)__atomic_load_n(&s->ctl->sticky, __ATOMIC_RELAXED);
}

void cw_abort(struct cw_tx *tx)
{
	struct cw_session *s = &cw_s;
	cw_take_back(s, tx);
	if (tx->slot != CW_NO_SLOT)
		cw_slot_release(s, tx->slot);
}

/* Fetches the part of a reply that did not fit its slot, in the same slot. */
static CUresult gather(struct cw_session *s, struct cw_reply *rep, uint32_t have, uint32_t total)
{
	uint8_t *all = total <= (1u << 30) ? malloc(total) : NULL;
	if (!all)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(all, rep->data, have);
	while (have < total) {
		struct cw_tx tx;
		CUresult r = cw_begin_slot(s, &tx, CW_OP_REPLY_MORE, sizeof(struct cw_in_ReplyMore), 0, rep->slot);
		if (r == 0) {
			((struct cw_in_ReplyMore *)(tx.rec + sizeof(struct cw_record)))->offset = have;
			publish(s, tx.size);
			r = cw_slot_wait(s, tx.slot, tx.seq);
		}
		struct cw_slot *slot = cw_slot_at(s, rep->slot);
		const uint8_t *payload = (const uint8_t *)(slot + 1);
		uint32_t n = slot->payload_len;
		struct cw_span part = {0, 0};
		if (r == 0 && slot->result == 0 && n >= sizeof part && n <= CW_SLOT_PAYLOAD)
			memcpy(&part, payload, sizeof part);
		if (part.len == 0 || part.off > n || part.len > n - part.off || part.len > total - have) {
			free(all);
			return r != 0 ? r : CUDA_ERROR_UNKNOWN;
		}
		memcpy(all + have, payload + part.off, part.len);
		have += part.len;
	}
	rep->data = rep->heap = all;
	rep->len = total;
	return 0;
}

void cw_send(struct cw_tx *tx) { publish(&cw_s, tx->size); }

CUresult cw_commit_wait(struct cw_tx *tx, struct cw_reply *rep)
{
	cw_send(tx);
	return cw_await(tx, rep);
}

CUresult cw_await(struct cw_tx *tx, struct cw_reply *rep)
{
	struct cw_session *s = &cw_s;
	CUresult r = cw_slot_wait(s, tx->slot, tx->seq);
	if (cw_unlikely(r != 0)) {
		/* The slot stays claimed: a late answer must not meet another call's seq. The
		 * session is dead anyway. */
		return r;
	}
	around_request();
	struct cw_slot *slot = cw_slot_at(s, tx->slot);
	rep->slot = tx->slot;
	rep->heap = NULL;
	rep->data = (const uint8_t *)(slot + 1);
	rep->len = 0;
	rep->result = 0;
	if (__atomic_load_n(&slot->seq_done, __ATOMIC_ACQUIRE) == tx->seq) {
		uint32_t have = slot->payload_len, total = slot->reply_len;
		rep->result = (CUresult)slot->result;
		if (cw_unlikely(have > CW_SLOT_PAYLOAD))
			have = 0, total = 0, rep->result = CUDA_ERROR_UNKNOWN;
		rep->len = have;
		if (cw_unlikely(total > have)) {
			r = gather(s, rep, have, total);
			if (r != 0) {
				rep->result = r;
				rep->len = 0;
			}
		}
	}
	if (cw_unlikely(__atomic_load_n(&s->ctl->console, __ATOMIC_ACQUIRE) != 0))
		cw_console_drain(s);
	return 0;
}

void cw_reply_release(struct cw_reply *rep)
{
	free(rep->heap);
	rep->heap = NULL;
	cw_slot_release(&cw_s, rep->slot);
}

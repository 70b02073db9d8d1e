/*
 * The command ring's producer alone: ring.c between a worker, slots and managed memory of the
 * test's own. What a record holds, to the byte, where it lies as the ring ends, who is asked for
 * room and who rings, what is done before work of managed memory and after it was begun in vain,
 * and what each answer, in one piece or many, becomes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gen/ops.h"
#include "session/ahead.h"
#include "session/internal.h"
#include "session/tests/check.h"

static void *f_malloc(size_t n);
static void f_free(void *p);
static int f_nap(const struct timespec *t);
#define malloc(n) f_malloc(n)
#define free(p) f_free(p)
#define nanosleep(t, left) f_nap(t)
#include "session/ring.c"
#undef malloc
#undef free
#include "session/lock.c"
#include "session/signals.c"

const uint8_t cw_op_runs[sizeof cw_op_runs] = {[CW_OP_LAUNCH] = 1, [sizeof cw_op_runs - 1] = 1};
const uint8_t cw_op_drains[sizeof cw_op_drains] = {[CW_OP_MEM_FREE] = 1, [sizeof cw_op_drains - 2] = 1};
const uint8_t cw_op_works[sizeof cw_op_works] = {[CW_OP_LAUNCH] = 1, [CW_OP_MEMCPY] = 1, [sizeof cw_op_works - 1] = 1};

static uint8_t memory[CW_REGION0_SIZE] __attribute__((aligned(4096)));
struct cw_session cw_s;
struct cw_global cw_g;
static struct cw_session *const s = &cw_s;
_Atomic uint32_t cw_hosts_ahead;
__thread uint32_t cw_own_work __attribute__((tls_model("initial-exec")));

#include "session/tests/alone/ring_fakes.h"

/* --- records ---------------------------------------------------------------------------------- */

static void sizes(void)
{
	struct cw_tx tx;
	for (uint32_t fixed = 0; fixed < 70; fixed++)
		for (uint32_t var = 0; var < 70; var += 3) {
			anew(64);
			CHECK(cw_begin(&tx, CW_OP_MEMCPY_HTO_D, fixed, var, 0) == 0);
			uint32_t f = (fixed + 7) / 8 * 8, v = (var + 7) / 8 * 8, used = 32 + f + v, size = (used + 31) / 32 * 32;
			struct cw_record *r = record(64);
			CHECK(tx.rec == (uint8_t *)r && tx.size == size && tx.slot == CW_NO_SLOT && tx.flags == 0 &&
			      s->ring_lock.word != 0);
			CHECK(r->size == size && r->op == CW_OP_MEMCPY_HTO_D && r->flags == 0 && r->slot == 0 && r->seq == 0 &&
			      r->ctx == 55 && r->thread == 66 && r->rsvd == 0);
			/* Zeroed: the fixed part and the rest, to whole pieces of 32 bytes; not
			 * what is written anyway beyond those. */
			uint32_t front = 32 + (f + 31) / 32 * 32, back = size != used ? size - 32 : size;
			for (uint32_t i = 32; i < size; i++)
				CHECK(tx.rec[i] == (i < front || i >= back ? 0 : 0xee));
			CHECK(tx.rec[size] == 0xee && cw_commit(&tx) == 0 && s->tail == 64 + size && s->ctl->tail == s->tail &&
			      s->ring_lock.word == 0);
		}
	static const struct {
		uint32_t fixed, var;
		int fits;
	} all[] = {{0, CW_MAX_RECORD - 32, 1}, {CW_MAX_RECORD - 32, 0, 1}, {8, CW_MAX_RECORD - 40, 1}, {0, CW_MAX_RECORD - 31, 0},
		   {1, CW_MAX_RECORD - 32, 0}, {0, CW_MAX_RECORD, 0},	   {CW_MAX_RECORD, 0, 0},      {CW_MAX_RECORD + 1, 0, 0},
		   {0, CW_MAX_RECORD + 1, 0},  {UINT32_MAX - 8, 64, 0},	   {64, UINT32_MAX - 8, 0}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		for (int reply = 0; reply < 2; reply++) {
			anew(0);
			CHECK(cw_begin(&tx, CW_OP_MEMCPY_HTO_D, all[i].fixed, all[i].var, reply) ==
			      (all[i].fits ? 0 : CUDA_ERROR_INVALID_VALUE));
			CHECK((s->ring_lock.word != 0) == all[i].fits && claimed == (all[i].fits && reply));
		}
}

static void around(void) { arounds++; }

static void replies(void)
{
	struct cw_tx tx;
	anew(0);
	s->slot_seq[3] = UINT32_MAX - 1;
	for (int i = 0; i < 3; i++) { /* 0 is none's */
		CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 1) == 0 && tx.slot == 3 && tx.seq == (i == 0 ? UINT32_MAX : (uint32_t)i) &&
		      s->slot_seq[3] == tx.seq);
		struct cw_record *r = (struct cw_record *)tx.rec;
		CHECK(r->flags == CW_RECORD_REPLY && r->slot == 3 && r->seq == tx.seq);
		cw_abort(&tx);
		CHECK(r->op == CW_OP_SKIP && r->flags == 0 && claimed == 0 && s->ring_lock.word == 0 && s->ctl->tail == s->tail);
	}
	CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 0) == 0);
	cw_abort(&tx);
	CHECK(claimed == 0);
	atomic_store(&cw_around_requests, around);
	CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 0) == 0 && arounds == 1);
	atomic_store(&cw_around_requests, (void (*)(void))NULL);
	cw_abort(&tx);
	claims = CW_NO_SLOT;
	CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 1) == CUDA_ERROR_LAUNCH_FAILED && s->ring_lock.word == 0);
}

/* As the ring ends the rest is padding, which a worker passes over. */
static void ends_of_the_ring(void)
{
	struct cw_tx tx;
	for (uint32_t rest = 32; rest <= 128; rest += 32) {
		uint64_t at = 5 * CW_RING_SIZE - rest;
		anew(at);
		CHECK(cw_begin(&tx, CW_OP_MEMCPY_HTO_D, 64, 0, 0) == 0 && tx.size == 96);
		if (rest >= 96) {
			CHECK(tx.rec == (uint8_t *)record(at) && s->tail == at);
		} else {
			struct cw_record *pad = record(at);
			CHECK(pad->size == rest && pad->op == CW_OP_SKIP && pad->flags == 0 && pad->slot == 0 && pad->seq == 0);
			CHECK(tx.rec == memory + CW_RING_OFFSET && s->tail == at + rest);
		}
		CHECK(cw_commit(&tx) == 0 && s->ctl->tail == (rest >= 96 ? at + 96 : at + rest + 96));
	}
}

static void states(void)
{
	struct cw_tx tx;
	anew(0);
	atomic_store(&cw_g.state, CW_CLOSED);
	CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 1) == CUDA_ERROR_NO_DEVICE && opens == 1 && claimed == 0);
	atomic_store(&s->opener, 66); /* this thread is just opening it */
	CHECK(cw_begin(&tx, CW_OP_SESSION_INIT, 0, 0, 1) == 0 && opens == 1);
	anew(0);
	atomic_store(&cw_g.state, CW_DEAD);
	CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 1) == CUDA_ERROR_DEINITIALIZED && slow == 1 && claimed == 0);
	anew(0);
	CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 0) == 0);
	s->ctl->sticky = 700;
	CHECK((int)cw_commit(&tx) == 700 && !dead);
	CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 0) == 0);
	s->ctl->worker_state = CW_WORKER_DEAD;
	CHECK(cw_commit(&tx) == CUDA_ERROR_LAUNCH_FAILED && dead && !strcmp(dead_why, "the worker ended"));
}

/* --- room ------------------------------------------------------------------------------------- */

static uint64_t frees;
static void worker_consumes(void)
{
	if (sleeps == 3)
		s->ctl->head += frees;
}

static void worker_is_quick(void) { s->ctl->head += 64; }

static void room(void)
{
	struct cw_tx tx;
	/* What is there when the thread has said that it waits, but not slept, would wake
	 * nobody. */
	anew(0);
	s->tail = s->ctl->tail = CW_RING_SIZE;
	at_look = worker_is_quick;
	CHECK(cw_begin(&tx, CW_OP_MEMCPY_HTO_D, 32, 0, 0) == 0 && sleeps == 0 && bells == 0 && s->ctl->space_waiters == 0);
	for (uint32_t over = 0; over < 64; over += 32) {
		anew((1 << 20) + 128);
		/* To the byte, or one too few. */
		s->tail = s->ctl->tail = (1 << 20) + 128 + CW_RING_SIZE - 64 + over;
		at_sleep = worker_consumes;
		frees = over;
		s->ctl->worker_state = CW_WORKER_SLEEPING;
		CHECK(cw_begin(&tx, CW_OP_MEMCPY_HTO_D, 32, 0, 0) == 0 && tx.size == 64 && sleeps == (over ? 3 : 0) &&
		      s->ctl->space_waiters == 0);
		CHECK(s->room_lock.word == 0 && bells == sleeps); /* a bell may have been lost */
	}
	for (int how = 0; how < 2; how++) { /* it never comes */
		anew(0);
		s->tail = s->ctl->tail = CW_RING_SIZE;
		sleep_err = how ? -EPIPE : 0;
		dead = !how;
		CHECK(cw_begin(&tx, CW_OP_MEMCPY_HTO_D, 32, 0, 1) == CUDA_ERROR_LAUNCH_FAILED && sleeps == how && s->room_lock.word == 0 &&
		      s->ring_lock.word == 0);
		CHECK(claimed == 0 && s->ctl->space_waiters == 0 && (!how || !strcmp(dead_why, "the host ended the session")));
	}
	/* A head that cannot be is none. */
	static const uint64_t heads[] = {(1 << 20) - 32, (1 << 20) + CW_RING_SIZE + 32};
	for (int i = 0; i < 2; i++) {
		anew(1 << 20);
		s->tail = s->ctl->tail = (1 << 20) + CW_RING_SIZE;
		s->ctl->head = heads[i];
		CHECK(!has_room(s, 32) && s->head_seen == 1 << 20);
	}
	s->ctl->head = s->tail; /* all of it */
	CHECK(has_room(s, CW_RING_SIZE) && s->head_seen == s->tail);
	s->ctl->head = s->tail;
	CHECK(!has_room(s, CW_RING_SIZE + 32));
}

static void doorbells(void)
{
	struct cw_tx tx;
	anew(0);
	s->ctl->worker_state = CW_WORKER_SLEEPING;
	cw_nudge(s);
	CHECK(bells == 0); /* there is nothing for it */
	for (int i = 0; i < 3; i++)
		CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 0) == 0 && cw_commit(&tx) == 0 && bells == 1);
	cw_nudge(s);
	CHECK(bells == 2);
	s->ctl->worker_state = 0;
	cw_nudge(s);
	CHECK(bells == 2);
	/* What was consumed before its doorbell needs none, and is no reason to leave out the next
	 * one's. */
	anew(64);
	s->ctl->worker_state = CW_WORKER_SLEEPING;
	CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 0) == 0);
	s->ctl->head = 64 + tx.size;
	CHECK(cw_commit(&tx) == 0 && bells == 0);
	CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 0) == 0 && cw_commit(&tx) == 0 && bells == 1);
	bells = 2;
	s->carrier = &frames;
	s->ctl->worker_state = CW_WORKER_SLEEPING;
	cw_nudge(s);
	CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 0) == 0 && cw_commit(&tx) == 0 && publishes == 1 && bells == 2);
}

/* --- work that may touch managed memory ------------------------------------------------------- */

static void taken_away(void) { atomic_store(&cw_copies, CW_COPIES_POSSIBLE); }
static void only_then(void)
{
	if (befores == 3)
		taken_away();
}

static void managed(void)
{
	struct cw_tx tx;
	/* As of a younger protocol. */
	const uint16_t runs = CW_OP_LAUNCH, other = CW_OP_SESSION_FENCE, last = sizeof cw_op_runs;
	static const uint64_t copies[] = {0, CW_COPIES_POSSIBLE, CW_COPY - 1, CW_COPY, CW_COPY + 1, 3 * CW_COPY};
	for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
		anew(0);
		atomic_store(&cw_hosts_ahead, 1);
		atomic_store(&cw_starved, 1);
		calm_at = 5;
		atomic_store(&cw_copies, copies[i]);
		in_before = taken_away;
		int has = copies[i] >= CW_COPY;
		CHECK(cw_begin(&tx, runs, 16, 0, 0) == 0 && befores == has && ran == (copies[i] != 0) && naps == (copies[i] ? 5 : 0));
		CHECK(tx.rec == (uint8_t *)record(0) && cw_commit(&tx) == 0);
		anew(0);
		atomic_store(&cw_copies, copies[i]);
		CHECK(cw_begin(&tx, other, 16, 0, 0) == 0 && befores == 0 && cw_commit(&tx) == 0);
		CHECK(cw_begin(&tx, last, 16, 0, 0) == 0 && befores == 0 && cw_commit(&tx) == 0);
	}
	anew(0); /* copies that come again between: what was begun in vain is padding */
	atomic_store(&cw_copies, CW_COPY);
	in_before = only_then;
	CHECK(cw_begin(&tx, runs, 16, 0, 1) == 0 && befores == 3 && tx.rec == (uint8_t *)record(128) && record(0)->op == CW_OP_SKIP &&
	      record(64)->op == CW_OP_SKIP && s->ctl->tail == 128);
	CHECK(cw_commit(&tx) == 0 && claimed == 1);
	anew(0);
	atomic_store(&cw_copies, CW_COPY);
	befores_err = CUDA_ERROR_OUT_OF_MEMORY;
	CHECK(cw_begin(&tx, runs, 16, 0, 1) == CUDA_ERROR_OUT_OF_MEMORY && claimed == 0 && s->ring_lock.word == 0 && s->tail == 0);
	anew(0);
	atomic_store(&cw_copies, CW_COPIES_POSSIBLE);
	atomic_store(&cw_starved, 1); /* a kernel may wait for what comes: not for ever */
	CHECK(cw_begin(&tx, runs, 16, 0, 0) == 0 && naps == 50 && cw_commit(&tx) == 0);
	for (uint16_t op = 0; op < sizeof cw_op_drains; op++) {
		anew(0);
		CHECK(cw_begin(&tx, op, 16, 0, 0) == 0 && after == (cw_op_drains[op] != 0));
		CHECK(cw_work() == cw_op_works[op] && cw_commit(&tx) == 0);
	}
	uint64_t work = cw_work();
	cw_work_add();
	CHECK(cw_work() == work + 1);
}

/* --- answers ---------------------------------------------------------------------------------- */

static CUresult wait_err;
static uint32_t parts[8], part_result, part_off, part_n; /* how long each piece is */
static int waits;
static uint8_t text[1 << 16];
CUresult cw_slot_wait(struct cw_session *of, uint32_t slot, uint32_t seq)
{
	CHECK(of == s && slot == 3 && seq == s->slot_seq[3] && s->ring_lock.word == 0);
	struct cw_slot *sl = cw_slot_at(s, 3);
	if (wait_err && (waits > 0 || sl->reply_len == 0))
		return wait_err;
	struct cw_record *r = record(s->ctl->tail - 64);
	if (waits++ > 0 && r->op == CW_OP_REPLY_MORE) { /* a piece, from where it was asked for */
		uint32_t from = (uint32_t)((struct cw_in_ReplyMore *)(r + 1))->offset, len = parts[waits - 1];
		struct cw_span span = {.off = part_off, .len = len};
		CHECK(r->slot == 3 && r->flags == CW_RECORD_REPLY && r->seq == seq);
		sl->result = part_result;
		sl->payload_len = part_n ? part_n : part_off + len;
		memcpy(sl + 1, &span, sizeof span);
		if (part_off + len <= CW_SLOT_PAYLOAD && from + len <= sizeof text)
			memcpy((uint8_t *)(sl + 1) + part_off, text + from, len);
	}
	return 0;
}

static void out_of_memory(void) { no_memory = 1; }
static void (*at_asks)(void);

static CUresult asks(uint32_t have, uint32_t total, struct cw_reply *rep)
{
	struct cw_tx tx;
	anew(0);
	waits = 0;
	memset(rep, 0xee, sizeof *rep);
	CHECK(cw_begin(&tx, CW_OP_REGION_DROP, 8, 0, 1) == 0 && tx.size == 64);
	if (at_asks)
		at_asks();
	struct cw_slot *sl = cw_slot_at(s, 3);
	memcpy(sl + 1, text, have < CW_SLOT_PAYLOAD ? have : CW_SLOT_PAYLOAD);
	sl->payload_len = have;
	sl->reply_len = total;
	sl->result = 7;
	sl->seq_done = tx.seq;
	atomic_store(&cw_around_requests, around);
	CUresult r = cw_commit_wait(&tx, rep);
	atomic_store(&cw_around_requests, (void (*)(void))NULL);
	return r;
}

static void answers(void)
{
	struct cw_reply rep;
	for (size_t i = 0; i < sizeof text; i++)
		text[i] = (uint8_t)(i * 37 + (i >> 8));
	CHECK(asks(100, 100, &rep) == 0 && (int)rep.result == 7 && rep.len == 100 && !rep.heap && rep.slot == 3 &&
	      rep.data == (uint8_t *)(cw_slot_at(s, 3) + 1) && arounds == 1);
	cw_reply_release(&rep);
	CHECK(claimed == 0 && allocated == 0);
	CHECK(asks(CW_SLOT_PAYLOAD, CW_SLOT_PAYLOAD, &rep) == 0 && rep.len == CW_SLOT_PAYLOAD && (int)rep.result == 7);
	CHECK(asks(CW_SLOT_PAYLOAD + 1, CW_SLOT_PAYLOAD + 1, &rep) == 0 && rep.result == CUDA_ERROR_UNKNOWN && rep.len == 0 && waits == 1);
	/* What is there is there. */
	CHECK(asks(100, 50, &rep) == 0 && rep.len == 100 && waits == 1);
	/* In pieces. */
	memcpy(parts, (uint32_t[8]){0, 200, 1, 699}, sizeof parts);
	part_off = sizeof(struct cw_span);
	CHECK(asks(100, 1000, &rep) == 0 && rep.len == 1000 && (int)rep.result == 7 && waits == 4 && rep.heap == rep.data &&
	      !memcmp(rep.data, text, 1000) && allocated == 1);
	cw_reply_release(&rep);
	CHECK(allocated == 0 && !rep.heap && claimed == 0);
	/* A piece that cannot be. */
	static const struct {
		uint32_t len, off, n, result;
		CUresult waits;
		CUresult want;
	} all[] = {{0, 8, 0, 0, 0, CUDA_ERROR_UNKNOWN},
		   {901, 8, 0, 0, 0, CUDA_ERROR_UNKNOWN},
		   {100, 8, 107, 0, 0, CUDA_ERROR_UNKNOWN},
		   {100, 108, 107, 0, 0, CUDA_ERROR_UNKNOWN},
		   {900, 8, 7, 0, 0, CUDA_ERROR_UNKNOWN},
		   {900, 8, CW_SLOT_PAYLOAD + 1, 0, 0, CUDA_ERROR_UNKNOWN},
		   {900, 8, 0, 5, 0, CUDA_ERROR_UNKNOWN},
		   {900, 8, 0, 0, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED},
		   {900, 8, 0, 0, 0, 7},
		   {900, 8, 908, 0, 0, 7},
		   {900, 8, CW_SLOT_PAYLOAD, 0, 0, 7}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		parts[1] = all[i].len;
		part_off = all[i].off;
		part_n = all[i].n;
		part_result = all[i].result;
		wait_err = all[i].waits;
		int ok = asks(100, 1000, &rep) == 0 && rep.result == all[i].want && rep.len == ((int)all[i].want == 7 ? 1000 : 0) &&
			 allocated == ((int)all[i].want == 7);
		if (!ok)
			fprintf(stderr, "row %zu: %d, %zu bytes\n", i, (int)rep.result, rep.len);
		CHECK(ok);
		wait_err = part_result = part_n = 0;
		cw_reply_release(&rep);
		CHECK(allocated == 0);
	}
	for (uint32_t over = 0; over < 2; over++) { /* more than that no worker has */
		at_asks = out_of_memory;
		CHECK(asks(100, (1u << 30) + over, &rep) == 0 && rep.result == CUDA_ERROR_OUT_OF_MEMORY && rep.len == 0 && waits == 1);
		CHECK(wanted == (over ? 0 : 1u << 30));
	}
	at_asks = NULL;
	/* None: the slot stays claimed, as its answer may come yet. */
	struct cw_tx tx;
	anew(0);
	CHECK(cw_begin(&tx, CW_OP_REGION_DROP, 8, 0, 1) == 0);
	waits = 0;
	wait_err = CUDA_ERROR_LAUNCH_FAILED;
	CHECK(cw_commit_wait(&tx, &rep) == CUDA_ERROR_LAUNCH_FAILED && claimed == 1);
	wait_err = 0;
	anew(0);
	CHECK(cw_begin(&tx, CW_OP_REGION_DROP, 8, 0, 1) == 0);
	cw_slot_at(s, 3)->seq_done = tx.seq - 1; /* an older call's */
	cw_slot_at(s, 3)->payload_len = 50;
	waits = 0;
	memset(&rep, 0xee, sizeof rep);
	CHECK(cw_commit_wait(&tx, &rep) == 0 && rep.result == 0 && rep.len == 0 && !rep.heap);
	anew(0);
	s->ctl->console = 1;
	CHECK(cw_begin(&tx, CW_OP_REGION_DROP, 8, 0, 1) == 0 && cw_commit_wait(&tx, &rep) == 0 && drains == 1);
}

int main(void)
{
	sizes();
	replies();
	ends_of_the_ring();
	states();
	room();
	doorbells();
	managed();
	answers();
	puts("ring_test ok");
	return 0;
}

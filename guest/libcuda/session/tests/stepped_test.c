/* The ring and its slots against a worker whose steps the test takes, between two instructions of
 * the library where it matters: orders come up that no worker process can be made to take. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "gen/ops.h"
#include "session/internal.h"
#include "session/tests/fake_worker.h"
#include "session/tests/opened.h"

static uint8_t memory[CW_REGION0_SIZE] __attribute__((aligned(4096)));

static _Atomic int bells;	    /* doorbells that rang */
static int sleeps;		    /* waits of the library */
static void (*step)(uint32_t slot); /* what the worker does while the library waits */

static void ring_bell(struct cw_session *s)
{
	(void)s;
	atomic_fetch_add(&bells, 1);
}

static int sleep_on(struct cw_session *s, uint32_t slot, _Atomic uint32_t *word)
{
	(void)s;
	CHECK(atomic_load(word) == 1); /* the worker must be able to see that somebody sleeps */
	CHECK(++sleeps < 1000);
	if (step)
		step(slot);
	return 0;
}

static int alive(struct cw_session *s)
{
	(void)s;
	return 0;
}

static const struct cw_carrier stepped = {.name = "stepped", .doorbell = ring_bell, .wait_slot = sleep_on, .alive = alive};

/* A session from nothing, at a position of the ring. */
static struct cw_session *fresh(uint64_t at)
{
	struct cw_session *s = &cw_s;
	memset(s, 0, sizeof *s);
	memset(memory, 0, sizeof memory);
	cw_opened(&stepped, memory);
	s->tail = s->head_seen = s->ctl->tail = s->ctl->head = at;
	atomic_store(&s->rung_head, UINT64_MAX);
	atomic_store(&bells, 0);
	sleeps = 0;
	step = NULL;
	return s;
}

/* What the worker consumes: the next record, or NULL. */
static struct cw_record *consume(struct cw_session *s)
{
	while (s->ctl->head != __atomic_load_n(&s->ctl->tail, __ATOMIC_ACQUIRE)) {
		struct cw_record *r = (struct cw_record *)(s->base + CW_RING_OFFSET + (s->ctl->head & (CW_RING_SIZE - 1)));
		CHECK(r->size >= 32 && r->size % 32 == 0);
		CHECK((s->ctl->head & (CW_RING_SIZE - 1)) + r->size <= CW_RING_SIZE);
		__atomic_store_n(&s->ctl->head, s->ctl->head + r->size, __ATOMIC_RELEASE);
		if (r->op != CW_OP_SKIP)
			return r;
	}
	return NULL;
}

static void answer(struct cw_session *s, uint32_t slot, uint32_t seq, uint32_t result, const void *p, uint32_t n, uint32_t total)
{
	struct cw_slot *sl = cw_slot_at(s, slot);
	if (n)
		memcpy(sl + 1, p, n);
	sl->result = result;
	sl->payload_len = n;
	sl->reply_len = total;
	__atomic_store_n(&sl->seq_done, seq, __ATOMIC_RELEASE);
}

static void send_record(uint32_t var)
{
	struct cw_tx tx;
	CHECK(cw_begin(&tx, CW_OP_MEMCPY_HTO_D, 16, var, 0) == 0);
	CHECK(cw_commit(&tx) == 0);
}

/* The first record after a worker's sleep rings, and no other; whatever it consumed meanwhile. */
static void doorbells(void)
{
	struct cw_session *s = fresh(0);
	send_record(0);
	CHECK(bells == 0); /* it polls */
	CHECK(consume(s));
	s->ctl->worker_state = CW_WORKER_SLEEPING;
	send_record(0);
	CHECK(bells == 1);
	send_record(0);
	send_record(0);
	CHECK(bells == 1); /* it is on its way */
	while (consume(s))
		;
	send_record(0);
	CHECK(bells == 2); /* it slept again */

	/* A record that was consumed before its doorbell: the next one needs one all the same. */
	while (consume(s))
		;
	struct cw_tx tx;
	CHECK(cw_begin(&tx, CW_OP_MEMCPY_HTO_D, 16, 0, 0) == 0);
	s->ctl->head = s->tail + tx.size;
	CHECK(cw_commit(&tx) == 0);
	int before = bells;
	send_record(0);
	CHECK(bells == before + 1);

	/* Aborted records are records, which nobody answers. */
	while (consume(s))
		;
	before = bells;
	CHECK(cw_begin(&tx, CW_OP_MEMCPY_HTO_D, 16, 0, 1) == 0);
	cw_abort(&tx);
	CHECK(((struct cw_record *)tx.rec)->flags == 0);
	CHECK(bells == before + 1 && atomic_load(&s->slots_free) == UINT64_MAX);
	CHECK(consume(s) == NULL && s->ctl->head == s->ctl->tail);

	/* A doorbell that got lost: waits ring again, if there is something. */
	before = bells;
	cw_nudge(s);
	CHECK(bells == before);
	s->rung_head = s->ctl->head; /* as if it had been rung */
	send_record(0);
	CHECK(bells == before);
	cw_nudge(s);
	CHECK(bells == before + 1);
	s->ctl->worker_state = CW_WORKER_POLLING;
	cw_nudge(s);
	CHECK(bells == before + 1);
}

/* Sequences of a slot never are 0, which is what a slot says that never was answered. */
static void sequences(void)
{
	struct cw_session *s = fresh(0);
	for (uint32_t slot = 0; slot < CW_SLOT_COUNT; slot++)
		s->slot_seq[slot] = UINT32_MAX - 1;
	uint32_t want[] = {UINT32_MAX, 1, 2};
	for (int i = 0; i < 3; i++) {
		struct cw_tx tx;
		CHECK(cw_begin(&tx, CW_OP_CTX_SYNCHRONIZE, 0, 0, 1) == 0);
		cw_send(&tx);
		struct cw_record *r = consume(s);
		CHECK(r && r->seq == want[i] && r->seq == tx.seq && r->flags == CW_RECORD_REPLY && r->slot == tx.slot);
		answer(s, tx.slot, tx.seq, 0, NULL, 0, 0);
		struct cw_reply rep;
		CHECK(cw_await(&tx, &rep) == 0 && rep.result == 0);
		cw_reply_release(&rep);
	}
	CHECK(sleeps == 0); /* what was answered before is not waited for */
}

static int leaves; /* what the wait says in which the worker answers */

static int answer_and_leave(struct cw_session *s, uint32_t slot, _Atomic uint32_t *word)
{
	struct cw_record *r = consume(s);
	CHECK(++sleeps == 1 && atomic_load(word) == 1 && r && r->slot == slot);
	CHECK(atomic_load(&s->long_spinners) == 0);
	answer(s, slot, r->seq, 0, NULL, 0, 0);
	return leaves;
}

/* An answer stands, also if the host ends the session behind it; long spins are counted. */
static void answers(void)
{
	static const struct cw_carrier leaving = {.name = "leaving", .doorbell = ring_bell, .wait_slot = answer_and_leave, .alive = alive};
	int said[] = {0, -EINTR, -EPIPE};
	for (int i = 0; i < 3; i++) {
		struct cw_session *s = fresh(0);
		struct cw_tx tx;
		struct cw_reply rep;
		s->spin_max = 1;
		s->spin_most = 1024;
		s->cpus = 64;
		for (int k = 0; k < 3; k++) { /* in time: it spins longer than for a short wait */
			CHECK(cw_begin(&tx, CW_OP_CTX_SYNCHRONIZE, 0, 0, 1) == 0);
			cw_send(&tx);
			CHECK(consume(s));
			answer(s, tx.slot, tx.seq, 0, NULL, 0, 0);
			CHECK(cw_await(&tx, &rep) == 0);
			cw_reply_release(&rep);
		}
		s->carrier = &leaving;
		leaves = said[i];
		CHECK(cw_begin(&tx, CW_OP_CTX_SYNCHRONIZE, 0, 0, 1) == 0);
		CHECK(cw_commit_wait(&tx, &rep) == 0 && rep.result == 0 && sleeps == 1);
		CHECK(!cw_is_dead(s) && cw_slot_at(s, tx.slot)->waiting == 0);
		cw_reply_release(&rep);
	}
}

static _Atomic int begun;

static void *begin_one(void *arg)
{
	struct cw_tx *tx = arg;
	CHECK(cw_begin(tx, CW_OP_MEMCPY_HTO_D, 16, 48 << 10, 0) == 0);
	atomic_store(&begun, 1);
	return NULL;
}

/* A head that nobody can have reached makes no room: a full ring's records stay. */
static void bad_heads(void)
{
	for (int how = 0; how < 2; how++) {
		struct cw_session *s = fresh(CW_RING_SIZE * 3 - 64);
		while (s->tail + (33 << 10) - s->head_seen <= CW_RING_SIZE)
			send_record(how ? 500 : 30 << 10);
		uint64_t head = s->head_seen, tail = s->tail;
		atomic_store(&begun, 0);
		cw_lock_acquire(&s->room_lock);
		s->ctl->head = how ? tail + 64 : tail + (60 << 10); /* past the tail */
		struct cw_tx tx;
		pthread_t t;
		CHECK(pthread_create(&t, NULL, begin_one, &tx) == 0);
		/* It has looked at the head when it waits for its turn to wait for room. */
		while (atomic_load(&s->room_lock.word) != 2 && !atomic_load(&begun))
			sched_yield();
		CHECK(!atomic_load(&begun) && s->tail == tail && s->head_seen == head);
		s->ctl->head = head;
		while (tail + 2 * (50 << 10) - s->ctl->head > CW_RING_SIZE)
			CHECK(consume(s));
		cw_lock_release(&s->room_lock);
		CHECK(pthread_join(t, NULL) == 0);
		CHECK(atomic_load(&begun) && s->tail >= tail && s->tail - s->ctl->head <= CW_RING_SIZE);
		cw_send(&tx);
	}
}

static struct cw_session *roomy;

static void make_room(uint32_t slot)
{
	CHECK(slot == CW_SLOT_COUNT);
	CHECK(consume(roomy));
}

/* Who waits for room sleeps on the worker's word, and gets all that it needs, over the end too. */
static void room(void)
{
	struct cw_session *s = roomy = fresh(CW_RING_SIZE - 4096);
	step = make_room;
	for (int i = 0; i < 200; i++) {
		send_record((uint32_t)(i * 7919) % (60 << 10));
		CHECK(s->tail - s->ctl->head <= CW_RING_SIZE && s->ctl->space_waiters == 0);
	}
	CHECK(sleeps > 10);
	while (consume(s))
		;
	CHECK(s->ctl->head == s->tail);
	s->ctl->worker_state = CW_WORKER_SLEEPING;
	int before = bells;
	send_record(0);
	CHECK(bells == before + 1);
}

/* To the last byte, and not one further. */
static void edges(void)
{
	struct cw_session *s = roomy = fresh(0);
	step = make_room;
	while (s->tail < CW_RING_SIZE)
		send_record(0); /* 64 bytes */
	CHECK(sleeps == 0 && s->tail == CW_RING_SIZE && s->ctl->head == 0);
	CHECK(consume(s));
	send_record(0);
	CHECK(sleeps == 0 && s->tail - s->ctl->head == CW_RING_SIZE);
	CHECK(consume(s));
	send_record(32); /* 96 bytes, where 64 are free */
	CHECK(sleeps > 0 && s->tail - s->ctl->head <= CW_RING_SIZE);
}

/* What an encoder leaves out is 0, whatever the ring held; what is behind a record's bytes too. */
static void clean_records(void)
{
	struct cw_session *s = fresh(0);
	memset(s->base + CW_RING_OFFSET, 0xff, CW_RING_SIZE);
	struct cw_tx tx;
	CHECK(cw_begin(&tx, CW_OP_MEMCPY_HTO_D, 20, 8, 0) == 0);
	CHECK(tx.size == 64);
	for (uint32_t i = sizeof(struct cw_record); i < tx.size; i++)
		CHECK(tx.rec[i] == 0 ||
		      /* Those are the caller's. */
		      (i >= sizeof(struct cw_record) + 24 && i < sizeof(struct cw_record) + 32));
	cw_send(&tx);
}

/* A reply in parts, of a worker that may say anything. */
enum { TOTAL = 9000 };
static struct {
	const char *what;
	uint32_t have, total, result, payload, off, len;
	CUresult want;
} parts[] = {
	{"as it should be", CW_SLOT_PAYLOAD, TOTAL, 0, 0, 8, 0, 0},
	{"a part of nothing", CW_SLOT_PAYLOAD, TOTAL, 0, 8, 8, 0, CUDA_ERROR_UNKNOWN},
	{"a part beyond the payload", CW_SLOT_PAYLOAD, TOTAL, 0, 100, 8, 93, CUDA_ERROR_UNKNOWN},
	{"a part that begins beyond the payload", CW_SLOT_PAYLOAD, TOTAL, 0, 100, 101, 1, CUDA_ERROR_UNKNOWN},
	{"a part far beyond the payload", CW_SLOT_PAYLOAD, TOTAL, 0, 100, 0xfffffff0, 0x20, CUDA_ERROR_UNKNOWN},
	{"a payload longer than the slot", CW_SLOT_PAYLOAD, TOTAL, 0, CW_SLOT_PAYLOAD + 1, 8, 10, CUDA_ERROR_UNKNOWN},
	{"a payload without a part", CW_SLOT_PAYLOAD, TOTAL, 0, 4, 8, 10, CUDA_ERROR_UNKNOWN},
	{"more than was left", CW_SLOT_PAYLOAD, CW_SLOT_PAYLOAD + 10, 0, 100, 8, 11, CUDA_ERROR_UNKNOWN},
	{"an error", CW_SLOT_PAYLOAD, TOTAL, 1, 0, 8, 0, CUDA_ERROR_UNKNOWN},
	{"an error with a part", CW_SLOT_PAYLOAD, TOTAL, 1, 100, 8, 90, CUDA_ERROR_UNKNOWN},
	{"more than anybody sends", CW_SLOT_PAYLOAD, UINT32_MAX, 0, 0, 8, 0, CUDA_ERROR_OUT_OF_MEMORY},
	{"a first part longer than the slot", CW_SLOT_PAYLOAD + 1, TOTAL, 0, 0, 8, 0, CUDA_ERROR_UNKNOWN},
	{"a whole reply longer than the slot", CW_SLOT_PAYLOAD + 8, CW_SLOT_PAYLOAD + 8, 0, 0, 8, 0, CUDA_ERROR_UNKNOWN},
};
static int part_of;
static uint32_t told;

static void answer_part(uint32_t slot)
{
	struct cw_session *s = &cw_s;
	static uint8_t payload[CW_SLOT_PAYLOAD];
	struct cw_record *r = consume(s);
	CHECK(r && r->slot == slot);
	if (r->op != CW_OP_REPLY_MORE) {
		for (uint32_t i = 0; i < sizeof payload; i++)
			payload[i] = (uint8_t)(i * 3);
		told = parts[part_of].have;
		answer(s, slot, r->seq, 0, payload, told < CW_SLOT_PAYLOAD ? told : CW_SLOT_PAYLOAD, parts[part_of].total);
		cw_slot_at(s, slot)->payload_len = parts[part_of].have;
		return;
	}
	uint32_t at = ((struct cw_in_ReplyMore *)(r + 1))->offset;
	CHECK(at == told);
	struct cw_span part = {parts[part_of].len, parts[part_of].off};
	uint32_t n = parts[part_of].payload;
	if (part_of == 0) {
		part.len = TOTAL - at < 1000 ? TOTAL - at : 1000;
		n = part.off + part.len;
		for (uint32_t i = 0; i < part.len; i++)
			payload[part.off + i] = (uint8_t)((at + i) * 3);
		told += part.len;
	}
	memcpy(payload, &part, sizeof part);
	answer(s, slot, r->seq, parts[part_of].result, payload, n < CW_SLOT_PAYLOAD ? n : CW_SLOT_PAYLOAD, n);
	cw_slot_at(s, slot)->payload_len = n;
}

static void long_replies(void)
{
	for (part_of = 0; part_of < (int)(sizeof parts / sizeof *parts); part_of++) {
		struct cw_session *s = fresh(0);
		step = answer_part;
		struct cw_tx tx;
		struct cw_reply rep;
		CHECK(cw_begin(&tx, CW_OP_MODULE_LIST_FUNCTIONS, 16, 0, 1) == 0);
		CHECK(cw_commit_wait(&tx, &rep) == 0);
		if (rep.result != parts[part_of].want) {
			fprintf(stderr, "%s: result %d\n", parts[part_of].what, rep.result);
			_exit(1);
		}
		CHECK(rep.result != 0 ? rep.len == 0 : rep.len == TOTAL);
		for (uint32_t i = 0; i < rep.len; i++)
			CHECK(rep.data[i] == (uint8_t)(i * 3));
		CHECK(cw_slot_at(s, tx.slot)->waiting == 0); /* nobody sleeps any more */
		cw_reply_release(&rep);
		CHECK(atomic_load(&s->slots_free) == UINT64_MAX && rep.heap == NULL);
	}
}

/* Who waits for a slot has it at once when it is released: the wait itself would last a second. */
static _Atomic uint32_t claimed;

static void *claim_one(void *arg)
{
	atomic_store(&claimed, cw_slot_claim(arg));
	return NULL;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void claims(void)
{
	double quickest = 1e9;
	for (int round = 0; round < 5; round++) {
		struct cw_session *s = fresh(0);
		uint64_t seen = 0;
		for (uint32_t i = 0; i < CW_SLOT_COUNT; i++)
			seen |= 1ull << cw_slot_claim(s);
		CHECK(seen == UINT64_MAX);
		atomic_store(&claimed, CW_NO_SLOT);
		pthread_t t;
		CHECK(pthread_create(&t, NULL, claim_one, s) == 0);
		while (atomic_load(&s->slot_waiters) == 0)
			sched_yield();
		usleep(2000); /* it sleeps, or is about to: both must do */
		double began = now();
		cw_slot_release(s, 17);
		CHECK(pthread_join(t, NULL) == 0);
		double took = now() - began;
		quickest = took < quickest ? took : quickest;
		CHECK(atomic_load(&claimed) == 17 && atomic_load(&s->slot_waiters) == 0 && atomic_load(&s->slots_free) == 0);
	}
	CHECK(quickest < 0.5);
	/* A thread keeps to the slot that it used last. */
	struct cw_session *own = fresh(0);
	uint32_t first = cw_slot_claim(own), second = cw_slot_claim(own);
	CHECK(first != second);
	cw_slot_release(own, first);
	cw_slot_release(own, second);
	CHECK(cw_slot_claim(own) == second);
	/* A request that cannot be begun keeps no slot. */
	struct cw_tx tx;
	CHECK(own == &cw_s);
	own = fresh(0);
	CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, CW_MAX_RECORD + 1, 0, 1) == CUDA_ERROR_INVALID_VALUE &&
	      atomic_load(&own->slots_free) == UINT64_MAX);
	/* A dead session's claims end. */
	struct cw_session *s = fresh(0);
	atomic_store(&s->slots_free, 0);
	s->ctl->worker_state = CW_WORKER_DEAD;
	CHECK(cw_slot_claim(s) == CW_NO_SLOT);
}

/*
 * The doorbell's race, for real: a worker falls asleep while a record is published. The second must
 * see the first, or the record lies there for ever. Both start together, many times.
 */
enum { ROUNDS = 100000 };
static _Atomic int go, ready, found;

static void *drowsy(void *arg)
{
	struct cw_session *s = arg;
	for (int i = 1; i <= ROUNDS; i++) {
		atomic_store(&ready, i);
		for (int n = 0; atomic_load(&go) != i; n++)
			if (n > 1000)
				sched_yield();
		__atomic_store_n(&s->ctl->worker_state, CW_WORKER_SLEEPING, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(&s->ctl->tail, __ATOMIC_SEQ_CST) != s->ctl->head)
			atomic_fetch_add(&found, 1);
	}
	return NULL;
}

static void drowsiness(void)
{
	struct cw_session *s = fresh(0);
	pthread_t t;
	CHECK(pthread_create(&t, NULL, drowsy, s) == 0);
	for (int i = 1; i <= ROUNDS; i++) {
		for (int n = 0; atomic_load(&ready) != i; n++)
			if (n > 1000)
				sched_yield();
		while (consume(s))
			;
		__atomic_store_n(&s->ctl->worker_state, CW_WORKER_POLLING, __ATOMIC_SEQ_CST);
		int rang = bells, saw = atomic_load(&found);
		struct cw_tx tx;
		CHECK(cw_begin(&tx, CW_OP_MEMCPY_HTO_D, 16, 0, 0) == 0);
		atomic_store(&go, i);
		cw_send(&tx);
		if (i == ROUNDS)
			CHECK(pthread_join(t, NULL) == 0);
		else
			for (int n = 0; atomic_load(&ready) != i + 1; n++)
				if (n > 1000)
					sched_yield();
		CHECK(bells != rang || atomic_load(&found) != saw);
	}
}

int main(void)
{
	setenv("CAUSEWAY_LOG", "none", 1);
	doorbells();
	sequences();
	answers();
	bad_heads();
	room();
	edges();
	clean_records();
	long_replies();
	claims();
	drowsiness();
	atomic_store(&cw_g.state, CW_EXITING);
	return 0;
}

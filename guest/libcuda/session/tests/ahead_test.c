/* What does not stand behind functions of the application that streams are to call: neither what
 * may wait for the device, nor more work than a driver takes. */
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "gen/ops.h"
#include "session/ahead.h"
#include "session/internal.h"
#include "session/tests/fake_worker.h"
#include "session/tests/opened.h"

enum { STREAM = 7, OTHER = 8, LEGACY = 1, MODULE = 42, TAKEN = 512, UNLOADS = 3 };

static uint8_t memory[CW_REGION0_SIZE] __attribute__((aligned(4096)));
static const struct cw_carrier carrier = {.name = "none"};
static uint64_t seen;

/* How many records of an operation are in the ring that were not there before; what was taken back
 * is none. */
static int come(uint16_t op)
{
	int n = 0;
	uint64_t tail = __atomic_load_n(&cw_s.ctl->tail, __ATOMIC_ACQUIRE);
	while (seen != tail) {
		const struct cw_record *r = (struct cw_record *)(memory + CW_RING_OFFSET + (seen & (CW_RING_SIZE - 1)));
		CHECK(r->op == op || r->op == CW_OP_SKIP || r->op == CW_OP_STREAM_DESTROY);
		n += r->op == op;
		seen += r->size;
	}
	__atomic_store_n(&cw_s.ctl->head, seen, __ATOMIC_RELEASE);
	return n;
}

static _Atomic int did;

static void *unloads(void *arg)
{
	(void)arg;
	CHECK(cwop_ModuleUnload(MODULE) == 0);
	did = 1;
	return NULL;
}

static void *works(void *arg)
{
	cw_host_behind(*(uint32_t *)arg);
	did = 1;
	return NULL;
}

static pthread_t start(void *(*run)(void *), void *arg)
{
	pthread_t t;
	did = 0;
	CHECK(pthread_create(&t, NULL, run, arg) == 0);
	return t;
}

static void unload(void)
{
	uint32_t ticket = cw_host_add(STREAM);
	CHECK(cw_host_is_ahead());
	pthread_t t = start(unloads, NULL);
	usleep(50000);
	CHECK(cwop_StreamDestroy(OTHER) == 0); /* others go on */
	CHECK(!did && come(CW_OP_MODULE_UNLOAD) == 0);
	cw_host_done(ticket);
	pthread_join(t, NULL);
	CHECK(did && come(CW_OP_MODULE_UNLOAD) == 1 && !cw_host_is_ahead());
}

/* Added while it waits: before it in the ring, so it waits for that, too. */
static void one_after_the_other(void)
{
	uint32_t ticket = cw_host_add(STREAM);
	pthread_t t = start(unloads, NULL);
	usleep(20000);
	uint32_t second = cw_host_add(STREAM);
	cw_host_done(ticket);
	usleep(50000);
	CHECK(!did && come(CW_OP_MODULE_UNLOAD) == 0);
	cw_host_done(second);
	pthread_join(t, NULL);
	CHECK(come(CW_OP_MODULE_UNLOAD) == 1);
}

/* Functions on their way: the program adds them, a worker takes their records in the ring's order,
 * and calls each a while after the one before. */
static struct {
	uint32_t ticket[4096];
	_Atomic uint32_t added, taken, called, unloads;
	_Atomic int enough, over; /* none is added; and all that was is in the ring */
	int64_t takes_ms;
} stream;

static void *adds(void *arg)
{
	(void)arg;
	while (!stream.enough) {
		if (stream.added - stream.called < 3) {
			stream.ticket[stream.added % 4096] = cw_host_add(STREAM);
			CHECK(cwop_LaunchHostFunc(STREAM, 1, 0) == 0);
			stream.added++;
		}
		sched_yield();
	}
	return NULL;
}

static void take(const struct cw_record *r)
{
	stream.taken += r->op == CW_OP_LAUNCH_HOST_FUNC;
	if (r->op != CW_OP_MODULE_UNLOAD)
		return;
	/* The driver would wait for them, and with it they for what is behind this. */
	CHECK(stream.called == stream.taken);
	stream.unloads++;
}

static void *takes(void *arg)
{
	int64_t next = 0;
	(void)arg;
	while (!stream.over || stream.called != stream.added || stream.unloads < UNLOADS) {
		uint64_t tail = __atomic_load_n(&cw_s.ctl->tail, __ATOMIC_ACQUIRE);
		for (; seen != tail; seen += ((struct cw_record *)(memory + CW_RING_OFFSET + (seen & (CW_RING_SIZE - 1))))->size)
			take((struct cw_record *)(memory + CW_RING_OFFSET + (seen & (CW_RING_SIZE - 1))));
		__atomic_store_n(&cw_s.ctl->head, seen, __ATOMIC_RELEASE);
		if (stream.called == stream.taken || stream.called == stream.added) {
			next = cw_now_ms() + stream.takes_ms;
		} else if (cw_now_ms() >= next) {
			cw_host_done(stream.ticket[stream.called % 4096]);
			stream.called++;
			next = cw_now_ms() + stream.takes_ms;
		}
		sched_yield();
	}
	return NULL;
}

/* Where there is always another: they make way, whether they take long or not, and it is never in
 * front of one that was added before. */
static void without_pause(int64_t takes_ms)
{
	pthread_t program, worker, t;
	memset(&stream, 0, sizeof stream);
	stream.takes_ms = takes_ms;
	CHECK(pthread_create(&worker, NULL, takes, NULL) == 0 && pthread_create(&program, NULL, adds, NULL) == 0);
	for (uint32_t i = 0; i < UNLOADS; i++) {
		t = start(unloads, NULL);
		pthread_join(t, NULL);
	}
	stream.enough = 1;
	pthread_join(program, NULL);
	stream.over = 1;
	pthread_join(worker, NULL);
	CHECK(stream.unloads == UNLOADS && come(CW_OP_MODULE_UNLOAD) == 0 && !cw_host_is_ahead());
}

static void *adds_one(void *arg)
{
	*(uint32_t *)arg = cw_host_add(STREAM);
	did = 1;
	return NULL;
}

static void barred(void)
{
	uint32_t ticket = cw_host_add(STREAM), second = 0;
	CHECK(!cw_host_bar());
	cw_host_done(ticket);
	CHECK(cw_host_bar());
	pthread_t t = start(adds_one, &second);
	usleep(50000);
	CHECK(!did && !cw_host_is_ahead());
	CHECK(cwop_ModuleUnload(MODULE) == 0 && come(CW_OP_MODULE_UNLOAD) == 1);
	cw_host_unbar();
	pthread_join(t, NULL);
	CHECK(did && cw_host_is_ahead() && !cw_host_bar());
	cw_host_done(second);
}

static void own(void)
{
	uint32_t ticket = cw_host_add(STREAM);
	cw_own_work = 1; /* perhaps for what the function touches */
	CHECK(cwop_ModuleUnload(MODULE) == 0 && come(CW_OP_MODULE_UNLOAD) == 1);
	for (int i = 0; i < 4 * TAKEN; i++)
		cw_host_behind(STREAM);
	cw_own_work = 0;
	cw_host_done(ticket);
}

/* Work of the functions' stream, and of those that the default stream orders with it. */
static void behind(uint32_t ahead, uint32_t stream, int held)
{
	uint32_t ticket = cw_host_add(ahead);
	for (int i = 0; i < TAKEN; i++)
		cw_host_behind(stream);
	pthread_t t = start(works, &stream);
	if (!held)
		CHECK(pthread_join(t, NULL) == 0 && did); /* it waits for nothing */
	usleep(20000);
	CHECK(did == !held);
	uint32_t second = cw_host_add(ahead); /* a driver takes as much behind each */
	if (held)
		pthread_join(t, NULL);
	cw_host_done(ticket);
	CHECK(cw_host_is_ahead());
	cw_host_done(second);
	CHECK(!cw_host_is_ahead());
}

static void many(void)
{
	uint32_t ticket[100];
	for (uint32_t i = 0; i < 100; i++)
		ticket[i] = cw_host_add(100 + i);
	for (uint32_t i = 0; i < 100; i++)
		cw_host_behind(100 + i);
	for (uint32_t i = 0; i < 100; i++) {
		CHECK(cw_host_is_ahead());
		cw_host_done(ticket[i]);
	}
	cw_host_done(0);
	CHECK(!cw_host_is_ahead());
	CHECK(cwop_ModuleUnload(MODULE) == 0 && come(CW_OP_MODULE_UNLOAD) == 1);
}

/* Such as never come, or wait for the thread that waits for them, are waited for once. */
static void never(void)
{
	cw_host_longest_ms = 100;
	uint32_t lost = cw_host_add(STREAM);
	int64_t begun = cw_now_ms();
	CHECK(cwop_ModuleUnload(MODULE) == 0 && come(CW_OP_MODULE_UNLOAD) == 1);
	CHECK(cw_now_ms() >= begun + 100 && !cw_host_is_ahead());
	cw_host_longest_ms = 30000;
	CHECK(cwop_ModuleUnload(MODULE) == 0 && come(CW_OP_MODULE_UNLOAD) == 1);
	uint32_t ticket = cw_host_add(STREAM);
	cw_host_done(lost); /* late */
	CHECK(cw_host_is_ahead());
	cw_host_done(ticket);
	CHECK(!cw_host_is_ahead());
	cw_host_longest_ms = 100;
	ticket = cw_host_add(STREAM);
	for (int i = 0; i <= 2 * TAKEN; i++)
		cw_host_behind(STREAM);
	CHECK(cw_now_ms() < begun + 30000); /* of the 51 s that each in vain would take */
	cw_host_done(ticket);
}

int main(void)
{
	alarm(300);
	cw_host_longest_ms = 3600000; /* what waits in vain does so until the alarm */
	cw_opened(&carrier, memory);
	unload();
	one_after_the_other();
	without_pause(0);
	without_pause(100);
	barred();
	own();
	behind(STREAM, STREAM, 1);
	behind(STREAM, OTHER, 0);
	behind(LEGACY, OTHER, 1);
	behind(STREAM, LEGACY, 1);
	many();
	never();
	_exit(0); /* there is no session to end */
}

/*
 * Who serves faults, alone: touch.c between a list of faults and a GPU that is idle, or not, when
 * the test says so. What is brought for an access and how much, what waits and for whom, what ends
 * with a signal and what does not, and that two threads serve all of it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "memory/forbidden.c"
#include "memory/touch.c"
#include "session/lock.c"
#include "session/signals.c"

#include "memory/tests/alone/touch_fakes.h"

/* --- the test --------------------------------------------------------------------------------- */

/* Accesses that follow each other bring twice as much each time, up to a limit; one that begins
 * where a run began before brings as much as that at once. */
static void bursts(void)
{
	anew();
	uint32_t u = 0, want = 1;
	for (int k = 0; k < 14; k++) {
		CHECK(brought(u) == want);
		u += want;
		want = want * 2 < MOST ? want * 2 : MOST;
	}
	CHECK(want == MOST && u < UNITS - 2 * MOST);
	memset(area->holder, CW_AT_GPU, UNITS);
	/* The whole run, as far as the limit; and on from there. */
	CHECK(brought(0) == MOST - 1 && brought(MOST - 1) == MOST);
	/* Behind it accesses a fixed way apart bring what they need; and where they begin, less and
	 * less. */
	for (uint32_t first = MOST - 1; first > 1; first /= 2) {
		memset(area->holder, CW_AT_GPU, UNITS);
		CHECK(brought(0) == first);
		for (uint32_t at = (first / 64 + 1) * 64; at < UNITS; at += 64)
			CHECK(brought(at) == 1);
	}
	anew();
	CHECK(brought(10) == 1 && brought(11) == 2 && brought(13) == 4);
	memset(area->holder, CW_AT_GPU, UNITS);
	CHECK(brought(10) == 7 && brought(17) == 14); /* goes on from there */
	memset(area->holder, CW_AT_GPU, UNITS);
	CHECK(brought(10) == 21 && brought(31) == 42); /* and did last time */
	anew();
	for (uint32_t at = UNITS - 15, n = 1; at < UNITS; at += n, n *= 2)
		CHECK(brought(at) == n);
	for (int k = 0; k < 3; k++) {
		/* There is nothing behind it: it is used as a whole, for all that is known. */
		memset(area->holder, CW_AT_GPU, UNITS);
		CHECK(brought(UNITS - 15) == 15);
	}
	/* As many runs as are remembered are told apart; one more takes the place of the
	 * shortest. */
	anew();
	for (uint32_t r = 0; r < CW_BURSTS; r++)
		CHECK(brought(500 * r) == 1 && brought(500 * r + 1) == 2);
	CHECK(brought(3) == 4 && brought(4900) == 1);
	for (uint32_t r = 0; r < CW_BURSTS; r++) {
		area->holder[500 * r + 3] = CW_AT_GPU;
		CHECK(brought(500 * r + (r == 0 ? 7 : 3)) == (r == 0 ? 8 : r == 1 ? 1 : 4));
	}
	/* Never beyond the end; what a prefetch wished comes at once. */
	anew();
	CHECK(brought(UNITS - 2) == 1 && brought(UNITS - 1) == 1);
	area->wish_lo = 100;
	area->wish_hi = 110;
	CHECK(brought(103) == 7 && brought(110) == 1 && brought(99) == 1);
	area->wish_hi = 100 + WISH_MOST + 50;
	memset(area->holder, CW_AT_GPU, UNITS);
	CHECK(brought(100) == WISH_MOST && brought(100 + WISH_MOST + 10) == 40 && brought(200 + WISH_MOST) != 40);
	/* Writes to what both have: a memory of their own. */
	anew();
	memset(area->holder, CW_AT_BOTH, UNITS);
	struct cw_fault f = at(40, 1, 1);
	CHECK(serve(&f, 0) == 1 && did[CHANGE] == 1 && last.lo == 40 && last.hi == 41 && did[BRING] == 0);
	f = at(41, 1, 1);
	CHECK(serve(&f, 0) == 1 && last.lo == 41 && last.hi == 43 && area->touch[0].next == 0);
	f = at(UNITS - 1, 1, 1);
	CHECK(serve(&f, 0) == 1 && last.hi == UNITS);
}

/* What each fault comes to, by who has the unit. */
static void each(void)
{
	anew();
	struct cw_fault f = at(5, 1, 0);
	CHECK(serve(&f, 0) == 1 && did[BRING] == 1 && last.write == 1 && area->holder[5] == CW_AT_CPU);
	CHECK(serve(&f, 0) == 1 && did[BRING] == 1 && did[ZERO] == 1 && did[WAKE] == 1 &&
	      last_at == f.at); /* came meanwhile, or thrown away */
	f.protect = 1;
	CHECK(serve(&f, 0) == 1 && did[UNPROTECT] == 1 && last_at == f.at && did[CHANGE] == 0);
	area->holder[5] = CW_AT_GPU; /* sent away in the meantime */
	CHECK(serve(&f, 0) == 1 && did[WAKE] == 2 && did[BRING] == 1);
	area->holder[5] = CW_AT_BOTH;
	f.protect = 0;
	CHECK(serve(&f, 0) == 1 && did[ZERO] == 2 && did[BRING] == 1);
	CHECK(did[CHANGE] == 0);
	/* A page that both had: what is written to it now is seen, and goes to the GPU. */
	thrown = 1;
	CHECK(serve(&f, 0) == 1 && did[ZERO] == 3 && did[CHANGE] == 1 && last.lo == 5 && last.hi == 6 && area->holder[5] == CW_AT_CPU);
	CHECK(serve(&f, 0) == 1 && did[ZERO] == 4 && did[CHANGE] == 1); /* written before */
	area->holder[5] = CW_AT_BOTH;
	result = CUDA_ERROR_OUT_OF_MEMORY;
	CHECK(serve(&f, 0) == 1 && refused(f.at) && strstr(said, "writable"));
	result = CUDA_SUCCESS;
	thrown = 0;
	int woken = did[WAKE];
	f.at = area->base + area->size; /* freed */
	CHECK(serve(&f, 0) == 1 && did[WAKE] == woken + 1 && did[BRING] == 1 && unwatched == 0);
	strange = 1; /* or watched memory that the program has moved there */
	CHECK(serve(&f, 0) == 1 && did[WAKE] == woken + 2 && unwatched == 1);
	f.at = area->base;
	area->holder[0] = CW_AT_CPU;
	CHECK(serve(&f, 0) == 1 && unwatched == 1);
	strange = 0;
	/* What cannot be had ends with a signal. */
	anew();
	f = at(7, 0, 0);
	result = CUDA_ERROR_OUT_OF_MEMORY;
	CHECK(serve(&f, 0) == 1 && refused(f.at) && did[WAKE] == 1 && strstr(said, "reading") && strstr(said, "there is no memory"));
	CHECK(atomic_load(&cw_copies) == 0 && atomic_load(&cw_resident_lock.word) == 0);
	for (int k = 1; k < LOGGED_MOST; k++) /* enough said */
		CHECK(serve(&f, 0) == 1 && said[0] && refused(f.at));
	said[0] = 0;
	CHECK(serve(&f, 0) == 1 && !said[0] && refused(f.at));
	logged = 0;
	result = CUDA_ERROR_UNKNOWN;
	f.write = 1;
	CHECK(serve(&f, 0) == 1 && refused(f.at) && strstr(said, "writing") && strstr(said, "cannot be had from the GPU"));
	control.sticky = 700;
	CHECK(serve(&f, 0) == 1 && refused(f.at) && strstr(said, "has failed"));
	cw_g.state = CW_DEAD;
	CHECK(serve(&f, 0) == 1 && refused(f.at) && strstr(said, "has ended"));
	cw_g.state = CW_OPEN;
	area->holder[7] = CW_AT_BOTH;
	f.protect = 1;
	CHECK(serve(&f, 0) == 1 && refused(f.at) && strstr(said, "writable"));
	/* Threads of a program that is exiting end with it, but for the one that does that. */
	anew();
	cw_g.state = CW_EXITING;
	atomic_store(&cw_exiting_thread, OTHER);
	f = at(8, 0, 0);
	result = CUDA_ERROR_UNKNOWN;
	CHECK(serve(&f, 0) == 1 && !refused(f.at) && !said[0] && did[WAKE] == 0);
	f.thread = OTHER;
	CHECK(serve(&f, 0) == 1 && refused(f.at) && said[0]);
	atomic_store(&cw_exiting_thread, 0);
}

/* Duplicates come back before the rest is brought; not for who may be beside a kernel. */
static void duplicates(void)
{
	static uint64_t something;
	anew();
	area->kept = (struct cw_kept *)&something;
	shown_lo = 40, shown_hi = 43;
	struct cw_fault f = at(40, 0, 0);
	CHECK(serve(&f, 0) == 1 && shown == 1 && did[BRING] == 1 && area->holder[42] == CW_AT_BOTH && area->holder[43] == CW_AT_GPU);
	f = at(50, 1, 0);
	shown_lo = shown_hi = 0;
	CHECK(serve(&f, 0) == 1 && shown == 2 && area->holder[50] == CW_AT_CPU);
	idle = 0;
	f = at(60, 0, 0);
	CHECK(serve(&f, 0) == 0 && shown == 2);
	atomic_store(&cw_callback_thread, ME);
	CHECK(serve(&f, 0) == 1 && shown == 2 && area->holder[60] == CW_AT_BOTH);
	atomic_store(&cw_callback_thread, 0);
	area->kept = NULL;
}

/* Who has to wait, for what. */
static void settling(void)
{
	anew();
	struct cw_fault f = at(3, 0, 0);
	idle = 0;
	CHECK(serve(&f, 0) == 0 && serve(&f, 1) == 0 && did[BRING] == 0 && atomic_load(&cw_copies) == 0);
	atomic_store(&cw_callback_thread, ME); /* a function that a stream called */
	CHECK(serve(&f, 0) == 1 && did[BRING] == 1);
	f = at(400, 0, 0);
	f.thread = OTHER;
	CHECK(serve(&f, 0) == 0);
	f.thread = 0; /* not known: nobody's */
	atomic_store(&cw_callback_thread, 0);
	CHECK(serve(&f, 0) == 0);
	f.thread = ME;
	area->attach = CU_MEM_ATTACH_HOST;
	CHECK(serve(&f, 0) == 1 && did[BRING] == 2);
	f = at(600, 0, 0);
	attach(12);
	CHECK(stream_of(&f) == 12 && serve(&f, 0) == 0 && serve(&f, 1) == 1 && did[BRING] == 3);
	idle = 1; /* its stream counts, not the GPU */
	f = at(500, 0, 0);
	CHECK(serve(&f, 0) == 0);
	area->attach = CU_MEM_ATTACH_GLOBAL;
	CHECK(stream_of(&f) == 0);
	f.at = area->base - CW_PAGE;
	CHECK(stream_of(&f) == 0);
}

/* The end of the stream that memory was attached to: what the stream was given is waited for, then
 * it is as it was allocated. Another stream of the same id is another. */
static void ended_stream(void)
{
	for (int k = 0; k < 2; k++) {
		anew();
		idle = 0;
		attach(12);
		area->first = k ? CU_MEM_ATTACH_HOST : CU_MEM_ATTACH_GLOBAL;
		if (k)
			area->uid++;
		else
			ended = 12;
		struct cw_fault f = at(600, 0, 0);
		CHECK(stream_of(&f) == 0 && serve(&f, 1) == 0 && did[BRING] == 0);
		idle = 1;
		CHECK(serve(&f, 0) == 1 && did[BRING] == 1);
		idle = 0;
		f = at(800, 0, 0);
		CHECK(serve(&f, 0) == k && area->attach == area->first);
	}
	/* Another stream stands for it: that one counts, not the GPU. */
	anew();
	idle = 0;
	attach(13);
	area->lapsed = 1;
	area->first = CU_MEM_ATTACH_HOST;
	struct cw_fault f = at(600, 0, 0);
	CHECK(stream_of(&f) == 13 && serve(&f, 0) == 0 && serve(&f, 1) == 1 && area->attach == CU_MEM_ATTACH_HOST && !area->lapsed);
}

/* An access that has gone on is not said to have ended, nor is it made to. */
static void giving_up(void)
{
	anew();
	struct cw_fault f = at(11, 0, 0);
	give_up(&f, "so");
	CHECK(refused(f.at) && strstr(said, "so") && did[WAKE] == 1);
	static const struct {
		uint8_t holder, protect, waits;
	} rows[] = {{CW_AT_BOTH, 0, 0}, {CW_AT_CPU, 0, 0}, {CW_AT_CPU, 1, 0}, {CW_AT_GPU, 1, 0}, {CW_AT_BOTH, 1, 1}, {CW_AT_GPU, 0, 1}};
	for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		anew();
		f = at(11, 1, rows[i].protect);
		area->holder[11] = rows[i].holder;
		give_up(&f, "so");
		CHECK(refused(f.at) == rows[i].waits && (said[0] != 0) == rows[i].waits && did[WAKE] == 1 && last_at == f.at);
	}
	f.at = area->base + area->size;
	anew();
	give_up(&f, "so");
	CHECK(!said[0] && did[WAKE] == 1 && atomic_load(&cw_resident_lock.word) == 0);
}

static void until(int yes(void))
{
	for (int i = 0; i < 20000 && !yes(); i++)
		usleep(1000);
	CHECK(yes());
}

/* Waiting entries that nobody serves: the queue itself. */
static void waiting_list(void)
{
	static struct queue q;
	uint32_t count, starved = 0;
	anew();
	int64_t begun = cw_now_ms();
	q.started = 1; /* its thread is not there */
	setenv("CAUSEWAY_MANAGED_PATIENCE", "5", 1);
	CHECK(patience() == 5000);
	for (uint32_t k = 0; k < 50; k++) {
		struct cw_fault f = at(20 + k, 0, 0);
		wait_for(&q, &f);
	}
	struct waiting *w = look(&q, &count);
	CHECK(count == 50 && w[49].f.at == at(69, 0, 0).at && q.cap >= 50 && atomic_load(&q.gen) == 50);
	CHECK(w[0].until >= begun + 5000 && w[0].until <= cw_now_ms() + 5000 && w[0].last - w[0].until == (SUSPENDED - 1) * 5000);
	free(w);
	struct cw_fault f = at(30, 0, 0), none = f;
	none.thread = OTHER;
	remove_fault(&q, &none);
	CHECK(q.count == 50);
	remove_fault(&q, &f);
	remove_fault(&q, &f);
	CHECK(q.count == 49);
	control.head = control.tail = 64;
	CHECK(expire(&q, &starved) == 49 && starved == 0 && q.count == 49);
	for (uint32_t i = 0; i < q.count; i++)
		q.all[i].until = cw_now_ms() + (i < 9 ? patience() - LONG_MS - 50 : 60000);
	CHECK(expire(&q, &starved) == 49 && starved == 9);
	/* Too long; but while the host takes nothing they have longer. */
	uint64_t over = q.all[3].f.at;
	q.all[3].until = q.all[4].until = cw_now_ms() - 10;
	q.all[4].last = cw_now_ms() - 5;
	control.tail = 128;
	starved = 0;
	CHECK(expire(&q, &starved) == 49 && q.count == 48 && strstr(said, "did not become idle") && starved >= 2);
	control.head = 128;
	CHECK(expire(&q, &starved) == 48 && q.count == 47 && refused(over));
	/* Over frames its word comes late and does not count. */
	q.all[5].until = cw_now_ms() - 10;
	control.tail = 256;
	carrier.publish = (void *)1;
	CHECK(expire(&q, &starved) == 47 && q.count == 46);
	carrier.publish = NULL;
	control.tail = 128;
	setenv("CAUSEWAY_MANAGED_PATIENCE", "-3", 1);
	CHECK(patience() == 120000);
	unsetenv("CAUSEWAY_MANAGED_PATIENCE");
	CHECK(patience() == 120000);
	while (q.count) {
		f = q.all[0].f;
		remove_fault(&q, &f);
	}
	CHECK(look(&q, &count) == NULL && count == 0 && expire(&q, &starved) == 0);
}

/* Where nobody can wait for it an access ends. */
static void no_thread(void)
{
	static struct queue q;
	anew();
	struct cw_fault f = at(13, 0, 0);
	no_threads = 1;
	wait_for(&q, &f);
	CHECK(refused(f.at) && strstr(said, "no thread") && !q.started && q.count == 0);
	CHECK(cw_touch_start() != 0);
	no_threads = 0;
}

/* Bytes that a call is to read under the ring's lock. */
static void apart(void)
{
	anew();
	char here[8] = "abcdefg";
	void *own = NULL;
	const void *p = here;
	CHECK(cw_apart(&p, 8, &own) == 1 && p == here && !own);
	char *there = (char *)(uintptr_t)area->base;
	memcpy(there, "managed", 8);
	p = there;
	CHECK(cw_apart(&p, 0, &own) == 1 && p == there && !own);
	CHECK(cw_apart(&p, 8, &own) == 1 && p == own && p != there && !memcmp(p, "managed", 8));
	free(own);
}

static int brought_once(void) { return did[BRING] == 1; }
static int brought_twice(void) { return did[BRING] == 2; }
static int waits_for_34(void) { return waited_stream == 34; }
static int waits_for_all(void) { return waited_stream == 0; }
static int woken(void) { return did[WAKE] > 0; }
static int nobody_waits(void) { return for_gpu.count == 0 && for_stream.count == 0; }
/* The server looks now and then while one waits, which another thread does, and has waited for
 * long. */
static int looked_on(void) { return atomic_load(&cw_starved) > 0 && timeout_seen == LOOK_MS && did[WAIT] > 0; }
static int none_starves(void) { return atomic_load(&cw_starved) == 0; }
static int reading_on(void) { return timeout_seen == -1; }
static int is_lost(void) { return lost == 1; }
static int has_said(void) { return strstr(said, "cannot be read") != NULL; }

/* All of it, by the threads. */
static void threads(void)
{
	anew();
	copiers = 4;
	CHECK(cw_touch_start() == 0 && cw_touch_start() == 0 && starts == 1);
	until(reading_on);
	CHECK(look_seen == LOOK_US);
	put(at(2, 0, 0));
	until(brought_once);
	CHECK(did[WAIT] == 0 && starts == 1);
	/* One that has to wait does so in another thread, and the server goes on. */
	idle = 0;
	put(at(50, 0, 0));
	until(looked_on);
	CHECK(starts == 2 && did[BRING] == 1 && waited_stream == 0 && for_gpu.count == 1);
	by_idle = 1;
	until(brought_twice);
	until(nobody_waits);
	until(none_starves);
	until(reading_on);
	CHECK(last.lo == 50);
	/* A stream's own, in a third. */
	anew();
	idle = 0;
	attach(33);
	put(at(70, 1, 0));
	until(brought_once);
	until(nobody_waits);
	CHECK(starts == 3 && waited_stream == 33 && last.write && idle == 0);
	/* Its stream ends while it waits: then it waits for the GPU. */
	anew();
	idle = 0;
	attach(34);
	stays_busy = 34;
	put(at(71, 1, 0));
	until(waits_for_34);
	cw_lock_acquire(&cw_resident_lock);
	ended = 34;
	cw_lock_release(&cw_resident_lock);
	stays_busy = 0;
	until(waits_for_all);
	CHECK(did[BRING] == 0);
	by_idle = 1;
	until(brought_once);
	until(nobody_waits);
	CHECK(starts == 3 && waited_stream == 0 && idle == 1);
	/* The GPU is lost: the access ends, the others go on. */
	anew();
	idle = 0;
	wait_result = CUDA_ERROR_LAUNCH_FAILED;
	struct cw_fault f = at(90, 0, 0);
	put(f);
	until(woken);
	until(nobody_waits);
	CHECK(refused(f.at) && did[BRING] == 0 && strstr(said, "cannot be had"));
	anew();
	pthread_mutex_lock(&lock);
	read_error = -EBADF;
	pthread_mutex_unlock(&lock);
	until(has_said);
	until(is_lost);
	CHECK(kept_open == 1);
}

int main(void)
{
	alarm(600);
	bursts();
	each();
	duplicates();
	settling();
	ended_stream();
	giving_up();
	waiting_list();
	no_thread();
	apart();
	threads();
	puts("touch_test ok");
	return 0;
}

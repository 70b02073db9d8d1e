/*
 * Loans alone: loan.c between a clock and a kernel of the test's own. A model says of each piece
 * when its next READ is due, and the thread may sleep until then and no longer. Thousands of steps
 * by chance: READs that end, fail or are refused, sleeps that last too long, regions that come and
 * go.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "session/loan.h"
#include "session/tests/check.h"

static long kernel(long number, ...);
static void *get(size_t n, size_t size);
static void put(void *p);
static int64_t clock_ms = 5000;

#define syscall kernel
#define calloc(n, size) get(n, size)
#define free(p) put(p)
#define cw_now_ms() clock_ms
#include "session/loan.c"
#undef syscall
#undef calloc
#undef free
#include "session/lock.c"
#include "session/signals.c"

#include "session/tests/alone/loan_kernel.h"
#include "session/tests/alone/own_fakes.h"

/* --- what is tried ---------------------------------------------------------------------------- */

static void anew(void)
{
	CHECK(pieces == 0 && flying == 0 && !cw_loans.pieces);
	memset(&cw_loans, 0, sizeof cw_loans);
	memset(all, 0, sizeof all);
	cw_loans.aio = AIO;
	cw_loans.max_read = READ;
	cw_loans.piece = PIECE;
	cw_loans.max_loans = BUDGET;
	cw_s.fd = FD;
	deaths = refuse = fail_get = 0;
	for (int i = 0; i < REGIONS; i++) {
		if (regions[i].va)
			munmap(regions[i].va, regions[i].size);
		regions[i].lent = 0;
		regions[i].size = (uint64_t)(i + 1) * 4096 + (i >= 5 ? READ * 3 * (uint64_t)(i - 4) : 0);
		regions[i].va = mmap(NULL, regions[i].size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		CHECK(regions[i].va != MAP_FAILED);
	}
}

static void ended_by_test(uint32_t region)
{
	regions[region].lent = 0;
	for (int i = 0; i < MOST; i++)
		if (all[i].p && all[i].p->region == region)
			all[i].ended = 1;
}

static void end_region(uint32_t region)
{
	ended_by_test(region);
	cw_lock_acquire(&cw_loans.lock);
	cw_loan_end(region);
	cw_lock_release(&cw_loans.lock);
}

static int count(uint64_t size) { return (int)((size + PIECE - 1) / PIECE); }

static int loans(uint64_t size) { return (int)((size + READ - 1) / READ); }

/* Lends a region, or finds that it cannot be. */
static void lend(uint32_t region)
{
	int had = pieces, want = count(regions[region].size), no_room = loans(regions[region].size) > BUDGET - (int)cw_loans.loans,
	    fails = refuse || fail_get;
	int err = cw_loan_region(&cw_s, region, regions[region].va, regions[region].size);
	unsigned char in[64];
	CHECK(mincore(regions[region].va, regions[region].size, in) == 0);
	for (uint64_t at = 0; at < regions[region].size; at += 4096)
		CHECK(in[at / 4096] & 1); /* the pages are there */
	if (no_room) {
		CHECK(err == -ENOBUFS && pieces == had);
	} else if (err == 0) {
		CHECK(pieces == had + want);
		regions[region].lent = 1;
	} else {
		CHECK(fails);
		ended_by_test(region);
	}
	refuse = fail_get = 0;
}

/* READs that end with res, at most most, and the thread goes on. */
static int reap_all(struct io_event *ev, int64_t res, int most)
{
	int n = 0;
	while (flying > 0 && n < most)
		end_read(&ev[n++], 0, res);
	return n;
}

static int by_hand, at_step;

/* One piece: renewed each second before its term ends, at once when it is alone, not at once when
 * the host answers so; told to stop it ends. */
static int renewal(struct io_event *ev, int64_t sleep)
{
	switch (by_hand++) {
	case 0: /* it was lent at 5000 */
		CHECK(sleep == 1000 && flying == 1);
		clock_ms += 999; /* woken early, for nothing */
		return 0;
	case 1:
		CHECK(sleep == 1 && flying == 1);
		clock_ms += 1;
		return 0;
	case 2: /* renewed beside the older READ, which the host ends now */
		CHECK(sleep == 1000 && flying == 2);
		end_read(&ev[0], 0, 0);
		ev[1] = (struct io_event){.data = 0}; /* a doorbell's */
		return 2;
	case 3:
		CHECK(sleep == 1000 && flying == 1);
		clock_ms += 9;
		end_read(&ev[0], 0, -EINTR);
		return 1;
	case 4: /* the host answers at once: 10 ms */
		CHECK(sleep == 10 && flying == 0);
		clock_ms += 10;
		return 0;
	case 5:
		CHECK(sleep == 1000 && flying == 1);
		clock_ms += 10;
		end_read(&ev[0], 0, -EAGAIN);
		return 1;
	case 6: /* the host moved: at once */
		CHECK(sleep == 1000 && flying == 1);
		clock_ms += 1000;
		refuse = -1;
		refuse_in = 1;
		return 0;
	case 7: /* the kernel took none */
		CHECK(sleep == 10 && flying == 1);
		errno = EINTR;
		return -1;
	case 8: /* stopped for longer than a term, and all has lapsed */ clock_ms += 60000; return reap_all(ev, 0, 64);
	case 9:
		CHECK(sleep == 1000 && flying == 1);
		cw_loans.stopping = 1;
		return 0;
	case 10: /* nothing is renewed, and what ends stays ended */
		CHECK(sleep == 1000);
		clock_ms += 5000;
		return reap_all(ev, 0, 64);
	default:
		CHECK(sleep == 1000 && flying == 0);
		cw_loans.stopping = 2;
		return 0;
	}
}

static void one_by_one(void)
{
	anew();
	clock_ms = 5000;
	by_hand = 0;
	step = renewal;
	lend(0);
	atomic_store(&cw_loans.running, 1);
	loan_thread(&cw_s);
	char name[16];
	CHECK(prctl(PR_GET_NAME, name) == 0 && !strcmp(name, "causeway-loan"));
	CHECK(by_hand == 12 && !atomic_load(&cw_loans.running) && deaths == 0 && pieces == 1);
	cw_loan_forget();
	CHECK(pieces == 0 && !cw_loans.pieces);
}

static int dies(struct io_event *ev, int64_t sleep)
{
	(void)sleep;
	if (by_hand++ == 0) {
		end_read(&ev[0], 1, -ENOTCONN);
		return 1;
	}
	CHECK(atomic_load(&cw_loans.gone) == -ENOTCONN && deaths == 1);
	if (flying > 0)
		return reap_all(ev, -ENOTCONN, 64);
	CHECK(pieces == 0 && deaths == 1); /* their own ends are no more news */
	errno = EINVAL;			   /* as of a context that is gone: the thread ends */
	return -1;
}

static void host_gone(void)
{
	anew();
	by_hand = 0;
	step = dies;
	lend(2);
	lend(3);
	atomic_store(&cw_loans.running, 1);
	loan_thread(&cw_s);
	CHECK(by_hand > 2 && !atomic_load(&cw_loans.running));
}

/* All at once: a budget that is spent to the last piece, memory that is not there, a first and a
 * later READ that is refused. */
static void lending(void)
{
	anew();
	cw_loans.max_loans = 3;
	CHECK(cw_loan_region(&cw_s, 5, regions[5].va, regions[5].size) == -ENOBUFS && pieces == 0);
	cw_loans.max_loans = (uint32_t)loans(regions[5].size);
	CHECK(cw_loan_region(&cw_s, 5, regions[5].va, regions[5].size) == 0 && pieces == count(regions[5].size) && flying == pieces);
	CHECK(cw_loan_region(&cw_s, 0, regions[0].va, regions[0].size) == -ENOBUFS);
	end_region(5);
	/* They count until their READs have ended. */
	CHECK(pieces == flying && (int)cw_loans.loans == loans(regions[5].size));
	struct io_event ev[64];
	for (int n = reap_all(ev, 0, 64), i = 0; i < n; i++)
		completed(&cw_s, (struct cw_piece *)(uintptr_t)ev[i].data, ev[i].res, clock_ms);
	CHECK(pieces == 0);
	fail_get = 2;
	CHECK(cw_loan_region(&cw_s, 5, regions[5].va, regions[5].size) == -ENOMEM && pieces == 1 && flying == 1);
	ended_by_test(5);
	CHECK(all[0].p->ended);
	completed(&cw_s, (reap_all(ev, 0, 1), (struct cw_piece *)(uintptr_t)ev[0].data), 0, clock_ms);
	CHECK(pieces == 0);
	refuse = EAGAIN;
	refuse_in = 1;
	CHECK(cw_loan_region(&cw_s, 1, regions[1].va, regions[1].size) == -EAGAIN && pieces == 0 && flying == 0);
	refuse = EIO;
	refuse_in = 2;
	CHECK(cw_loan_region(&cw_s, 5, regions[5].va, regions[5].size) == -EIO && pieces == 1 && flying == 1);
	ended_by_test(5);
	completed(&cw_s, (reap_all(ev, 0, 1), (struct cw_piece *)(uintptr_t)ev[0].data), 0, clock_ms);
	refuse = -1;
	refuse_in = 1;
	CHECK(cw_loan_region(&cw_s, 1, regions[1].va, regions[1].size) == -EAGAIN && pieces == 0 && flying == 0);
	CHECK(atomic_load(&cw_loans.lock.word) == 0);
}

/* All that a VM's queue may hold, lent at one time: it is renewed a few READs at a time, each piece
 * long before its term ends, and from the second on each second. The host takes 30 ms over each. */
static int64_t spread_until, spread_oldest;
static int spread_wakes;

static int spreads(struct io_event *ev, int64_t sleep)
{
	if (clock_ms >= spread_until) {
		cw_loans.stopping = 2;
		return 0;
	}
	spread_wakes++;
	clock_ms += sleep;
	for (int i = 0; i < MOST; i++)
		if (all[i].p && clock_ms - all[i].since > spread_oldest)
			spread_oldest = clock_ms - all[i].since;
	int n = 0;
	for (int i = 0; i < flying && n < 64;) {
		struct model *m = of(requests[i]);
		if (m->pending == 2 && clock_ms - m->since >= 30)
			end_read(&ev[n++], i, 0);
		else
			i++;
	}
	return n;
}

static void spread(void)
{
	anew();
	cw_loans.max_loans = MOST * 2;
	munmap(regions[0].va, regions[0].size);
	regions[0].size = (uint64_t)MOST * PIECE;
	regions[0].va = mmap(NULL, regions[0].size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(regions[0].va != MAP_FAILED);
	CHECK(cw_loan_region(&cw_s, 0, regions[0].va, regions[0].size) == 0 && flying == MOST && cw_loans.loans == MOST * 2);
	step = spreads;
	spread_oldest = spread_wakes = 0;
	spread_until = clock_ms + 10000;
	loan_thread(&cw_s);
	CHECK(spread_oldest >= 1000 && spread_oldest <= 1300);
	CHECK(spread_wakes >= 9 * MOST * 2 / BURST_READS && spread_wakes <= 10 * MOST);
	cw_loan_end(-1);
	struct io_event ev[1];
	while (reap_all(ev, 0, 1) == 1)
		completed(&cw_s, (struct cw_piece *)(uintptr_t)ev[0].data, 0, clock_ms);
	CHECK(pieces == 0 && cw_loans.count == 0);
}

static void starting(void)
{
	anew();
	CHECK(cw_loan_start(&cw_s) == 0 && atomic_load(&cw_loans.running));
	begin_fails = EAGAIN;
	CHECK(cw_loan_start(&cw_s) == -EAGAIN && !atomic_load(&cw_loans.running));
	begin_fails = 0;
}

static void doorbell(void)
{
	uint64_t word;
	CHECK(cw_aio_submit(FD, IOCB_CMD_PWRITE, &word, sizeof word, CW_FILE_DOORBELL, NULL) == 0);
	CHECK(other.aio_lio_opcode == IOCB_CMD_PWRITE && other.aio_fildes == FD && other.aio_buf == (uintptr_t)&word);
	CHECK(other.aio_nbytes == sizeof word && other.aio_offset == (int64_t)CW_FILE_DOORBELL);
}

static uint32_t chance(uint32_t n)
{
	static uint64_t x = 20261125;
	x = x * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(x >> 33) % n;
}

static int any(struct io_event *ev, int64_t sleep)
{
	static const int64_t later[] = {0, 1, 9, 10, 11, 500, 990, 999, 1000, 1001, 20000};
	if (++at_step == 20000) { /* all ends */
		for (uint32_t r = 0; r < REGIONS; r++)
			end_region(r);
	}
	if (at_step >= 20000) {
		if (flying == 0)
			cw_loans.stopping = 2;
		return reap_all(ev, chance(2) ? 0 : -EIO, 64);
	}
	clock_ms += chance(3) ? sleep : later[chance(sizeof later / sizeof *later)];
	uint32_t region = chance(REGIONS);
	switch (chance(8)) {
	case 0:
		if (regions[region].lent)
			end_region(region);
		break;
	case 1:
	case 2:
		if (regions[region].lent)
			break;
		for (int i = 0; i < MOST; i++)
			if (all[i].p && all[i].p->region == region)
				return 0; /* its last READ is still out */
		if (chance(4) == 0)
			fail_get = 1 + (int)chance(3);
		if (chance(4) == 0)
			refuse = chance(2) ? EAGAIN : -1, refuse_in = 1 + (int)chance(3);
		lend(region);
		break;
	case 3:
		refuse = chance(2) ? EAGAIN : -1;
		refuse_in = 1 + (int)chance(3);
		break;
	case 4: errno = EINTR; return -1;
	default: break;
	}
	int n = 0;
	for (uint32_t want = chance(6); flying > 0 && want > 0; want--) {
		static const int64_t res[] = {0, 0, 0, 0, -EINTR, -EAGAIN};
		end_read(&ev[n++], chance(2) ? 0 : (int)chance((uint32_t)flying), res[chance(6)]);
	}
	return n;
}

static void by_chance(void)
{
	anew();
	at_step = 0;
	step = any;
	loan_thread(&cw_s);
	CHECK(at_step > 20000 && pieces == 0 && deaths == 0 && cw_loans.loans == 0 && cw_loans.count == 0 && rests > 100);
}

int main(void)
{
	one_by_one();
	host_gone();
	lending();
	starting();
	doorbell();
	spread();
	by_chance();
	puts("loan_test ok");
	return 0;
}

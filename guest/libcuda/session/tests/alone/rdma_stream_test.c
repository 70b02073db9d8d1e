/*
 * The stream of a guest that is the RDMA end itself, alone: rdma_stream.c with an adapter and a
 * clock of the test's own. When a link is given up on which nothing moves, and when it is not; and
 * what a peer that keeps no rules can have it do.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "session/rdma_stream.h"
#include "session/tests/check.h"

static int64_t now = 1000;
static int f_poll(int ms);
static int64_t f_now(void) { return now; }

#define cw_now_ms() f_now()
#define poll(p, n, ms) ((void)(p), f_poll(ms))
#include "session/rdma_stream.c"

int cw_rdma_has_files(const struct cw_rdma *r)
{
	(void)r;
	return 1;
}

struct cw_session cw_s;
struct cw_lib cw_rdma_lib;

/* --- what rdma_stream.c stands on ------------------------------------------------------------- */

_Atomic uint32_t cw_signals_waiting;
__thread uint32_t cw_signals_held;
void cw_signals_hold(void) { CHECK(0); }
void cw_signals_let(void) { CHECK(0); }
void cw_lock_slow(struct cw_lock *l)
{
	(void)l;
	CHECK(0); /* there is one thread */
}

/* --- the adapter ------------------------------------------------------------------------------ */

enum { QUEUED = 4096 };
static struct ibv_wc queued[QUEUED];
static unsigned from, to;
static int acknowledges; /* what is posted is done */
static int probes, posts, receives, sleeps;
static void (*at_sleep)(void);

static void complete(uint32_t opcode, uint32_t immediate, uint64_t id)
{
	CHECK(to - from < QUEUED);
	queued[to++ % QUEUED] = (struct ibv_wc){.wr_id = id, .opcode = opcode, .imm_data = htonl(immediate)};
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *w, struct ibv_send_wr **bad)
{
	(void)qp, (void)bad;
	for (; w; w = w->next) {
		posts++;
		int empty = w->num_sge == 0 && w->opcode == IBV_WR_RDMA_WRITE;
		CHECK(!empty || (w->send_flags & IBV_SEND_SIGNALED));
		probes += empty;
		if (acknowledges && (w->send_flags & IBV_SEND_SIGNALED))
			complete(w->opcode, 0, w->wr_id);
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *w, struct ibv_recv_wr **bad)
{
	(void)qp, (void)bad;
	for (; w; w = w->next)
		receives++;
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	(void)cq;
	int n = 0;
	while (n < most && from != to)
		wc[n++] = queued[from++ % QUEUED];
	return n;
}

static int arm(struct ibv_cq *cq, int solicited)
{
	(void)cq, (void)solicited;
	return 0;
}

static int get_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
	(void)channel, (void)cq, (void)context;
	return 0;
}

/* Sleeping is time that passes. A wait that takes days of it has no end. */
static int f_poll(int ms)
{
	CHECK(ms > 0 && ++sleeps < 1 << 20);
	now += ms;
	if (at_sleep)
		at_sleep();
	return from != to;
}

static struct ibv_context context = {.ops = {.poll_cq = poll_cq, .req_notify_cq = arm, .post_send = post_send, .post_recv = post_recv}};
static struct ibv_cq cq = {.context = &context};
static struct ibv_qp qp = {.context = &context};
static struct ibv_comp_channel channel = {.context = &context};
static struct ibv_mr mr;
static uint8_t window[CW_RDMA_WINDOW], out[CW_RDMA_WINDOW];
static struct cw_rdma stream, *const r = &stream;

static void begin(int there)
{
	stream = (struct cw_rdma){.queue = {.channel = &channel, .cq = &cq, .qp = &qp},
				  .window = window,
				  .out = out,
				  .out_mr = &mr,
				  .out_size = CW_RDMA_WINDOW,
				  .looked = now};
	cw_rdma_lib = (struct cw_lib){.get_cq_event = get_event};
	from = to = 0;
	acknowledges = there;
	probes = posts = receives = sleeps = 0;
	at_sleep = NULL;
}

static ssize_t take_some(int64_t until)
{
	uint8_t b[64];
	return cw_rdma_recv(r, b, sizeof b, until);
}

static int send_bytes(size_t n)
{
	static uint8_t b[CW_RDMA_WINDOW];
	struct iovec v = {b, n};
	return cw_rdma_send(r, &v, 1);
}

/* Ends with an error that says so, within as long as docs/VF.md has it. */
static void gone(int64_t since, ssize_t err)
{
	char why[400];
	cw_rdma_why(r, why, sizeof why);
	if (err != -EIO || !strstr(why, "acknowledged nothing") || now - since > 26000)
		fprintf(stderr, "%zd, \"%s\" after %d ms\n", err, why, (int)(now - since));
	CHECK(err == -EIO && strstr(why, "acknowledged nothing") && now - since >= 25000 && now - since <= 26000);
}

/* --- tests ------------------------------------------------------------------------------------ */

/* Who waits for a reply has nothing under way that could fail; who sends may have an adapter that
 * repeats for ever. */
static void test_gone(void)
{
	begin(0);
	int64_t since = now;
	gone(since, take_some(0));
	CHECK(probes == 1 && posts == 1);
	/* Behind what was sent, all of it unsignaled. */
	begin(0);
	for (int i = 0; i < 5; i++)
		CHECK(send_bytes(100) == 0);
	since = now;
	gone(since, take_some(0));
	CHECK(probes == 1 && posts == 6);
	/* A send queue in which there is no room for a probe. */
	begin(0);
	stream.posted = CW_RDMA_SENDS;
	since = now;
	gone(since, take_some(0));
	CHECK(posts == 0);
	/* Who waits for room. */
	begin(0);
	CHECK(send_bytes(CW_RDMA_WINDOW) == 0);
	since = now;
	gone(since, send_bytes(1));
	/* A second wait of the same has its error at once. */
	since = now;
	CHECK(take_some(0) == -EIO && send_bytes(1) == -EIO && now == since);
}

/* A link that is there is probed, and kept, whether the peer's program does anything or not. */
static void test_there(void)
{
	begin(1);
	int64_t since = now;
	CHECK(take_some(now + 600000) == -ETIMEDOUT && now - since >= 600000 && probes >= 100 && probes <= 120);
	CHECK(send_bytes(CW_RDMA_WINDOW) == 0);
	since = now;
	CHECK(cw_rdma_drain(r, now + 1000) == CW_RDMA_WINDOW && now == since);
}

static void moving(void)
{
	if (sleeps % 8 == 0) /* each 2 s */
		complete(IBV_WC_RECV_RDMA_WITH_IMM, 1, 0);
}

/* One on which something moves is not probed. */
static void test_moving(void)
{
	begin(1);
	at_sleep = moving;
	for (int i = 0; i < 100; i++)
		CHECK(take_some(0) == 1);
	CHECK(probes == 0 && receives == 100);
}

static int64_t jump;
static void late(void)
{
	now += jump; /* the VM was paused */
	if (sleeps == 40)
		complete(IBV_WR_RDMA_WRITE, 0, stream.posted);
	if (sleeps == 41)
		complete(IBV_WC_RECV_RDMA_WITH_IMM, 3, 0);
}

/* A VM that was paused has no less time than one that ran: its adapter may have been as well. */
static void test_paused(void)
{
	begin(0);
	at_sleep = late;
	jump = 3600000;
	CHECK(take_some(0) == 3 && sleeps == 41 && probes == 1);
	/* Nor do wakes for nothing count as time. */
	begin(0);
	at_sleep = late;
	jump = -NAP_MS;
	CHECK(take_some(0) == 3);
}

/* A server that says that it has written more than comes, and is gone: nothing is written to it any
 * more, and the program does not wait. */
static void test_short(void)
{
	begin(1);
	complete(IBV_WC_RECV_RDMA_WITH_IMM, 5, 0);
	cw_rdma_ended(r, 6);
	CHECK(take_some(0) == 5 && posts == 0);
	int64_t since = now;
	gone(since, take_some(0));
	CHECK(posts == 0);
	begin(1);
	complete(IBV_WC_RECV_RDMA_WITH_IMM, 5, 0);
	cw_rdma_ended(r, 5);
	CHECK(take_some(0) == 5 && take_some(0) == 0 && send_bytes(1) == -EPIPE);
}

/* A queue pair that fails is lost, and another takes its place; what ends the session goes before
 * that, and is final. */
static void test_lost(void)
{
	char why[400];
	begin(1);
	CHECK(send_bytes(3000) == 0);
	complete(IBV_WC_RECV_RDMA_WITH_IMM, 9, 0);
	CHECK(take_some(0) == 9);
	queued[to++ % QUEUED] = (struct ibv_wc){.wr_id = 1, .status = 5};
	queued[to++ % QUEUED] = (struct ibv_wc){.wr_id = 2, .status = 12};
	CHECK(take_some(0) == -ECONNRESET && send_bytes(1) == -ECONNRESET);
	cw_rdma_why(r, why, sizeof why);
	CHECK(strstr(why, "retry exceeded"));
	CHECK(cw_rdma_fresh(r) == 0 && stream.sent == 0 && stream.got == 0 && stream.posted == 0 && stream.why[0] == 0);
	complete(IBV_WC_RECV_RDMA_WITH_IMM, 7, 0);
	CHECK(take_some(0) == 7 && send_bytes(1) == 0);
	cw_rdma_lose(r, "said so");
	CHECK(take_some(0) == -ECONNRESET);
	cw_rdma_fail(r, -EPIPE, "the end");
	CHECK(take_some(0) == -EPIPE && cw_rdma_fresh(r) == -EPIPE && take_some(0) == -EPIPE);
	cw_rdma_lose(r, "too late");
	cw_rdma_why(r, why, sizeof why);
	CHECK(!strcmp(why, "the end") && send_bytes(1) == -EPIPE);
}

static const char *ends_with(void)
{
	static char why[400];
	ssize_t n = 0;
	for (int i = 0; n >= 0 && i < 2000; i++)
		n = take_some(now + 1);
	CHECK(n == -EIO);
	cw_rdma_why(r, why, sizeof why);
	return why;
}

/* Immediates that an honest peer does not send. */
static void test_immediates(void)
{
	static const struct {
		uint32_t opcode, n, times;
		const char *why;
	} rows[] = {
		{IBV_WC_RECV_RDMA_WITH_IMM, 0, 1, "more than fits"},
		{IBV_WC_RECV_RDMA_WITH_IMM, CW_RDMA_WINDOW + 1, 1, "more than fits"},
		{IBV_WC_RECV_RDMA_WITH_IMM, CREDIT_BIT - 1, 1, "more than fits"},
		{IBV_WC_RECV_RDMA_WITH_IMM, CREDIT_BIT | 1, 1, "credit for what was not sent"},
		{IBV_WC_RECV_RDMA_WITH_IMM, CREDIT_BIT | 1u << CREDIT_SHIFT, 1, "credit for what was not sent"},
		{IBV_WC_RECV_RDMA_WITH_IMM, UINT32_MAX, 1, "credit for what was not sent"},
		{IBV_WC_RECV, 5, 1, "more than fits"}, /* a SEND */
		{IBV_WC_RECV_RDMA_WITH_IMM, 1, MESSAGES + 1, "more often"},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		begin(0);
		stream.posted = CW_RDMA_SENDS; /* so that no credit goes back */
		stream.done = 1;
		stream.posted++;
		for (uint32_t k = 0; k < rows[i].times; k++)
			complete(rows[i].opcode, rows[i].n, 0);
		const char *why = ends_with();
		if (!strstr(why, rows[i].why))
			fprintf(stderr, "row %zu: \"%s\"\n", i, why);
		CHECK(strstr(why, rows[i].why) && stream.done == 1);
	}
	/* As many as a peer may have under way are taken. */
	begin(0);
	stream.posted = CW_RDMA_SENDS;
	for (int k = 0; k < MESSAGES; k++)
		complete(IBV_WC_RECV_RDMA_WITH_IMM, 1, 0);
	for (int n = 0; n < MESSAGES;) {
		ssize_t k = take_some(now + 1);
		CHECK(k > 0);
		n += (int)k;
	}
	CHECK(stream.err == 0);
}

/* Whatever immediates come, what is read lies in the window, what is sent in the buffer, and credit
 * is for what was sent. */
static void test_garbage(void)
{
	uint64_t x = 88172645463325252ull;
	for (int turn = 0; turn < 3000; turn++) {
		begin(1);
		uint64_t got = 0;
		for (int i = 0; i < 40 && stream.err == 0; i++) {
			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			uint32_t small = (uint32_t)(x >> 40) & 0xfff, v[] = {small, small << 8, CREDIT_BIT | small,
									     CREDIT_BIT | 1u << CREDIT_SHIFT | small, (uint32_t)(x >> 20)};
			complete(x % 64 ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV, v[x % 5], 0);
			if (x % 3 == 0)
				send_bytes(x % 3000 + 1);
			ssize_t n = take_some(now + 1);
			got += n > 0 ? (uint64_t)n : 0;
			CHECK(got == stream.taken && stream.taken <= stream.got &&
			      stream.got - stream.taken + stream.owed_bytes <= CW_RDMA_WINDOW);
			CHECK(stream.credited <= stream.sent && stream.sent - stream.credited <= stream.out_size &&
			      stream.messages <= MESSAGES);
		}
	}
}

int main(void)
{
	cw_s.cpus = 1;
	test_gone();
	test_there();
	test_moving();
	test_paused();
	test_short();
	test_lost();
	test_immediates();
	test_garbage();
	return 0;
}

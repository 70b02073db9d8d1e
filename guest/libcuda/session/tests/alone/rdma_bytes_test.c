/*
 * The bytes of a guest that is the RDMA end itself, alone: rdma_stream.c against a peer that keeps
 * the rules, and does all else by chance. What is sent in pieces of any size arrives whole and in
 * order, in a window that is never written beyond what the peer has read, by no more messages than
 * it has receives; and what it sends comes as it was.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "session/rdma_stream.h"
#include "session/tests/check.h"

static int64_t now = 1000;
static int f_poll(int ms);
#define cw_now_ms() now
#define poll(p, n, ms) ((void)(p), f_poll(ms))
#include "session/rdma_stream.c"

int cw_rdma_has_files(const struct cw_rdma *r)
{
	(void)r;
	return 1;
}

struct cw_session cw_s;
struct cw_lib cw_rdma_lib;
_Atomic uint32_t cw_signals_waiting;
__thread uint32_t cw_signals_held;
void cw_signals_hold(void) { CHECK(0); }
void cw_signals_let(void) { CHECK(0); }
void cw_lock_slow(struct cw_lock *l) { CHECK(!l); } /* there is one thread */

static uint64_t x = 88172645463325252ull;
static uint64_t some(uint64_t n)
{
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return (x >> 11) % n;
}

static uint8_t byte_at(uint64_t position) { return (uint8_t)(position * 37 + (position >> 8)); }

/* --- the peer --------------------------------------------------------------------------------- */

enum { QUEUED = 4096, ADDRESS = 1 << 20, KEY = 44, LOCAL = 45 };
static struct ibv_wc queued[QUEUED];
static unsigned from, to;
static struct cw_rdma stream, *const r = &stream;
static uint8_t window[CW_RDMA_WINDOW], out[CW_RDMA_WINDOW], theirs[CW_RDMA_WINDOW];
static uint64_t arrived, pending, has_read, messages, sent, free_again, their_messages, posted_receives, wraps;

static void complete(struct ibv_wc c)
{
	CHECK(to - from < QUEUED);
	queued[to++ % QUEUED] = c;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *w, struct ibv_send_wr **bad)
{
	(void)qp, (void)bad;
	for (; w; w = w->next) {
		if (w->num_sge == 1) {
			uint64_t at = w->rdma.remote_addr - ADDRESS, n = w->sg_list->length;
			CHECK(w->rdma.rkey == KEY && w->sg_list->lkey == LOCAL && n > 0 && at + n <= r->out_size &&
			      at == (arrived + pending) % r->out_size);
			/* What it has not read yet is not written over. */
			CHECK(arrived + pending + n - has_read <= r->out_size);
			CHECK(!(w->send_flags & IBV_SEND_INLINE) == (n > r->inlined));
			memcpy(theirs + at, (const void *)(uintptr_t)w->sg_list->addr, n);
			pending += n;
			wraps += w->opcode == IBV_WR_RDMA_WRITE;
		}
		if (w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
			uint32_t v = ntohl(w->imm_data);
			if (v & CREDIT_BIT) {
				free_again += v & ((1u << CREDIT_SHIFT) - 1);
				their_messages -= (v & ~CREDIT_BIT) >> CREDIT_SHIFT;
				CHECK(free_again <= sent && w->num_sge == 0);
			} else {
				CHECK(v == pending && v > 0 && ++messages <= MESSAGES);
				arrived += pending;
				pending = 0;
			}
		}
		if (w->send_flags & IBV_SEND_SIGNALED)
			complete((struct ibv_wc){.wr_id = w->wr_id, .opcode = w->opcode});
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *w, struct ibv_recv_wr **bad)
{
	(void)qp, (void)bad;
	for (; w; w = w->next)
		posted_receives++;
	return 0;
}

static void immediate(uint32_t v) { complete((struct ibv_wc){.opcode = IBV_WC_RECV_RDMA_WITH_IMM, .imm_data = htonl(v)}); }

/* It reads, and says so, or writes, as it comes. */
static void peer(void)
{
	if (some(2) && arrived > has_read && messages > 0) {
		uint64_t n = 1 + some(arrived - has_read), m = n == arrived - has_read ? messages : some(messages);
		for (uint64_t i = 0; i < n; i++)
			CHECK(theirs[(has_read + i) % r->out_size] == byte_at(has_read + i));
		has_read += n;
		messages -= m;
		immediate(CREDIT_BIT | (uint32_t)m << CREDIT_SHIFT | (uint32_t)n);
	} else if (sent - free_again < CW_RDMA_WINDOW && their_messages < MESSAGES) {
		uint64_t room = CW_RDMA_WINDOW - (sent - free_again), n = 1 + some(some(8) ? room < 5000 ? room : 5000 : room);
		for (uint64_t i = 0; i < n; i++)
			window[(sent + i) % CW_RDMA_WINDOW] = byte_at(sent + i + 3);
		sent += n;
		their_messages++;
		immediate((uint32_t)n);
	}
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	(void)cq;
	int n = 0;
	if (from == to)
		peer();
	while (n < most && from != to)
		wc[n++] = queued[from++ % QUEUED];
	return n;
}

static int arm(struct ibv_cq *cq, int solicited)
{
	(void)cq, (void)solicited;
	return 0;
}

static int f_poll(int ms)
{
	now += ms;
	return 0;
}

static struct ibv_context context = {.ops = {.poll_cq = poll_cq, .req_notify_cq = arm, .post_send = post_send, .post_recv = post_recv}};
static struct ibv_cq cq = {.context = &context};
static struct ibv_qp qp = {.context = &context};
static struct ibv_comp_channel channel = {.context = &context};
static struct ibv_mr mr = {.lkey = LOCAL};

static void begin(uint32_t size)
{
	stream = (struct cw_rdma){.queue = {.channel = &channel, .cq = &cq, .qp = &qp},
				  .window = window,
				  .out = out,
				  .out_mr = &mr,
				  .out_size = size,
				  .inlined = 128,
				  .peer_address = ADDRESS,
				  .peer_key = KEY,
				  .looked = now};
	from = to = 0;
	arrived = pending = has_read = messages = sent = free_again = their_messages = posted_receives = wraps = 0;
}

static void by_chance(uint32_t size)
{
	static uint8_t bytes[3 << 19], got[40000];
	uint64_t at = 0, taken = 0;
	begin(size);
	for (int turn = 0; turn < 400; turn++) {
		struct iovec iov[4];
		int n = 1 + (int)some(4);
		size_t all = 0, most = some(10) ? 6000 : sizeof bytes / 4;
		for (int i = 0; i < n; i++) {
			iov[i] = (struct iovec){bytes + all, some(4) ? some(most) : 0};
			all += iov[i].iov_len;
		}
		for (size_t i = 0; i < all; i++)
			bytes[i] = byte_at(at + i);
		CHECK(cw_rdma_send(r, iov, n) == 0);
		at += all;
		CHECK(arrived == at && pending == 0);
		size_t want = 1 + some(sizeof got);
		ssize_t k = cw_rdma_recv(r, got, want, 0);
		CHECK(k > 0 && (size_t)k <= want);
		for (ssize_t i = 0; i < k; i++)
			CHECK(got[i] == byte_at(taken + (uint64_t)i + 3));
		taken += (uint64_t)k;
		CHECK(r->err == 0 && r->sent == at && r->taken == taken);
	}
	CHECK(at > 4 * size && taken > CW_RDMA_WINDOW && wraps > 3 && posted_receives > 100);
}

int main(void)
{
	by_chance(CW_RDMA_LEAST_WINDOW);
	by_chance(CW_RDMA_WINDOW);
	puts("rdma_bytes_test ok");
	return 0;
}

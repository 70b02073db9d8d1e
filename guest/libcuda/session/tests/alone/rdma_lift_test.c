/*
 * How two ends agree on a pair of queue pairs, alone: rdma_lift.c, whose adapter and whose other
 * end are the test. What is told the other end whatever fails, what is asked after what, and what
 * becomes of each answer, for a new session and for one whose queue pair is lost.
 */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "session/rdma.h"
#include "session/tests/check.h"

static int64_t now;
#define cw_now_ms() now
#include "session/rdma_lift.c"

static struct cw_session *const s = &(struct cw_session){0};
static uint8_t old[1], other[1];

static struct {
	int open, send, recv, link, connect, agree[2], probe_send, ends, times_out, others;
} is; /* what goes how */
static int opens, reopens, offers, heard, connects, agrees, probes, cut;
static char declined[64], own_[2][128];
static uint8_t bytes[16];
static int64_t until_;

void cw_why(struct cw_session *of, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(of->why, sizeof of->why, fmt, ap);
	va_end(ap);
}

int cw_rdma_open(struct cw_rdma **out, const struct cw_rdma_port *port, struct cw_rdma_offer *own, char *why, size_t cap)
{
	CHECK(port->number == 3);
	opens++;
	own->link = CW_RDMA_ETHERNET;
	if (is.open)
		snprintf(why, cap, "no memory");
	else
		*out = (void *)other;
	return is.open;
}

int cw_rdma_reopen(struct cw_rdma *r, const struct cw_rdma_port *port, struct cw_rdma_offer *own, char *why, size_t cap)
{
	CHECK(r == (void *)old && port->number == 3);
	reopens++;
	own->link = CW_RDMA_ETHERNET;
	if (is.open)
		snprintf(why, cap, "no memory");
	return is.open;
}

int cw_rdma_offer_send(struct cw_session *of, const struct cw_rdma_offer *o, const char *why)
{
	CHECK(of == s && o->link == CW_RDMA_ETHERNET);
	offers++;
	snprintf(declined, sizeof declined, "%s", why);
	return is.send;
}

int cw_rdma_offer_recv(struct cw_session *of, struct cw_rdma_offer *o)
{
	CHECK(of == s && offers == 1);
	heard++;
	*o = (struct cw_rdma_offer){.link = is.link ? CW_RDMA_INFINIBAND : CW_RDMA_ETHERNET, .reach = 5};
	return is.recv;
}

int cw_rdma_connect(struct cw_rdma *r, const struct cw_rdma_port *port, const struct cw_rdma_offer *own, const struct cw_rdma_offer *peer,
		    char *why, size_t cap)
{
	CHECK(r == (opens ? (void *)other : (void *)old) && port->number == 3 && own->link == peer->link && agrees == 0);
	connects++;
	if (is.connect)
		snprintf(why, cap, "no such state");
	return is.connect;
}

int cw_rdma_agree(struct cw_session *of, const char *own)
{
	CHECK(of == s && agrees < 2);
	snprintf(own_[agrees], sizeof own_[agrees], "%s", own);
	return is.agree[agrees++];
}

int cw_rdma_send(struct cw_rdma *r, struct iovec *iov, int n)
{
	CHECK(r == (opens ? (void *)other : (void *)old) && n == 1 && iov->iov_len == 16);
	memcpy(bytes, iov->iov_base, 16);
	probes++;
	return is.probe_send;
}

ssize_t cw_rdma_recv(struct cw_rdma *r, void *p, size_t n, int64_t until)
{
	CHECK(r == (opens ? (void *)other : (void *)old));
	until_ = until;
	if (is.times_out)
		return -ETIMEDOUT;
	size_t k = n < 7 ? n : 7;
	memcpy(p, bytes + 16 - n, k); /* in pieces */
	if (is.others)
		*(uint8_t *)p ^= 1;
	cut++;
	return is.ends && cut == 2 ? is.ends > 0 ? 0 : is.ends : (ssize_t)k;
}

void cw_rdma_why(struct cw_rdma *r, char *out, size_t cap)
{
	CHECK(r);
	snprintf(out, cap, "the cable is out");
}

static struct cw_rdma *at;
static int reach;
static int lifts(int again)
{
	static const struct cw_rdma_port port = {.device = "mlx5_0", .number = 3};
	opens = reopens = offers = heard = connects = agrees = probes = cut = 0;
	memset(own_, 0, sizeof own_);
	s->why[0] = 0;
	now = 5000;
	reach = -1;
	at = (void *)old;
	int err = cw_rdma_lift(s, &at, &port, &reach, again);
	CHECK(opens == !again && reopens == again && offers == 1);
	CHECK(at == (again ? (void *)old : is.open ? NULL : (void *)other));
	memset(&is, 0, sizeof is);
	return err;
}

static void agree(void)
{
	for (int again = 0; again < 2; again++) {
		CHECK(lifts(again) == 0 && reach == 5 && !declined[0] && heard == 1 && connects == 1 && agrees == 2 && !own_[0][0] &&
		      !own_[1][0]);
		CHECK(probes == 1 && cut == 3 && until_ == (again ? 7000 : 15000) && !s->why[0]);
	}
}

static void no_queue_pair(void)
{
	is.open = -ENODEV;
	CHECK(lifts(0) == -ENODEV && !strcmp(declined, "no memory") && !strcmp(s->why, "no memory") && heard == 0 && agrees == 0);
	is.open = -EPIPE; /* the session has ended */
	CHECK(lifts(1) == -EPIPE && !strcmp(declined, "no memory") && heard == 0);
	static const int hears[] = {0, -EOPNOTSUPP, -EPIPE, -EPROTO};
	for (int i = 0; i < 4; i++) {
		/* There may be one later: what the other end says is heard, lest it be taken for a
		 * word. */
		is.open = -ECONNRESET;
		is.recv = hears[i];
		CHECK(lifts(1) == (i < 2 ? -ECONNRESET : hears[i]) && heard == 1 && agrees == 0 && !strcmp(s->why, "no memory"));
	}
}

static void no_offer(void)
{
	for (int again = 0; again < 2; again++) {
		is.send = -EPIPE;
		CHECK(lifts(again) == -EPIPE && heard == 0 && agrees == 0);
		is.recv = -EPIPE;
		CHECK(lifts(again) == -EPIPE && agrees == 0);
		is.recv = -EOPNOTSUPP;
		CHECK(lifts(again) == (again ? -ECONNRESET : -EOPNOTSUPP) && agrees == 0);
	}
}

static void no_agreement(void)
{
	for (int again = 0; again < 2; again++) {
		int broken = again ? -ECONNRESET : -EIO;
		is.link = 1;
		is.agree[0] = -EIO;
		CHECK(lifts(again) == broken && connects == 0 && agrees == 1 && probes == 0 && strstr(own_[0], "different links"));
		is.connect = -EINVAL;
		is.agree[0] = -EIO;
		CHECK(lifts(again) == broken && agrees == 1 && probes == 0 && !strcmp(own_[0], "no such state"));
		is.agree[0] = -EPIPE;
		CHECK(lifts(again) == -EPIPE && agrees == 1 && probes == 0);
		is.agree[1] = -EIO;
		CHECK(lifts(again) == broken && agrees == 2);
		is.agree[1] = -ETIMEDOUT;
		CHECK(lifts(again) == -ETIMEDOUT && agrees == 2);
	}
}

/* What does not come through is what the other end is told, each in its words. */
static void probed(void)
{
	is.probe_send = -EPIPE;
	CHECK(lifts(0) == 0 && cut == 0 && !strcmp(own_[1], "the cable is out"));
	is.ends = 1;
	CHECK(lifts(0) == 0 && cut == 2 && !strcmp(own_[1], "the cable is out"));
	is.ends = -EIO;
	CHECK(lifts(0) == 0 && cut == 2 && !strcmp(own_[1], "the cable is out"));
	is.others = 1;
	CHECK(lifts(0) == 0 && !strcmp(own_[1], "other bytes came than were sent"));
	for (int again = 0; again < 2; again++) {
		is.times_out = 1;
		CHECK(lifts(again) == 0 && strstr(own_[1], again ? "within 2 s (mlx5_0 port 3)" : "within 10 s (mlx5_0 port 3)"));
	}
}

int main(void)
{
	agree();
	no_queue_pair();
	no_offer();
	no_agreement();
	probed();
	puts("rdma_lift_test ok");
	return 0;
}

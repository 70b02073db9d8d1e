/*
 * What a guest that is the RDMA end itself is sent out of band, alone: rdma_oob.c, whose other end
 * is the test. Offers that are none, reasons, and bytes of no sense at all, in packets of any size:
 * what is accepted is sound, and what is shown of the rest can be shown.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>

#include "session/rdma.h"
#include "session/tests/check.h"

#include <poll.h>
static int f_poll(struct pollfd *p) { return poll(p, 1, 0); }
#define poll(p, n, ms) f_poll(p)
#include "session/rdma_oob.c"
#include "session/tests/alone/own_fakes.h"

struct cw_session cw_s;
static struct cw_session *const s = &cw_s;
static int far;

void cw_why(struct cw_session *of, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	CHECK(of == s && vsnprintf(s->why, sizeof s->why, fmt, ap) > 0);
	va_end(ap);
}

static void begin(void)
{
	int fds[2];
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
	s->fd = fds[0];
	far = fds[1];
	s->why[0] = 0;
	cw_rdma_oob.mount = 0;
	cw_rdma_oob.at = cw_rdma_oob.end = 0;
	atomic_store(&cw_rdma_oob.stop, 1); /* nothing is waited for */
}

static void end(void)
{
	close(s->fd);
	close(far);
}

static void packet(const void *p, size_t n) { CHECK(send(far, p, n, MSG_NOSIGNAL) == (ssize_t)n); }

static const struct cw_rdma_offer good = {
	.link = CW_RDMA_ETHERNET, .mtu = 3, .queue = 7, .psn = 9, .key = 5, .size = CW_RDMA_WINDOW, .address = 1ull << 40, .gid = {1}};

/* An offer as cw_rdma_offer_send has it, of which the test is the receiver. */
static size_t encoded(uint8_t *b, size_t cap, const struct cw_rdma_offer *o, const char *declined)
{
	begin();
	CHECK(cw_rdma_offer_send(s, o, declined) == 0);
	ssize_t n = recv(far, b, cap, 0);
	CHECK(n >= OFFER);
	end();
	return (size_t)n;
}

static int offered(const struct cw_rdma_offer *o, struct cw_rdma_offer *got)
{
	uint8_t b[OFFER + REASON];
	size_t n = encoded(b, sizeof b, o, "");
	begin();
	packet(b, n);
	int err = cw_rdma_offer_recv(s, got);
	end();
	return err;
}

static void test_offers(void)
{
	struct cw_rdma_offer got;
	CHECK(offered(&good, &got) == 0 && !memcmp(&got, &good, sizeof got));
	struct cw_rdma_offer rows[13];
	int n = 0;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		rows[i] = good;
	rows[n++].link = 3;
	rows[n++].link = 0;
	rows[n++].mtu = 0;
	rows[n++].mtu = 6;
	rows[n++].queue = 0;
	rows[n++].queue = 1 << 24;
	rows[n++].psn = 1 << 24;
	rows[n++].size = 0;
	rows[n++].size = CW_RDMA_LEAST_WINDOW / 2;
	rows[n++].size = CW_RDMA_WINDOW * 2;
	rows[n++].size = CW_RDMA_WINDOW - 8;
	rows[n++].address = UINT64_MAX - 4096;
	rows[n++].gid[0] = 0;
	for (int i = 0; i < n; i++) {
		if (offered(&rows[i], &got) != -EPROTO)
			fprintf(stderr, "row %d is taken\n", i);
		CHECK(offered(&rows[i], &got) == -EPROTO && strstr(s->why, "malformed"));
	}
	/* InfiniBand has a LID, or a GID. */
	struct cw_rdma_offer ib = {
		.link = CW_RDMA_INFINIBAND, .mtu = 5, .lid = 3, .queue = (1 << 24) - 1, .psn = (1 << 24) - 1, .size = CW_RDMA_LEAST_WINDOW};
	CHECK(offered(&ib, &got) == 0 && got.lid == 3);
	ib.lid = 0;
	CHECK(offered(&ib, &got) == -EPROTO);
	ib.gid[15] = 1;
	CHECK(offered(&ib, &got) == 0);
}

/* A reason may hold what a terminal would obey. */
static void test_reasons(void)
{
	struct cw_rdma_offer got;
	uint8_t b[OFFER + REASON];
	size_t n = encoded(b, sizeof b, &good, "no \033[31madapter\n\177");
	begin();
	packet(b, n);
	CHECK(cw_rdma_offer_recv(s, &got) == -EOPNOTSUPP && !strcmp(s->why, "the GPU server: no ?[31madapter ?"));
	end();
	begin();
	packet("\x05\0a\tb\0c", 7);
	CHECK(cw_rdma_agree(s, "") == -EIO && !strcmp(s->why, "the GPU server: a?b?c"));
	end();
	begin();
	packet("\0\0", 2);
	CHECK(cw_rdma_agree(s, "") == 0);
	end();
	/* This end's own reason is what counts, whatever the other's is. */
	begin();
	packet("\x01\0x", 3);
	CHECK(cw_rdma_agree(s, "no memory") == -EIO && !strcmp(s->why, "no memory"));
	end();
	/* One that is too long, a piece of one, none, and an end. */
	begin();
	packet("\x91\x01", 2);
	CHECK(cw_rdma_agree(s, "") == -EIO && strstr(s->why, "does not go on"));
	end();
	begin();
	packet("\x05\0abc", 5);
	CHECK(cw_rdma_agree(s, "") == -EIO && strstr(s->why, "does not go on"));
	end();
	begin();
	CHECK(cw_rdma_offer_recv(s, &got) == -ETIMEDOUT);
	end();
	begin();
	close(far);
	CHECK(cw_rdma_offer_recv(s, &got) == -EPIPE && cw_rdma_agree(s, "") != 0);
	close(s->fd);
}

static uint64_t x = 88172645463325252ull;
static uint64_t some(void)
{
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return x >> 11;
}

/* Offers of which some bytes are others, cut into packets anywhere, with whatever behind. */
static void test_garbage(void)
{
	uint8_t whole[OFFER + REASON], b[OFFER + REASON + 64];
	size_t size = encoded(whole, sizeof whole, &good, "");
	int taken = 0;
	for (int turn = 0; turn < 20000; turn++) {
		begin();
		memcpy(b, whole, size);
		size_t n = size + some() % 64;
		for (size_t i = size; i < n; i++)
			b[i] = (uint8_t)some();
		for (uint64_t k = some() % 4; k > 0; k--)
			b[some() % 3 ? 8 + some() % (OFFER - 8) : some() % n] = (uint8_t)(some() % 2 ? some() : some() % 4);
		for (size_t at = 0; at < n;) {
			size_t k = 1 + some() % n;
			k = k < n - at ? k : n - at;
			packet(b + at, k);
			at += k;
		}
		struct cw_rdma_offer got;
		int err = cw_rdma_offer_recv(s, &got);
		CHECK(err == 0 ? sound(&got) : s->why[0] != 0);
		for (const char *c = s->why; *c; c++)
			CHECK((unsigned char)*c >= ' ' && *c != 0x7f);
		taken += err == 0;
		if (err == 0)
			cw_rdma_agree(s, "");
		end();
	}
	CHECK(taken > 1000 && taken < 19000);
}

/* What is asked for comes whole and in order, however it was cut, and what is behind it is for who
 * asks next. */
static void test_pieces(void)
{
	uint8_t b[64], got[64];
	for (size_t i = 0; i < sizeof b; i++)
		b[i] = (uint8_t)(i * 37 + 1);
	for (size_t cut = 1; cut <= sizeof b; cut++)
		for (size_t first = 0; first <= sizeof b; first += 7) {
			begin();
			for (size_t at = 0; at < sizeof b; at += cut)
				packet(b + at, cut < sizeof b - at ? cut : sizeof b - at);
			memset(got, 0, sizeof got);
			CHECK(cw_rdma_oob_recv(s, got, first, 0) == 0 && cw_rdma_oob_recv(s, got + first, sizeof got - first, 0) == 0);
			CHECK(!memcmp(got, b, sizeof b) && cw_rdma_oob_recv(s, got, 1, 0) == -ETIMEDOUT);
			end();
		}
}

int main(void)
{
	test_offers();
	test_pieces();
	test_reasons();
	test_garbage();
	return 0;
}

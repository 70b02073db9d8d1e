/*
 * The stream of a guest that is the RDMA end itself where its queue pairs are lost, alone:
 * rdma_lasting.c over queue pairs of the test's, which end at any byte of either direction. What
 * each end is handed is what the other sent, each byte once; and what ends a session.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "session/rdma_lasting.h"
#include "session/tests/check.h"

static int64_t now = 1000;
static int thread = 1; /* that calls */
static int f_nap(const struct timespec *t)
{
	now += t->tv_sec * 1000 + t->tv_nsec / 1000000;
	return 0;
}

#define cw_now_ms() (now)
#define nanosleep(t, rest) ((void)(rest), f_nap(t))
#define syscall(n) ((void)(n), thread)
#include "session/rdma_lasting.c"

struct cw_session cw_s;
static struct cw_session *const s = &cw_s;

/* --- what rdma_lasting.c stands on ------------------------------------------------------------ */

_Atomic uint32_t cw_signals_waiting;
__thread uint32_t cw_signals_held;
void cw_signals_hold(void) { CHECK(0); }
void cw_signals_let(void) { CHECK(0); }
void cw_lock_slow(struct cw_lock *k)
{
	(void)k;
	CHECK(0); /* nobody else has it */
}
void cw_log(enum cw_log_level level, const char *fmt, ...) { (void)level, (void)fmt; }

int cw_tcp_send(struct cw_session *of, uint16_t type, uint16_t flags, uint64_t arg, const void *p, size_t n)
{
	struct cw_frame f = {(uint32_t)n, type, flags, arg};
	struct iovec v[2] = {{&f, sizeof f}, {(void *)(uintptr_t)p, n}};
	return cw_lasting_send(of, v, n ? 2 : 1);
}

/* --- the server, and the queue pair to it ----------------------------------------------------- */

enum { MOST = 4 << 20 };
static uint8_t in[MOST], out[MOST],
	/* What the server has of the guest's frames, its own, and what is under way, with its
	 * acknowledgements. */
	wire[MOST];
static struct {
	size_t got, end, acked; /* how much; what the guest has acknowledged */
	size_t own;		/* position in out that is sent next */
	size_t from, to;	/* of wire */
	/* Bytes until the queue pair is lost, in either direction; negative: never. */
	int64_t left_in, left_out;
	int err, pairs, attempts;
	int refuses;  /* so many attempts come to nothing */
	uint64_t far; /* if not 0, what it says that it has */
	int mid;      /* bytes of the guest's frame that are to come */
	struct cw_frame head;
	size_t have;
	char why[800];
} far;

static uint64_t x = 88172645463325252ull;
static uint64_t some(void)
{
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return x >> 11;
}

void cw_rdma_why(struct cw_rdma *r, char *text, size_t cap)
{
	(void)r;
	snprintf(text, cap, "%.399s", far.err == -ECONNRESET ? "it is lost" : far.why);
}

void cw_rdma_fail(struct cw_rdma *r, int err, const char *why)
{
	(void)r;
	far.err = err;
	snprintf(far.why, sizeof far.why, "%s", why);
}

int64_t cw_rdma_drain(struct cw_rdma *r, int64_t until)
{
	(void)r, (void)until;
	return far.err ? far.err : 7;
}

/* The server reads a byte. Acknowledgements are none of the stream's, and lie between frames. */
static void hears(uint8_t b)
{
	if (far.mid == 0) {
		((uint8_t *)&far.head)[far.have++] = b;
		if (far.have < sizeof far.head)
			return;
		far.have = 0;
		if (far.head.type == CW_FRAME_ACK) {
			CHECK(far.head.len == 0 && far.head.arg >= far.acked && far.head.arg <= far.end);
			far.acked = far.head.arg;
			return;
		}
		memcpy(in + far.got, &far.head, sizeof far.head);
		far.got += sizeof far.head;
		far.mid = (int)far.head.len;
		return;
	}
	in[far.got++] = b;
	far.mid--;
}

int cw_rdma_send(struct cw_rdma *r, struct iovec *iov, int n)
{
	(void)r;
	for (; n > 0; iov++, n--)
		for (size_t i = 0; i < iov->iov_len; i++) {
			if (far.err)
				return far.err;
			if (far.left_in-- == 0) {
				far.err = -ECONNRESET;
				return far.err;
			}
			hears(((uint8_t *)iov->iov_base)[i]);
		}
	return 0;
}

/* The server writes what there is, with acknowledgements where frames end. */
static void says(void)
{
	while (far.own < far.end && far.to + (64 << 10) < MOST) {
		struct cw_frame f;
		memcpy(&f, out + far.own, sizeof f);
		size_t n = sizeof f + f.len;
		memcpy(wire + far.to, out + far.own, n);
		far.to += n, far.own += n;
		if (some() % 3 == 0) {
			struct cw_frame ack = {0, CW_FRAME_ACK, 0, far.got};
			memcpy(wire + far.to, &ack, sizeof ack);
			far.to += sizeof ack;
		}
	}
}

ssize_t cw_rdma_recv(struct cw_rdma *r, void *p, size_t n, int64_t until)
{
	(void)r, (void)until;
	if (far.err)
		return far.err;
	if (far.from == far.to) {
		far.from = far.to = 0;
		says();
	}
	size_t k = far.to - far.from < n ? far.to - far.from : n;
	k = 1 + some() % k;
	if (far.left_out >= 0 && (int64_t)k > far.left_out)
		k = (size_t)far.left_out;
	if (k == 0) {
		far.err = -ECONNRESET;
		return far.err;
	}
	far.left_out -= far.left_out > 0 ? (int64_t)k : 0;
	memcpy(p, wire + far.from, k);
	far.from += k;
	return (ssize_t)k;
}

/* Another queue pair: what the guest does not have comes again. */
static int again(struct cw_session *of, uint64_t got, int64_t until, uint64_t *is)
{
	CHECK(of == s && until >= now && got <= far.end && got >= far.acked);
	far.attempts++;
	if (far.refuses > 0) {
		far.refuses--;
		return -ECONNRESET;
	}
	far.pairs++;
	far.err = 0;
	far.left_in = far.left_out = -1;
	far.from = far.to = far.have = 0;
	far.own = got; /* perhaps in the middle of a frame, whose rest comes first */
	for (size_t at = 0; at < got;) {
		struct cw_frame f;
		memcpy(&f, out + at, sizeof f);
		if (at + sizeof f + f.len > got) {
			size_t n = at + sizeof f + f.len - got;
			memcpy(wire, out + got, n);
			far.to = n;
			far.own = got + n;
		}
		at += sizeof f + f.len;
	}
	*is = far.far ? far.far : far.got;
	return 0;
}

static size_t frame(uint8_t *b, size_t n)
{
	struct cw_frame f = {(uint32_t)n, CW_FRAME_WRITE, 0, some()};
	memcpy(b, &f, sizeof f);
	for (size_t i = 0; i < n; i++)
		b[sizeof f + i] = (uint8_t)(some() >> 3);
	return sizeof f + n;
}

static void begin(void)
{
	memset(&far, 0, sizeof far);
	far.left_in = far.left_out = -1;
	thread = 1;
	cw_lasting_free();
	CHECK(cw_lasting_begin(NULL) == 0);
	cw_lasting.again = again;
	atomic_store(&cw_lasting.on, 1);
}

static int send_frame(const uint8_t *b, size_t n)
{
	uint8_t copy[1024]; /* which whoever sends may change */
	CHECK(n <= sizeof copy);
	memcpy(copy, b, n);
	struct iovec v[2] = {{copy, sizeof(struct cw_frame)}, {copy + sizeof(struct cw_frame), n - sizeof(struct cw_frame)}};
	int err = cw_lasting_send(s, v, 2);
	memset(copy, 0xee, n);
	return err;
}

static void take(uint8_t *p, size_t n)
{
	for (size_t done = 0; done < n;) {
		size_t most = 1 + some() % (n - done);
		ssize_t k = cw_lasting_recv(s, p + done, most, 0);
		CHECK(k > 0 && (size_t)k <= most);
		done += (size_t)k;
	}
}

/* --- tests ------------------------------------------------------------------------------------ */

enum { FRAMES = 12 };

/* Frames each way, where the queue pair is lost at a byte of either, and again later. Each byte
 * comes once. */
static void exchange(int64_t lost_in, int64_t lost_out, int receives)
{
	static uint8_t sent[MOST], came[MOST];
	size_t n = 0, lens[FRAMES], taken = 0;
	begin();
	for (int i = 0; i < FRAMES; i++) {
		lens[i] = frame(sent + n, some() % 60);
		n += lens[i];
		far.end += frame(out + far.end, some() % 60);
	}
	far.left_in = lost_in, far.left_out = lost_out;
	size_t at = 0;
	for (int i = 0; i < FRAMES; i++) {
		/* Who sends may be who receives: DATA that was asked for. */
		thread = receives ? 1 : 2;
		CHECK(send_frame(sent + at, lens[i]) == 0);
		at += lens[i];
		thread = 1;
		size_t k = some() % 50;
		k = k < far.end - taken ? k : far.end - taken;
		take(came + taken, k);
		taken += k;
		if (i == FRAMES / 2 && far.pairs > 0)
			far.left_in = (int64_t)(some() % 300), far.left_out = (int64_t)(some() % 300);
	}
	take(came + taken, far.end - taken);
	if (far.err) { /* as the next frame would find */
		far.end += frame(out + far.end, 5);
		take(came + taken, 1);
	}
	CHECK(!memcmp(came, out, taken));
	if (far.got != n || memcmp(in, sent, n))
		fprintf(stderr, "lost at %lld and %lld: %zu bytes of %zu\n", (long long)lost_in, (long long)lost_out, far.got, n);
	CHECK(far.got == n && !memcmp(in, sent, n));
}

static void test_every_byte(void)
{
	int lost = 0;
	for (int turn = 0; turn < 4; turn++)
		for (int64_t k = 0; k < 700; k++) {
			exchange(turn % 2 ? k : -1, turn % 2 ? -1 : k, turn / 2);
			lost += far.pairs;
		}
	CHECK(lost > 1000);
	for (int turn = 0; turn < 1000; turn++)
		exchange((int64_t)(some() % 600), (int64_t)(some() % 600), (int)(some() % 2));
}

/* Much in each direction: what is kept wraps, and what came is acknowledged, before and after a
 * loss. */
static void test_much(void)
{
	static uint8_t b[1024], got[MOST], all[MOST];
	size_t sent = 0;
	begin();
	for (int i = 0; i < 60; i++)
		far.end += frame(out + far.end, 40000);
	far.left_out = far.end / 2;
	for (size_t at = 0; at < far.end; at += 30000) {
		size_t n = frame(b, 900);
		thread = 2;
		CHECK(send_frame(b, n) == 0);
		memcpy(all + sent, b, n);
		sent += n;
		thread = 1;
		take(got + at, far.end - at < 30000 ? far.end - at : 30000);
	}
	CHECK(far.got == sent && !memcmp(in, all, sent));
	CHECK(!memcmp(got, out, far.end) && far.pairs == 1 && far.acked > far.end - (1 << 20) - ACK_EACH);
	for (int i = 0; i < 2 * CW_LASTING_KEPT / 916; i++) {
		size_t n = frame(b, 900);
		far.got = 0; /* the server has no room to remember all of it */
		CHECK(send_frame(b, n) == 0 && !memcmp(in, b, n));
	}
	/* Behind all of that, a loss. */
	uint64_t end = cw_lasting.end;
	far.left_in = 10;
	far.got = 0;
	size_t n = frame(b, 900);
	far.far = end + 10 - 10; /* the server has all but this one */
	far.mid = 0, far.have = 0;
	CHECK(send_frame(b, n) == 0 && far.got == n && !memcmp(in, b, n));
}

/* Attempts that come to nothing are made again, for so long. */
static void test_again(void)
{
	uint8_t b[100], c[200];
	size_t n = frame(b, 50);
	begin();
	far.end = frame(out, 100);
	far.err = -ECONNRESET;
	far.refuses = 5;
	int64_t since = now;
	CHECK(send_frame(b, n) == 0);
	take(c, far.end);
	CHECK(far.attempts == 6 && now - since < 2000 && far.got == n && !memcmp(c, out, far.end) && !memcmp(in, b, n));
	begin();
	far.err = -ECONNRESET;
	far.refuses = 1 << 20;
	since = now;
	CHECK(cw_lasting_recv(s, c, 1, 0) == -EPIPE && now - since >= 9000 && now - since <= cw_lasting_limit_ms);
	CHECK(strstr(far.why, "it is lost; there was no other within 10 s") && far.attempts < 40);
	CHECK(send_frame(b, n) == -EPIPE && cw_lasting_recv(s, c, 1, 0) == -EPIPE && cw_lasting_leave(now + 100) == -EPIPE);
}

/* What a server says that cannot be, and what is no loss, ends it. */
static void test_ends(void)
{
	uint8_t b[100], c[100];
	size_t n = frame(b, 50);
	uint64_t rows[] = {n + 1, UINT64_MAX};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		begin();
		CHECK(send_frame(b, n) == 0);
		far.far = rows[i];
		far.err = -ECONNRESET;
		CHECK(cw_lasting_recv(s, c, 1, 0) == -EPIPE && strstr(far.why, "the GPU server says that it has") && far.pairs == 1);
	}
	/* Fewer than are kept. */
	begin();
	CHECK(send_frame(b, n) == 0);
	cw_lasting.end += CW_LASTING_KEPT;
	far.far = n - 1;
	far.err = -ECONNRESET;
	CHECK(cw_lasting_recv(s, c, 1, 0) == -EPIPE && strstr(far.why, "says that it has"));
	/* An end, of which there is no other. */
	begin();
	far.err = -EIO;
	CHECK(cw_lasting_recv(s, c, 1, 0) == -EIO && send_frame(b, n) == -EIO && far.attempts == 0);
	/* A loss before the session has begun, or once it ends. */
	begin();
	atomic_store(&cw_lasting.on, 0);
	far.err = -ECONNRESET;
	CHECK(cw_lasting_recv(s, c, 1, 0) == -ECONNRESET && send_frame(b, n) == -ECONNRESET && far.attempts == 0);
	/* An acknowledgement with bytes. */
	begin();
	struct cw_frame ack = {1, CW_FRAME_ACK, 0, 0};
	memcpy(wire, &ack, sizeof ack);
	far.to = sizeof ack;
	ssize_t k = 0;
	while ((k = cw_lasting_recv(s, c, 1, 0)) == 0)
		;
	CHECK(k == -EPROTO);
}

/* A process that ends says so over what there is; one that is lost has a moment to be found. */
static void test_leave(void)
{
	begin();
	CHECK(cw_lasting_leave(now + 500) == 7);
	begin();
	far.err = -ECONNRESET;
	int64_t since = now;
	CHECK(cw_lasting_leave(now + 500) == -ECONNRESET && now - since >= 500 && now - since < 510 && !atomic_load(&cw_lasting.on));
}

int main(void)
{
	test_every_byte();
	test_much();
	test_again();
	test_ends();
	test_leave();
	return 0;
}

/* The ring and its slots against a worker process: order, wrap, many producers, more callers than
 * slots, long replies, blobs, device output, sleeping on both sides. */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gen/ops.h"
#include "session/tests/fake_worker.h"

/* Ops that the fake gives a meaning of its own: the handler sees only numbers. */
enum {
	PUT = CW_OP_MEMCPY_HTO_D,
	SUM = CW_OP_MEM_GET_INFO,
	LONG = CW_OP_MODULE_LIST_FUNCTIONS,
	BLOB = CW_OP_MODULE_LOAD,
	PRINT = CW_OP_CTX_SYNCHRONIZE,
	HOLD = CW_OP_STREAM_SYNCHRONIZE,
	SLOW = CW_OP_EVENT_SYNCHRONIZE,
	REGIONS_THERE = CW_OP_MEM_FREE,
	READS = CW_OP_MEM_ALLOC
};
enum { THREADS = 8, LONG_LEN = 20000 };

static struct {
	uint64_t count, bytes, bad;
	uint64_t last[512];
	struct {
		uint32_t slot, seq;
	} held[128];
	int nheld;
} w;

static int handler(struct fake_call *c)
{
	static uint64_t sum[3];
	static uint8_t text[LONG_LEN + 8];
	uint64_t a[2];
	struct cw_span s;
	memcpy(a, c->fixed, sizeof a);
	memcpy(&s, c->fixed, sizeof s);
	switch (c->rec->op) {
	case PUT: /* {n, span}: n counts up for each thread; the bytes are all (uint8_t)n */
		memcpy(&s, c->fixed + 8, sizeof s);
		w.bad += a[0] != w.last[c->rec->thread % 512] + 1;
		w.last[c->rec->thread % 512] = a[0];
		for (uint32_t i = 0; i < s.len; i++)
			w.bad += fake_span(c, s)[i] != (uint8_t)a[0];
		w.count++;
		w.bytes += s.len;
		return 0;
	case SUM:
		sum[0] = w.count, sum[1] = w.bytes, sum[2] = w.bad;
		c->reply = sum;
		c->reply_len = sizeof sum;
		return 0;
	case LONG:
		s = (struct cw_span){LONG_LEN, 8};
		memcpy(text, &s, sizeof s);
		for (int i = 0; i < LONG_LEN; i++)
			text[8 + i] = (uint8_t)(i * 7);
		c->reply = text;
		c->reply_len = sizeof text;
		return 0;
	case BLOB:
		sum[0] = 0;
		for (uint32_t i = 0; i < s.len; i++)
			sum[0] += (uint64_t)fake_span(c, s)[i] * (i % 251);
		c->reply = sum;
		c->reply_len = 8;
		return 0;
	case PRINT:
		for (int i = 0; i < 30; i++)
			fake_console(c->w, "hello from the device\n");
		return 0;
	case SLOW: usleep(20000); return 0;
	case READS: /* of a region of 8192 bytes, and of none */
		sum[0] = (uint64_t)fake_reads(c->w, (uint32_t)a[0], 0, 8192) && fake_reads(c->w, (uint32_t)a[0], 8191, 1);
		sum[1] = (uint64_t)(fake_reads(c->w, (uint32_t)a[0], 0, 8193) || fake_reads(c->w, (uint32_t)a[0], 8192, 1) ||
				    fake_reads(c->w, (uint32_t)a[0], UINT64_MAX, 2) || fake_reads(c->w, 255, 0, 1));
		c->reply = sum;
		c->reply_len = 16;
		return 0;
	case REGIONS_THERE:
		sum[0] = (uint64_t)fake_regions(c->w);
		c->reply = sum;
		c->reply_len = 8;
		return 0;
	case HOLD: /* answers once THREADS + 56 callers wait, or every one of a full set of slots */
		w.held[w.nheld].slot = c->slot;
		w.held[w.nheld++].seq = c->seq;
		if (w.nheld == 64) {
			for (int i = 0; i < w.nheld; i++)
				fake_answer(c->w, w.held[i].slot, w.held[i].seq, 0, NULL, 0);
			w.nheld = 0;
		}
		return 1;
	}
	c->result = 801;
	return 0;
}

static void put(uint64_t n, uint32_t len)
{
	struct cw_tx tx;
	CHECK(cw_begin(&tx, PUT, 16, len, 0) == 0);
	uint8_t *f = tx.rec + sizeof(struct cw_record);
	struct cw_span s = {len, sizeof(struct cw_record) + 16};
	memcpy(f, &n, 8);
	memcpy(f + 8, &s, 8);
	memset(tx.rec + s.off, (int)(uint8_t)n, len);
	CHECK(cw_commit(&tx) == 0);
}

static void call(uint16_t op, void *out, size_t n)
{
	struct cw_tx tx;
	struct cw_reply rep;
	CHECK(cw_begin(&tx, op, 16, 0, 1) == 0);
	CHECK(cw_commit_wait(&tx, &rep) == 0);
	CHECK(rep.result == 0 && rep.len >= n);
	if (n)
		memcpy(out, rep.data, n);
	cw_reply_release(&rep);
}

static void *producer(void *arg)
{
	uint64_t rounds = *(uint64_t *)arg, x = cw_thread_ordinal();
	for (uint64_t n = 1; n <= rounds; n++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		put(n, (uint32_t)(x >> 40) % (n % 97 == 0 ? 40000 : 300));
		uint64_t sum[3];
		if (n % 16 == 0) {
			call(SUM, sum, sizeof sum);
			CHECK(sum[2] == 0);
		}
	}
	return NULL;
}

static void *holder(void *arg)
{
	(void)arg;
	call(HOLD, NULL, 0);
	return NULL;
}

static void many(void *(*fn)(void *), int n, void *arg)
{
	pthread_t t[256];
	for (int i = 0; i < n; i++)
		CHECK(pthread_create(&t[i], NULL, fn, arg) == 0);
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
}

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void latency(void)
{
	enum { N = 501 };
	static double d[N];
	for (int i = 0; i < N; i++) {
		double a = now_us();
		call(CW_OP_SESSION_FENCE, NULL, 0);
		d[i] = now_us() - a;
	}
	qsort(d, N, sizeof d[0], by_value);
	double a = now_us();
	for (int i = 0; i < N; i++)
		put((uint64_t)(i + 1), 16);
	printf("round trip %.2f us median, %.2f us p10; record appended in %.3f us\n", d[N / 2], d[N / 10], (now_us() - a) / N);
}

static void test_console(void)
{
	char path[] = "/tmp/causeway-console-XXXXXX", got[4096];
	int fd = mkstemp(path), out = dup(1);
	CHECK(fd >= 0 && out >= 0);
	unlink(path);
	fflush(stdout);
	dup2(fd, 1);
	printf("before\n");
	call(PRINT, NULL, 0);
	printf("after\n");
	fflush(stdout);
	dup2(out, 1);
	close(out);
	ssize_t n = pread(fd, got, sizeof got - 1, 0);
	CHECK(n == 7 + 30 * 22 + 6);
	got[n] = 0;
	CHECK(!strncmp(got, "before\nhello from the device\n", 29) && !strcmp(got + n - 6, "after\n"));
	close(fd);
}

static void test_long(void)
{
	struct cw_tx tx;
	struct cw_reply rep;
	CHECK(cw_begin(&tx, LONG, 0, 0, 1) == 0 && cw_commit_wait(&tx, &rep) == 0);
	CHECK(rep.result == 0 && rep.len == LONG_LEN + 8);
	for (int i = 0; i < LONG_LEN; i++)
		CHECK(rep.data[8 + i] == (uint8_t)(i * 7));
	cw_reply_release(&rep);
}

static void test_blob(void)
{
	enum { LEN = 3000001 };
	uint8_t *p = malloc(LEN);
	uint64_t want = 0, got;
	uint32_t id;
	for (uint32_t i = 0; i < LEN; i++) {
		p[i] = (uint8_t)(i * 31 + i / 256);
		want += (uint64_t)p[i] * (i % 251);
	}
	CHECK(cw_blob_send(p, LEN, &id) == 0);
	struct cw_tx tx;
	struct cw_reply rep;
	CHECK(cw_begin(&tx, BLOB, 8, 0, 1) == 0);
	struct cw_span s = {LEN, CW_SPAN_BLOB | id};
	memcpy(tx.rec + sizeof(struct cw_record), &s, sizeof s);
	CHECK(cw_commit_wait(&tx, &rep) == 0 && rep.result == 0);
	memcpy(&got, rep.data, 8);
	CHECK(got == want);
	cw_reply_release(&rep);
	free(p);
}

/* The worker hears of each region that comes and of each that goes, and of no other. */
static void test_regions(void)
{
	enum { STEPS = 200, MOST = 8 };
	struct cw_region *live[MOST];
	uint64_t before, n = 0, there, x = 7;
	call(REGIONS_THERE, &before, sizeof before);
	for (int i = 0; i < STEPS + MOST; i++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		if (i < STEPS && n < MOST && (n == 0 || x >> 63)) {
			CHECK(cw_region_add(CW_REGION_STAGING, 1 + (x >> 48), 0, &live[n]) == 0);
			n++;
		} else if (n > 0) {
			uint64_t k = (x >> 33) % n;
			CHECK(cw_region_drop(live[k]) == 0);
			live[k] = live[--n];
		}
		call(REGIONS_THERE, &there, sizeof there);
		CHECK(there == before + n);
	}
}

/* A worker that cannot map memory is given what lies in regions, and told of all else that it
 * cannot have it. */
static void test_reads(int tcp)
{
	struct cw_region *r;
	struct cw_tx tx;
	struct cw_reply rep;
	CHECK(cw_region_add(CW_REGION_STAGING, 8192, 0, &r) == 0 && r->size == 8192);
	uint64_t a[2] = {r->id}, got[2];
	CHECK(cw_begin(&tx, READS, sizeof a, 0, 1) == 0);
	memcpy(tx.rec + sizeof(struct cw_record), a, sizeof a);
	CHECK(cw_commit_wait(&tx, &rep) == 0 && rep.result == 0 && rep.len >= sizeof got);
	memcpy(got, rep.data, sizeof got);
	cw_reply_release(&rep);
	CHECK(got[0] == 1 && got[1] == (tcp ? 0 : 1));
	CHECK(cw_region_drop(r) == 0);
}

static void all(int tcp)
{
	struct fake_options o = {.handler = handler, .caps = CW_CAP_MAP, .sleep_after_us = 50, .tcp = tcp};
	CHECK(cw_check() == CUDA_ERROR_NOT_INITIALIZED);
	pid_t pid = fake_worker_start(&o);
	CHECK(cw_session_open() == 0 && cw_check() == 0);
	CHECK(cw_session_info()->device_count == 2 && !strcmp((const char *)cw_session_info()->devices[1].name, "Fake 1"));

	struct cw_tx tx;
	CHECK(cw_begin(&tx, PUT, 16, CW_MAX_RECORD, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cw_begin(&tx, PUT, 16, 64, 1) == 0); /* abandoned */
	cw_abort(&tx);
	test_long();
	test_blob();
	test_console();
	test_regions();
	test_reads(tcp);
	call(SLOW, NULL, 0); /* the caller sleeps */
	usleep(5000);	     /* the worker sleeps */
	call(CW_OP_SESSION_FENCE, NULL, 0);
	uint64_t rounds = 2000;
	many(producer, THREADS, &rounds);
	many(holder, 192, NULL); /* three times as many callers as slots */
	uint64_t sum[3];
	call(SUM, sum, sizeof sum);
	CHECK(sum[0] == THREADS * rounds && sum[1] > 0 && sum[2] == 0);

	/* The worker's death is noticed by the call that waits, and by every later one. */
	fake_worker_kill(pid);
	struct cw_reply rep;
	CUresult r = cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 1);
	CHECK(r == 0 ? cw_commit_wait(&tx, &rep) == CUDA_ERROR_LAUNCH_FAILED : r == CUDA_ERROR_LAUNCH_FAILED);
	CHECK(cw_check() == CUDA_ERROR_LAUNCH_FAILED && cw_session_open() == CUDA_ERROR_LAUNCH_FAILED);
	CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 1) == CUDA_ERROR_LAUNCH_FAILED);
}

/* ring_test latency [tcp]: numbers of an otherwise idle session. */
int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "latency")) {
		struct fake_options l = {.handler = handler, .sleep_after_us = 100000, .tcp = argc > 2};
		pid_t worker = fake_worker_start(&l);
		CHECK(cw_session_open() == 0);
		latency();
		fake_worker_kill(worker);
		return 0;
	}
	setenv("CAUSEWAY_LOG", "none", 1);
	for (int tcp = 0; tcp < 2; tcp++) {
		int st = -1;
		pid_t p = fork();
		if (p == 0) {
			all(tcp);
			_exit(0);
		}
		CHECK(waitpid(p, &st, 0) == p && st == 0);
	}
	puts("ring_test ok");
	return 0;
}

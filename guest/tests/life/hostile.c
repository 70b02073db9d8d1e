/*
 * A guest program that misuses the session file. Each case must end in an errno or in the loss of
 * that one session, and soon.
 *
 *   hostile MOUNT [SEED]      prints one line per case; the status is 0 if every case ended as it must
 */
#define _GNU_SOURCE /* O_DIRECT */
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "gen/session.h"

static char path[4096];
static uint64_t seed = 1;
static int failed;

static uint32_t rnd(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 16);
}

static void fill(void *p, size_t n)
{
	uint8_t *b = p;
	for (size_t i = 0; i < n; i++)
		b[i] = (uint8_t)rnd();
}

static void nap_ms(int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000l};
	nanosleep(&t, NULL);
}

/* Reports one expectation; a failure is remembered. */
static void expect(int ok, const char *what, long detail)
{
	if (!ok) {
		printf("hostile: FAILED: %s (%ld)\n", what, detail);
		failed = 1;
	}
}

/* A session file, and region 0 with its loans. */
struct session {
	int fd;
	uint8_t *base;
	aio_context_t aio;
};

static int open_file(void) { return open(path, O_RDWR | O_DIRECT | O_CLOEXEC); }

static struct cw_hello hello(uint32_t type, uint32_t region, const void *va, uint64_t size)
{
	return (struct cw_hello){.magic = CW_HELLO_MAGIC,
				 .version = CW_PROTOCOL_VERSION,
				 .type = type,
				 .region = region,
				 .va = (uintptr_t)va,
				 .size = size,
				 .pid = (uint32_t)getpid()};
}

/* Writes a control message; 0 or errno. */
static int control(int fd, struct cw_hello h) { return pwrite(fd, &h, sizeof h, CW_FILE_CONTROL) < 0 ? errno : 0; }

/* Asks for a loan without waiting for its end. */
static int loan(struct session *s, void *va, size_t size, uint64_t offset)
{
	struct iocb cb = {.aio_lio_opcode = IOCB_CMD_PREAD,
			  .aio_fildes = (uint32_t)s->fd,
			  .aio_buf = (uintptr_t)va,
			  .aio_nbytes = size,
			  .aio_offset = (int64_t)(CW_FILE_LOAN | offset)},
		    *list = &cb;
	return syscall(SYS_io_submit, s->aio, 1, &list) == 1 ? 0 : errno;
}

/* The errno of the next loan to end, 0 if it ended well, -1 if none does within ms. */
static int loan_end(struct session *s, int ms)
{
	struct io_event e;
	struct timespec t = {ms / 1000, ms % 1000 * 1000000l};
	if (syscall(SYS_io_getevents, s->aio, 1, 1, &e, &t) != 1)
		return -1;
	return e.res < 0 ? (int)-e.res : 0;
}

/* Opens the file and maps region 0, with a correct control page. */
static int begin(struct session *s)
{
	*s = (struct session){.fd = open_file()};
	s->base = mmap(NULL, CW_REGION0_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (s->fd < 0 || s->base == MAP_FAILED || syscall(SYS_io_setup, 64, &s->aio) != 0) {
		expect(0, "session file opens", errno);
		return 0;
	}
	struct cw_control_page *c = (void *)s->base;
	*c = (struct cw_control_page){.magic = CW_HELLO_MAGIC, .version = CW_PROTOCOL_VERSION, .ring_size = CW_RING_SIZE};
	return 1;
}

/* A session as the library would open it, its worker running. */
static int start(struct session *s)
{
	if (!begin(s))
		return 0;
	int e = control(s->fd, hello(CW_MSG_HELLO, 0, s->base, CW_REGION0_SIZE));
	if (e == 0)
		e = loan(s, s->base, CW_REGION0_SIZE, 0);
	if (e == 0)
		e = control(s->fd, hello(CW_MSG_START, 0, s->base, CW_REGION0_SIZE));
	expect(e == 0, "a correct session starts", e);
	return e == 0;
}

static void end(struct session *s)
{
	control(s->fd, hello(CW_MSG_REGION_END, 0, s->base, CW_REGION0_SIZE));
	close(s->fd);
	syscall(SYS_io_destroy, s->aio);
	munmap(s->base, CW_REGION0_SIZE);
}

/* Random bytes at random places of a fresh file. */
static void random_writes(void)
{
	static uint8_t junk[8192] __attribute__((aligned(4096)));
	static const uint64_t at[] = {CW_FILE_CONTROL, CW_FILE_DOORBELL, CW_FILE_ERROR, 1, 4096,
				      CW_FILE_LOAN,    CW_FILE_WAIT,	 CW_FILE_EXTENT};
	for (int i = 0; i < 200; i++) {
		if (i % 20 == 0)
			nap_ms(1);
		int fd = open_file();
		fill(junk, sizeof junk);
		size_t n = rnd() % 3 ? sizeof(struct cw_hello) : 1 + rnd() % sizeof junk;
		uint64_t off = i % 9 == 8 ? ((uint64_t)rnd() << 31 | rnd()) & INT64_MAX : at[i % 9];
		ssize_t r = pwrite(fd, junk, n, (off_t)off);
		expect(r < 0 || off == CW_FILE_DOORBELL, "random bytes are refused", (long)off);
		close(fd);
	}
}

static void wrong_hellos(void)
{
	struct session s;
	if (!begin(&s))
		return;
	struct cw_hello good = hello(CW_MSG_HELLO, 0, s.base, CW_REGION0_SIZE), h;
#define REFUSED(change) (h = good, change, expect(control(s.fd, h) != 0, "refused: " #change, 0))
	REFUSED(h.magic++);
	REFUSED(h.version = 99);
	REFUSED(h.type = 0);
	REFUSED(h.type = CW_MSG_WELCOME);
	REFUSED(h.type = 0xffffffff);
	REFUSED(h.type = CW_MSG_START);
	REFUSED(h.type = CW_MSG_REGION);
	REFUSED(h.type = CW_MSG_REGION_END);
	REFUSED(h.region = 1);
	REFUSED(h.size = 0);
	REFUSED(h.size = UINT64_MAX);
	REFUSED(h.size = CW_REGION0_SIZE + 4096);
	REFUSED(h.text_len = 0xffffffff);
	for (size_t n = 0; n < sizeof good; n += 7)
		expect(pwrite(s.fd, &good, n, CW_FILE_CONTROL) <= 0, "half a message is refused", (long)n);
	expect(control(s.fd, good) == 0, "the right one is taken", errno);
	REFUSED(h = good);
	good = hello(CW_MSG_REGION, 5, (void *)0x10000000, 1 << 20);
	REFUSED(h.va = 1);
	REFUSED(h.va = UINT64_MAX & ~4095ull);
	REFUSED(h.size = 1);
	REFUSED(h.size = 1ull << 62);
	REFUSED(h.region = 0);
	int taken = 0;
	for (uint32_t i = 1; i <= 400; i++)
		taken += control(s.fd, hello(CW_MSG_REGION, i, s.base, 4096)) == 0;
	expect(taken > 0 && taken < 400, "regions are bounded", taken);
	end(&s);
}

static void absurd_loans(void)
{
	static const struct {
		uint64_t offset;
		size_t size;
	} bad[] = {{1ull << 44, 4096},
		   {0xffffull << 44, 4096},
		   {CW_REGION0_SIZE, 4096},
		   {CW_REGION0_SIZE - 4096, 8192},
		   {0, 2 << 20},
		   {512, 4096},
		   {0, 512},
		   {(1ull << 44) - 4096, 8192},
		   {0, CW_REGION0_SIZE / 2}};
	struct session s;
	if (!begin(&s))
		return;
	uint8_t *two = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	expect(loan(&s, s.base, 4096, 0) == 0 && loan_end(&s, 2000) > 0, "a loan before the hello is refused", 0);
	expect(control(s.fd, hello(CW_MSG_HELLO, 0, s.base, CW_REGION0_SIZE)) == 0, "hello", errno);
	expect(loan(&s, s.base, CW_REGION0_SIZE, 0) == 0, "loan", errno);
	nap_ms(20);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		if (loan(&s, two, bad[i].size, bad[i].offset) == 0)
			expect(loan_end(&s, 1000) > 0, "an absurd loan is refused", (long)i);
	/* The same piece from other pages while it is lent. */
	expect(loan(&s, two, CW_REGION0_SIZE, 0) == 0 && loan_end(&s, 1000) > 0, "lent pages cannot change", 0);
	char buf[8];
	for (uint64_t slot = 0; slot < 5000; slot += 999)
		if (slot > CW_SLOT_COUNT)
			expect(pread(s.fd, buf, 8, (off_t)(CW_FILE_WAIT | slot << 12)) < 0, "a wait for no slot is refused", (long)slot);
	end(&s);
	munmap(two, 2 << 20);
}

/* Copies by the host's hands: of regions that are not there, not lent, or taken away in the
 * middle. */
static void extents(void)
{
	enum { SIZE = 1 << 20, TURNS = 24 };
	struct session s;
	if (!start(&s))
		return;
	uint8_t *region = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	uint8_t *mine = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	static const uint64_t bad[] = {
		0, 2ull << 44, 1ull << 44 | SIZE, 1ull << 44 | (SIZE - 4096), 1ull << 44 | 1ull << 43, 0xfffull << 44};
	expect(control(s.fd, hello(CW_MSG_REGION, 1, region, SIZE)) == 0, "a region", errno);
	expect(pwrite(s.fd, mine, 8192, (off_t)(CW_FILE_EXTENT | 1ull << 44)) < 0, "an extent of what is not lent is refused", 0);
	expect(loan(&s, region, SIZE, 1ull << 44) == 0, "a loan", errno);
	nap_ms(50);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		expect(pread(s.fd, mine, 8192, (off_t)(CW_FILE_EXTENT | bad[i])) < 0, "an absurd extent is refused", (long)i);
	fill(mine, SIZE);
	expect(pwrite(s.fd, mine, SIZE, (off_t)(CW_FILE_EXTENT | 1ull << 44)) == SIZE && !memcmp(mine, region, SIZE), "an extent is copied",
	       errno);
	expect(pread(s.fd, region, SIZE, (off_t)(CW_FILE_EXTENT | 1ull << 44)) == SIZE && !memcmp(mine, region, SIZE), "onto itself",
	       errno);

	/* Many are on their way when the region ends and its memory goes. Each ends, in whatever
	 * way. */
	aio_context_t aio = 0;
	struct io_event e[TURNS];
	struct timespec limit = {2, 0};
	int sent = 0, ended = 0;
	expect(syscall(SYS_io_setup, TURNS, &aio) == 0, "io_setup", errno);
	for (int i = 0; i < TURNS; i++) {
		struct iocb cb = {.aio_lio_opcode = i & 1 ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE,
				  .aio_fildes = (uint32_t)s.fd,
				  .aio_buf = (uintptr_t)mine,
				  .aio_nbytes = SIZE,
				  .aio_offset = (int64_t)(CW_FILE_EXTENT | 1ull << 44)};
		struct iocb *list = &cb;
		sent += syscall(SYS_io_submit, aio, 1, &list) == 1;
		if (i == TURNS / 2) {
			expect(control(s.fd, hello(CW_MSG_REGION_END, 1, region, SIZE)) == 0, "the region ends", errno);
			munmap(region, SIZE);
		}
	}
	for (long n = 1; ended < sent && n > 0; ended += (int)n)
		n = syscall(SYS_io_getevents, aio, 1, sent - ended, e, &limit);
	expect(sent == TURNS && ended == sent, "every extent ends", ended);
	syscall(SYS_io_destroy, aio);
	munmap(mine, SIZE);
	end(&s);
}

/* How a ring is spoilt. */
enum { NOISE, HEADERS, TAIL_FAR, TAIL_BACK, SCRIBBLE, RINGS };

static void spoil(struct session *s, int kind)
{
	struct cw_control_page *c = (void *)s->base;
	uint8_t *ring = s->base + CW_RING_OFFSET;
	uint64_t tail = CW_RING_SIZE;
	if (kind == NOISE)
		fill(ring, CW_RING_SIZE);
	if (kind == HEADERS || kind == SCRIBBLE) {
		uint64_t at = 0;
		while (at < 64 * 1024) {
			struct cw_record *r = (void *)(ring + at);
			uint32_t size = 32 + rnd() % 24 * 8;
			fill(r, size);
			*r = (struct cw_record){.size = size,
						.op = (uint16_t)(1 + rnd() % 74),
						.flags = rnd() & 1,
						.slot = rnd() % CW_SLOT_COUNT,
						.seq = rnd() | 1,
						.ctx = rnd() % 32,
						.thread = 1};
			/* Small numbers pass more checks. */
			for (uint32_t i = 32; i < size && rnd() % 4; i += 4)
				*(uint32_t *)((uint8_t *)r + i) = rnd() % 64;
			at += size;
		}
		tail = at;
	}
	if (kind == TAIL_FAR)
		tail = UINT64_MAX - 7;
	__atomic_store_n(&c->tail, tail, __ATOMIC_RELEASE);
	uint64_t one = 1;
	if (pwrite(s->fd, &one, sizeof one, CW_FILE_DOORBELL) < 0)
		return;
	if (kind == TAIL_BACK) {
		nap_ms(20);
		__atomic_store_n(&c->tail, 8, __ATOMIC_RELEASE);
		pwrite(s->fd, &one, sizeof one, CW_FILE_DOORBELL) < 0 ? (void)0 : (void)0;
	}
	if (kind == SCRIBBLE)
		for (int64_t t = now_ms(); now_ms() - t < 100;)
			fill(s->base + 64 + rnd() % (CW_REGION0_SIZE - 4096 - 64), 256);
}

static void bad_rings(void)
{
	for (int i = 0; i < 2 * RINGS; i++) {
		struct session s;
		int64_t t = now_ms();
		if (!start(&s))
			return;
		spoil(&s, i % RINGS);
		nap_ms(50);
		uint32_t state = __atomic_load_n(&((struct cw_control_page *)s.base)->worker_state, __ATOMIC_ACQUIRE);
		if (i % RINGS == NOISE || i % RINGS == TAIL_FAR) {
			for (int w = 0; w < 40 && state != CW_WORKER_DEAD; w++, nap_ms(50))
				state = __atomic_load_n(&((struct cw_control_page *)s.base)->worker_state, __ATOMIC_ACQUIRE);
			expect(state == CW_WORKER_DEAD, "a broken ring ends its session", i);
		}
		end(&s);
		expect(now_ms() - t < 5000, "a broken session ends soon", (long)(now_ms() - t));
	}
}

static void many_opens(void)
{
	static int fds[1200]; /* more than a host lets a VM have */
	enum { N = sizeof fds / sizeof *fds };
	int open_ = 0;
	for (int i = 0; i < N; i++)
		open_ += (fds[i] = open_file()) >= 0;
	expect(open_ > 0 && open_ < N, "sessions of one VM are bounded", open_);
	for (int i = 0; i < N; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	/* The last of those closes may still be on their way. */
	for (int i = 0; i < N; i++) {
		int fd = open_file();
		for (int again = 0; fd < 0 && again < 200; again++, nap_ms(10))
			fd = open_file();
		expect(fd >= 0, "a session opens after the flood", errno);
		if (fd < 0)
			return;
		close(fd);
	}
}

/* A start without loans: refused in the end. */
static void start_early(void)
{
	struct session s;
	if (!begin(&s))
		return;
	expect(control(s.fd, hello(CW_MSG_HELLO, 0, s.base, CW_REGION0_SIZE)) == 0, "hello", errno);
	expect(control(s.fd, hello(CW_MSG_START, 0, s.base, CW_REGION0_SIZE)) != 0, "a start without loans is refused", 0);
	end(&s);
}

/* A process that dies in the middle of the handshake, its loans pending. */
static void die_half_way(void)
{
	struct session s;
	if (!begin(&s))
		return;
	int e = control(s.fd, hello(CW_MSG_HELLO, 0, s.base, CW_REGION0_SIZE));
	expect(e == 0, "hello", e);
	loan(&s, s.base, CW_REGION0_SIZE / 2, 0);
	kill(getpid(), SIGKILL);
}

static pid_t child(void (*f)(void))
{
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		f();
		fflush(stdout);
		_exit(failed);
	}
	return pid;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {{"random writes", random_writes}, {"wrong hellos", wrong_hellos}, {"absurd loans", absurd_loans}, {"extents", extents},
		     {"broken rings", bad_rings},      {"1200 opens", many_opens}};
	int status;
	if (argc < 2 || strlen(argv[1]) > sizeof path - 16) {
		fprintf(stderr, "usage: hostile MOUNT [SEED]\n");
		return 2;
	}
	snprintf(path, sizeof path, "%.4000s/session", argv[1]);
	if (argc > 2)
		seed = strtoull(argv[2], NULL, 0) | 1;
	int64_t t = now_ms(), began = t;
	pid_t early = child(start_early), half = child(die_half_way);
	int ok = waitpid(half, &status, 0) == half && WIFSIGNALED(status);
	t = now_ms() - t;
	expect(ok && t < 2500, "a process killed half way is gone", ok ? (long)t : -status);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		t = now_ms();
		cases[i].run();
		printf("hostile: %s: %ld ms\n", cases[i].name, (long)(now_ms() - t));
	}
	expect(waitpid(early, &status, 0) == early && status == 0, "early start", status);
	/* While one program's start is pending, another's writes should not wait. */
	early = child(start_early);
	nap_ms(100);
	t = now_ms();
	int fd = open_file();
	uint64_t one = 1;
	ok = pwrite(fd, &one, sizeof one, CW_FILE_DOORBELL) == sizeof one;
	close(fd);
	expect(ok && now_ms() - t < 900, "a doorbell beside a pending start", (long)(now_ms() - t));
	printf("hostile: note: a doorbell and a close beside another program's pending start took %ld ms\n", (long)(now_ms() - t));
	expect(waitpid(early, &status, 0) == early && status == 0, "early start", status);
	printf("@hostile %d %ld\n", failed, (long)(now_ms() - began));
	return failed;
}

/*
 * The carrier of a VM alone: carrier_virtiofs.c between files and loans of the test's own. What it
 * writes to the control file and how often, what it says when the host refuses, and that whatever
 * fails, and whenever, gives back all that it had taken.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "session/loan.h"
#include "session/tests/check.h"

static int f_open(const char *path, int flags);
static int f_close(int fd);
static ssize_t f_pwrite(int fd, const void *p, size_t n, off_t at);
static ssize_t f_pread(int fd, void *p, size_t n, off_t at);
static ssize_t f_read(int fd, void *p, size_t n);
static int f_nap(const struct timespec *t, struct timespec *rest);
static long f_syscall(long number, ...);
static int f_munmap(void *p, size_t n);
static int f_madvise(void *p, size_t n, int advice);

#define open(path, flags) f_open(path, flags)
#define close(fd) f_close(fd)
#define pwrite(fd, p, n, at) f_pwrite(fd, p, n, at)
#define pread(fd, p, n, at) f_pread(fd, p, n, at)
#define read(fd, p, n) f_read(fd, p, n)
#define nanosleep(...) f_nap(__VA_ARGS__)
#define syscall f_syscall
#define munmap(p, n) f_munmap(p, n)
#define madvise(p, n, advice) f_madvise(p, n, advice)
#include "session/carrier_virtiofs.c"
#undef open
#undef close
#undef munmap
#undef madvise
#undef read
#undef syscall
#include "session/lock.c"
#include "session/signals.c"

#include "session/tests/alone/virtiofs_fakes.h"
#define OWN_CLOSE f_close
#include "session/tests/alone/own_fakes.h"

/* --- what is tried ---------------------------------------------------------------------------- */

static const struct cw_carrier *const c = &cw_carrier_virtiofs;

static void anew(const char *mount)
{
	static uint8_t memory[1];
	place = memory;
	snprintf(mount_, sizeof mount_, "%s", mount);
	memset(&cw_s, 0, sizeof cw_s);
	cw_s.fd = -1;
	memset(&cw_loans, 0xee, sizeof cw_loans); /* as another session may have left it */
	memset(&cw_loans.lock, 0, sizeof cw_loans.lock);
	atomic_store(&cw_loans.running, 0);
	info = refusal = "";
	limit = NULL;
	probes = probe_errno = said_so = 0;
	files = naps = count_ = eintr = eagain = short_ = refuse_type = refuse_errno = rung = ring_eintr = ring_none = waits_errno =
		open_errno = 0;
	contexts = setup_errno = mapped = advised = no_map = lent = loan_err = start_err = threads = forgot = ended_count = aio_full = 0;
}

static int opened(void) { return c->open(&cw_s, mount_); }

static int said(const char *what) { return strstr(cw_s.why, what) != NULL; }

static void opens(void)
{
	anew("/mnt/gpu");
	CHECK(opened() == 0 && cw_s.fd == SESSION && cw_s.base == place && files == 1 && contexts == 1 && mapped == 1 && lent == 1 &&
	      threads == 1);
	CHECK(count_ == 2 && sent[0] == CW_MSG_HELLO && sent[1] == CW_MSG_START && sent_va == (uintptr_t)place &&
	      sent_size == CW_REGION0_SIZE);
	CHECK(cw_loans.ring == 1 && cw_loans.stopping == 0 && atomic_load(&cw_loans.gone) == 0 && c->alive(&cw_s) == 0);
	atomic_store(&cw_loans.gone, -EIO);
	CHECK(c->alive(&cw_s) == -EPIPE);
	c->close(&cw_s);
	CHECK(cw_loans.stopping == 1 && ended[0] == -1 && sent[2] == CW_MSG_REGION_END && sent_region[2] == 0 &&
	      sent_size == CW_REGION0_SIZE);
	/* threads may be inside: nothing is freed, nothing waited for */
	CHECK(files == 1 && contexts == 1 && mapped == 1 && naps == 0);
	c->abandon(&cw_s);
	CHECK(cw_loans.stopping == 2 && naps == 3 && files == 0 && contexts == 0 && mapped == 0 && forgot == 1 && !cw_s.base);
	anew("/mnt/gpu");
	CHECK(opened() == 0);
	c->forked(&cw_s, 1);
	CHECK(files == 0 && mapped == 1 && contexts == 1 && count_ == 2);
}

/* Each step of opening fails: all that was had is given back, and the error and the sentence are
 * that step's. */
static void fails(void)
{
	static const struct {
		int *what, value, want;
		const char *words;
	} all[] = {
		{&no_map, 1, -ENOMEM, "no memory"},
		{&setup_errno, EAGAIN, -EAGAIN, "aio-max-nr"},
		{&loan_err, -ENOBUFS, -ENOBUFS, "cannot lend the session's ring"},
		{&start_err, -EAGAIN, -EAGAIN, "cannot start a thread"},
		{&open_errno, ENOENT, -ENOENT, "mount -t virtiofs"},
		{&open_errno, ENOTDIR, -ENOTDIR, "mount -t virtiofs"},
		{&open_errno, ENOTCONN, -ENOTCONN, "process on the host has ended"},
		{&open_errno, EACCES, -EACCES, "cannot open /mnt/gpu/session"},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		anew("/mnt/gpu");
		*all[i].what = all[i].value;
		cw_s.base = place; /* an older session's */
		CHECK(opened() == all[i].want && said(all[i].words));
		CHECK(files == 0 && contexts == 0 && mapped == 0 && !atomic_load(&cw_loans.running) && (open_errno || !cw_s.base));
	}
	static const struct {
		uint32_t type;
		const char *words, *text;
	} refused[] = {
		{CW_MSG_HELLO, "cannot open a session: Permission denied", ""},
		{CW_MSG_HELLO, "/mnt/gpu: the host refused the session: too many", "too many"},
		{CW_MSG_HELLO, "/mnt/gpu: the host refused the session: no ?[2JGPU", "no \x1b[2JGPU"},
		{CW_MSG_START, "the worker did not start: Permission denied", ""},
		{CW_MSG_START, "/mnt/gpu: the host refused the session: no GPU", "no GPU"},
	};
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		anew("/mnt/gpu");
		refuse_type = refused[i].type;
		refuse_errno = EACCES;
		refusal = refused[i].text;
		CHECK(opened() == -EACCES && said(refused[i].words));
		CHECK(files == 0 && contexts == 0 && mapped == 0 && lent == 0 && !atomic_load(&cw_loans.running));
		CHECK(sent[count_ - 1] == CW_MSG_REGION_END); /* the host hears that it is over */
	}
	anew("/mnt/gpu");
	short_ = 1;
	CHECK(opened() == -EIO && files == 0);
	static char many[4200];
	memset(many, 'm', sizeof many - 1);
	many[0] = '/';
	anew(many);
	CHECK(opened() == -ENAMETOOLONG && files == 0);
	many[4096] = 0;
	anew(many);
	CHECK(opened() == 0 && files == 1);
}

/* A message that the host gives back is sent again, for a second and no longer; a signal costs no
 * try's time. */
static void patience(void)
{
	anew("/m");
	eintr = 3;
	CHECK(opened() == 0 && naps == 0);
	anew("/m");
	eagain = 50;
	CHECK(opened() == 0 && naps == 50 && count_ == 2);
	anew("/m");
	eagain = 51;
	CHECK(opened() == -EAGAIN && eagain == 0);
	anew("/m");
	eintr = 51;
	CHECK(opened() == -EINTR && eintr == 0);
}

static void infos(void)
{
	static const struct {
		const char *text;
		uint32_t read, loans;
	} all[] = {
		{"", 131072, 256},
		{NULL, 131072, 256},
		{"max_read=65536\nmax_leases=100\n", 65536, 100},
		{"gpu=1\nmax_read=4096\n", 4096, 256},
		{"max_read=4095\n", 131072, 256},
		{"max_read=8191\n", 4096, 256},
		{"max_read=1073741824\n", 1 << 30, 256},
		{"max_read=1073745920\n", 131072, 256},
		{"max_read=99999999999999999999999\n", 131072, 256},
		{"xmax_read=4096\n", 131072, 256},
		{"max_read=-1\nmax_leases=512\n", 131072, 512},
		{"max_leases=16384\n", 131072, 16384},
		{"max_leases=65536\n", 131072, 65536},
		{"max_leases=65537\n", 131072, 256},
		{"max_read=4177920\nmax_leases=9\n", 4177920, 9},
		{"max_leases=0\n", 131072, 256},
		{"max_leases=1\n", 131072, 1},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		anew("/m");
		info = all[i].text;
		CHECK(opened() == 0 && files == 1);
		if (cw_loans.max_read != all[i].read || cw_loans.max_loans != all[i].loans)
			fprintf(stderr, "info %zu: %u, %u\n", i, cw_loans.max_read, cw_loans.max_loans);
		CHECK(cw_loans.max_read == all[i].read && cw_loans.max_loans == all[i].loans);
		/* A piece is as many whole READs as fit 16 MiB, and one at least. */
		uint64_t piece = cw_loans.piece, most = 16 << 20;
		CHECK(piece > 0 && piece % all[i].read == 0 && (piece == all[i].read || (piece <= most && piece + all[i].read > most)));
	}
}

/* Where the kernel may have been told to send larger READs, one is sent before the host is asked
 * how large they are, and only there. */
static void probing(void)
{
	static const struct {
		const char *limit;
		int probes;
	} all[] = {{NULL, 0}, {"", 0}, {"256\n", 0}, {"64\n", 0}, {"words\n", 0}, {"257\n", 1}, {"65535\n", 1}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		for (int fails = 0; fails < 2; fails++) {
			anew("/m");
			memset(&cw_loans, 0, sizeof cw_loans);
			limit = all[i].limit;
			probe_errno = fails ? EIO : 0;
			CHECK(opened() == 0 && files == 1 && probes == all[i].probes && said_so == (fails && probes) && mapped == 1);
		}
}

/* A region is the library's or the application's, in a file or not; the host takes it, refuses it,
 * or has no room for its loans. */
static void regions(void)
{
	for (int adopted = 0; adopted < 2; adopted++)
		for (int file = -1; file < 1; file++)
			for (int way = 0; way < 5; way++) {
				anew("/m");
				CHECK(opened() == 0);
				struct cw_region r = {
					.id = 5, .size = 8192, .at = 0x7000, .file = file, .adopted = (uint8_t)adopted, .va = place};
				uint8_t *near = r.va;
				no_map = way == 3;
				loan_err = way == 1 ? -ENOBUFS : 0;
				refuse_type = way == 2 || way == 4 ? CW_MSG_REGION : 0;
				refuse_errno = way == 4 ? ENOBUFS : EPERM;
				refusal = "none left";
				int err = c->add_region(&cw_s, &r), anonymous = adopted && file < 0;
				int want = way == 1 || way == 4 ? -ENOBUFS : way == 2 ? -EPERM : way == 3 && !adopted ? -ENOMEM : 0;
				/* What the host says of it, for who has its log on. */
				CHECK(said_so == (way == 4));
				CHECK(err == want && hint_ == (adopted ? NULL : near));
				hint_ = NULL;
				if (want == -ENOMEM) {
					CHECK(count_ == 2 && mapped == 1 && lent == 1);
					continue;
				}
				CHECK(sent[2] == CW_MSG_REGION && sent_region[2] == 5 && sent_va == 0x7000 && sent_size == 8192);
				CHECK(mapped == 1 + (!adopted && want == 0) && advised == (anonymous && want == 0) &&
				      lent == 1 + (want == 0));
				CHECK(count_ == (way == 1 ? 4 : 3));
				if (way == 1)
					CHECK(sent[3] == CW_MSG_REGION_END && sent_region[3] == 5);
				if (want != 0)
					continue;
				c->end_region(&cw_s, &r);
				CHECK(sent[3] == CW_MSG_REGION_END && sent_region[3] == 5 && sent_va == 0x7000 && sent_size == 8192 &&
				      ended[0] == 5);
				CHECK(mapped == 1 && advised == 0 && lent == 1 && atomic_load(&cw_loans.lock.word) == 0);
			}
}

static void wakes(void)
{
	anew("/m");
	CHECK(opened() == 0);
	c->doorbell(&cw_s);
	CHECK(rung == 1);
	aio_full = 1; /* then by a write of its own, whatever signals come */
	ring_eintr = 2;
	c->doorbell(&cw_s);
	CHECK(rung == 2 && ring_eintr == 0);
	ring_none = 2;
	c->doorbell(&cw_s);
	CHECK(rung == 2 && ring_none == 1);
	_Atomic uint32_t word = 0;
	waited = 0;
	CHECK(c->wait_slot(&cw_s, 3, &word) == 0 && waited == 0); /* answered */
	word = 2;
	CHECK(c->wait_slot(&cw_s, 3, &word) == 0 && waited == 0);
	word = 1;
	CHECK(c->wait_slot(&cw_s, 3, &word) == 0 && waited == (off_t)(CW_FILE_WAIT | 3 << 12));
	for (size_t i = 0; i < 2; i++) {
		waits_errno = i ? EINTR : EAGAIN;
		CHECK(c->wait_slot(&cw_s, 64, &word) == 0 && waited == (off_t)(CW_FILE_WAIT | 64 << 12));
	}
	waits_errno = ENOTCONN;
	CHECK(c->wait_slot(&cw_s, 3, &word) == -EPIPE);
	waits_errno = 0;
	atomic_store(&cw_loans.gone, -EIO);
	CHECK(c->wait_slot(&cw_s, 3, &word) == -EPIPE);
}

/* A session that was to go another way says why it does not (f_pwrite looks). */
static void apart(void)
{
	strcpy(cw_rdma_apart, "no adapter");
	anew("/mnt/gpu");
	CHECK(opened() == 0 && count_ == 2);
	c->abandon(&cw_s);
	cw_rdma_apart[0] = 0;
}

int main(void)
{
	opens();
	apart();
	fails();
	patience();
	infos();
	probing();
	regions();
	wakes();
	puts("virtiofs_test ok");
	return 0;
}

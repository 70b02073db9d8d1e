/* State that the library keeps for itself: lines of its log, loans that cannot be had, what a fork
 * leaves in parent and child. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "session/loan.h"
#include "session/logring.h"
#include "session/tests/fake_worker.h"

/* The last so many lines can be had, each under its number, and no other. */
static void lines(void)
{
	struct cw_log_line l;
	CHECK(cw_logring_count() == 0 && !cw_logring_get(0, &l));
	for (uint64_t n = 1; n <= 3 * CW_LOG_LINES + 5; n++) {
		char text[32];
		int len = snprintf(text, sizeof text, "line %d", (int)n - 1);
		cw_logring_add((int)(n % 7), text, (size_t)len);
		CHECK(cw_logring_count() == n);
		uint64_t oldest = n > CW_LOG_LINES ? n - CW_LOG_LINES : 0, ask[] = {oldest, (oldest + n) / 2, n - 1};
		for (int i = 0; i < 3; i++) {
			snprintf(text, sizeof text, "line %d", (int)ask[i]);
			CHECK(cw_logring_get(ask[i], &l) && l.number == ask[i] && l.level == (int)((ask[i] + 1) % 7));
			CHECK(!strcmp(l.text, text) && l.len == strlen(text));
		}
		CHECK(!cw_logring_get(n, &l) && !cw_logring_get(UINT64_MAX, &l) && (oldest == 0 || !cw_logring_get(oldest - 1, &l)));
	}
}

/* A line of any length is cut where there is no room for it, on stderr too, and what follows it is
 * whole. */
static void long_lines(void)
{
	struct cw_log_line l;
	static char text[2000], got[4096];
	int p[2], err = dup(2);
	CHECK(pipe(p) == 0 && err >= 0 && dup2(p[1], 2) == 2);
	memset(text, 'x', sizeof text);
	for (int n = 0; n < (int)sizeof text; n += 1 + n / 40) {
		uint64_t number = cw_logring_count();
		cw_log(CW_LOG_ERROR, "%.*s", n, text);
		CHECK(cw_logring_count() == number + 1 && cw_logring_get(number, &l));
		CHECK(l.len == strlen(l.text) && l.len <= (size_t)n && l.len < CW_LOG_TEXT && strspn(l.text, "x") == l.len &&
		      (n > 400 || l.len == (size_t)n));
		ssize_t m = read(p[0], got, sizeof got);
		CHECK(m >= 11 && m <= 512 && got[m - 1] == '\n' && !memcmp(got, "causeway: ", 10));
		CHECK(memchr(got, '\n', (size_t)m) == got + m - 1 && (size_t)(m - 11) >= l.len && (n > 400 || m == n + 11));
	}
	dup2(err, 2);
	close(err);
	close(p[0]);
	close(p[1]);
}

/* A region that cannot be lent whole has no loan, and takes no place from others. */
static void refused_loans(void)
{
	enum { SIZE = 64 << 10, PIECE = 16 << 10 };
	uint8_t *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	cw_loans.max_read = cw_loans.piece = PIECE;
	cw_loans.aio = 0; /* the kernel has no such context */
	cw_s.fd = 0;
	for (uint32_t most = 0; most < 6; most++) {
		cw_loans.max_loans = most;
		int want = most < SIZE / PIECE ? -ENOBUFS : -EINVAL;
		CHECK(cw_loan_region(&cw_s, 7, p, SIZE) == want);
		CHECK(cw_loans.loans == 0 && cw_loans.pieces == NULL);
	}
	munmap(p, SIZE);
}

/* In a process that can open no descriptor, whether a fork had anything to copy is in the log. */
static int copies(void)
{
	struct rlimit none = {0, 0}, old;
	uint64_t before = cw_logring_count();
	int st;
	CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
	none.rlim_max = old.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
	pid_t c = fork();
	if (c == 0)
		_exit(0);
	CHECK(c > 0 && setrlimit(RLIMIT_NOFILE, &old) == 0);
	CHECK(waitpid(c, &st, 0) == c && st == 0);
	return cw_logring_count() != before;
}

/* What a process registered its children have for their own: theirs have nothing to copy any
 * more. */
static void generations(void)
{
	int st;
	CHECK(!copies());
	cw_fork_moved();
	CHECK(copies() && copies());
	errno = ENXIO;
	pid_t c = fork();
	if (c == 0)
		_exit(errno != ENXIO || copies());
	CHECK(c > 0 && errno == ENXIO); /* a fork that fails says why */
	CHECK(waitpid(c, &st, 0) == c && st == 0);
	CHECK(copies());
}

int main(void)
{
	int st;
	pid_t c = fork();
	if (c == 0) {
		unsetenv("CAUSEWAY_LOG");
		long_lines();
		_exit(0);
	}
	CHECK(waitpid(c, &st, 0) == c && st == 0);
	setenv("CAUSEWAY_LOG", "none", 1);
	lines();
	refused_loans();
	cw_fork_watch();
	generations();
	return 0;
}

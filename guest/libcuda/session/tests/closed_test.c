/*
 * A program that has closed the library's descriptors, and has files of its own under their
 * numbers: its calls fail, the library says why, the host hears that the session has ended, and the
 * files are as the program made them, in children too.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gen/ops.h"
#include "session/compat.h"
#include "session/logring.h"
#include "session/tests/fake_worker.h"

enum { NUMBERS = 256, LIMIT_S = 300 };
enum carrier { UNIX, TCP, VIRTIOFS, CARRIERS };
/* What the program has under a number: CLOSED is nothing; READS and WRITES are a pipe's ends. */
enum kind { CLOSED, FILE_, SOCKET, READS, WRITES, EVENTS, KINDS };
static const char *const carriers[] = {"unix", "tcp", "virtiofs"}, *const kinds[] = {"closed", "file",	 "socket",
										     "reads",  "writes", "events"};

struct own {
	enum kind kind;
	int fd, other; /* the end that nobody replaces anything by */
};

static int handler(struct fake_call *c)
{
	if (c->rec->op == CW_OP_CTX_SYNCHRONIZE)
		return 1; /* is never answered */
	c->result = 801;
	return 0;
}

static struct own make(enum kind kind)
{
	struct own o = {kind, -1, -1};
	int p[2];
	switch (kind) {
	case FILE_:
		o.fd = (int)syscall(SYS_memfd_create, "own", 0);
		CHECK(o.fd >= 0 && write(o.fd, "mine", 4) == 4);
		break;
	case SOCKET:
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0 && write(p[1], "mine", 4) == 4);
		o.fd = p[0], o.other = p[1];
		break;
	case READS:
	case WRITES:
		CHECK(pipe(p) == 0 && write(p[1], "mine", 4) == 4);
		o.fd = p[kind == WRITES], o.other = p[kind == READS];
		break;
	case EVENTS: CHECK((o.fd = eventfd(4, EFD_NONBLOCK)) >= 0); break;
	default: break;
	}
	return o;
}

/* Whether it holds what it held, and nothing else. */
static int untouched(const struct own *o)
{
	char text[16] = "";
	uint64_t n = 0;
	int from = o->kind == WRITES ? o->other : o->fd;
	switch (o->kind) {
	case CLOSED: return 1;
	case FILE_: return lseek(from, 0, SEEK_END) == 4 && pread(from, text, sizeof text, 0) == 4 && !memcmp(text, "mine", 4);
	case EVENTS: return read(from, &n, sizeof n) == sizeof n && n == 4;
	default: break;
	}
	CHECK(fcntl(from, F_SETFL, O_NONBLOCK) == 0);
	if (read(from, text, sizeof text) != 4 || memcmp(text, "mine", 4))
		return 0;
	if (o->kind != SOCKET)
		return 1;
	return recv(o->other, text, sizeof text, MSG_DONTWAIT) == -1 && errno == EAGAIN && send(o->fd, "!", 1, MSG_NOSIGNAL) == 1;
}

static void look(char *open_)
{
	for (int fd = 3; fd < NUMBERS; fd++)
		open_[fd] = fcntl(fd, F_GETFD) >= 0;
}

static int replace(const char *before, const char *after, const struct own *o)
{
	int n = 0;
	for (int fd = 3; fd < NUMBERS; fd++)
		if (after[fd] && !before[fd]) {
			CHECK(o->kind == CLOSED ? close(fd) == 0 : dup2(o->fd, fd) == fd);
			n++;
		}
	return n;
}

static void *waits(void *arg)
{
	*(CUresult *)arg = cwop_CtxSynchronize();
	return NULL;
}

static int said(void)
{
	struct cw_log_line l;
	for (uint64_t i = 0; i < cw_logring_count(); i++)
		if (cw_logring_get(i, &l) && strstr(l.text, "the program has closed the library's descriptors"))
			return 1;
	return 0;
}

/* A child has the program's files, and has ended nothing. */
static void child(const char *before, const char *after, const struct own *o)
{
	int st;
	pid_t c = fork();
	if (c == 0) {
		for (int fd = 3; fd < NUMBERS; fd++)
			if (after[fd] && !before[fd] && o->kind != CLOSED && fcntl(fd, F_GETFD) < 0)
				_exit(1);
		_exit(cw_check() == CUDA_ERROR_NOT_INITIALIZED ? 0 : 2);
	}
	CHECK(waitpid(c, &st, 0) == c && st == 0);
}

/* ended: a byte comes when the host has seen the session's end. */
static void program(const struct own *o, int ended, int calls)
{
	char before[NUMBERS], after[NUMBERS], b;
	CUresult waited = 0;
	pthread_t t;
	alarm(LIMIT_S);
	look(before);
	CHECK(cw_session_open() == 0 && cwop_SessionFence() == 0);
	look(after);
	if (calls)
		CHECK(pthread_create(&t, NULL, waits, &waited) == 0);
	usleep(calls == 2 ? 20000 : 0); /* by then it waits, or does not: both are tried */
	CHECK(replace(before, after, o) > 0);
	child(before, after, o);
	if (!calls)
		exit(0); /* what is closed at the end is not the program's */
	/* A host that had not gone to sleep may answer some before. */
	for (CUresult r = 0; r != CUDA_ERROR_LAUNCH_FAILED; r = cwop_SessionFence())
		CHECK(r == 0);
	CHECK(cwop_SessionFence() == CUDA_ERROR_LAUNCH_FAILED);
	CHECK(pthread_join(t, NULL) == 0 && waited == CUDA_ERROR_LAUNCH_FAILED);
	CHECK(said());
	child(before, after, o);
	CHECK(read(ended, &b, 1) == 1);
	exit(0);
}

static void one(enum carrier carrier, enum kind kind, int calls)
{
	char dir[] = "/tmp/causeway-fuse-XXXXXX";
	struct fake_options f = {.handler = handler, .caps = CW_CAP_MAP, .sleep_after_us = 50, .tcp = carrier == TCP};
	int ended[2], st;
	alarm(LIMIT_S);
	if (carrier == VIRTIOFS) {
		CHECK(mkdtemp(dir) != NULL);
		f.mount = dir;
	}
	pid_t w = fake_worker_start(&f);
	CHECK(pipe(ended) == 0);
	struct own o = make(kind);
	pid_t p = fork();
	if (p == 0)
		program(&o, ended[0], calls);
	/* While the program lives, if it calls. */
	CHECK(waitpid(w, &st, 0) == w);
	CHECK(write(ended[1], "", 1) == 1);
	CHECK(waitpid(p, &st, 0) == p && st == 0);
	if (carrier == VIRTIOFS)
		fake_vfs_umount(dir);
	CHECK(untouched(&o));
}

int main(int argc, char **argv)
{
	pid_t pid[CARRIERS][KINDS][3] = {0};
	int failed = 0, st;
	setenv("CAUSEWAY_LOG", argc > 1 ? argv[1] : "none", 1);
	for (int c = 0; c < (fake_vfs_possible() ? CARRIERS : VIRTIOFS); c++)
		for (int k = 0; k < KINDS; k++)
			for (int calls = 0; calls < 3; calls++)
				if ((pid[c][k][calls] = fork()) == 0) {
					one(c, k, calls);
					_exit(0);
				}
	for (int c = 0; c < CARRIERS; c++)
		for (int k = 0; k < KINDS; k++)
			for (int calls = 0; calls < 3; calls++)
				if (pid[c][k][calls] && (waitpid(pid[c][k][calls], &st, 0) < 0 || st != 0)) {
					fprintf(stderr, "closed_test: %s, %s, %d failed: %#x\n", carriers[c], kinds[k], calls, st);
					failed = 1;
				}
	if (!failed)
		puts("closed_test ok");
	return failed;
}

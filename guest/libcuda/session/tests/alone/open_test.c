/*
 * Opening a session alone: open.c between carriers and a worker of the test's own. Where the host
 * is looked for, what the worker is told and what it answers, what each failure becomes, and what
 * state a process is in before, meanwhile and afterwards. Each case is a process of its own.
 */
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "gen/ops.h"
#include "session/internal.h"
#include "session/tests/check.h"

static int f_affinity(cpu_set_t *set);
static int f_clock(struct timespec *t);
static int f_access(const char *path);

#define sched_getaffinity(pid, size, set) f_affinity(set)
#define clock_gettime(id, t) f_clock(t)
#define access(path, how) f_access(path)
#include "session/open.c"
#undef access
#undef clock_gettime
#include "session/lock.c"
#include "session/signals.c"

#include "session/tests/alone/open_fakes.h"
#define OWN_ONLY
#include "session/tests/alone/own_fakes.h"

/* --- what is tried ---------------------------------------------------------------------------- */

static void where(void)
{
	static const struct {
		const char *env, *carrier, *target;
	} all[] = {
		{"unix:/run/x", "unix", "/run/x"}, {"unix:", "unix", ""},
		{"tcp://host:1", "tcp", "host:1"}, {"/mnt", "virtiofs", "/mnt"},
		{"", "virtiofs", "/run/causeway"}, {NULL, "virtiofs", "/run/causeway"},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		if (all[i].env)
			setenv("CAUSEWAY", all[i].env, 1);
		else
			unsetenv("CAUSEWAY");
		open_err = -ENODEV;
		CHECK(cw_session_open() == CUDA_ERROR_NO_DEVICE && opens == (int)i + 1);
		CHECK(!strcmp(cw_s.carrier->name, all[i].carrier) && !strcmp(target, all[i].target));
	}
	CHECK(watches == 1 && slots == 6);
	for (const char **e = (const char *[]){"unix", "tcp:/host", "mnt", "tcp:", "UNIX:/x", NULL}; *e; e++) {
		setenv("CAUSEWAY", *e, 1);
		CHECK(cw_session_open() == CUDA_ERROR_UNKNOWN && opens == 6 && strstr(said, "none of unix:PATH") && strstr(said, *e));
	}
	int lowest = dup(0);
	close(lowest);
	/* this program lies at FOLDER/.../NAME: a mount's files two folders up */
	unsetenv("CAUSEWAY");
	mount_there = 1;
	CHECK(cw_session_open() == CUDA_ERROR_NO_DEVICE && opens == 7 && strlen(target) > 0 && strlen(target) < strlen(probed));
	CHECK(!strncmp(probed, target, strlen(target)) && !strcmp(probed + strlen(target), "/session"));
	CHECK(dup(0) == lowest); /* no file stays open */
}

static void results(void)
{
	static const struct {
		int err;
		CUresult res;
	} all[] = {{-EPROTONOSUPPORT, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH},
		   {-ENOMEM, CUDA_ERROR_OUT_OF_MEMORY},
		   {-ENOENT, CUDA_ERROR_NO_DEVICE},
		   {-ENOTDIR, CUDA_ERROR_NO_DEVICE},
		   {-ECONNREFUSED, CUDA_ERROR_NO_DEVICE},
		   {-ENODEV, CUDA_ERROR_NO_DEVICE},
		   {-ENOTCONN, CUDA_ERROR_NO_DEVICE},
		   {-EACCES, CUDA_ERROR_NO_DEVICE},
		   {-EPERM, CUDA_ERROR_NO_DEVICE},
		   {-EPROTO, CUDA_ERROR_UNKNOWN},
		   {-EIO, CUDA_ERROR_UNKNOWN}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		said[0] = 0;
		open_err = all[i].err;
		CHECK(cw_session_open() == all[i].res && abandoned == 0 && atomic_load(&cw_g.state) == CW_CLOSED &&
		      atomic_load(&cw_s.opener) == 0);
		CHECK(strstr(said, "carrier's own words") != NULL && cw_check() == CUDA_ERROR_NOT_INITIALIZED);
	}
	quiet = 1; /* nothing to say: nothing is said, least of all what an earlier try said */
	said[0] = 0;
	CHECK(cw_session_open() == CUDA_ERROR_UNKNOWN && said[0] == 0);
	open_err = 0;
	/* A failed open is tried again. */
	CHECK(cw_session_open() == 0 && atomic_load(&cw_g.state) == CW_OPEN);
}

static void told(void)
{
	static char *vars[] = {"CUDA_A=1", "X=CUDA_2", NULL, "CUDA_B=2", "CUDA", NULL};
	static char large[16384];
	extern char **environ;
	memset(large, 'x', sizeof large - 1);
	memcpy(large, "CUDA_C=", 7);
	/* There is no room for it behind the first, and there is for what follows. */
	vars[2] = large;
	environ = vars;
	CHECK(cw_session_open() == 0);
	CHECK(begun_op == CW_OP_SESSION_INIT && in.version == CW_PROTOCOL_VERSION && in.pid == (uint32_t)getpid());
	CHECK(in.env.len == 18 && !memcmp(record + in.env.off, "CUDA_A=1\0CUDA_B=2\0", 18));
	CHECK(in.env.off == sizeof(struct cw_record) + sizeof in && in.exe.off == in.env.off + 24);
	char exe[4096];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof exe);
	CHECK(n > 0 && in.exe.len == (uint32_t)n && !memcmp(record + in.exe.off, exe, (size_t)n));
	CHECK(released == 1 && begun_var == 24 + (uint32_t)n && strstr(said, "1 device(s), driver 13000"));
	const struct cw_info *i = cw_session_info();
	CHECK(i->driver_version == 13000 && i->device_count == 1 && i->caps == 5 && i->mem_limit == 77 &&
	      !memcmp(&i->devices[0], &device, sizeof device));
	CHECK(cw_g.ctl == (struct cw_control_page *)page && cw_check() == 0 && cw_check_alive() == 0 && opener_then == cw_thread_ordinal());
	CHECK(atomic_load(&cw_s.opener) == 0 && cw_session_open() == 0 && opens == 1); /* once */
}

static void roomy(void)
{
	static char large[16384 + 8], *vars[] = {large, "CUDA_B=2", NULL};
	extern char **environ;
	memset(large, 'x', 16383); /* to the last byte, and then nothing fits */
	memcpy(large, "CUDA_C=", 7);
	environ = vars;
	CHECK(cw_session_open() == 0 && in.env.len == 16384 && record[in.env.off + 16383] == 0 &&
	      !memcmp(record + in.env.off, "CUDA_C=x", 8));
}

/* What the worker answers that takes no session: all is undone, and another try may follow. */
static void answers(void)
{
	static const struct {
		CUresult commit, result;
		size_t len;
		struct cw_out_SessionInit out;
		CUresult want;
		const char *words;
	} all[] = {
		{CUDA_ERROR_LAUNCH_FAILED, 0, 0, {0}, CUDA_ERROR_UNKNOWN, "ended while it started"},
		{CUDA_ERROR_OUT_OF_MEMORY, 0, 0, {0}, CUDA_ERROR_OUT_OF_MEMORY, "ended while it started"},
		{0, 46, 0, {0}, 46, "CUDA error 46"},
		{0, 0, sizeof all[0].out - 1, {.device_count = 1}, CUDA_ERROR_UNKNOWN, "too short"},
		{0, 0, 4096, {.device_count = 1025, .devices = {.off = 32, .len = 4000}}, CUDA_ERROR_UNKNOWN, "malformed"},
		{0, 0, 4096, {.device_count = 1, .devices = {.off = 4097, .len = 0}}, CUDA_ERROR_UNKNOWN, "malformed"},
		{0, 0, 4096, {.device_count = 1, .devices = {.off = 4000, .len = 97}}, CUDA_ERROR_UNKNOWN, "malformed"},
		{0, 0, 4096, {.device_count = 1, .devices = {.off = 32, .len = sizeof device - 1}}, CUDA_ERROR_UNKNOWN, "malformed"},
		{0, 0, 4096, {.device_count = 0, .devices = {.off = 32, .len = 0}}, CUDA_ERROR_NO_DEVICE, "no device for this session"},
		{0, 0, sizeof all[0].out, {.device_count = 0, .devices = {.off = 32, .len = 0}}, CUDA_ERROR_NO_DEVICE, "no device"},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		commit_res = all[i].commit;
		reply_res = all[i].result;
		reply_len = all[i].len;
		memcpy(reply, &all[i].out, sizeof all[i].out);
		released = abandoned = 0;
		CHECK(cw_session_open() == all[i].want && strstr(said, all[i].words));
		CHECK(released == (commit_res == 0) && abandoned == 1 && !cw_s.base && !cw_s.ctl &&
		      cw_g.ctl != (struct cw_control_page *)page);
		CHECK(atomic_load(&cw_g.state) == CW_CLOSED && atomic_load(&cw_s.opener) == 0 && cw_check() == CUDA_ERROR_NOT_INITIALIZED);
	}
	begin_res = CUDA_ERROR_LAUNCH_FAILED;
	abandoned = 0;
	CHECK(cw_session_open() == CUDA_ERROR_UNKNOWN && abandoned == 1);
	begin_res = 0;
	fill_reply();
	reply_len = reply_len + 8; /* more than is known */
	CHECK(cw_session_open() == 0);
}

static void dead_or_not(void)
{
	CHECK(!cw_is_dead(&cw_s)); /* of no session */
	cw_mark_dead(&cw_s, "too early");
	CHECK(said[0] == 0 && atomic_load(&cw_g.state) == CW_CLOSED && cw_is_dead(&cw_s));
	CHECK(cw_session_open() == 0 && !cw_is_dead(&cw_s)); /* another one */
	said[0] = 0;
	cw_s.ctl->worker_state = CW_WORKER_SLEEPING;
	CHECK(!cw_is_dead(&cw_s) && cw_check() == 0);
	cw_s.ctl->worker_state = CW_WORKER_DEAD;
	CHECK(cw_is_dead(&cw_s) && strstr(said, "the worker ended (virtiofs)") && atomic_load(&cw_g.state) == CW_DEAD);
	said[0] = 0;
	cw_mark_dead(&cw_s, "again");
	cw_s.ctl->worker_state = 0;
	CHECK(said[0] == 0 && cw_is_dead(&cw_s)); /* said once, and for good */
	CHECK(cw_check() == CUDA_ERROR_LAUNCH_FAILED && cw_check_alive() == CUDA_ERROR_LAUNCH_FAILED &&
	      cw_session_open() == CUDA_ERROR_LAUNCH_FAILED && opens == 1);
	at_exit();
	CHECK(closed == 0 && atomic_load(&cw_g.state) == CW_DEAD);
}

static void exits(void)
{
	at_exit();
	CHECK(closed == 0 && atomic_load(&cw_g.state) == CW_CLOSED && atomic_load(&cw_exiting_thread) == (uint32_t)getpid());
	CHECK(cw_session_open() == 0);
	at_exit();
	CHECK(closed == 1 && atomic_load(&cw_g.state) == CW_EXITING && cw_check() == CUDA_ERROR_DEINITIALIZED &&
	      cw_session_open() == CUDA_ERROR_DEINITIALIZED);
	at_exit();
	CHECK(closed == 1);
	cw_mark_dead(&cw_s, "x");
	CHECK(atomic_load(&cw_g.state) == CW_EXITING);
}

static void forks(void)
{
	cw_session_forked(1);
	/* It may have a session of its own. */
	CHECK(forked == 0 && atomic_load(&cw_g.state) == CW_CLOSED);
	atomic_store(&cw_s.opener, 3);
	cw_session_forked(1); /* another thread was opening one: there is nothing of it yet */
	CHECK(forked == 0 && atomic_load(&cw_g.state) == CW_FORKED && cw_check() == CUDA_ERROR_NOT_INITIALIZED &&
	      cw_session_open() == CUDA_ERROR_NOT_INITIALIZED);
}

static void forks_open(void)
{
	CHECK(cw_session_open() == 0);
	cw_session_forked(7);
	CHECK(forked == 1 && owned_ == 7 && atomic_load(&cw_g.state) == CW_FORKED);
	cw_session_forked(7); /* and its child's child */
	CHECK(forked == 1 && cw_check_alive() == CUDA_ERROR_NOT_INITIALIZED && cw_session_open() == CUDA_ERROR_NOT_INITIALIZED &&
	      opens == 1);
	at_exit();
	CHECK(closed == 0);
}

/* A session by an adapter of this machine's own, or, where that does not come to be, by the host,
 * which is told why. */
static void direct(void)
{
	rdma_wanted = 1;
	rdma_err = -ENODEV;
	CHECK(cw_session_open() == 0 && rdma_opens == 1 && opens == 1 && cw_s.carrier == &cw_carrier_virtiofs && slots == 2);
	CHECK(!strcmp(cw_rdma_apart, "no adapter") && cw_s.why[0] == 0 && cw_rdma_oob.mount && !strcmp(rdma_mount, target));
}

static void direct_unix(void)
{
	rdma_wanted = 1;
	setenv("CAUSEWAY", "unix:/tmp/socket", 1);
	CHECK(cw_session_open() == 0 && rdma_opens == 1 && opens == 1 && cw_s.carrier == &cw_carrier_rdma);
	CHECK(cw_rdma_apart[0] == 0 && !cw_rdma_oob.mount && rdma_mount == NULL && !strcmp(target, "/tmp/socket"));
}

static void direct_tcp(void)
{
	rdma_wanted = 1;
	setenv("CAUSEWAY", "tcp://host:1", 1);
	CHECK(cw_session_open() == 0 && rdma_opens == 0 && cw_s.carrier == &cw_carrier_tcp);
}

static void calibration(void)
{
	static const struct {
		int cpus;
		int64_t ns;
		uint32_t us, max, most;
	} all[] = {
		/* 2000 pauses in so long; spin_us is 50 */
		{1, 20000, 100, 0, 0},		{2, 20000, 100, 5000, 5000},  {3, 20000, 100, 5000, 5000},
		{4, 20000, 100, 5000, 3000000}, {8, 2000000, 1, 50, 30000},   {2, 0, 10, 500, 500},
		{2, 4000000, 1, 50, 50},	{-1, 20000, 100, 5000, 5000}, {2, 1, 2000000, 100000000, 100000000},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		cpus = all[i].cpus;
		pause_ns = all[i].ns;
		clock_ns = i % 2 ? 999999999 : 17; /* over a second's end, too */
		cw_s.carrier = &cw_carrier_virtiofs;
		cw_spin_calibrate(&cw_s);
		CHECK(cw_s.cpus == (cpus < 0 ? 2 : (uint32_t)cpus) && cw_s.spins_per_us == all[i].us && cw_s.spin_max == all[i].max &&
		      cw_s.spin_most == all[i].most);
	}
	cpus = 2;
	pause_ns = 20000;
	cw_s.tail = cw_s.head_seen = 4096; /* another session's */
	CHECK(cw_session_open() == 0 && cw_s.spin_max == 5000 && atomic_load(&cw_s.rung_head) == UINT64_MAX && cw_s.tail == 0 &&
	      cw_s.head_seen == 0);
}

/* Of a worker of another machine an answer is looked for briefly where cores are few and the
 * program is beside who brings it, and else as ever. */
static void far(void)
{
	static const struct {
		const char *env;
		int cpus;
		uint32_t caps, max, most;
	} all[] = {{"unix:/x", 1, 4, 0, 0},	     {"unix:/x", 2, 4, 500, 500},   {"unix:/x", 3, 4, 500, 500},
		   {"unix:/x", 4, 4, 5000, 3000000}, {"unix:/x", 2, 5, 5000, 5000}, {"/mnt", 2, 4, 5000, 5000}};
	pause_ns = 20000; /* 2000 pauses: 100 in a us */
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		cpus = all[i].cpus;
		setenv("CAUSEWAY", all[i].env, 1);
		memcpy(reply + offsetof(struct cw_out_SessionInit, caps), &all[i].caps, sizeof all[i].caps);
		atomic_store(&cw_g.state, CW_CLOSED);
		CHECK(cw_session_open() == 0 && cw_s.spin_max == all[i].max && cw_s.spin_most == all[i].most);
	}
}

static void *second(void *arg)
{
	uint32_t *got = arg;
	got[1] = *cw_thread_slot(); /* whichever is asked for first */
	got[0] = cw_thread_ordinal();
	got[2] = cw_thread_ordinal();
	cw_thread_as(1, 9); /* a helper of the first */
	got[3] = cw_thread_ordinal();
	got[4] = cw_current_ctx_id();
	return NULL;
}

static void threads(void)
{
	uint32_t got[5];
	CHECK(*cw_thread_slot() == 0 && cw_thread_ordinal() == 1 && cw_current_ctx_id() == 0);
	CHECK(cw_sticky(CUDA_ERROR_ILLEGAL_ADDRESS) == CUDA_ERROR_INVALID_CONTEXT);
	cw_set_current_ctx_id(4);
	CHECK(cw_current_ctx_id() == 4 && cw_sticky(CUDA_ERROR_ILLEGAL_ADDRESS) == CUDA_ERROR_ILLEGAL_ADDRESS);
	for (uint32_t i = 2; i <= 66; i++) {
		pthread_t t;
		CHECK(pthread_create(&t, NULL, second, got) == 0 && pthread_join(t, NULL) == 0);
		CHECK(got[0] == i && got[1] == (i - 1) % CW_SLOT_COUNT && got[2] == i && got[3] == 1 && got[4] == 9);
	}
	CHECK(cw_thread_ordinal() == 1 && cw_current_ctx_id() == 4);
}

int main(void)
{
	void (*const all[])(void) = {where,	 results, told,	       roomy,	   answers,	dead_or_not, exits,  forks,
				     forks_open, direct,  direct_unix, direct_tcp, calibration, far,	     threads};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		int st = -1;
		pid_t p = fork();
		if (p == 0) {
			fill_reply();
			all[i]();
			_exit(0);
		}
		CHECK(p > 0 && waitpid(p, &st, 0) == p && st == 0);
	}
	puts("open_test ok");
	return 0;
}

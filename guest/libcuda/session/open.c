/*
 * Opening the process's session, and what ends it: fork (the child has none), exit, a dead worker.
 * Nothing here runs before the application calls cuInit, except the destructor, which then finds
 * nothing to do.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/ops.h"
#include "session/internal.h"
#include "session/rdma.h"

static struct cw_control_page no_session;

struct cw_global cw_g = {.state = CW_CLOSED, .ctl = &no_session};
struct cw_session cw_s = {.fd = -1, .bell = -1};
static _Atomic int dead;
_Atomic uint32_t cw_callback_thread, cw_exiting_thread;
__thread int cw_in_callback __attribute__((tls_model("initial-exec")));

static __thread struct {
	uint32_t ordinal, ctx, slot;
} self __attribute__((tls_model("initial-exec")));

uint32_t cw_thread_ordinal(void)
{
	static _Atomic uint32_t last;
	if (cw_unlikely(self.ordinal == 0)) {
		self.ordinal = atomic_fetch_add(&last, 1) + 1;
		self.slot = (self.ordinal - 1) % CW_SLOT_COUNT;
	}
	return self.ordinal;
}

uint32_t *cw_thread_slot(void)
{
	cw_thread_ordinal();
	return &self.slot;
}

uint32_t cw_current_ctx_id(void) { return self.ctx; }
void cw_set_current_ctx_id(uint32_t id) { self.ctx = id; }

void cw_thread_as(uint32_t ordinal, uint32_t ctx)
{
	self.ordinal = ordinal;
	self.ctx = ctx;
}

const struct cw_info *cw_session_info(void) { return &cw_s.info; }

int cw_is_dead(struct cw_session *s)
{
	if (atomic_load_explicit(&dead, memory_order_relaxed))
		return 1;
	if (s->ctl && __atomic_load_n(&s->ctl->worker_state, __ATOMIC_ACQUIRE) == CW_WORKER_DEAD) {
		cw_mark_dead(s, "the worker ended");
		return 1;
	}
	return 0;
}

static int has_descriptors(const struct cw_session *s) { return cw_own_is(s->fd, &s->fd_own) && cw_own_is(s->bell, &s->bell_own); }

void cw_mark_dead(struct cw_session *s, const char *why)
{
	uint32_t open_ = CW_OPEN;
	int first = !atomic_exchange(&dead, 1);
	atomic_compare_exchange_strong(&cw_g.state, &open_, CW_DEAD);
	if (!first || atomic_load(&cw_g.state) != CW_DEAD)
		return;
	/* Which the host has seen as an end of the program's, and may have answered. */
	if (!has_descriptors(s))
		why = CW_CLOSED_BY_PROGRAM;
	cw_log(CW_LOG_ERROR, "%s (%s): every further CUDA call fails with CUDA_ERROR_LAUNCH_FAILED", why, s->carrier->name);
}

static int checked(struct cw_session *s, int fd, const struct cw_own *own)
{
	if (cw_likely(cw_own_is(fd, own)))
		return fd;
	cw_mark_dead(s, CW_CLOSED_BY_PROGRAM);
	return -1;
}

int cw_fd(struct cw_session *s) { return checked(s, s->fd, &s->fd_own); }
int cw_bell(struct cw_session *s) { return checked(s, s->bell, &s->bell_own); }

CUresult cw_sticky(CUresult sticky) { return self.ctx != 0 ? sticky : CUDA_ERROR_INVALID_CONTEXT; }

CUresult cw_check_slow(void)
{
	switch (atomic_load(&cw_g.state)) {
	case CW_OPEN: return 0;
	case CW_DEAD: return CUDA_ERROR_LAUNCH_FAILED;
	case CW_EXITING: return CUDA_ERROR_DEINITIALIZED;
	default: return CUDA_ERROR_NOT_INITIALIZED;
	}
}

/* A child of a process with a session has none and gets none: its descriptors are closed, so that
 * the host sees the parent's death, and its mappings of the regions are gone (MADV_DONTFORK). */
void cw_session_forked(int owned)
{
	uint32_t state = atomic_load(&cw_g.state);
	if (state == CW_CLOSED && atomic_load(&cw_s.opener) == 0)
		return;
	if (state != CW_FORKED && cw_s.base)
		cw_s.carrier->forked(&cw_s, owned);
	atomic_store(&cw_g.state, CW_FORKED);
}

__attribute__((destructor)) static void at_exit(void)
{
	uint32_t open_ = CW_OPEN;
	atomic_store(&cw_exiting_thread, (uint32_t)syscall(SYS_gettid));
	if (atomic_compare_exchange_strong(&cw_g.state, &open_, CW_EXITING))
		cw_s.carrier->close(&cw_s);
}

enum { PLENTY = 4 /* cores */ };

/* How long a pause takes on this machine, and whether spinning helps at all. */
int cw_spin_calibrate(struct cw_session *s)
{
	cpu_set_t set;
	s->cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 2;
	struct timespec a, b;
	enum { TURNS = 2000 };
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (int i = 0; i < TURNS; i++)
		cw_pause();
	clock_gettime(CLOCK_MONOTONIC, &b);
	int64_t ns = (b.tv_sec - a.tv_sec) * 1000000000ll + (b.tv_nsec - a.tv_nsec);
	s->spins_per_us = ns > 0 ? (uint32_t)(TURNS * 1000ll / ns) : 10;
	if (s->spins_per_us == 0)
		s->spins_per_us = 1;
	s->spin_max = s->cpus > 1 ? s->spins_per_us * s->carrier->spin_us : 0;
	/* A wait for a GPU often takes some hundred us, and a wake-up some ten: with cores to spare
	 * it is worth some ms, as the bare driver does. */
	s->spin_most = s->cpus >= PLENTY ? s->spins_per_us * 30000 : s->spin_max;
	return 0;
}

/* A worker of another machine answers after a round trip of the link. Where whoever passes the
 * call on and brings the answer may need this core, it is given up at once. A VM's cores are not
 * that. */
void cw_spin_far(struct cw_session *s)
{
	uint32_t brief = s->spins_per_us * s->carrier->spin_far_us;
	if (s->cpus < PLENTY && brief > 0 && s->spin_max > brief)
		s->spin_max = s->spin_most = brief;
}

/* Path of the file that this code was loaded from: "lo-hi perms offset dev inode path" in
 * /proc/self/maps. (No dladdr: it is in libdl on old systems. No sscanf: newer C libraries rename
 * it.) */
static int own_path(char *out, size_t cap)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[4352];
	int found = 0;
	if (!f)
		return 0;
	while (!found && fgets(line, sizeof line, f)) {
		const char *p = line;
		uintptr_t lo = cw_hex(&p);
		uintptr_t hi = *p == '-' ? (p++, cw_hex(&p)) : 0;
		if ((uintptr_t)own_path < lo || (uintptr_t)own_path >= hi)
			continue;
		line[strcspn(line, "\n")] = 0;
		p = strchr(line, '/');
		found = p && strlen(p) < cap;
		if (found)
			memcpy(out, p, strlen(p) + 1);
	}
	fclose(f);
	return found;
}

/* The mount that serves this library: MOUNT/lib/libcuda.so.1, if MOUNT/session is there; else
 * /run/causeway. */
static void find_mount(char *out, size_t cap)
{
	char path[4096], probe[4200];
	if (own_path(path, sizeof path)) {
		for (int up = 0; up < 2; up++) {
			char *slash = strrchr(path, '/');
			if (slash)
				*slash = 0;
		}
		snprintf(probe, sizeof probe, "%s/session", path);
		if (path[0] && strlen(path) < cap && access(probe, F_OK) == 0) {
			memcpy(out, path, strlen(path) + 1);
			return;
		}
	}
	snprintf(out, cap, "/run/causeway");
}

static int begin_carrier(struct cw_session *s, const struct cw_carrier *c, const char *target)
{
	s->carrier = c;
	cw_spin_calibrate(s);
	s->tail = s->head_seen = 0;
	atomic_store(&s->rung_head, UINT64_MAX);
	cw_slots_init(s);
	atomic_store(&dead, 0);
	memset(&s->fd_own, 0, sizeof s->fd_own);
	memset(&s->bell_own, 0, sizeof s->bell_own);
	return c->open(s, target);
}

/* By an RDMA adapter of this machine's own, or else by the host as any session, which is told
 * why. */
static int open_direct(struct cw_session *s, const char *target)
{
	const struct cw_carrier *by_host = s->carrier;
	cw_rdma_oob.mount = by_host == &cw_carrier_virtiofs;
	cw_rdma_apart[0] = 0;
	int err = begin_carrier(s, &cw_carrier_rdma, target);
	if (err == 0)
		return 0;
	snprintf(cw_rdma_apart, sizeof cw_rdma_apart, "%s", s->why);
	cw_log(CW_LOG_INFO, "this process is no RDMA end, its session goes by the host: %s", s->why);
	s->why[0] = 0;
	return begin_carrier(s, by_host, target);
}

static int open_carrier(struct cw_session *s)
{
	const char *e = getenv("CAUSEWAY");
	char mount[4096];
	const char *target = mount;
	if (!e || !*e) {
		s->carrier = &cw_carrier_virtiofs;
		find_mount(mount, sizeof mount);
	} else if (!strncmp(e, "unix:", 5)) {
		s->carrier = &cw_carrier_unix;
		target = e + 5;
	} else if (!strncmp(e, "tcp://", 6)) {
		s->carrier = &cw_carrier_tcp;
		target = e + 6;
	} else if (e[0] == '/') {
		s->carrier = &cw_carrier_virtiofs;
		target = e;
	} else {
		cw_why(s, "CAUSEWAY=%s is none of unix:PATH, tcp://HOST:PORT, /MOUNT", e);
		return -EINVAL;
	}
	int direct = s->carrier != &cw_carrier_tcp && cw_rdma_wanted(s->carrier == &cw_carrier_virtiofs ? target : NULL);
	return direct ? open_direct(s, target) : begin_carrier(s, s->carrier, target);
}

/* NUL-separated CUDA_ variables: the worker's driver must see them. */
static uint32_t collect_env(char *out, uint32_t cap)
{
	extern char **environ;
	uint32_t n = 0;
	for (char **e = environ; e && *e; e++) {
		size_t len = strlen(*e) + 1;
		if (!strncmp(*e, "CUDA_", 5) && len <= cap - n) {
			memcpy(out + n, *e, len);
			n += (uint32_t)len;
		}
	}
	return n;
}

static CUresult take_info(struct cw_session *s, const struct cw_reply *rep)
{
	struct cw_out_SessionInit r;
	if (rep->len < sizeof r) {
		cw_why(s, "the host's first reply is too short: %zu bytes", rep->len);
		return CUDA_ERROR_UNKNOWN;
	}
	memcpy(&r, rep->data, sizeof r);
	size_t want = (size_t)r.device_count * sizeof(struct cw_device_info);
	if (r.device_count > 1024 || r.devices.off > rep->len || r.devices.len > rep->len - r.devices.off || r.devices.len < want) {
		cw_why(s, "the host's first reply is malformed");
		return CUDA_ERROR_UNKNOWN;
	}
	if (r.device_count == 0) {
		cw_why(s, "the host has no device for this session");
		return CUDA_ERROR_NO_DEVICE;
	}
	struct cw_device_info *d = malloc(want);
	if (!d)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(d, rep->data + r.devices.off, want);
	s->info = (struct cw_info){(int)r.driver_version, r.device_count, r.caps, r.mem_limit, d};
	if (!(r.caps & CW_CAP_MAP))
		cw_spin_far(s);
	return 0;
}

static CUresult session_init(struct cw_session *s)
{
	static char env[16384], exe[4096]; /* under open_lock */
	uint32_t env_len = collect_env(env, sizeof env);
	ssize_t exe_len = readlink("/proc/self/exe", exe, sizeof exe);
	if (exe_len < 0)
		exe_len = 0;
	struct cw_tx tx;
	struct cw_reply rep;
	CUresult r = cw_begin(&tx, CW_OP_SESSION_INIT, sizeof(struct cw_in_SessionInit), ((env_len + 7) & ~7u) + (uint32_t)exe_len, 1);
	if (r != 0)
		return r;
	uint8_t *fixed = tx.rec + sizeof(struct cw_record);
	uint32_t at = sizeof(struct cw_record) + sizeof(struct cw_in_SessionInit);
	struct cw_in_SessionInit in = {
		.version = CW_PROTOCOL_VERSION,
		.pid = (uint32_t)getpid(),
		.env = {env_len, at},
		.exe = {(uint32_t)exe_len, at + ((env_len + 7) & ~7u)},
	};
	memcpy(fixed, &in, sizeof in);
	memcpy(tx.rec + in.env.off, env, env_len);
	memcpy(tx.rec + in.exe.off, exe, (size_t)exe_len);
	r = cw_commit_wait(&tx, &rep);
	if (r != 0) {
		cw_why(s, "the worker ended while it started: its log says why");
		return r;
	}
	r = rep.result;
	if (r == 0)
		r = take_info(s, &rep);
	else
		cw_why(s, "the worker could not start its driver: CUDA error %d", (int)r);
	cw_reply_release(&rep);
	return r;
}

static CUresult result_of(int err)
{
	switch (-err) {
	case EPROTONOSUPPORT: return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
	case ENOMEM: return CUDA_ERROR_OUT_OF_MEMORY;
	case ENOENT:
	case ENOTDIR:
	case ECONNREFUSED:
	case ENODEV:
	case ENOTCONN:
	case EACCES:
	case EPERM: return CUDA_ERROR_NO_DEVICE;
	default: return CUDA_ERROR_UNKNOWN;
	}
}

static CUresult open_locked(struct cw_session *s)
{
	static int watched;
	if (!watched) {
		cw_fork_watch();
		watched = 1;
	}
	s->why[0] = 0;
	int err = open_carrier(s);
	if (err != 0)
		return result_of(err);
	cw_g.ctl = s->ctl;
	CUresult r = session_init(s);
	if (r != 0) {
		s->carrier->abandon(s);
		cw_g.ctl = &no_session;
		s->base = NULL;
		s->ctl = NULL;
		return r == CUDA_ERROR_LAUNCH_FAILED ? CUDA_ERROR_UNKNOWN : r;
	}
	return 0;
}

CUresult cw_session_open(void)
{
	struct cw_session *s = &cw_s;
	if (atomic_load_explicit(&cw_g.state, memory_order_acquire) != CW_CLOSED)
		return cw_check_slow();
	cw_lock_acquire(&s->open_lock);
	CUresult r = 0;
	if (atomic_load(&cw_g.state) == CW_CLOSED) {
		atomic_store(&s->opener, cw_thread_ordinal());
		r = open_locked(s);
		if (r == 0) {
			atomic_store_explicit(&cw_g.state, CW_OPEN, memory_order_release);
			cw_log(CW_LOG_INFO, "session open by %s: %u device(s), driver %d", s->carrier->name, s->info.device_count,
			       s->info.driver_version);
		} else if (s->why[0]) {
			cw_log(CW_LOG_ERROR, "%s", s->why);
		}
		atomic_store(&s->opener, 0);
	} else {
		r = cw_check_slow();
	}
	cw_lock_release(&s->open_lock);
	return r;
}

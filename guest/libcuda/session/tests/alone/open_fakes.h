/* For open_test.c, which includes open.c before it: carriers, a worker's first reply, a clock and
 * CPUs as the test wants them, and what was done. */
#ifndef CW_OPEN_FAKES_H
#define CW_OPEN_FAKES_H

#include <pthread.h>

static int cpus = 2, clock_looks, mount_there;
static int64_t pause_ns = 20000, clock_ns;
static char probed[4200];

static int f_affinity(cpu_set_t *set)
{
	CPU_ZERO(set);
	for (int i = 0; i < cpus; i++)
		CPU_SET(i, set);
	return cpus < 0 ? -1 : 0;
}

static int f_clock(struct timespec *t)
{
	if (clock_looks++ % 2 == 1)
		clock_ns += pause_ns;
	*t = (struct timespec){clock_ns / 1000000000, clock_ns % 1000000000};
	return 0;
}

static int f_access(const char *path)
{
	snprintf(probed, sizeof probed, "%s", path);
	return mount_there ? 0 : -1;
}

static char said[1024];

void cw_log(enum cw_log_level level, const char *fmt, ...)
{
	va_list args;
	(void)level;
	va_start(args, fmt);
	vsnprintf(said, sizeof said, fmt, args);
	va_end(args);
}

void cw_why(struct cw_session *s, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	vsnprintf(s->why, sizeof s->why, fmt, args);
	va_end(args);
}

/* --- carriers --------------------------------------------------------------------------------- */

static int opens, open_err, quiet, abandoned, closed, forked, owned_, watches, slots;
static char target[4200];
static uint8_t page[CW_REGION0_SIZE];

static int c_open(struct cw_session *s, const char *where)
{
	opens++;
	snprintf(target, sizeof target, "%s", where);
	if (open_err) {
		if (!quiet)
			cw_why(s, "carrier's own words");
		return open_err;
	}
	s->base = page;
	s->ctl = (struct cw_control_page *)page;
	return 0;
}

static void c_abandon(struct cw_session *s)
{
	CHECK(s->base == page);
	abandoned++;
}

static void c_close(struct cw_session *s)
{
	CHECK(s == &cw_s);
	closed++;
}

static void c_forked(struct cw_session *s, int owned)
{
	CHECK(s == &cw_s && atomic_load(&cw_g.state) != CW_FORKED);
	forked++;
	owned_ = owned;
}

#define CARRIER(of, far) \
	{.name = of, .spin_us = 50, .spin_far_us = far, .open = c_open, .abandon = c_abandon, .close = c_close, .forked = c_forked}
const struct cw_carrier cw_carrier_unix = CARRIER("unix", 5), cw_carrier_virtiofs = CARRIER("virtiofs", 0),
			cw_carrier_tcp = CARRIER("tcp", 0);

static int rdma_wanted, rdma_err, rdma_opens;
static const char *rdma_mount;
char cw_rdma_apart[256];
struct cw_rdma_oob cw_rdma_oob;

int cw_rdma_wanted(const char *mount)
{
	rdma_mount = mount;
	return rdma_wanted;
}

static int c_open_rdma(struct cw_session *s, const char *where)
{
	CHECK(s->carrier == &cw_carrier_rdma);
	rdma_opens++;
	if (rdma_err) {
		cw_why(s, "no adapter");
		return rdma_err;
	}
	return c_open(s, where);
}
const struct cw_carrier cw_carrier_rdma = {
	.name = "rdma", .spin_us = 20, .open = c_open_rdma, .abandon = c_abandon, .close = c_close, .forked = c_forked};

void cw_fork_watch(void) { watches++; }
void cw_slots_init(struct cw_session *s)
{
	CHECK(s == &cw_s);
	slots++;
}

/* --- the worker's first reply ----------------------------------------------------------------- */

static const struct cw_device_info device = {.attrs[0] = 1234};
static uint8_t record[64 << 10], reply[8192];
static size_t reply_len;
static CUresult begin_res, commit_res, reply_res;
static int released;
static uint32_t opener_then, begun_op, begun_var;
static struct cw_in_SessionInit in;

static void fill_reply(void)
{
	struct cw_out_SessionInit r = {
		.driver_version = 13000, .device_count = 1, .caps = 5, .mem_limit = 77, .devices = {.off = sizeof r, .len = sizeof device}};
	memcpy(reply, &r, sizeof r);
	memcpy(reply + sizeof r, &device, sizeof device);
	CHECK(sizeof r + sizeof device + 8 <= sizeof reply);
	reply_len = sizeof r + sizeof device;
	begin_res = commit_res = reply_res = 0;
}

CUresult cw_begin(struct cw_tx *tx, uint16_t op, uint32_t fixed, uint32_t var, int wants)
{
	CHECK(fixed == sizeof in && wants && cw_g.ctl == (struct cw_control_page *)page);
	begun_op = op;
	begun_var = var;
	tx->rec = record;
	opener_then = atomic_load(&cw_s.opener);
	return begin_res;
}

CUresult cw_commit_wait(struct cw_tx *tx, struct cw_reply *rep)
{
	memcpy(&in, tx->rec + sizeof(struct cw_record), sizeof in);
	*rep = (struct cw_reply){.result = reply_res, .data = reply, .len = reply_len};
	return commit_res;
}

void cw_reply_release(struct cw_reply *rep)
{
	CHECK(rep->data == reply);
	released++;
}

#endif

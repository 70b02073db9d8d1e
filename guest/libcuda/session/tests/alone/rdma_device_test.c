/*
 * Devices by libibverbs, alone: rdma_device.c, whose library and whose memory are the test's own.
 * What is asked of an adapter, what the other end is told of it, and that whatever fails gives back
 * all that was taken, and says of what it is.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "session/rdma_stream.h"
#include "session/tests/check.h"

static const char *f_load(char **text);
static int f_open(const char *name, struct ibv_context **ctx, struct ibv_pd **pd);
static int f_close_device(struct ibv_context *ctx, struct ibv_pd *pd);
static int f_mtu(struct ibv_context *ctx, int port, uint32_t *mtu);
static int f_register(struct ibv_pd *pd, uint64_t at, size_t n, int access, struct ibv_mr **mr);
static int f_deregister(struct ibv_mr *mr);
static int f_queue_open(struct ibv_context *ctx, struct ibv_pd *pd, int sends, int receives, uint32_t *inlined, struct cw_queue *q);
static int f_queue_close(struct cw_queue *q);
static int f_connect(struct ibv_qp *qp, const struct cw_path *p, const char **step);
static int f_post_receive(struct ibv_qp *qp, int n);
static int f_fcntl(int fd, int what, int value);
static int f_close(int fd);
static void *f_mmap(size_t n);
static int f_munmap(void *p, size_t n);
static long f_syscall(long number, void *p, size_t n, int flags);
static int64_t now = 1;

#define cw_load(lib, name, text) f_load(text)
#define cw_open(lib, name, ctx, pd) f_open(name, ctx, pd)
#define cw_close(lib, ctx, pd) f_close_device(ctx, pd)
#define cw_mtu(lib, ctx, port, mtu) f_mtu(ctx, port, mtu)
#define cw_register(lib, pd, at, n, access, mr) f_register(pd, at, n, access, mr)
#define cw_deregister(lib, mr) f_deregister(mr)
#define cw_queue_open(lib, ctx, pd, sends, receives, inlined, q) f_queue_open(ctx, pd, sends, receives, inlined, q)
#define cw_queue_close(lib, q) f_queue_close(q)
#define cw_connect(lib, qp, path, step) f_connect(qp, path, step)
#define cw_post_receive(qp, n) f_post_receive(qp, n)
#define cw_now_ms() now
#define fcntl(fd, what, value) f_fcntl(fd, what, value)
#define close(fd) f_close(fd)
#define mmap(p, n, prot, flags, fd, at) f_mmap(n)
#define munmap(p, n) f_munmap(p, n)
#define madvise(p, n, advice) ((void)0)
#define syscall(number, p, n, flags) f_syscall(number, p, n, flags)
#include "session/rdma_device.c"
#undef syscall
#define OWN_CLOSE f_close
#include "session/tests/alone/own_fakes.h"

enum { EVENTS = 60, DEVICE };
static struct ibv_context context = {.cmd_fd = DEVICE};
static struct ibv_pd domain;
static struct ibv_mr region[2] = {{.rkey = 501}, {.rkey = 502}};
static struct ibv_comp_channel channel = {.fd = EVENTS};
static struct ibv_qp qp = {.qp_num = 77};
static uint8_t memory[2][1];
static int step, fails_at, fail_err, devices, regions, maps, queues, access_[2], closed[2];

static int fails(void) { return ++step == fails_at ? fail_err : 0; }

static const char *missing_, *text_;
static int loads;
static const char *f_load(char **text)
{
	loads++;
	*text = text_ ? strdup(text_) : NULL;
	return missing_;
}

static int f_open(const char *name, struct ibv_context **ctx, struct ibv_pd **pd)
{
	CHECK(!strcmp(name, "mlx5_1"));
	*ctx = &context; /* also where it fails */
	*pd = &domain;
	int err = fails();
	devices += !err;
	return err;
}

static int f_close_device(struct ibv_context *ctx, struct ibv_pd *pd)
{
	CHECK(ctx == &context && pd == &domain && regions == 0 && queues == 0);
	devices--;
	return 0;
}

static int f_mtu(struct ibv_context *ctx, int port, uint32_t *mtu)
{
	CHECK(ctx == &context && port == 2);
	*mtu = 4;
	return fails();
}

static void *f_mmap(size_t n)
{
	CHECK(n == CW_RDMA_WINDOW);
	if (fails())
		return MAP_FAILED;
	return memory[maps++];
}

static int f_munmap(void *p, size_t n)
{
	CHECK((p == memory[0] || p == memory[1]) && n == CW_RDMA_WINDOW && regions == 0 &&
	      devices == 0); /* an adapter writes there no more */
	maps--;
	return 0;
}

static int on_demand, registrations;
static int f_register(struct ibv_pd *pd, uint64_t at, size_t n, int access, struct ibv_mr **mr)
{
	CHECK(pd == &domain);
	if (n == 12345) { /* a region's */
		int wanted = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
		CHECK(at == (uintptr_t)memory && access == (registrations++ ? wanted | IBV_ACCESS_ON_DEMAND : wanted));
		*mr = registrations > on_demand ? &region[1] : NULL;
		return registrations > on_demand ? 0 : registrations == 1 ? ENOMEM : EIO;
	}
	CHECK(n == CW_RDMA_WINDOW && at == (uintptr_t)memory[regions]);
	int err = fails();
	if (err)
		return err;
	access_[regions] = access;
	*mr = &region[regions++];
	return 0;
}

static int f_deregister(struct ibv_mr *mr)
{
	CHECK(mr == &region[0] || mr == &region[1]);
	regions--;
	return fail_err;
}

static int f_queue_open(struct ibv_context *ctx, struct ibv_pd *pd, int sends, int receives, uint32_t *inlined, struct cw_queue *q)
{
	CHECK(ctx == &context && pd == &domain && sends == 256 && receives == 256 && *inlined == 128);
	q->channel = &channel; /* also where it fails: given back */
	q->qp = &qp;
	int err = fails();
	queues += !err;
	return err;
}

static int close_err;
static int f_queue_close(struct cw_queue *q)
{
	CHECK(q->channel == &channel);
	queues -= !close_err;
	return close_err;
}

static int nonblock, cloexec;
static int f_fcntl(int fd, int what, int value)
{
	CHECK(fd == EVENTS && (what == F_SETFL ? value == O_NONBLOCK : what == F_SETFD && value == FD_CLOEXEC));
	nonblock |= what == F_SETFL;
	cloexec |= what == F_SETFD;
	errno = fails();
	return errno ? -1 : 0;
}

static int f_close(int fd)
{
	CHECK(fd == EVENTS || fd == DEVICE);
	closed[fd - EVENTS]++;
	return 0;
}

static uint32_t random_;
static int no_random;
static long f_syscall(long number, void *p, size_t n, int flags)
{
	CHECK(number == SYS_getrandom && n == 4 && flags == 0);
	if (no_random)
		return -1;
	memcpy(p, &random_, 4);
	return 4;
}

static struct cw_path path;
static int connect_err, post_err, posted;
static int f_connect(struct ibv_qp *q, const struct cw_path *p, const char **what)
{
	CHECK(q == &qp);
	path = *p;
	*what = "ready to receive";
	return connect_err;
}

static int f_post_receive(struct ibv_qp *q, int n)
{
	CHECK(q == &qp && n == 256);
	posted++;
	return post_err;
}

static int fresh_err;
int cw_rdma_fresh(struct cw_rdma *r)
{
	CHECK(r);
	return fresh_err;
}

/* --- what is tried ---------------------------------------------------------------------------- */

static const struct cw_rdma_port port = {
	.device = "mlx5_1", .number = 2, .link = CW_RDMA_ETHERNET, .gid_index = 3, .lid = 9, .gid = {1, 2, [15] = 3}};
static struct cw_rdma *r;
static struct cw_rdma_offer own;
static char why[200];

static int opened(int at, int err)
{
	step = devices = regions = maps = queues = nonblock = cloexec = 0;
	fails_at = at;
	fail_err = err;
	r = NULL;
	why[0] = 0;
	memset(&own, 0xee, sizeof own);
	int res = cw_rdma_open(&r, &port, &own, why, sizeof why);
	fail_err = 0;
	return res;
}

static void loading(void)
{
	missing_ = "dlopen";
	text_ = "no such file";
	CHECK(strstr(cw_rdma_load(), "install rdma-core's libraries: no such file"));
	missing_ = "ibv_poll";
	text_ = NULL;
	CHECK(!strcmp(cw_rdma_load(), "libibverbs.so.1 has no ibv_poll"));
	missing_ = NULL;
	CHECK(!cw_rdma_load() && !cw_rdma_load() && loads == 3); /* once it is there */
}

static void opens(void)
{
	random_ = 0xff123456;
	CHECK(opened(0, 0) == 0 && r && devices == 1 && regions == 2 && maps == 2 && queues == 1 && nonblock && cloexec && step == 9 &&
	      !why[0]);
	CHECK(own.link == CW_RDMA_ETHERNET && own.reach == 0 && own.mtu == 4 && own.queue == 77 && own.psn == 0x123456 && own.key == 501 &&
	      own.size == CW_RDMA_WINDOW);
	CHECK(own.address == (uintptr_t)memory[0] && own.lid == 9 && !memcmp(own.gid, port.gid, 16));
	CHECK(access_[0] == (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) && access_[1] == IBV_ACCESS_LOCAL_WRITE);
	cw_rdma_free(r);
	CHECK(devices == 0 && regions == 0 && maps == 0 && queues == 0);
	static const char *const of[] = {"",
					 "mlx5_1:",
					 "query port:",
					 "register memory for RDMA:",
					 "register memory for RDMA:",
					 "register memory for RDMA:",
					 "register memory for RDMA:",
					 "RDMA queue pair:",
					 "RDMA events:",
					 "RDMA events:"};
	for (int at = 1; at <= 9; at++)
		for (int err = 0; err < 2; err++) {
			int is = at == 3 || at == 5 ? ENOMEM : err ? EAGAIN : EACCES;
			CHECK(opened(at, is) == -is && !r && devices == 0 && regions == 0 && maps == 0 && queues == 0);
			CHECK(!strncmp(why, of[at], strlen(of[at])) && (strstr(why, "ulimit -l") != NULL) == (is != EACCES));
		}
	CHECK(opened(2, -1) == -EIO); /* a provider's, which is no errno */
	no_random = 1;
	CHECK(opened(0, 0) == 0 && own.psn == (2654435761u & 0xffffff));
	no_random = 0;
	cw_rdma_free(r);
}

static void again(void)
{
	CHECK(opened(0, 0) == 0);
	close_err = EBUSY;
	CHECK(cw_rdma_shut(r) == -EBUSY && r->queue.channel == &channel && queues == 1);
	close_err = 0;
	CHECK(cw_rdma_shut(r) == 0 && queues == 0 && !r->queue.channel && !r->queue.qp && regions == 2);
	CHECK(cw_rdma_shut(r) == 0 && queues == 0);
	fresh_err = -EPIPE;
	CHECK(cw_rdma_reopen(r, &port, &own, why, sizeof why) == -EPIPE && !strcmp(why, "the session has ended") && own.size == 0);
	fresh_err = 0;
	static const char *const of[] = {"", "query port:", "RDMA queue pair:"};
	for (int at = 1; at < 3; at++) {
		step = 0;
		fails_at = at;
		fail_err = ENODEV;
		CHECK(cw_rdma_reopen(r, &port, &own, why, sizeof why) == -ECONNRESET && !strncmp(why, of[at], strlen(of[at])) &&
		      !r->queue.channel);
	}
	fail_err = fails_at = 0;
	CHECK(cw_rdma_reopen(r, &port, &own, why, sizeof why) == 0 && queues == 1 && regions == 2 && own.key == 501 && own.mtu == 4 &&
	      own.queue == 77 && own.size);
	cw_rdma_free(r);
}

static void connects(void)
{
	static const struct {
		int link;
		uint16_t lid;
		int global;
	} all[] = {{CW_RDMA_ETHERNET, 0, 1}, {CW_RDMA_ETHERNET, 5, 1}, {CW_RDMA_INFINIBAND, 5, 0}, {CW_RDMA_INFINIBAND, 0, 1}};
	CHECK(opened(0, 0) == 0);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		for (uint32_t mtu = 3; mtu < 6; mtu++) {
			struct cw_rdma_offer peer = {.link = all[i].link,
						     .lid = all[i].lid,
						     .mtu = mtu,
						     .queue = 8,
						     .psn = 6,
						     .key = 44,
						     .size = 65536,
						     .address = 4096,
						     .gid = {7}};
			posted = 0;
			CHECK(cw_rdma_connect(r, &port, &own, &peer, why, sizeof why) == 0 && posted == 1);
			CHECK(path.port == 2 && path.gid_index == 3 && path.mtu == (mtu < 4 ? mtu : 4) && path.own_psn == own.psn &&
			      path.peer_psn == 6 && path.peer_qp == 8);
			CHECK(path.peer_lid == all[i].lid && path.global == all[i].global && path.peer_gid[0] == 7 && path.timeout == 19);
			CHECK(r->out_size == 65536 && r->peer_address == 4096 && r->peer_key == 44);
		}
	struct cw_rdma_offer peer = {.link = CW_RDMA_ETHERNET};
	posted = 0;
	connect_err = EINVAL;
	CHECK(cw_rdma_connect(r, &port, &own, &peer, why, sizeof why) == -EINVAL && posted == 0 &&
	      !strncmp(why, "ready to receive: Invalid", 25));
	connect_err = 0;
	post_err = ENOMEM;
	CHECK(cw_rdma_connect(r, &port, &own, &peer, why, sizeof why) == -ENOMEM && strstr(why, "ulimit -l"));
	post_err = 0;
}

static void registers(void)
{
	static const int want[] = {0, 0, -ENOMEM};
	for (on_demand = 0; on_demand < 3; on_demand++) {
		void *mr = NULL;
		uint32_t key = 0;
		registrations = 0;
		CHECK(cw_rdma_register(r, memory, 12345, &mr, &key) == want[on_demand] && registrations == (on_demand ? 2 : 1));
		CHECK(on_demand == 2 ? !mr && key == 0 : mr == &region[1] && key == 502);
	}
	on_demand = 1; /* which is not asked of the kernel's own */
	registrations = 0;
	r->software = 1;
	void *mr = NULL;
	uint32_t key = 0;
	CHECK(cw_rdma_register(r, memory, 12345, &mr, &key) == -ENOMEM && registrations == 1 && !mr);
	r->software = 0;
	fail_err = EBUSY;
	CHECK(cw_rdma_deregister(r, &region[1]) == EBUSY);
	fail_err = 0;
}

static void forks(void)
{
	cw_rdma_forked(r);
	CHECK(closed[0] == 1 && closed[1] == 1);
	CHECK(cw_rdma_shut(r) == 0);
	cw_rdma_forked(r);
	CHECK(closed[0] == 1 && closed[1] == 2);
	static struct cw_rdma none;
	cw_rdma_forked(&none);
	CHECK(closed[0] == 1 && closed[1] == 2);
}

int main(void)
{
	loading();
	opens();
	again();
	connects();
	registers();
	forks();
	puts("rdma_device_test ok");
	return 0;
}

/*
 * The guest's end of a session by RDMA (carrier_rdma.c), and each way in which it does not come to
 * be, or ends: why is said, nothing is left, and the session goes by the host.
 */
#include "session/tests/rdma_far.h"

/* No session comes to be, and why is said. */
static void fails(enum server how, const char *why)
{
	int err = begin(how);
	if (err == 0 || !strstr(cw_s.why, why))
		fprintf(stderr, "%d, \"%s\", not \"%s\"\n", err, cw_s.why, why);
	CHECK(err < 0 && strstr(cw_s.why, why) && cw_s.base == NULL && cw_s.fd == -1);
	done();
}

static void test_ports(void)
{
	struct cw_rdma_port p[4];
	CHECK(cw_rdma_ports(dir, NULL, p, 4) == 1 && !strcmp(p[0].device, "fake0") && p[0].number == 1 && p[0].link == CW_RDMA_ETHERNET);
	CHECK(cw_rdma_ports(dir, "auto", p, 4) == 1 && cw_rdma_ports(dir, "fake0", p, 4) == 1 && cw_rdma_ports(dir, "fake0/1", p, 4) == 1);
	CHECK(cw_rdma_ports(dir, "fake0/2", p, 4) == 0 && cw_rdma_ports(dir, "fake", p, 4) == 0 &&
	      cw_rdma_ports("/nonexistent", NULL, p, 4) == 0);
	write_file("fake0/parent", p[0].software ? "" : "eth0\n");
	CHECK(!p[0].software && cw_rdma_ports(dir, NULL, p, 4) == 1 && p[0].software);
	/* By the way to the server; else an IPv4 address, not one of a link, nor of RoCE v1. */
	CHECK(cw_rdma_choose(dir, p, 1, "127.0.0.1") == p && p[0].gid_index == 3);
	CHECK(cw_rdma_choose(dir, p, 1, "::1") == p && p[0].gid_index == 2);
	CHECK(cw_rdma_choose(dir, p, 1, "no address") == p && p[0].gid_index == 2 && p[0].gid[12] == 10);
}

static void expect(uint16_t type, void *p, size_t n)
{
	struct cw_frame f;
	far_take(&f, sizeof f);
	if (f.type != type || f.len != n)
		fprintf(stderr, "frame %u of %u bytes, not %u of %zu\n", f.type, f.len, type, n);
	CHECK(f.type == type && f.len == n);
	far_take(p, n);
}

/* Frames go both ways, many windows of them; a region is granted, and the grant's key opens it, and
 * nothing more when it has ended. */
static void test_session(void)
{
	struct cw_region r;
	struct cw_hello h;
	CHECK(begin(SERVES) == 0 && cw_carrier_rdma.alive(&cw_s) == 0);
	uint8_t *va = memory(&r);
	expect(CW_FRAME_REGION, &h, sizeof h);
	expect(CW_FRAME_GRANT, &far.grant, sizeof far.grant);
	CHECK(far.grant.address == (uintptr_t)va && far.grant.size == SIZE && atomic_load(&fake->memory) == 5);
	uint8_t *b = malloc(SIZE);
	struct cw_frame_extent e = {REGION, 0, 0, SIZE - 64};
	for (int turn = 0; turn < 6; turn++) {
		/* WRITE, then READ of the same: more than a window each way. Both at once:
		 * acknowledgements come in between. */
		memcpy(b, &e, sizeof e);
		memset(b + sizeof e, turn + 1, SIZE - 64);
		CHECK(far_frame(CW_FRAME_WRITE, 0, b, sizeof e + SIZE - 64) == 0);
		CHECK(far_frame(CW_FRAME_READ, 7 + turn, &e, sizeof e) == 0);
		for (size_t left = SIZE - 64; left > 0;) {
			struct cw_frame f;
			far_take(&f, sizeof f);
			if (f.type == CW_FRAME_ACK) {
				CHECK(f.len == 0 && f.arg > 0 && f.arg <= (uint64_t)(turn + 1) * (SIZE + 200) + 200);
				continue;
			}
			CHECK(f.type == CW_FRAME_DATA && f.arg == (uint64_t)(7 + turn) && f.len <= left);
			far_take(b, f.len);
			for (uint32_t i = 0; i < f.len; i++)
				CHECK(b[i] == turn + 1);
			left -= f.len;
		}
	}
	cw_carrier_rdma.end_region(&cw_s, &r);
	struct cw_frame f;
	do
		far_take(&f, sizeof f);
	while (f.type == CW_FRAME_ACK);
	CHECK(f.type == CW_FRAME_REGION_END && f.arg == REGION && atomic_load(&fake->memory) == 4);
	free(b);
	cw_carrier_rdma.close(&cw_s);
	CHECK(atomic_load(&far.bye) == 1);
	cw_carrier_rdma.abandon(&cw_s);
	done();
}

/* What ends a session in its middle: the program sees it as dead, and waits for nothing. */
static void test_ends(void)
{
	struct cw_region r;
	struct cw_hello h;
	/* Work that fails, and what is behind it. */
	CHECK(begin(SERVES) == 0);
	atomic_store(&fake->status, 12);
	memory(&r);
	wait_dead(&r);
	CHECK(atomic_load(&far.lost) == 1);
	/* A post that the adapter does not take. What was to be posted is kept. */
	CHECK(begin(SERVES) == 0);
	atomic_store(&fake->no_post, 1);
	memory(&r);
	wait_dead(&r);
	CHECK(atomic_load(&far.lost) == 1);
	/* A server that is gone, or says what it may not. */
	CHECK(begin(SERVES) == 0);
	shutdown(far.fd, SHUT_RDWR);
	wait_dead(NULL);
	CHECK(begin(SERVES) == 0);
	far_frame(99, 0, NULL, 0);
	wait_dead(NULL);
	CHECK(begin(SERVES) == 0);
	send(far.fd, "0123456789abcdef", 16, 0);
	wait_dead(NULL);
	/* A SEND, for which nothing here is made. */
	CHECK(begin(SERVES) == 0);
	struct cw_work w = {.id = 1 << 20, .opcode = IBV_WR_SEND, .immediate = 5};
	CHECK(cw_post(far.r->queue.qp, &w, 1) == 0);
	wait_dead(NULL);
	/* The server says that it has written all. */
	CHECK(begin(SERVES) == 0);
	uint8_t bye[16] = "CWVBYE\0\1";
	/* The probe, and its welcome. */
	cw_rdma_put(bye + 8, 16 + sizeof(struct cw_frame) + sizeof h, 8);
	send(far.fd, bye, 16, 0);
	wait_dead(NULL);
	CHECK(atomic_load(&far.acked) == 1);
}

/* A region that cannot be registered is reached by frames, and the session goes on. */
static void test_unregistered(void)
{
	struct cw_region r;
	struct cw_hello h;
	CHECK(begin(SERVES) == 0);
	atomic_store(&fake->no_register, 1);
	memory(&r);
	CHECK(r.carrier == NULL && cw_carrier_rdma.alive(&cw_s) == 0);
	atomic_store(&fake->no_register, 0);
	expect(CW_FRAME_REGION, &h, sizeof h);
	struct cw_frame_extent e = {REGION, 0, 0, 16};
	uint8_t b[16];
	CHECK(far_frame(CW_FRAME_READ, 1, &e, sizeof e) == 0);
	expect(CW_FRAME_DATA, b, sizeof b);
	cw_carrier_rdma.end_region(&cw_s, &r);
	cw_carrier_rdma.abandon(&cw_s);
	done();
	/* One that is not taken back ends the session: the server could go on reaching it. */
	CHECK(begin(SERVES) == 0);
	memory(&r);
	atomic_store(&fake->no_deregister, 1);
	cw_carrier_rdma.end_region(&cw_s, &r);
	for (int i = 0; i < 4000 && cw_carrier_rdma.alive(&cw_s) == 0; i++)
		usleep(5000);
	CHECK(cw_carrier_rdma.alive(&cw_s) == -EPIPE);
	cw_carrier_rdma.abandon(&cw_s);
	pthread_join(server, NULL);
	cw_rdma_free(far.r);
	CHECK(atomic_load(&fake->live) == 1 && atomic_load(&fake->memory) == 1);
	atomic_store(&fake->live, 0);
	atomic_store(&fake->memory, 0);
}

static void test_refused(void)
{
	atomic_store(&fake->no_devices, 1); /* sysfs shows what the library does not */
	fails(SERVES, "fake0");
	atomic_store(&fake->no_devices, 0);
	struct {
		_Atomic int *fault;
		int n;
		const char *why;
	} faults[] = {{&fake->no_open, 1, "fake0: Permission denied"},
		      {&fake->no_pd, 1, "fake0: Cannot allocate memory"},
		      {&fake->no_register, 1, "register memory for RDMA: Cannot allocate memory: the limit of locked memory"},
		      {&fake->no_register, 2, "register memory for RDMA"},
		      {&fake->no_cq, 1, "RDMA queue pair"},
		      {&fake->no_qp, 1, "RDMA queue pair: Invalid argument"},
		      {NULL, 0, NULL}};
	for (int i = 0; faults[i].fault; i++) {
		atomic_store(faults[i].fault, faults[i].n);
		fails(SERVES, faults[i].why);
		atomic_store(faults[i].fault, 0);
	}
	fails(REFUSES, "not here");
	fails(DECLINES, "the GPU server: no adapter here");
	fails(DISAGREES, "the GPU server: cannot connect");
	fails(WRONG_BYTES, "other bytes came than were sent");
	fails(BAD_OFFER, "malformed");
}

/* A child has no session, and holds nothing of its parent's open. */
static void test_fork(void)
{
	CHECK(begin(SERVES) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		cw_carrier_rdma.forked(&cw_s, 0);
		_exit(write(cw_s.fd, "", 1) == -1 && errno == EBADF ? 0 : 1);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0 && cw_carrier_rdma.alive(&cw_s) == 0);
	cw_carrier_rdma.abandon(&cw_s);
	done();
}

int main(int argc, char **argv)
{
	(void)argc;
	rig_begin(argv);
	test_ports();
	test_session();
	test_ends();
	test_unregistered();
	test_refused();
	test_fork();
	return rig_end();
}

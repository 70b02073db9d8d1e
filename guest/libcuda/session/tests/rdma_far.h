/*
 * The rig of the tests of a session's end by RDMA (carrier_rdma.c): a libibverbs.so.1 of the tests'
 * (verbs/provider.c), and a GPU server, and the host between, that the test plays.
 */
#ifndef CW_TESTS_RDMA_FAR_H
#define CW_TESTS_RDMA_FAR_H

#include <errno.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "session/rdma_stream.h"
#include "session/tcp.h"
#include "session/tests/check.h"
#include "session/tests/verbs/provider.h"

enum { REGION = 3, SIZE = 1 << 20 };

static struct fake_verbs *fake;
static char dir[64], path[128];
static int listener;

/* --- the server, and the host between --------------------------------------------------------- */

enum server { SERVES, REFUSES, DECLINES, DISAGREES, SILENT, WRONG_BYTES, BAD_OFFER, HOLDS };

static struct {
	enum server how;
	int fd;
	struct cw_rdma *r;
	struct cw_rdma_offer peer;
	_Atomic int greeted, bye, acked, lost;
	struct {
		uint64_t address, size;
		uint32_t key, rsvd;
	} grant;
} far;

static void far_take(void *p, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t k = cw_rdma_recv(far.r, (uint8_t *)p + done, n - done, cw_now_ms() + 20000);
		CHECK(k > 0);
		done += (size_t)k;
	}
}

static int far_frame(uint16_t type, uint64_t arg, const void *p, size_t n)
{
	struct cw_frame f = {(uint32_t)n, type, 0, arg};
	struct iovec v[2] = {{&f, sizeof f}, {(void *)(uintptr_t)p, n}};
	return cw_rdma_send(far.r, v, 2);
}

static void welcome(uint32_t status, const char *text)
{
	struct {
		struct cw_hello h;
		char text[64];
	} w;
	cw_hello_fill(&w.h, CW_MSG_WELCOME, 0, NULL, 0);
	w.h.status = status;
	w.h.text_len = (uint32_t)strlen(text);
	memcpy(w.text, text, strlen(text));
	CHECK(send(far.fd, &w, sizeof w.h + w.h.text_len, 0) > 0);
}

static void reason_send(const char *text)
{
	uint8_t b[128];
	cw_rdma_put(b, strlen(text), 2);
	memcpy(b + 2, text, strlen(text));
	CHECK(send(far.fd, b, 2 + strlen(text), MSG_NOSIGNAL) > 0);
}

/* A packet of the guest's; 0: it has gone. */
static size_t packet(uint8_t *b, size_t cap)
{
	ssize_t n = recv(far.fd, b, cap, 0);
	return n > 0 ? (size_t)n : 0;
}

static void far_offer(const struct cw_rdma_offer *o, const char *why)
{
	uint8_t b[64 + 64] = "CWVERBS\x01";
	cw_rdma_put(b + 8, strlen(why), 2);
	b[10] = (uint8_t)o->link, b[11] = (uint8_t)o->mtu, b[14] = 1;
	cw_rdma_put(b + 16, far.how == BAD_OFFER ? 1u << 24 : o->queue, 4);
	cw_rdma_put(b + 20, o->psn, 4);
	cw_rdma_put(b + 24, o->key, 4);
	cw_rdma_put(b + 28, o->size, 4);
	cw_rdma_put(b + 32, o->address, 8);
	memcpy(b + 40, o->gid, 16);
	memcpy(b + 64, why, strlen(why));
	CHECK(send(far.fd, b, 64 + strlen(why), MSG_NOSIGNAL) > 0);
}

static void greet(void)
{
	struct cw_frame f;
	struct cw_hello h;
	far_take(&f, sizeof f);
	CHECK(f.type == CW_FRAME_HELLO && f.len == sizeof h);
	far_take(&h, sizeof h);
	CHECK(h.type == CW_MSG_HELLO && h.size == CW_REGION0_SIZE);
	cw_hello_fill(&h, CW_MSG_WELCOME, 0, NULL, 0);
	CHECK(far_frame(CW_FRAME_WELCOME, 0, &h, sizeof h) == 0);
	atomic_store(&far.greeted, 1);
}

/* The host: it follows what is said to its end. */
static void *serve(void *arg)
{
	struct cw_rdma_port port = {.device = "fake0", .number = 1, .link = CW_RDMA_ETHERNET, .gid = {1}};
	struct cw_rdma_offer own;
	uint8_t b[1024];
	char why[200] = "";
	(void)arg;
	far.fd = accept(listener, NULL, NULL);
	struct cw_hello h;
	CHECK(far.fd >= 0 && packet(b, sizeof b) == sizeof h);
	memcpy(&h, b, sizeof h);
	CHECK(h.type == CW_MSG_DIRECT);
	if (far.how == REFUSES) {
		welcome(EOPNOTSUPP, "not here");
		goto out;
	}
	welcome(0, "127.0.0.1");
	size_t n = packet(b, sizeof b);
	if (n != 64) { /* declined, or gone */
		CHECK(n == 0 || (n > 64 && cw_rdma_get(b + 8, 2) == n - 64));
		goto out;
	}
	CHECK(b[10] == CW_RDMA_ETHERNET && b[11] == 3 && b[40 + 10] == 0xff && b[40 + 12] == 127);
	far.peer = (struct cw_rdma_offer){.link = b[10],
					  .mtu = b[11],
					  .queue = (uint32_t)cw_rdma_get(b + 16, 4),
					  .psn = (uint32_t)cw_rdma_get(b + 20, 4),
					  .key = (uint32_t)cw_rdma_get(b + 24, 4),
					  .size = (uint32_t)cw_rdma_get(b + 28, 4),
					  .address = cw_rdma_get(b + 32, 8)};
	if (far.how == DECLINES) {
		far_offer(&far.peer, "no adapter here");
		goto out;
	}
	CHECK(cw_rdma_open(&far.r, &port, &own, why, sizeof why) == 0);
	far_offer(&own, "");
	if (packet(b, sizeof b) == 0)
		goto out;
	n = (size_t)cw_rdma_get(b, 2);
	CHECK(cw_rdma_connect(far.r, &port, &own, &far.peer, why, sizeof why) == 0);
	reason_send(far.how == DISAGREES ? "cannot connect" : "");
	if (n > 0 || far.how == DISAGREES)
		goto out;
	if (far.how != SILENT) {
		uint8_t probe[16] = "CWVBYE\0\1";
		if (far.how == WRONG_BYTES)
			probe[15] = 1;
		struct iovec v = {probe, sizeof probe};
		CHECK(cw_rdma_send(far.r, &v, 1) == 0);
	}
	if (packet(b, sizeof b) == 0 || cw_rdma_get(b, 2) > 0) {
		reason_send("");
		goto out;
	}
	reason_send("");
	uint8_t probe[16];
	far_take(probe, sizeof probe);
	CHECK(memcmp(probe, "CWVBYE\0\1\0\0\0\0\0\0\0", 16) == 0);
	greet();
	while ((n = packet(b, sizeof b)) > 0) {
		CHECK(n == 16);
		if (!memcmp(b, "CWVACK\0\1", 8)) { /* of what a test said */
			atomic_store(&far.acked, 1);
			continue;
		}
		if (!memcmp(b, "CWVLST\0\1", 8)) { /* there is no other */
			atomic_store(&far.lost, 1);
			if (far.how == HOLDS) /* and it takes long to find that */
				continue;
			break;
		}
		CHECK(!memcmp(b, "CWVBYE\0\1", 8));
		memcpy(b, "CWVACK\0\1", 8);
		atomic_store(&far.bye, 1);
		send(far.fd, b, 16, MSG_NOSIGNAL);
	}
out:
	close(far.fd);
	return NULL;
}

static pthread_t server;

static int begin(enum server how)
{
	memset(&far, 0, sizeof far);
	far.how = how;
	CHECK(pthread_create(&server, NULL, serve, NULL) == 0);
	cw_s.why[0] = 0;
	cw_s.carrier = &cw_carrier_rdma;
	cw_rdma_oob.mount = 0;
	return cw_carrier_rdma.open(&cw_s, path);
}

static void done(void)
{
	pthread_join(server, NULL);
	if (far.r)
		cw_rdma_free(far.r);
	if (atomic_load(&fake->live) != 0)
		fprintf(stderr, "%d objects are left\n", atomic_load(&fake->live));
	CHECK(atomic_load(&fake->live) == 0);
}

static uint8_t *memory(struct cw_region *r)
{
	*r = (struct cw_region){.id = REGION, .kind = CW_REGION_STAGING, .size = SIZE, .file = -1};
	CHECK(cw_carrier_rdma.add_region(&cw_s, r) == 0);
	return r->va;
}

static void wait_dead(struct cw_region *r)
{
	for (int i = 0; i < 4000 && cw_carrier_rdma.alive(&cw_s) == 0; i++)
		usleep(5000);
	CHECK(cw_carrier_rdma.alive(&cw_s) == -EPIPE);
	if (r)
		cw_carrier_rdma.end_region(&cw_s, r);
	cw_carrier_rdma.abandon(&cw_s);
	done();
}

/* --- an adapter, and where the host is reached ------------------------------------------------ */

static void write_file(const char *name, const char *text)
{
	char p[256];
	snprintf(p, sizeof p, "%s/%s", dir, name);
	for (char *s = p + strlen(dir) + 1; (s = strchr(s, '/')); s++) {
		*s = 0;
		mkdir(p, 0700);
		*s = '/';
	}
	FILE *f = fopen(p, "w");
	CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* Begins a test's program, whose loader finds the adapter's library beside it. */
static void rig_begin(char **argv)
{
	char lib[512];
	snprintf(lib, sizeof lib, "%s", argv[0]);
	*strrchr(lib, '/') = 0;
	const char *way = getenv("LD_LIBRARY_PATH");
	if (!way || strcmp(way, lib)) { /* which the loader has read already */
		setenv("LD_LIBRARY_PATH", lib, 1);
		execv("/proc/self/exe", argv);
	}
	strcpy(dir, "/tmp/causeway-rdma-test.XXXXXX");
	CHECK(mkdtemp(dir));
	CHECK(cw_rdma_load() == NULL);
	void *h = dlopen("libibverbs.so.1", RTLD_NOW);
	CHECK(h && (fake = dlsym(h, "fake_verbs")));
	write_file("fake0/ports/1/state", "4: ACTIVE\n");
	write_file("fake0/ports/1/link_layer", "Ethernet\n");
	write_file("fake0/ports/1/lid", "0x0\n");
	write_file("fake0/ports/2/state", "1: DOWN\n");
	const char *gids[] = {"fe80:0000:0000:0000:0202:03ff:fe04:0506", "0000:0000:0000:0000:0000:ffff:0a09:0002",
			      "0000:0000:0000:0000:0000:ffff:0a09:0002", "0000:0000:0000:0000:0000:ffff:7f00:0001",
			      "0000:0000:0000:0000:0000:0000:0000:0000"};
	const char *types[] = {"RoCE v2", "IB/RoCE v1", "RoCE v2", "RoCE v2", ""};
	for (int i = 0; i < 5; i++) {
		char name[64];
		snprintf(name, sizeof name, "fake0/ports/1/gids/%d", i);
		write_file(name, gids[i]);
		snprintf(name, sizeof name, "fake0/ports/1/gid_attrs/types/%d", i);
		write_file(name, types[i]);
	}
	cw_rdma_sysfs = dir;
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	snprintf(path, sizeof path, "%s/session", dir);
	strcpy(a.sun_path, path);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(bind(listener, (struct sockaddr *)&a, sizeof a) == 0 && listen(listener, 4) == 0);
	cw_s.cpus = 2;
	cw_rdma_leave_ms = 60000; /* a server that has other things to do is waited for */
}

static int rig_end(void)
{
	char command[128];
	snprintf(command, sizeof command, "rm -rf %s", dir);
	return system(command) ? 1 : 0;
}

#endif

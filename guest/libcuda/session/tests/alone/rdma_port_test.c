/*
 * Ports of RDMA devices, alone: rdma_port.c, whose sysfs is a folder of the test's own and whose
 * routes are the test. Which ports count, by which name, and by which of their addresses a server
 * is reached.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "session/rdma.h"
#include "session/tests/check.h"

static int f_socket(int domain, int type);
static int f_connect(int fd, const struct sockaddr *a, socklen_t len);
static int f_name(int fd, struct sockaddr *a, socklen_t *len);
static int f_close(int fd);
static int f_open(const char *path, int flags);
static DIR *f_opendir(const char *path);
static int f_closedir(DIR *d);
#define socket(domain, type, protocol) f_socket(domain, type)
#define connect(fd, a, len) f_connect(fd, a, len)
#define getsockname(fd, a, len) f_name(fd, a, len)
#define close(fd) f_close(fd)
#define open(path, flags) f_open(path, flags)
#define opendir(path) f_opendir(path)
#define closedir(d) f_closedir(d)
#include "session/rdma_port.c"
#undef close
#undef open
#undef opendir
#undef closedir

enum { SOCK = 1000 };
static int files; /* that are open */
static const char *own4 = "10.0.0.7", *own6 = "fd00::7";
static int no_socket, no_route;

static int f_socket(int domain, int type)
{
	CHECK((domain == AF_INET || domain == AF_INET6) && type == (SOCK_DGRAM | SOCK_CLOEXEC));
	if (no_socket)
		return -1;
	files++;
	return SOCK + (domain == AF_INET6);
}

static int f_connect(int fd, const struct sockaddr *a, socklen_t len)
{
	CHECK(fd == SOCK ? a->sa_family == AF_INET && len == sizeof(struct sockaddr_in)
			 : a->sa_family == AF_INET6 && len == sizeof(struct sockaddr_in6));
	CHECK(((const struct sockaddr_in *)(const void *)a)->sin_port == htons(4791));
	return no_route == 1 ? -1 : 0;
}

static int f_name(int fd, struct sockaddr *a, socklen_t *len)
{
	CHECK(*len == (fd == SOCK ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)));
	if (fd == SOCK)
		CHECK(inet_pton(AF_INET, own4, &((struct sockaddr_in *)(void *)a)->sin_addr) == 1);
	else
		CHECK(inet_pton(AF_INET6, own6, &((struct sockaddr_in6 *)(void *)a)->sin6_addr) == 1);
	return no_route == 2 ? -1 : 0;
}

static int f_close(int fd)
{
	files--;
	return fd >= SOCK ? 0 : close(fd);
}

static int f_open(const char *path, int flags)
{
	CHECK(flags == (O_RDONLY | O_CLOEXEC));
	int fd = open(path, flags);
	files += fd >= 0;
	return fd;
}

static DIR *f_opendir(const char *path)
{
	DIR *d = opendir(path);
	files += d != NULL;
	return d;
}

static int f_closedir(DIR *d)
{
	files--;
	return closedir(d);
}

static char top[] = "/tmp/causeway-ports-XXXXXX", root[64];

__attribute__((format(printf, 2, 3))) static void put(const char *text, const char *fmt, ...)
{
	char path[600], at[700];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(path, sizeof path, fmt, ap);
	va_end(ap);
	snprintf(at, sizeof at, "%s/%s", root, path);
	for (char *c = at + strlen(root) + 1; (c = strchr(c, '/')); c++) {
		*c = 0;
		mkdir(at, 0700);
		*c = '/';
	}
	FILE *f = fopen(at, "w");
	CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void port(const char *device, int number, const char *state, const char *link, const char *lid)
{
	put(state, "%s/ports/%d/state", device, number);
	put(link, "%s/ports/%d/link_layer", device, number);
	if (lid)
		put(lid, "%s/ports/%d/lid", device, number);
}

/* Another sysfs, with nothing in it. */
static void clear(void)
{
	static int n;
	snprintf(root, sizeof root, "%s/%d", top, n++);
	CHECK(mkdir(root, 0700) == 0);
}

static struct cw_rdma_port found[20];
static int ports(const char *name, int max)
{
	memset(found, 0xee, sizeof found);
	int n = cw_rdma_ports(root, name, found, max);
	CHECK(files == 0);
	return n;
}

static void which(void)
{
	static const struct {
		const char *state, *link, *lid;
		int is, lid_is;
	} all[] = {{"4: ACTIVE\n", "Ethernet\n", NULL, CW_RDMA_ETHERNET, 0},
		   {"4: ACTIVE\n", "InfiniBand\n", "0x1a2b\n", CW_RDMA_INFINIBAND, 0x1a2b},
		   {"4: ACTIVE\n", "InfiniBand\n", "1f\n", CW_RDMA_INFINIBAND, 0x1f},
		   {"5: ACTIVE_DEFER\n", "Ethernet\n", NULL, 0, 0},
		   {"1: DOWN\n", "Ethernet\n", NULL, 0, 0},
		   {"2: INIT\n", "InfiniBand\n", "0x1\n", 0, 0},
		   {"4: ACTIVE\n", "Transport\n", NULL, 0, 0},
		   {"", "Ethernet\n", NULL, 0, 0},
		   {"4: ACTIVE\n", "", NULL, 0, 0},
		   {"4: ACTIVE", "Ethernet", NULL, CW_RDMA_ETHERNET, 0}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		clear();
		port("mlx5_0", 2, all[i].state, all[i].link, all[i].lid);
		CHECK(ports(NULL, 20) == (all[i].is != 0));
		if (all[i].is)
			CHECK(!strcmp(found[0].device, "mlx5_0") && found[0].number == 2 && found[0].link == all[i].is &&
			      found[0].lid == all[i].lid_is && found[0].gid_index == 0 && !found[0].gid[0]);
	}
	clear();
	char name[65];
	for (size_t n = 62; n < 65; n++) {
		memset(name, 'd', n);
		name[n] = 0;
		port(name, 1, "4: ACTIVE\n", "Ethernet\n", NULL);
	}
	CHECK(ports(NULL, 20) == 2);
	clear();
	CHECK(ports(NULL, 20) == 0 && cw_rdma_ports("/nonexistent", NULL, found, 20) == 0);
}

static void named(void)
{
	clear();
	for (int n = 0; n < 10; n++) /* numbers begin at 1, and end at 8 */
		port("mlx5_0", n, "4: ACTIVE\n", "Ethernet\n", NULL);
	port("mlx5_01", 1, "4: ACTIVE\n", "Ethernet\n", NULL);
	port(".hidden", 1, "4: ACTIVE\n", "Ethernet\n", NULL);
	static const struct {
		const char *name;
		int max, count;
	} all[] = {{NULL, 20, 9},	 {"auto", 20, 9},      {"mlx5_0", 20, 8},   {"mlx5_01", 20, 1},
		   {"mlx5", 20, 0},	 {"mlx5_0/3", 20, 1},  {"mlx5_0/9", 20, 0}, {"mlx5_0/0", 20, 0},
		   {"mlx5_01/1", 20, 1}, {"mlx5_01/2", 20, 0}, {".hidden", 20, 0},  {"/1", 20, 0},
		   {NULL, 4, 4},	 {"mlx5_0", 8, 8},     {"mlx5_0", 1, 1},    {NULL, 0, 0}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		CHECK(ports(all[i].name, all[i].max) == all[i].count);
		CHECK(found[all[i].count].number == (int)0xeeeeeeee);
		for (int k = 0; k < all[i].count; k++)
			CHECK(found[k].number >= 1 && found[k].number <= 8 &&
			      (!all[i].name || !strcmp(all[i].name, "auto") ||
			       !strncmp(all[i].name, found[k].device, strlen(found[k].device))));
	}
	CHECK(ports("mlx5_0/3", 20) == 1 && found[0].number == 3);
}

#define V4 "0000:0000:0000:0000:0000:ffff:0a00:0007\n"
#define OTHER4 "0000:0000:0000:0000:0000:ffff:0a00:0008\n"
#define V6 "fd00:0000:0000:0000:0000:0000:0000:0007\n"
#define LINK "fe80:0000:0000:0000:0011:22ff:fe33:4455\n"
#define NONE "0000:0000:0000:0000:0000:0000:0000:0000\n"

static void gid(const char *device, int index, const char *text, const char *type)
{
	put(text, "%s/ports/1/gids/%d", device, index);
	if (type)
		put(type, "%s/ports/1/gid_attrs/types/%d", device, index);
}

static int by_device(const void *a, const void *b)
{
	return strcmp(((const struct cw_rdma_port *)a)->device, ((const struct cw_rdma_port *)b)->device);
}

static struct cw_rdma_port *chosen(const char *server)
{
	int n = ports(NULL, 20);
	qsort(found, (size_t)n, sizeof *found, by_device);
	struct cw_rdma_port *p = cw_rdma_choose(root, found, n, server);
	CHECK(files == 0);
	return p;
}

static void choices(void)
{
	static const struct {
		const char *link, *gids[4], *types[4], *server;
		int index; /* -1: none */
	} all[] = {
		{"Ethernet\n", {V4}, {"RoCE v2\n"}, "10.0.0.9", 0},
		{"Ethernet\n", {LINK, V4, V4}, {"RoCE v2\n", "IB/RoCE v1\n", "RoCE v2\n"}, "10.0.0.9", 2},
		{"Ethernet\n", {OTHER4, V4}, {"RoCE v2\n", "RoCE v2\n"}, "10.0.0.9", 1},
		/* Has an address, if not that. */
		{"Ethernet\n", {OTHER4, LINK}, {"RoCE v2\n", "RoCE v2\n"}, "10.0.0.9", 0},
		{"Ethernet\n", {LINK}, {"RoCE v2\n"}, "10.0.0.9", -1},
		{"Ethernet\n", {LINK, V6}, {"RoCE v2\n", "RoCE v2\n"}, "fd00::9", 1},
		{"Ethernet\n", {V6, V4}, {"RoCE v2\n", "RoCE v2\n"}, "10.0.0.9", 1},
		{"Ethernet\n", {V4}, {"RoCE v2\n"}, "gpu1", 0},
		{"Ethernet\n", {V4}, {NULL}, "10.0.0.9", -1},
		{"Ethernet\n", {NONE, V4}, {"RoCE v2\n", "RoCE v2\n"}, "10.0.0.9", 1},
		{"Ethernet\n", {"0a00:0007\n", V4}, {"RoCE v2\n", "RoCE v2\n"}, "10.0.0.9", 1},
		{"Ethernet\n", {"0000:0000:0000:0000:0000:ffff:0a00:0007:1\n", V4}, {"RoCE v2\n", "RoCE v2\n"}, "10.0.0.9", 1},
		{"Ethernet\n", {"0000:0000:0000:0000:0000:ffff:0a00-0007\n", V4}, {"RoCE v2\n", "RoCE v2\n"}, "10.0.0.9", 1},
		/* The table has ended. */
		{"Ethernet\n", {V4 + 0, "", V4}, {"IB/RoCE v1\n", NULL, "RoCE v2\n"}, "10.0.0.9", -1},
		{"InfiniBand\n", {LINK, V4}, {NULL}, "10.0.0.9", 0},
		{"InfiniBand\n", {NONE, LINK}, {NULL}, "10.0.0.9", 1},
		{"InfiniBand\n", {NONE}, {NULL}, "10.0.0.9", -1},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		clear();
		port("a", 1, "4: ACTIVE\n", all[i].link, NULL);
		for (int k = 0; k < 4 && all[i].gids[k]; k++)
			gid("a", k, all[i].gids[k], all[i].types[k]);
		struct cw_rdma_port *p = chosen(all[i].server);
		if ((p ? p->gid_index : -1) != all[i].index)
			fprintf(stderr, "row %zu: %d\n", i, p ? p->gid_index : -1);
		CHECK((p ? p->gid_index : -1) == all[i].index);
	}
	clear(); /* of several ports the one that leads there; failing that the first */
	for (int k = 0; k < 3; k++) {
		char name[2] = {(char)('a' + k), 0};
		port(name, 1, "4: ACTIVE\n", "Ethernet\n", NULL);
		gid(name, 0, k == 1 ? V4 : OTHER4, "RoCE v2\n");
	}
	static const uint8_t v4[16] = {[10] = 0xff, 0xff, 10, 0, 0, 7};
	struct cw_rdma_port *p = chosen("10.0.0.9");
	CHECK(p == &found[1] && p->gid_index == 0 && !memcmp(p->gid, v4, 16));
	no_socket = 1;
	CHECK(chosen("10.0.0.9") == &found[0]);
	no_socket = 0;
	for (no_route = 1; no_route < 3; no_route++)
		CHECK(chosen("10.0.0.9") == &found[0] && found[0].gid[15] == 8);
	no_route = 0;
	own4 = "10.0.0.6"; /* by another network */
	CHECK(chosen("10.0.0.9") == &found[0]);
	own4 = "10.0.0.7";
	clear(); /* a table of all that it may have */
	port("a", 1, "4: ACTIVE\n", "Ethernet\n", NULL);
	for (int k = 0; k < 257; k++)
		gid("a", k, k < 255 ? LINK : V4, k < 255 ? NULL : "RoCE v2\n");
	CHECK((p = chosen("10.0.0.9")) && p->gid_index == 255);
	gid("a", 255, LINK, "RoCE v2\n");
	CHECK(!chosen("10.0.0.9"));
}

int main(void)
{
	CHECK(mkdtemp(top));
	which();
	named();
	choices();
	char all[100];
	snprintf(all, sizeof all, "rm -rf %s", top);
	CHECK(system(all) == 0);
	puts("rdma_port_test ok");
	return 0;
}

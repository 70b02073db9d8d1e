/* Ports of RDMA devices, as sysfs shows them. */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "session/rdma.h"

enum { GIDS = 256, TEXT = 128 };

/* The first line of a file below a port's folder; empty if there is none. */
static void text_of(char out[TEXT], const char *sysfs, const char *device, const char *rest)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s/%s", sysfs, device, rest);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, out, TEXT - 1) : -1;
	if (fd >= 0)
		close(fd);
	out[n > 0 ? n : 0] = 0;
	out[strcspn(out, "\n")] = 0;
}

static int add_port(const char *sysfs, const char *device, int number, struct cw_rdma_port *p)
{
	char rest[64], text[TEXT];
	snprintf(rest, sizeof rest, "ports/%d/state", number);
	text_of(text, sysfs, device, rest);
	if (!strstr(text, "ACTIVE") || strstr(text, "DEFER"))
		return 0;
	snprintf(rest, sizeof rest, "ports/%d/link_layer", number);
	text_of(text, sysfs, device, rest);
	int link = !strcmp(text, "InfiniBand") ? CW_RDMA_INFINIBAND : !strcmp(text, "Ethernet") ? CW_RDMA_ETHERNET : 0;
	if (link == 0 || strlen(device) >= sizeof p->device)
		return 0;
	memset(p, 0, sizeof *p);
	memcpy(p->device, device, strlen(device) + 1);
	p->number = number;
	p->link = link;
	snprintf(rest, sizeof rest, "ports/%d/lid", number);
	text_of(text, sysfs, device, rest);
	const char *hex = !strncmp(text, "0x", 2) ? text + 2 : text;
	p->lid = (uint16_t)cw_hex(&hex);
	text_of(text, sysfs, device, "parent"); /* the network device that it is on */
	p->software = text[0] != 0;
	return 1;
}

int cw_rdma_ports(const char *sysfs, const char *name, struct cw_rdma_port *out, int max)
{
	enum { PORTS = 8 };
	int n = 0;
	if (name && !strcmp(name, "auto"))
		name = NULL;
	const char *slash = name ? strchr(name, '/') : NULL;
	size_t len = slash ? (size_t)(slash - name) : name ? strlen(name) : 0;
	DIR *d = opendir(sysfs);
	if (!d)
		return 0;
	for (struct dirent *e; n < max && (e = readdir(d));) {
		if (e->d_name[0] == '.' || (name && (strlen(e->d_name) != len || strncmp(e->d_name, name, len))))
			continue;
		for (int port = 1; port <= PORTS && n < max; port++)
			if ((!slash || atoi(slash + 1) == port) && add_port(sysfs, e->d_name, port, &out[n]))
				n++;
	}
	closedir(d);
	return n;
}

/* The address of this machine that packets to a server have, as a GID. */
static int source_of(const char *server, uint8_t gid[16])
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(4791)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(4791)};
	int is4 = inet_pton(AF_INET, server, &v4.sin_addr) == 1;
	if (!is4 && inet_pton(AF_INET6, server, &v6.sin6_addr) != 1)
		return 0;
	struct sockaddr *to = is4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
	socklen_t size = is4 ? sizeof v4 : sizeof v6;
	int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	int ok = connect(fd, to, size) == 0 && getsockname(fd, to, &size) == 0;
	close(fd);
	if (!ok)
		return 0;
	memset(gid, 0, 16);
	if (is4) {
		gid[10] = gid[11] = 0xff;
		memcpy(gid + 12, &v4.sin_addr, 4);
	} else {
		memcpy(gid, &v6.sin6_addr, 16);
	}
	return 1;
}

/* A GID of a port's: 1 if there is one, -1 at the table's end. */
static int gid_at(const char *sysfs, const struct cw_rdma_port *p, int index, uint8_t gid[16])
{
	static const uint8_t none[16];
	char rest[64], text[TEXT];
	snprintf(rest, sizeof rest, "ports/%d/gids/%d", p->number, index);
	text_of(text, sysfs, p->device, rest);
	if (!text[0])
		return -1;
	const char *at = text;
	for (int i = 0; i < 8; i++) {
		uint64_t v = cw_hex(&at);
		gid[2 * i] = (uint8_t)(v >> 8);
		gid[2 * i + 1] = (uint8_t)v;
		if (*at != (i < 7 ? ':' : 0))
			return 0;
		at += i < 7;
	}
	if (!memcmp(gid, none, 16))
		return 0;
	if (p->link != CW_RDMA_ETHERNET)
		return 1;
	snprintf(rest, sizeof rest, "ports/%d/gid_attrs/types/%d", p->number, index);
	text_of(text, sysfs, p->device, rest);
	return !strcmp(text, "RoCE v2");
}

struct cw_rdma_port *cw_rdma_choose(const char *sysfs, struct cw_rdma_port *ports, int n, const char *server)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	uint8_t source[16], gid[16];
	int known = source_of(server, source);
	struct cw_rdma_port *second = NULL;
	for (int i = 0; i < n; i++) {
		struct cw_rdma_port *p = &ports[i];
		for (int index = 0, is; index < GIDS && (is = gid_at(sysfs, p, index, gid)) >= 0; index++) {
			int leads = is && p->link == CW_RDMA_ETHERNET && known && !memcmp(gid, source, 16);
			int does = is && !second && (p->link == CW_RDMA_INFINIBAND || !memcmp(gid, mapped, sizeof mapped));
			if (leads || does) {
				memcpy(p->gid, gid, 16);
				p->gid_index = index;
				second = second ? second : p;
			}
			if (leads)
				return p;
		}
	}
	return second;
}

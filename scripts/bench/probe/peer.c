/*
 * How fast a process with a context on one GPU reads memory of another process on another GPU,
 * which came by descriptor (cuMemExportToShareableHandle), as a session's does that moves from GPU
 * to GPU: by copies of the driver, with all of it or in pieces, on one stream or two; and whether
 * that goes for a process to which its environment shows one GPU, or that may open one GPU's node
 * alone. Every byte is compared. Prints "name value unit" lines, medians; what the driver refuses
 * is a line with its error.
 *
 *   peer [MIB]      how much (4096)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"
#include "timing.h"

enum { POSIX_FD = 1, TIMES = 5, PATTERN = 0x5a17c0de, OTHER = 0x77777777, NON_BLOCKING = 1 };

#define ENTRIES(X) \
	X(cuInit, cuInit, (unsigned)) \
	X(cuDeviceGetCount, cuDeviceGetCount, (int *)) \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (handle *, int)) \
	X(cuCtxSetCurrent, cuCtxSetCurrent, (handle)) \
	X(cuMemAddressReserve, cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	X(cuMemAddressFree, cuMemAddressFree, (CUdeviceptr, size_t)) \
	X(cuMemCreate, cuMemCreate, (unsigned long long *, size_t, const struct prop *, unsigned long long)) \
	X(cuMemMap, cuMemMap, (CUdeviceptr, size_t, size_t, unsigned long long, unsigned long long)) \
	X(cuMemSetAccess, cuMemSetAccess, (CUdeviceptr, size_t, const struct access_desc *, size_t)) \
	X(cuMemUnmap, cuMemUnmap, (CUdeviceptr, size_t)) \
	X(cuMemRelease, cuMemRelease, (unsigned long long)) \
	X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, (void *, unsigned long long, int, unsigned long long)) \
	X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, (unsigned long long *, void *, int)) \
	X(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, (struct prop *, unsigned long long)) \
	X(cuMemsetD32, cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t)) \
	X(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t)) \
	X(cuMemcpyAsync, cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, handle)) \
	X(cuCtxSynchronize, cuCtxSynchronize, (void)) \
	X(cuStreamCreate, cuStreamCreate, (handle *, unsigned))

ENTRIES(DECLARE)

static const char *who = "exporter";
#define CK(call) check((call), #call)
static void check(CUresult r, const char *what)
{
	if (r != 0) {
		printf("%s: %.*s returned %d\n", who, (int)strcspn(what, "("), what, r);
		exit(1);
	}
}

static void start(void)
{
	static const char program[] = "peer";
	ENTRIES(BIND)
	handle ctx;
	CK(cuInit(0));
	CK(cuDevicePrimaryCtxRetain(&ctx, 0));
	CK(cuCtxSetCurrent(ctx));
}

static CUdeviceptr mapped(unsigned long long h, size_t size)
{
	CUdeviceptr at;
	struct access_desc a = {{DEVICE, 0}, READ_WRITE};
	CK(cuMemAddressReserve(&at, size, 0, 0, 0));
	CK(cuMemMap(at, size, 0, h, 0));
	CK(cuMemSetAccess(at, size, &a, 1));
	return at;
}

static CUdeviceptr created(unsigned long long *h, size_t size)
{
	struct prop p = {.type = PINNED, .handles = POSIX_FD, .at = {DEVICE, 0}};
	CK(cuMemCreate(h, size, &p, 0));
	return mapped(*h, size);
}

static void pass(int sock, int fd)
{
	char b = 1, room[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec v = {&b, 1};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	sendmsg(sock, &m, 0);
}

static int taken(int sock)
{
	char b, room[CMSG_SPACE(sizeof(int))];
	int fd = -1;
	struct iovec v = {&b, 1};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	if (recvmsg(sock, &m, 0) == 1 && CMSG_FIRSTHDR(&m))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	return fd;
}

static void export(int sock, size_t size)
{
	unsigned long long h;
	int fd;
	char b;
	start();
	CUdeviceptr at = created(&h, size);
	CK(cuMemsetD32(at, PATTERN, size / 4));
	CK(cuCtxSynchronize());
	CK(cuMemExportToShareableHandle(&fd, h, POSIX_FD, 0));
	pass(sock, fd);
	while (read(sock, &b, 1) > 0)
		;
}

static double copies(CUdeviceptr to, CUdeviceptr from, size_t size, size_t piece, handle *streams, int n)
{
	double took[TIMES];
	for (int i = 0; i < TIMES; i++) {
		double t = now_us();
		for (size_t at = 0, k = 0; at < size; at += piece, k++)
			CK(cuMemcpyAsync(to + at, from + at, size - at < piece ? size - at : piece, streams[k % n]));
		CK(cuCtxSynchronize());
		took[i] = now_us() - t;
	}
	return median(took, TIMES);
}

static void import(int sock, size_t size)
{
	unsigned long long theirs, ours;
	int fd = taken(sock), n = 0;
	struct prop p;
	if (fd < 0)
		exit(1); /* who exports has said why */
	start();
	CK(cuDeviceGetCount(&n));
	double t = now_us();
	CK(cuMemImportFromShareableHandle(&theirs, (void *)(intptr_t)fd, POSIX_FD));
	double imported = now_us();
	CUdeviceptr from = mapped(theirs, size);
	double done = now_us();
	memset(&p, 0, sizeof p);
	CK(cuMemGetAllocationPropertiesFromHandle(&p, theirs));
	printf("%s: sees %d GPUs, the memory is of type %d, device %d; to import %.0f us, to map %.0f us\n", who, n, p.at.type, p.at.id,
	       imported - t, done - imported);
	CUdeviceptr to = created(&ours, size);
	handle streams[2];
	for (int i = 0; i < 2; i++)
		CK(cuStreamCreate(&streams[i], NON_BLOCKING));
	CK(cuMemsetD32(to, OTHER, size / 4));
	CK(cuCtxSynchronize());
	printf("%s: first copy %.1f GB/s\n", who, size / copies(to, from, size, size, streams, 1) / 1e3);
	printf("%s: one copy %.1f GB/s, two halves on two streams %.1f, pieces of 64 MiB %.1f, of 2 MiB %.1f, on two streams %.1f and "
	       "%.1f\n",
	       who, size / copies(to, from, size, size, streams, 1) / 1e3, size / copies(to, from, size, size / 2, streams, 2) / 1e3,
	       size / copies(to, from, size, 64 << 20, streams, 1) / 1e3, size / copies(to, from, size, 2 << 20, streams, 1) / 1e3,
	       size / copies(to, from, size, 64 << 20, streams, 2) / 1e3, size / copies(to, from, size, 2 << 20, streams, 2) / 1e3);
	uint32_t *host = malloc(64 << 20);
	size_t wrong = 0;
	for (size_t at = 0; at < size; at += 64 << 20) {
		size_t k = size - at < 64 << 20 ? size - at : 64 << 20;
		CK(cuMemcpyDtoH(host, to + at, k));
		for (size_t i = 0; i < k / 4; i++)
			wrong += host[i] != PATTERN;
	}
	printf("%s: %zu of %zu words are wrong\n", who, wrong, size / 4);
	t = now_us();
	CK(cuMemUnmap(from, size));
	CK(cuMemRelease(theirs));
	CK(cuMemAddressFree(from, size));
	printf("%s: to unmap %.0f us\n", who, now_us() - t);
	exit(wrong != 0);
}

/* A process of a role, which sees some GPUs by its environment, and of whose nodes one is not
 * there. */
static pid_t spawn(const char *role, const char *visible, const char *without, int sock, int other, size_t size)
{
	fflush(stdout);
	pid_t pid = fork();
	if (pid != 0)
		return pid;
	close(other);
	who = role;
	setenv("CUDA_VISIBLE_DEVICES", visible, 1);
	setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
	if (without && (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
			mount("/dev/null", without, NULL, MS_BIND, NULL) != 0)) {
		printf("%s: not tried: %s cannot be hidden here\n", role, without);
		exit(77);
	}
	strcmp(role, "exporter") == 0 ? export(sock, size) : import(sock, size);
	exit(0);
}

int main(int argc, char **argv)
{
	size_t size = (size_t)(argc > 1 ? atoi(argv[1]) : 4096) << 20;
	static const struct {
		const char *role, *visible, *without;
	} roles[] = {{"one GPU shown", "1", NULL},
		     {"both shown", "1,0", NULL},
		     {"one GPU's node", "0" /* the one that is left */, "/dev/nvidia0"}};
	int failed = 0, status;
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
		int pair[2];
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
			return 1;
		pid_t from = spawn("exporter", "0", NULL, pair[0], pair[1], size);
		pid_t to = spawn(roles[i].role, roles[i].visible, roles[i].without, pair[1], pair[0], size);
		close(pair[0]), close(pair[1]);
		waitpid(to, &status, 0);
		failed += i == 0 && status != 0;
		waitpid(from, &status, 0);
	}
	return failed != 0;
}

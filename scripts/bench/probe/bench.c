/*
 * Measures driver calls and copies of whatever libcuda.so.1 the loader finds, and the machine's own
 * limits beside them. Prints "name value unit" lines; scripts/bench joins a native and a forwarded
 * run into ratios. Values are medians.
 *
 *   bench calls            call latencies, launches, waits
 *   bench waits N          of these the smallest wait and launch and wait, N times: for guests whose CPU is emulated
 *   bench copies MAXBYTES [N]  synchronous copies, pinned, pageable, and to memory never touched before, N times each
 *   bench large MAXBYTES   the same from 1 MiB on, few times each: for guests whose CPU is emulated
 *   bench overlap          a pinned copy beside a kernel, on two streams: per cent of the shorter that the longer hides
 *   bench file BYTES       a file in the page cache, mapped, to the GPU in pieces as large as a layer's weights
 *   bench machine          shared-memory ping-pong between two processes, Unix socket round trip
 *   bench steady W N [P]   N calls, or N bytes up or down (W), P (64 MiB) at a time, between lines of standard input: for who measures other processes meanwhile
 *   bench idle SECONDS     a session that does nothing
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "timing.h"

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef void *handle;

static CUresult (*cuInit)(unsigned);
static CUresult (*cuDeviceGet)(int *, int);
static CUresult (*cuDeviceGetName)(char *, int, int);
static CUresult (*cuDevicePrimaryCtxRetain)(handle *, int);
static CUresult (*cuCtxSetCurrent)(handle);
static CUresult (*cuCtxSynchronize)(void);
static CUresult (*cuModuleLoadData)(handle *, const void *);
static CUresult (*cuModuleGetFunction)(handle *, handle, const char *);
static CUresult (*cuLaunchKernel)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
static CUresult (*cuStreamCreate)(handle *, unsigned);
static CUresult (*cuStreamSynchronize)(handle);
static CUresult (*cuStreamQuery)(handle);
static CUresult (*cuEventCreate)(handle *, unsigned);
static CUresult (*cuEventRecord)(handle, handle);
static CUresult (*cuMemAlloc)(CUdeviceptr *, size_t);
static CUresult (*cuMemFree)(CUdeviceptr);
static CUresult (*cuMemHostAlloc)(void **, size_t, unsigned);
static CUresult (*cuMemFreeHost)(void *);
static CUresult (*cuMemcpyHtoD)(CUdeviceptr, const void *, size_t);
static CUresult (*cuMemcpyDtoH)(void *, CUdeviceptr, size_t);
static CUresult (*cuMemcpyHtoDAsync)(CUdeviceptr, const void *, size_t, handle);
static CUresult (*cuMemcpyDtoHAsync)(void *, CUdeviceptr, size_t, handle);

/* spin(ns): one thread that runs for so long */
static const char spin_ptx[] =
	".version 6.4\n.target sm_75\n.address_size 64\n.visible .entry spin(.param .u64 ns){.reg .u64 %t<4>;"
	".reg .pred %p;ld.param.u64 %t0,[ns];mov.u64 %t1,%globaltimer;add.u64 %t1,%t1,%t0;L:mov.u64 %t2,%globaltimer;"
	"setp.lt.u64 %p,%t2,%t1;@%p bra L;ret;}\n";
static const char ptx[] = ".version 6.4\n.target sm_75\n.address_size 64\n.visible .entry empty(){ret;}\n"
			  ".visible .entry args(.param .u64 a,.param .u64 b,.param .u32 c,.param .f32 d){ret;}\n";

static void check(CUresult r, const char *what)
{
	if (r != 0) {
		fprintf(stderr, "bench: %s returned %d\n", what, r);
		exit(1);
	}
}
#define CK(call) check((call), #call)

static void bind_all(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "bench: %s\n", dlerror());
		exit(1);
	}
#define BIND(f, name) \
	do { \
		*(void **)&f = dlsym(lib, name); \
		if (!f) { \
			fprintf(stderr, "bench: libcuda.so.1 lacks %s\n", name); \
			exit(1); \
		} \
	} while (0)
	BIND(cuInit, "cuInit");
	BIND(cuDeviceGet, "cuDeviceGet");
	BIND(cuDeviceGetName, "cuDeviceGetName");
	BIND(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
	BIND(cuCtxSetCurrent, "cuCtxSetCurrent");
	BIND(cuCtxSynchronize, "cuCtxSynchronize");
	BIND(cuModuleLoadData, "cuModuleLoadData");
	BIND(cuModuleGetFunction, "cuModuleGetFunction");
	BIND(cuLaunchKernel, "cuLaunchKernel");
	BIND(cuStreamCreate, "cuStreamCreate");
	BIND(cuStreamSynchronize, "cuStreamSynchronize");
	BIND(cuStreamQuery, "cuStreamQuery");
	BIND(cuEventCreate, "cuEventCreate");
	BIND(cuEventRecord, "cuEventRecord");
	BIND(cuMemAlloc, "cuMemAlloc_v2");
	BIND(cuMemFree, "cuMemFree_v2");
	BIND(cuMemHostAlloc, "cuMemHostAlloc");
	BIND(cuMemFreeHost, "cuMemFreeHost");
	BIND(cuMemcpyHtoD, "cuMemcpyHtoD_v2");
	BIND(cuMemcpyDtoH, "cuMemcpyDtoH_v2");
	BIND(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2");
	BIND(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
}

static handle start(void)
{
	int dev;
	handle ctx;
	char name[256];
	bind_all();
	CK(cuInit(0));
	CK(cuDeviceGet(&dev, 0));
	CK(cuDeviceGetName(name, sizeof name, dev));
	printf("# device %s\n", name);
	CK(cuDevicePrimaryCtxRetain(&ctx, dev));
	CK(cuCtxSetCurrent(ctx));
	return ctx;
}

#define MANY 4000
static double sample[MANY];

/* the median time of one statement, over n runs after a warm-up; every pause-th run is followed by
 * a wait outside the clock */
#define TIMED(name, n, pause, stmt) \
	do { \
		for (int i_ = 0; i_ < (n) / 4; i_++) { \
			stmt; \
			if (i_ % (pause) == (pause) - 1) \
				CK(cuCtxSynchronize()); \
		} \
		CK(cuCtxSynchronize()); \
		for (int i_ = 0; i_ < (n); i_++) { \
			double t_ = now_us(); \
			stmt; \
			sample[i_] = now_us() - t_; \
			if (i_ % (pause) == (pause) - 1) \
				CK(cuCtxSynchronize()); \
		} \
		CK(cuCtxSynchronize()); \
		printf("%s %.3f us\n", name, median(sample, n)); \
	} while (0)

static void calls(int n, int all)
{
	handle mod, empty, args, stream, event;
	CUdeviceptr a = 0;
	unsigned c = 3;
	float d = 4;
	void *params[] = {&a, &a, &c, &d};
	start();
	CK(cuModuleLoadData(&mod, ptx));
	CK(cuModuleGetFunction(&empty, mod, "empty"));
	CK(cuModuleGetFunction(&args, mod, "args"));
	CK(cuStreamCreate(&stream, 1));
	CK(cuEventCreate(&event, 2));
	TIMED("sync_idle", n, 1000000, CK(cuCtxSynchronize()));
	if (!all)
		goto wait;
	TIMED("stream_sync_idle", MANY, 1000000, CK(cuStreamSynchronize(stream)));
	TIMED("stream_query_idle", MANY, 1000000, CK(cuStreamQuery(stream)));
	TIMED("launch_call", MANY, 64, CK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL)));
	TIMED("launch_call_4args", MANY, 64, CK(cuLaunchKernel(args, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL)));
	TIMED("event_record_call", MANY, 64, CK(cuEventRecord(event, stream)));
wait:
	TIMED("launch_sync", n / 2, 1000000, {
		CK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
		CK(cuStreamSynchronize(stream));
	});
	if (!all)
		return;
	for (int round = 0; round < 9; round++) {
		double t = now_us();
		for (int i = 0; i < 2000; i++)
			CK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
		CK(cuStreamSynchronize(stream));
		sample[round] = (now_us() - t) / 2000;
	}
	printf("launch_through %.3f us\n", median(sample, 9));
	CUdeviceptr p;
	TIMED("mem_alloc_free_2MiB", 200, 1000000, {
		CK(cuMemAlloc(&p, 2 << 20));
		CK(cuMemFree(p));
	});
}

static int few;	     /* runs of a copy, 0: by its size */
static size_t least; /* bytes of a copy */

static void copy_row(const char *kind, const char *dir, CUdeviceptr dev, char *host, size_t n)
{
	int runs = few ? few : n <= 65536 ? 500 : n <= (4 << 20) ? 60 : n <= (64 << 20) ? 15 : 5;
	char name[64];
	for (int i = -2; i < runs; i++) {
		double t = now_us();
		if (dir[0] == 'h')
			CK(cuMemcpyHtoD(dev, host, n));
		else
			CK(cuMemcpyDtoH(host, dev, n));
		if (i >= 0)
			sample[i] = now_us() - t;
	}
	snprintf(name, sizeof name, "copy_%s_%s_%zu", kind, dir, n);
	printf("%s %.3f us\n", name, median(sample, runs));
}

/* To memory that was never touched: each of its pages comes into being on the way. */
static void fresh_row(CUdeviceptr dev, size_t n)
{
	int runs = few ? few : n <= (4 << 20) ? 20 : 5;
	for (int i = 0; i < runs; i++) {
		void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			exit(1);
		double t = now_us();
		CK(cuMemcpyDtoH(p, dev, n));
		sample[i] = now_us() - t;
		munmap(p, n);
	}
	printf("copy_fresh_d2h_%zu %.3f us\n", n, median(sample, runs));
}

static void copies(size_t max)
{
	static const size_t sizes[] = {4, 4 << 10, 16 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30};
	CUdeviceptr dev;
	void *pinned;
	start();
	char *pageable = mmap(NULL, max, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pageable == MAP_FAILED)
		exit(1);
	CK(cuMemAlloc(&dev, max));
	CK(cuMemHostAlloc(&pinned, max, 0));
	for (size_t i = 0; i < max; i += 8)
		*(uint64_t *)(pageable + i) = i * 0x9e3779b97f4a7c15u;
	memcpy(pinned, pageable, max);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= max; i++) {
		if (sizes[i] < least)
			continue;
		for (double t = now_us(); sizes[i] == 1 << 20 && now_us() - t < 200e3;)
			CK(cuMemcpyHtoD(dev, pinned, sizes[i])); /* a lease connects for them */
		copy_row("pinned", "h2d", dev, pinned, sizes[i]);
		copy_row("pinned", "d2h", dev, pinned, sizes[i]);
		copy_row("pageable", "h2d", dev, pageable, sizes[i]);
		copy_row("pageable", "d2h", dev, pageable, sizes[i]);
		if (sizes[i] >= 1 << 20 && sizes[i] <= 256 << 20)
			fresh_row(dev, sizes[i]);
	}
	for (size_t i = 0; i < max; i += 8) /* what came back is what was sent */
		if (*(uint64_t *)(pageable + i) != i * 0x9e3779b97f4a7c15u ||
		    *(uint64_t *)((char *)pinned + i) != i * 0x9e3779b97f4a7c15u) {
			fprintf(stderr, "bench: copies corrupted byte %zu\n", i);
			exit(1);
		}
	CK(cuMemFreeHost(pinned));
	CK(cuMemFree(dev));
}

enum { OVERLAP = 256 << 20, OVERLAP_RUNS = 9 };

/* Work whose cost to others is measured from outside: it begins with a line of standard input, and
 * ends with another. */
static void steady(const char *what, uint64_t n, uint64_t piece)
{
	int copy = !strcmp(what, "up") || !strcmp(what, "down");
	uint64_t times = copy ? n / piece : n;
	CUdeviceptr dev = 0;
	void *host = NULL;
	char line[16];
	start();
	if (copy) {
		CK(cuMemAlloc(&dev, piece));
		CK(cuMemHostAlloc(&host, piece, 0));
		memset(host, 7, piece);
	}
	for (int round = 0; round < 2; round++) {
		double t = now_us();
		for (uint64_t i = 0; i < (round ? times : times / 8); i++) {
			if (!copy)
				CK(cuCtxSynchronize());
			else if (what[0] == 'u')
				CK(cuMemcpyHtoD(dev, host, piece));
			else
				CK(cuMemcpyDtoH(host, dev, piece));
		}
		if (round)
			printf("steady_%s %.3f us\n", what, (now_us() - t) / (double)times);
		else
			printf("steady_ready %d pid\n", getpid());
		fflush(stdout);
		if (!fgets(line, sizeof line, stdin))
			exit(1);
	}
}

static struct {
	handle kernel, compute, copy;
	CUdeviceptr dev;
	void *host;
	unsigned long long ns;
	int up;
} ov;

static void launch_spin(void)
{
	void *params[] = {&ov.ns};
	CK(cuLaunchKernel(ov.kernel, 1, 1, 1, 1, 1, 1, 0, ov.compute, params, NULL));
}

static void launch_copy(void)
{
	if (ov.up)
		CK(cuMemcpyHtoDAsync(ov.dev, ov.host, OVERLAP, ov.copy));
	else
		CK(cuMemcpyDtoHAsync(ov.host, ov.dev, OVERLAP, ov.copy));
}

static double timed(void (*a)(void), void (*b)(void))
{
	for (int i = -2; i < OVERLAP_RUNS; i++) {
		CK(cuCtxSynchronize());
		double t = now_us();
		a();
		if (b)
			b();
		CK(cuCtxSynchronize());
		if (i >= 0)
			sample[i] = now_us() - t;
	}
	return median(sample, OVERLAP_RUNS);
}

static void overlap(void)
{
	handle mod;
	start();
	CK(cuModuleLoadData(&mod, spin_ptx));
	CK(cuModuleGetFunction(&ov.kernel, mod, "spin"));
	CK(cuStreamCreate(&ov.compute, 1));
	CK(cuStreamCreate(&ov.copy, 1));
	CK(cuMemAlloc(&ov.dev, OVERLAP));
	CK(cuMemHostAlloc(&ov.host, OVERLAP, 0));
	memset(ov.host, 1, OVERLAP);
	for (ov.up = 1; ov.up >= 0; ov.up--) {
		double copy = timed(launch_copy, NULL);
		ov.ns = (unsigned long long)(copy * 1e3);
		double spin = timed(launch_spin, NULL), both = timed(launch_spin, launch_copy);
		printf("overlap_%s %.3f %%\n", ov.up ? "h2d" : "d2h", (copy + spin - both) / (copy < spin ? copy : spin) * 100);
	}
}

static void file(size_t bytes)
{
	enum { LAYER = 128 << 20, RUNS = 5 };
	char path[] = "/tmp/causeway-bench-XXXXXX";
	int fd = mkstemp(path);
	CUdeviceptr dev;
	bytes &= ~(size_t)((1 << 20) - 1);
	if (fd < 0 || unlink(path) || ftruncate(fd, (off_t)bytes))
		exit(1);
	char *block = malloc(1 << 20);
	for (size_t at = 0; at < bytes; at += 1 << 20) {
		for (size_t i = 0; i < 1 << 20; i += 8)
			*(uint64_t *)(block + i) = (at + i) * 0x9e3779b97f4a7c15u;
		if (pwrite(fd, block, 1 << 20, (off_t)at) != 1 << 20) {
			fprintf(stderr, "bench: no room for a file of %zu bytes under /tmp\n", bytes);
			exit(1);
		}
	}
	start();
	CK(cuMemAlloc(&dev, bytes));
	for (int i = -1; i < RUNS; i++) {
		double t = now_us();
		char *p = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
		if (p == MAP_FAILED)
			exit(1);
		for (size_t at = 0; at < bytes; at += LAYER)
			CK(cuMemcpyHtoD(dev + at, p + at, bytes - at < LAYER ? bytes - at : LAYER));
		CK(cuCtxSynchronize());
		if (i >= 0)
			sample[i] = now_us() - t;
		munmap(p, bytes);
	}
	for (size_t at = 0; at < bytes; at += 64 << 20) {
		/* A block of each piece, as it was written. */
		CK(cuMemcpyDtoH(block, dev + at, 1 << 20));
		for (size_t i = 0; i < 1 << 20; i += 8)
			if (*(uint64_t *)(block + i) != (at + i) * 0x9e3779b97f4a7c15u) {
				fprintf(stderr, "bench: the file's byte %zu arrived wrong\n", at + i);
				exit(1);
			}
	}
	printf("copy_file_h2d_%zu %.3f us\n", bytes, median(sample, RUNS));
	free(block);
	close(fd);
}

static void pin_to(int nth)
{
	cpu_set_t all, one;
	sched_getaffinity(0, sizeof all, &all);
	CPU_ZERO(&one);
	for (int i = 0, k = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &all) && k++ == nth)
			CPU_SET(i, &one);
	if (CPU_COUNT(&one))
		sched_setaffinity(0, sizeof one, &one);
}

static void machine(void)
{
	struct shared {
		_Alignas(64) _Atomic uint32_t ping;
		_Alignas(64) _Atomic uint32_t pong;
	} *m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int sv[2];
	if (m == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM, 0, sv))
		exit(1);
	pid_t child = fork();
	if (child == 0) {
		char b[64];
		pin_to(1);
		for (uint32_t i = 1; i <= MANY; i++) {
			while (atomic_load(&m->ping) != i)
				;
			atomic_store(&m->pong, i);
		}
		while (read(sv[1], b, sizeof b) > 0 && write(sv[1], b, sizeof b) > 0)
			;
		_exit(0);
	}
	pin_to(0);
	for (uint32_t i = 1; i <= MANY; i++) {
		double t = now_us();
		atomic_store(&m->ping, i);
		while (atomic_load(&m->pong) != i)
			;
		sample[i - 1] = now_us() - t;
	}
	printf("machine_shm_pingpong %.3f us\n", median(sample, MANY));
	for (int i = 0; i < MANY / 2; i++) {
		char b[64] = {0};
		double t = now_us();
		if (write(sv[0], b, sizeof b) < 0 || read(sv[0], b, sizeof b) < 0)
			exit(1);
		sample[i] = now_us() - t;
	}
	printf("machine_unix_socket %.3f us\n", median(sample, MANY / 2));
	shutdown(sv[0], SHUT_RDWR);
	close(sv[1]);
	waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	const char *mode = argc > 1 ? argv[1] : "";
	if (!strcmp(mode, "calls"))
		calls(MANY, 1);
	else if (!strcmp(mode, "waits") && argc > 2 && atoi(argv[2]) > 1 && atoi(argv[2]) <= MANY)
		calls(atoi(argv[2]), 0);
	else if (!strcmp(mode, "copies") && argc > 2) {
		few = argc > 3 ? atoi(argv[3]) : 0;
		copies(strtoull(argv[2], NULL, 0));
	} else if (!strcmp(mode, "large") && argc > 2) {
		few = 5;
		least = 1 << 20;
		copies(strtoull(argv[2], NULL, 0));
	} else if (!strcmp(mode, "overlap"))
		overlap();
	else if (!strcmp(mode, "file") && argc > 2)
		file(strtoull(argv[2], NULL, 0));
	else if (!strcmp(mode, "steady") && argc > 3)
		steady(argv[2], strtoull(argv[3], NULL, 0), argc > 4 ? strtoull(argv[4], NULL, 0) : 64 << 20);
	else if (!strcmp(mode, "machine"))
		machine();
	else if (!strcmp(mode, "idle") && argc > 2) {
		start();
		CK(cuCtxSynchronize());
		printf("idle_ready %d pid\n", getpid());
		fflush(stdout);
		sleep(atoi(argv[2]));
	} else {
		fprintf(stderr, "usage: bench calls | waits N | copies MAXBYTES [N] | large MAXBYTES | overlap | file BYTES | steady "
				"calls|up|down N | "
				"machine | idle SECONDS\n");
		return 2;
	}
	return 0;
}

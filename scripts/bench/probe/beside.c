/*
 * What it costs kernels that another thread of their process reads the GPU's memory to the host
 * meanwhile, as a pre-copy does: by copies alone, with a kernel that sums up the host's copy, or
 * one on the GPU, and with either in a context of its own. Prints "beside WAY MANY FEW GB/S": the
 * program's speed as a part of that without such a thread, by many short kernels and by few long
 * ones, and what the thread read.
 *
 *   beside [WAY...]
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "timing.h"

typedef int CUresult;
typedef void *handle;
typedef uint64_t dptr;

#define ENTRIES(X) \
	X(cuInit, (unsigned)) \
	X(cuDeviceGet, (int *, int)) \
	X(cuDevicePrimaryCtxRetain, (handle *, int)) \
	X(cuCtxCreate_v2, (handle *, unsigned, int)) \
	X(cuCtxSetCurrent, (handle)) \
	X(cuCtxSynchronize, (void)) \
	X(cuCtxGetStreamPriorityRange, (int *, int *)) \
	X(cuModuleLoadData, (handle *, const void *)) \
	X(cuModuleGetFunction, (handle *, handle, const char *)) \
	X(cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)) \
	X(cuStreamCreateWithPriority, (handle *, unsigned, int)) \
	X(cuStreamSynchronize, (handle)) \
	X(cuMemAlloc_v2, (dptr *, size_t)) \
	X(cuMemHostAlloc, (void **, size_t, unsigned)) \
	X(cuMemsetD32_v2, (dptr, unsigned, size_t)) \
	X(cuMemcpyDtoHAsync_v2, (void *, dptr, size_t, handle)) \
	X(cuMemcpyHtoDAsync_v2, (dptr, const void *, size_t, handle)) \
	X(cuMemcpyDtoDAsync_v2, (dptr, dptr, size_t, handle))

#define DECLARE(name, args) static CUresult(*name) args;
ENTRIES(DECLARE)

/* visit reads a word of each 4 KiB, as a program does that keeps the GPU's memory busy; sum reads a
 * block of 64 KiB by each CTA. */
static const char ptx[] =
	".version 6.4\n.target sm_75\n.address_size 64\n"
	".visible .entry visit(.param .u64 at, .param .u64 out){\n"
	".reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %d<6>;\n"
	"ld.param.u64 %d1, [at]; ld.param.u64 %d2, [out]; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"
	"mad.lo.s32 %r5, %r2, %r3, %r4; mul.lo.s32 %r6, %r5, 52; and.b32 %r6, %r6, 4092; mul.wide.u32 %d3, %r5, 4096;\n"
	"cvt.u64.u32 %d4, %r6; add.s64 %d3, %d3, %d4; add.s64 %d3, %d3, %d1; ld.global.u32 %r7, [%d3];\n"
	"setp.ne.u32 %p1, %r7, 0; @%p1 red.global.add.u32 [%d2], 1; ret; }\n"
	".visible .entry sum(.param .u64 at, .param .u64 out){\n"
	".reg .pred %c; .reg .b32 %r<4>; .reg .b64 %p, %end, %x, %y, %a, %o, %t;\n"
	"ld.param.u64 %p, [at]; ld.param.u64 %o, [out]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x;\n"
	"mul.wide.u32 %t, %r1, 65536; add.u64 %p, %p, %t; add.u64 %end, %p, 65536; mul.wide.u32 %t, %r2, 16; add.u64 %p, %p, %t; mov.u64 "
	"%a, 1;\n"
	"again: ld.global.v2.u64 {%x, %y}, [%p]; xor.b64 %a, %a, %x; mul.lo.u64 %a, %a, 0x6a09e667f3bcc909; add.u64 %a, %a, %y;\n"
	"mul.lo.u64 %a, %a, 0xbb67ae8584caa73b; add.u64 %p, %p, 4096; setp.lt.u64 %c, %p, %end; @%c bra again;\n"
	"mul.wide.u32 %t, %r1, 8; add.u64 %o, %o, %t; st.global.u64 [%o], %a; ret; }\n";

enum { PARTS = 8, ROW = 128, PIECE = 4 << 20 };
static const size_t part = 2ull << 30;

static int device;
static handle ctx;
static dptr memory, tally;

static void check(CUresult r, const char *what)
{
	if (r != 0) {
		fprintf(stderr, "beside: %s returned %d\n", what, r);
		exit(1);
	}
}
#define CK(call) check((call), #call)

static handle function(const char *name)
{
	handle mod, fn;
	CK(cuModuleLoadData(&mod, ptx));
	CK(cuModuleGetFunction(&fn, mod, name));
	return fn;
}

struct way {
	const char *name;
	int copy, host_sum, device_sum, whole, low, apart;
	const char *process; /* a process of its own does this: see filler */
};

static const struct way ways[] = {
	{"copy", .copy = 1},
	{"hostsum", .copy = 1, .host_sum = 1},
	{"hostsum-only", .host_sum = 1},
	{"devicesum", .copy = 1, .device_sum = 1},
	{"devicesum-low", .copy = 1, .device_sum = 1, .low = 1},
	{"whole", .whole = 1},
	{"whole-low", .whole = 1, .low = 1},
	{"copy-apart", .copy = 1, .apart = 1},
	{"hostsum-apart", .copy = 1, .host_sum = 1, .apart = 1},
	{"devicesum-apart", .copy = 1, .device_sum = 1, .apart = 1},
	{"context", .process = "context"},
	{"fill", .process = "fill"},
	{"fill-stream", .process = "fill-stream"},
	{"read", .process = "read"},
};

static atomic_int stop;
static double read_bytes;

/* reader is the thread that reads: from the first part on, round and round. */
static void *reader(void *arg)
{
	const struct way *w = arg;
	handle c = ctx, stream;
	int least, greatest;
	if (w->apart)
		CK(cuCtxCreate_v2(&c, 0, device));
	CK(cuCtxSetCurrent(c));
	CK(cuCtxGetStreamPriorityRange(&least, &greatest));
	CK(cuStreamCreateWithPriority(&stream, 1, w->low ? least : 0));
	handle sum = function("sum");
	void *host;
	dptr staging;
	CK(cuMemHostAlloc(&host, PIECE + 16384 * 8, 2));
	CK(cuMemAlloc_v2(&staging, PIECE));
	dptr piece = (dptr)(uintptr_t)host, out = piece + PIECE;
	for (size_t at = 0; !stop; at = (at + PIECE) % (PARTS * part - (1ull << 30))) {
		dptr from = memory + at;
		if (w->whole) {
			CK(cuLaunchKernel(sum, 16384, 1, 1, 256, 1, 1, 0, stream, (void *[]){&from, &out}, NULL));
			CK(cuStreamSynchronize(stream));
			read_bytes += 1 << 30;
			usleep(2000);
			continue;
		}
		if (w->device_sum) {
			CK(cuMemcpyDtoDAsync_v2(staging, from, PIECE, stream));
			CK(cuLaunchKernel(sum, PIECE >> 16, 1, 1, 256, 1, 1, 0, stream, (void *[]){&staging, &out}, NULL));
			from = staging;
		}
		if (w->copy)
			CK(cuMemcpyDtoHAsync_v2(host, from, PIECE, stream));
		CK(cuStreamSynchronize(stream));
		if (w->host_sum) {
			CK(cuLaunchKernel(sum, PIECE >> 16, 1, 1, 256, 1, 1, 0, stream, (void *[]){&piece, &out}, NULL));
			CK(cuStreamSynchronize(stream));
		}
		read_bytes += PIECE;
		usleep(1300); /* what sending it takes: some 2.5 GB/s */
	}
	CK(cuCtxSynchronize());
	return NULL;
}

/*
 * filler is a process of its own, as the worker of the destination is on the same GPU: it has a
 * context, and copies from the host by the legacy stream or one of its own, or to it, until its
 * standard input ends.
 */
static int filler(const char *what)
{
	handle stream = NULL;
	void *host;
	dptr to;
	char c;
	CK(cuMemHostAlloc(&host, PIECE, 2));
	CK(cuMemAlloc_v2(&to, PIECE));
	if (strcmp(what, "fill"))
		CK(cuStreamCreateWithPriority(&stream, 1, 0));
	if (!strcmp(what, "context"))
		return read(0, &c, 1) != 0;
	pthread_t t;
	int ends(void *);
	pthread_create(&t, NULL, (void *(*)(void *))(void *)ends, NULL);
	for (;;) {
		if (!strcmp(what, "read"))
			CK(cuMemcpyDtoHAsync_v2(host, to, PIECE, stream));
		else
			CK(cuMemcpyHtoDAsync_v2(to, host, PIECE, stream));
		CK(cuStreamSynchronize(stream));
		usleep(1300);
	}
}

int ends(void *arg)
{
	char c;
	(void)arg;
	_exit(read(0, &c, 1) != 0);
}

/* speed is how many parts a second the program visits, by so many kernels in a row and rows of
 * each. */
static double speed(handle visit, int kernels, double seconds)
{
	double begin = now_us();
	long n = 0;
	while (now_us() - begin < seconds * 1e6) {
		dptr at = memory + n % PARTS * part;
		for (int i = 0; i < kernels; i++)
			CK(cuLaunchKernel(visit, part / 4096 / 256, ROW / kernels, 1, 256, 1, 1, 0, NULL, (void *[]){&at, &tally}, NULL));
		CK(cuCtxSynchronize());
		n++;
	}
	return n * ROW / ((now_us() - begin) * 1e-6);
}

int main(int argc, char **argv)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "beside: %s\n", dlerror());
		return 1;
	}
#define BIND(name, args) \
	if (!(*(void **)&name = dlsym(lib, #name))) { \
		fprintf(stderr, "beside: libcuda.so.1 lacks %s\n", #name); \
		return 1; \
	}
	ENTRIES(BIND)
	CK(cuInit(0));
	CK(cuDeviceGet(&device, 0));
	CK(cuDevicePrimaryCtxRetain(&ctx, device));
	CK(cuCtxSetCurrent(ctx));
	if (argc == 3 && !strcmp(argv[1], "--as"))
		return filler(argv[2]);
	handle visit = function("visit");
	CK(cuMemAlloc_v2(&memory, PARTS * part));
	CK(cuMemAlloc_v2(&tally, 512));
	CK(cuMemsetD32_v2(memory, 0, PARTS * part / 4));
	speed(visit, ROW, 0.2);
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		int wanted = argc < 2;
		for (int a = 1; a < argc; a++)
			wanted |= !strcmp(argv[a], ways[i].name);
		if (!wanted)
			continue;
		double many = speed(visit, ROW, 0.5), few = speed(visit, 1, 0.5);
		pthread_t t;
		int pipes[2];
		pid_t child = 0;
		stop = 0;
		read_bytes = 0;
		if (ways[i].process) {
			if (pipe2(pipes, O_CLOEXEC) || (child = fork()) < 0)
				return 1;
			if (child == 0) {
				dup2(pipes[0], 0);
				execl("/proc/self/exe", "beside", "--as", ways[i].process, NULL);
				_exit(127);
			}
			close(pipes[0]);
			sleep(1);
			double m = speed(visit, ROW, 1) / many, f = speed(visit, 1, 1) / few;
			close(pipes[1]);
			int status;
			waitpid(child, &status, 0);
			printf("beside %-16s %.3f %.3f by a process of its own%s\n", ways[i].name, m, f, status ? ", which failed" : "");
			fflush(stdout);
			continue;
		}
		pthread_create(&t, NULL, reader, (void *)&ways[i]);
		usleep(100000);
		double began = now_us(), before = read_bytes;
		double m = speed(visit, ROW, 1) / many, f = speed(visit, 1, 1) / few;
		double rate = (read_bytes - before) / (now_us() - began) * 1e-3;
		stop = 1;
		pthread_join(t, NULL);
		printf("beside %-16s %.3f %.3f %.2f GB/s\n", ways[i].name, m, f, rate);
		fflush(stdout);
	}
	return 0;
}

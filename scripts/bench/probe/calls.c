//: speed: serve register
//: speed: serve batch
//: speed: serve copies
//: speed: serve waits
//: speed: serve kernels
/*
 * Single calls of the driver API on whatever libcuda.so.1 the loader finds. A server as
 * scripts/compat/speed/doc.go says: it answers each "go" with the medians of one round.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "timing.h"

typedef int CUresult;
typedef void *handle;
typedef unsigned long long devptr;

/* Layout of cuda.h. */
struct attributes {
	int order, src_type, src_id, dst_type, dst_id;
	unsigned flags;
};
enum { ORDER_STREAM = 1, NON_BLOCKING = 1 };

#define ENTRIES(X) \
	X(cuInit, (unsigned)) \
	X(cuDeviceGet, (int *, int)) \
	X(cuDevicePrimaryCtxRetain, (handle *, int)) \
	X(cuCtxSetCurrent, (handle)) \
	X(cuCtxSynchronize, (void)) \
	X(cuModuleLoadData, (handle *, const void *)) \
	X(cuModuleGetFunction, (handle *, handle, const char *)) \
	X(cuLibraryLoadData, (handle *, const void *, void *, void *, unsigned, void *, void *, unsigned)) \
	X(cuLibraryUnload, (handle)) \
	X(cuLibraryGetKernel, (handle *, handle, const char *)) \
	X(cuKernelSetAttribute, (int, int, handle, int)) \
	X(cuKernelGetFunction, (handle *, handle)) \
	X(cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)) \
	X(cuStreamCreate, (handle *, unsigned)) \
	X(cuStreamSynchronize, (handle)) \
	X(cuMemAlloc_v2, (devptr *, size_t)) \
	X(cuMemHostAlloc, (void **, size_t, unsigned)) \
	X(cuMemHostRegister_v2, (void *, size_t, unsigned)) \
	X(cuMemHostUnregister, (void *)) \
	X(cuMemcpyHtoD_v2, (devptr, const void *, size_t)) \
	X(cuMemcpyDtoH_v2, (void *, devptr, size_t)) \
	X(cuMemcpyBatchAsync_v2, (devptr *, devptr *, size_t *, size_t, struct attributes *, size_t *, size_t, handle))

#define DECLARE(name, args) static CUresult(*name) args;
ENTRIES(DECLARE)

static handle ctx, stream;
static int device;

static void check(CUresult r, const char *what)
{
	if (r != 0) {
		fprintf(stderr, "calls: %s returned %d\n", what, r);
		exit(1);
	}
}
#define CK(call) check((call), #call)

static void start(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "calls: %s\n", dlerror());
		exit(1);
	}
#define BIND(name, args) *(void **)&name = dlsym(lib, #name);
	ENTRIES(BIND)
	CK(cuInit(0));
	CK(cuDeviceGet(&device, 0));
	CK(cuDevicePrimaryCtxRetain(&ctx, device));
	CK(cuCtxSetCurrent(ctx));
	CK(cuStreamCreate(&stream, NON_BLOCKING));
}

static void row(const char *name, double value, const char *goal) { printf("%s %.3f us %s\n", name, value, goal); }

/* --- registering ------------------------------------------------------------------------------ */

static void *touched(size_t size, int huge)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		exit(1);
	madvise(p, size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	memset(p, 1, size);
	return p;
}

static void drop(void *p, size_t size)
{
	for (size_t at = 0; at < size; at += 4096)
		if (((char *)p)[at] != 1 || ((char *)p)[at + 4095] != 1) {
			fprintf(stderr, "calls: registering changed byte %zu\n", at);
			exit(1);
		}
	munmap(p, size);
}

/* Memory that was never registered, and what was just before. */
static void registering(const char *name, size_t size, int times, int huge)
{
	double fresh[64], again[64], end[64];
	char text[64];
	for (int i = 0; i < times; i++) {
		void *p = touched(size, huge);
		double t = now_us();
		CK(cuMemHostRegister_v2(p, size, 0));
		fresh[i] = now_us() - t;
		CK(cuMemHostUnregister(p));
		t = now_us();
		CK(cuMemHostRegister_v2(p, size, 0));
		again[i] = now_us() - t;
		t = now_us();
		CK(cuMemHostUnregister(p));
		end[i] = now_us() - t;
		drop(p, size);
	}
	snprintf(text, sizeof text, "register_%s", name);
	row(text, median(fresh, times), "<=1.0");
	snprintf(text, sizeof text, "register_again_%s", name);
	row(text, median(again, times), "<=1.0");
	snprintf(text, sizeof text, "unregister_%s", name);
	row(text, median(end, times), "<=1.0");
}

static void registers(void)
{
	registering("64KiB", 64 << 10, 15, 0);
	registering("2MiB", 2 << 20, 15, 0);
	registering("64MiB", 64 << 20, 3, 0);
	registering("1GiB", 1 << 30, 1, 0);
	registering("1GiB_huge_pages", 1 << 30, 1, 1);
}

/* --- batches ---------------------------------------------------------------------------------- */

enum { PIECES = 1024, ALL = PIECES * (64 << 10) };

static struct {
	devptr dev;
	char *host;
} mem;

static void pieces(size_t size, int up, int scattered)
{
	static devptr dst[PIECES], src[PIECES];
	static size_t sizes[PIECES];
	struct attributes a = {.order = ORDER_STREAM};
	double v[16];
	size_t first = 0;
	char name[64];
	for (size_t i = 0; i < PIECES; i++) {
		size_t k = scattered ? i * 389 % PIECES : i;
		dst[i] = (up ? mem.dev : (uintptr_t)mem.host) + k * size;
		src[i] = (up ? (uintptr_t)mem.host : mem.dev) + i * size;
		sizes[i] = size;
	}
	for (int i = 0; i < 9; i++) {
		double t = now_us();
		CK(cuMemcpyBatchAsync_v2(dst, src, sizes, PIECES, &a, &first, 1, stream));
		CK(cuStreamSynchronize(stream));
		v[i] = now_us() - t;
	}
	snprintf(name, sizeof name, "batch_%d_of_%zuKiB_%s", PIECES, size >> 10, up ? "h2d" : "d2h");
	row(name, median(v, 9), "<=1.0");
}

static void batches(void)
{
	for (int up = 1; up >= 0; up--) {
		pieces(64 << 10, up, 1);
		pieces(4 << 10, up, 1);
	}
}

/* --- synchronous copies of pinned memory ------------------------------------------------------ */

static void copies(void)
{
	static const size_t sizes[] = {4, 256, 4 << 10, 16 << 10, 64 << 10};
	enum { TIMES = 400 };
	static double v[TIMES];
	char name[64];
	for (int up = 1; up >= 0; up--)
		for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
			for (int i = 0; i < TIMES; i++) {
				double t = now_us();
				if (up)
					CK(cuMemcpyHtoD_v2(mem.dev, mem.host, sizes[k]));
				else
					CK(cuMemcpyDtoH_v2(mem.host, mem.dev, sizes[k]));
				v[i] = now_us() - t;
			}
			snprintf(name, sizeof name, "pinned_%s_%zu", up ? "h2d" : "d2h", sizes[k]);
			row(name, median(v, TIMES), "<=1.0");
		}
}

static void mem_start(void)
{
	CK(cuMemAlloc_v2(&mem.dev, ALL));
	CK(cuMemHostAlloc((void **)&mem.host, ALL, 0));
	memset(mem.host, 1, ALL);
	CK(cuMemcpyHtoD_v2(mem.dev, mem.host, ALL));
}

/* --- launches and waits ----------------------------------------------------------------------- */

enum { THREADS = 8, LAUNCHES = 4000 };

static const char ptx[] = ".version 6.4\n.target sm_75\n.address_size 64\n.visible .entry empty(){ret;}\n";
static handle empty, streams[THREADS];
static pthread_barrier_t gate;

static void launch(handle s) { CK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL)); }

static void *launcher(void *s)
{
	CK(cuCtxSetCurrent(ctx));
	pthread_barrier_wait(&gate);
	for (int i = 0; i < LAUNCHES; i++)
		launch(s);
	CK(cuStreamSynchronize(s));
	pthread_barrier_wait(&gate);
	return NULL;
}

static void threads(void)
{
	pthread_t t[THREADS];
	pthread_barrier_init(&gate, NULL, THREADS + 1);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&t[i], NULL, launcher, streams[i]))
			exit(1);
	pthread_barrier_wait(&gate);
	double begin = now_us();
	pthread_barrier_wait(&gate);
	row("launches_8_threads", (now_us() - begin) / THREADS / LAUNCHES, "<=1.0");
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
}

static void waits(void)
{
	enum { TIMES = 1000 };
	static double v[TIMES];
	for (int i = 0; i < TIMES; i++) {
		double t = now_us();
		launch(stream);
		CK(cuStreamSynchronize(stream));
		v[i] = now_us() - t;
	}
	row("launch_sync", median(v, TIMES), "<=1.0");
	for (int i = 0; i < TIMES; i++) {
		double t = now_us();
		launch(NULL);
		CK(cuCtxSynchronize());
		v[i] = now_us() - t;
	}
	row("launch_legacy_ctx_sync", median(v, TIMES), "<=1.0");
	threads();
}

static void waits_start(void)
{
	handle mod;
	CK(cuModuleLoadData(&mod, ptx));
	CK(cuModuleGetFunction(&empty, mod, "empty"));
	for (int i = 0; i < THREADS; i++)
		CK(cuStreamCreate(&streams[i], NON_BLOCKING));
}

/* --- first launches: prepared when a communicator is made, looked up later, as by NCCL ------- */

static void kernels(void)
{
	enum { KERNELS = 24, DYNAMIC_SHARED = 8, REST_MS = 3, LONG_REST_MS = 60, LONG = 8 /* of them */ };
	char text[8192];
	handle lib, kernel[KERNELS], f;
	double first[KERNELS], later[KERNELS];
	int n = snprintf(text, sizeof text, ".version 6.4\n.target sm_75\n.address_size 64\n");
	for (int i = 0; i < KERNELS; i++)
		n += snprintf(text + n, sizeof text - (size_t)n, ".visible .entry k%d(.param .u64 a,.param .u64 b){ret;}\n", i);
	CK(cuLibraryLoadData(&lib, text, NULL, NULL, 0, NULL, NULL, 0));
	for (int i = 0; i < KERNELS; i++) {
		char name[16];
		snprintf(name, sizeof name, "k%d", i);
		CK(cuLibraryGetKernel(&kernel[i], lib, name));
		CK(cuKernelSetAttribute(DYNAMIC_SHARED, 1024, kernel[i], device));
	}
	uint64_t arg = 0;
	void *args[] = {&arg, &arg};
	for (int turn = 0; turn < 2; turn++)
		for (int i = 0; i < KERNELS; i++) {
			/* The program computes. */
			struct timespec rest = {0, (i < LONG ? LONG_REST_MS : REST_MS) * 1000000};
			nanosleep(&rest, NULL);
			double t = now_us();
			CK(cuKernelGetFunction(&f, kernel[i]));
			CK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, args, NULL));
			(turn ? later : first)[i] = now_us() - t;
			CK(cuStreamSynchronize(stream));
		}
	CK(cuLibraryUnload(lib));
	row("kernel_first_launch_60ms_later", median(first, LONG), "<=1.0");
	row("kernel_first_launch", median(first + LONG, KERNELS - LONG), "<=1.0");
	row("kernel_later_launch", median(later + LONG, KERNELS - LONG), "<=1.0");
}

static void nothing(void) {}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*start)(void), (*round)(void);
	} kinds[] = {
		{"register", nothing, registers}, {"batch", mem_start, batches}, {"copies", mem_start, copies},
		{"waits", waits_start, waits},	  {"kernels", nothing, kernels},
	};
	char line[64];
	int k = 4;
	while (k >= 0 && (argc < 2 || strcmp(argv[1], kinds[k].name)))
		k--;
	if (k < 0) {
		fprintf(stderr, "usage: calls register|batch|copies|waits|kernels\n");
		return 2;
	}
	start();
	kinds[k].start();
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		kinds[k].round();
		puts(".");
		fflush(stdout);
	}
}

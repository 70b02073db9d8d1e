/*
 * Work of a known size, to measure how a GPU's time is shared. Uses whatever libcuda.so.1 the
 * loader finds. Times to begin and to end are seconds since the epoch, so that several of these
 * measure the same moments; who is not ready at the beginning fails (1: at once).
 *
 *   share calibrate US                  turns of the loop that take about US microseconds: "turns N us X"
 *   share load TURNS DEPTH BEGIN END    kernels of TURNS turns as fast as they go, at most DEPTH in flight: "done N us X best Y":
 *                                       kernels, microseconds for each, and the same in the best tenth of a second
 *   share typist TURNS PAUSE_US BURST BEGIN END   BURST times a launch and a wait, then a pause: "latency MEDIAN P90 P99 WORST COUNT" of
 *                                       a launch and its wait, in microseconds
 *   share idle BEGIN END                a context, and then nothing
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef void *handle;

#define ENTRIES(X) \
	X(cuInit, (unsigned)) \
	X(cuDeviceGet, (int *, int)) \
	X(cuDevicePrimaryCtxRetain, (handle *, int)) \
	X(cuCtxSetCurrent, (handle)) \
	X(cuModuleLoadData, (handle *, const void *)) \
	X(cuModuleGetFunction, (handle *, handle, const char *)) \
	X(cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)) \
	X(cuMemAlloc_v2, (uint64_t *, size_t)) \
	X(cuStreamCreate, (handle *, unsigned)) \
	X(cuStreamSynchronize, (handle)) \
	X(cuEventCreate, (handle *, unsigned)) \
	X(cuEventRecord, (handle, handle)) \
	X(cuEventSynchronize, (handle))

#define DECLARE(name, args) static CUresult(*name) args;
ENTRIES(DECLARE)

/* One thread runs the loop: on the software GPU it keeps one core busy, on a real one it keeps
 * others' contexts out all the same. */
static const char ptx[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
			  ".visible .entry work(.param .u64 out,.param .u32 turns){\n"
			  ".reg .pred p;.reg .b32 x,n;.reg .b64 o;\n"
			  "ld.param.u64 o,[out];ld.param.u32 n,[turns];mov.u32 x,1;\n"
			  "again: mad.lo.u32 x,x,1664525,1013904223;sub.u32 n,n,1;setp.ne.u32 p,n,0;@p bra again;\n"
			  "st.global.u32 [o],x;ret;}\n";

enum { DEEPEST = 4096, MOST = 1 << 20 };

static handle ctx, work, stream;
static uint64_t out;

static void check(CUresult r, const char *what)
{
	if (r != 0) {
		fprintf(stderr, "share: %s returned %d\n", what, r);
		exit(1);
	}
}
#define CK(call) check((call), #call)

static double now_us(clockid_t c)
{
	struct timespec t;
	clock_gettime(c, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static double wall(void) { return now_us(CLOCK_REALTIME); }

static void pause_us(double us)
{
	struct timespec t = {(time_t)(us / 1e6), (long)((uint64_t)(us * 1e3) % 1000000000)};
	while (us > 0 && nanosleep(&t, &t))
		;
}

static void start(void)
{
	int dev;
	handle mod;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "share: %s\n", dlerror());
		exit(1);
	}
#define BIND(name, args) \
	if (!(*(void **)&name = dlsym(lib, #name))) { \
		fprintf(stderr, "share: libcuda.so.1 lacks %s\n", #name); \
		exit(1); \
	}
	ENTRIES(BIND)
	CK(cuInit(0));
	CK(cuDeviceGet(&dev, 0));
	CK(cuDevicePrimaryCtxRetain(&ctx, dev));
	CK(cuCtxSetCurrent(ctx));
	CK(cuModuleLoadData(&mod, ptx));
	CK(cuModuleGetFunction(&work, mod, "work"));
	CK(cuMemAlloc_v2(&out, 256));
	CK(cuStreamCreate(&stream, 1));
}

static void launch(uint32_t turns)
{
	void *args[] = {&out, &turns};
	CK(cuLaunchKernel(work, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL));
}

static double timed(uint32_t turns)
{
	double best = 1e18;
	for (int i = 0; i < 7; i++) {
		double begin = now_us(CLOCK_MONOTONIC);
		launch(turns);
		CK(cuStreamSynchronize(stream));
		double d = now_us(CLOCK_MONOTONIC) - begin;
		best = d < best ? d : best;
	}
	return best;
}

static void calibrate(double us)
{
	double none = timed(1), turns = 1000;
	for (int i = 0; i < 8; i++) {
		double d = timed((uint32_t)turns) - none;
		double next = d > 1 ? turns * us / d : turns * 8;
		turns = next > 4e9 ? 4e9 : next < 1 ? 1 : next;
	}
	printf("turns %u us %.1f\n", (uint32_t)turns, timed((uint32_t)turns) - none);
}

static void load(uint32_t turns, int depth, double begin, double end)
{
	static handle mark[DEEPEST];
	uint64_t n = 0, done = 0, in_bucket = 0;
	double first = 0, last = 0, bucket = 0, best = 0;
	depth = depth < 1 ? 1 : depth > DEEPEST ? DEEPEST : depth;
	for (int i = 0; i < depth; i++)
		CK(cuEventCreate(&mark[i], 2));
	for (;; n++) {
		handle e = mark[n % depth];
		if (n >= (uint64_t)depth) {
			CK(cuEventSynchronize(e));
			double t = wall();
			if (t >= end)
				break;
			if (t >= begin && !first)
				first = last = bucket = t;
			else if (t >= begin) {
				done++;
				in_bucket++;
				last = t;
				if (t - bucket >= 1e5) {
					double us = (t - bucket) / in_bucket;
					best = best == 0 || us < best ? us : best;
					bucket = t;
					in_bucket = 0;
				}
			}
		}
		launch(turns);
		CK(cuEventRecord(e, stream));
	}
	CK(cuStreamSynchronize(stream));
	printf("done %llu us %.3f best %.3f\n", (unsigned long long)done, done ? (last - first) / done : 0, best);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void typist(uint32_t turns, double pause, int burst, double begin, double end)
{
	static double took[MOST];
	int n = 0;
	for (double t = wall(); t < end; t = wall()) {
		for (int i = 0; i < burst; i++) {
			double from = now_us(CLOCK_MONOTONIC);
			launch(turns);
			CK(cuStreamSynchronize(stream));
			if (t >= begin && n < MOST)
				took[n++] = now_us(CLOCK_MONOTONIC) - from;
		}
		pause_us(pause);
	}
	if (!n)
		exit(1);
	qsort(took, n, sizeof took[0], ascending);
	printf("latency %.1f %.1f %.1f %.1f %d\n", took[n / 2], took[n * 9 / 10], took[(int)(n * 0.99)], took[n - 1], n);
}

int main(int argc, char **argv)
{
	double a[6] = {0};
	for (int i = 2; i < argc && i < 8; i++)
		a[i - 2] = atof(argv[i]);
	const char *what = argc > 1 ? argv[1] : "";
	start();
	if (argc > 3 && a[argc - 4] > 1 && wall() > a[argc - 4] * 1e6) {
		// The last two are begin and end.
		fprintf(stderr, "share: the start took longer than there was time\n");
		return 3;
	}
	if (!strcmp(what, "calibrate") && argc == 3)
		calibrate(a[0]);
	else if (!strcmp(what, "load") && argc == 6)
		load((uint32_t)a[0], (int)a[1], a[2] * 1e6, a[3] * 1e6);
	else if (!strcmp(what, "typist") && argc == 7)
		typist((uint32_t)a[0], a[1], (int)a[2], a[3] * 1e6, a[4] * 1e6);
	else if (!strcmp(what, "idle") && argc == 4)
		for (double t; (t = wall()) < a[1] * 1e6;)
			pause_us(a[1] * 1e6 - t);
	else {
		fprintf(stderr, "share: see the top of share.c\n");
		return 2;
	}
	return 0;
}

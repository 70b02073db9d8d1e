/*
 * Measures how fast work is issued by whatever libcuda.so.1 the loader finds: launches from one and
 * several threads and streams, waits, queries, graphs, CPU time per launch, and the time from exec
 * to the first kernel's end. Prints "name value unit" lines like bench.c beside it. Values are
 * medians.
 *
 *   launches through            microseconds per launch, over all threads and streams
 *   launches four               part of it, for longer: four threads
 *   launches calls              waits and queries
 *   launches graph              a captured graph of 500 kernels
 *   launches start N PAUSE_MS   N fresh processes, one after the other: milliseconds from exec until each step is done
 *   launches first              such a process
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "timing.h"

typedef int CUresult;
typedef void *handle;

#define ENTRIES(X) \
	X(cuInit, (unsigned)) \
	X(cuDeviceGet, (int *, int)) \
	X(cuDevicePrimaryCtxRetain, (handle *, int)) \
	X(cuCtxSetCurrent, (handle)) \
	X(cuCtxSynchronize, (void)) \
	X(cuModuleLoadData, (handle *, const void *)) \
	X(cuModuleGetFunction, (handle *, handle, const char *)) \
	X(cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)) \
	X(cuStreamCreate, (handle *, unsigned)) \
	X(cuStreamSynchronize, (handle)) \
	X(cuStreamQuery, (handle)) \
	X(cuStreamWaitEvent, (handle, handle, unsigned)) \
	X(cuEventCreate, (handle *, unsigned)) \
	X(cuEventRecord, (handle, handle)) \
	X(cuEventQuery, (handle)) \
	X(cuEventSynchronize, (handle)) \
	X(cuStreamBeginCapture_v2, (handle, int)) \
	X(cuStreamEndCapture, (handle, handle *)) \
	X(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long)) \
	X(cuGraphLaunch, (handle, handle))

#define DECLARE(name, args) static CUresult(*name) args;
ENTRIES(DECLARE)

enum { STREAMS = 8, ROUNDS = 7, LAUNCHES = 8000, CALLS = 4000 };

static const char ptx[] = ".version 6.4\n.target sm_75\n.address_size 64\n.visible .entry empty(){ret;}\n"
			  ".visible .entry args(.param .u64 a,.param .u64 b,.param .u32 c,.param .f32 d){ret;}\n";

static handle ctx, empty, with_args, stream[STREAMS], event;

static void check(CUresult r, const char *what)
{
	if (r != 0) {
		fprintf(stderr, "launches: %s returned %d\n", what, r);
		exit(1);
	}
}
#define CK(call) check((call), #call)

static void bind_all(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "launches: %s\n", dlerror());
		exit(1);
	}
#define BIND(name, args) \
	if (!(*(void **)&name = dlsym(lib, #name))) { \
		fprintf(stderr, "launches: libcuda.so.1 lacks %s\n", #name); \
		exit(1); \
	}
	ENTRIES(BIND)
}

static void start(void)
{
	int dev;
	handle mod;
	bind_all();
	CK(cuInit(0));
	CK(cuDeviceGet(&dev, 0));
	CK(cuDevicePrimaryCtxRetain(&ctx, dev));
	CK(cuCtxSetCurrent(ctx));
	CK(cuModuleLoadData(&mod, ptx));
	CK(cuModuleGetFunction(&empty, mod, "empty"));
	CK(cuModuleGetFunction(&with_args, mod, "args"));
	for (int i = 0; i < STREAMS; i++)
		CK(cuStreamCreate(&stream[i], 1));
	CK(cuEventCreate(&event, 2));
}

static void launch(handle s) { CK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL)); }

/* --- CPU time --------------------------------------------------------------------------------- */

/* Nanoseconds on a CPU of all threads of a process. */
static double cpu_of(int pid)
{
	char path[300];
	double sum = 0;
	struct dirent *e;
	snprintf(path, sizeof path, "/proc/%d/task", pid);
	DIR *d = opendir(path);
	while (d && (e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", pid, e->d_name);
		FILE *f = fopen(path, "r");
		double ns;
		if (f && fscanf(f, "%lf", &ns) == 1)
			sum += ns;
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	return sum;
}

/* The same of every process that has this one's parent, this one left out: `causeway run` and its
 * workers. Natively: 0. */
static double cpu_of_host(void)
{
	char path[64], name[64] = "", text[4096];
	double sum = 0;
	int ppid = getppid(), pid, n;
	snprintf(path, sizeof path, "/proc/%d/comm", ppid);
	FILE *f = fopen(path, "r");
	if (!f || !fgets(name, sizeof name, f))
		name[0] = 0;
	if (f)
		fclose(f);
	if (strncmp(name, "causeway", 8) && !getenv("CAUSEWAY"))
		return 0;
	struct dirent *e;
	snprintf(path, sizeof path, "/proc/%d/task", ppid);
	DIR *d = opendir(path);
	while (d && (e = readdir(d))) {
		snprintf(text, sizeof text, "/proc/%d/task/%s/children", ppid, e->d_name);
		if (!(f = fopen(text, "r")))
			continue;
		while (fscanf(f, "%d%n", &pid, &n) == 1)
			if (pid != getpid())
				sum += cpu_of(pid);
		fclose(f);
	}
	if (d)
		closedir(d);
	return sum;
}

/* --- throughput ------------------------------------------------------------------------------- */

static pthread_barrier_t gate;

static void *launcher(void *s)
{
	CK(cuCtxSetCurrent(ctx));
	for (int round = 0; round < ROUNDS + 1; round++) {
		pthread_barrier_wait(&gate);
		for (int i = 0; i < LAUNCHES; i++)
			launch(s);
		CK(cuStreamSynchronize(s));
		pthread_barrier_wait(&gate);
	}
	pthread_barrier_wait(&gate); /* the CPU time of threads that ended is not found */
	return NULL;
}

static void threads(const char *name, int n, int own)
{
	pthread_t t[STREAMS];
	double v[ROUNDS];
	pthread_barrier_init(&gate, NULL, n + 1);
	for (int i = 0; i < n; i++)
		if (pthread_create(&t[i], NULL, launcher, stream[own ? i : 0]))
			exit(1);
	double mine = 0, host = 0;
	for (int round = 0; round < ROUNDS + 1; round++) {
		if (round == 1) { /* the first warms up */
			mine = cpu_of(getpid());
			host = cpu_of_host();
		}
		double begin = now_us();
		pthread_barrier_wait(&gate);
		pthread_barrier_wait(&gate);
		if (round)
			v[round - 1] = (now_us() - begin) / n / LAUNCHES;
	}
	mine = cpu_of(getpid()) - mine;
	host = cpu_of_host() - host;
	pthread_barrier_wait(&gate);
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	double per = 1e3 * n * ROUNDS * LAUNCHES;
	printf("%s %.3f us\n%s_cpu %.3f us\n", name, median(v, ROUNDS), name, mine / per);
	if (host > 0)
		printf("%s_cpu_worker %.3f us\n", name, host / per);
}

static void one_thread(const char *name, int streams, int run)
{
	double v[ROUNDS];
	for (int round = 0; round < ROUNDS + 1; round++) {
		double begin = now_us();
		for (int i = 0; i < LAUNCHES; i++)
			launch(stream[i / run % streams]);
		for (int i = 0; i < streams; i++)
			CK(cuStreamSynchronize(stream[i]));
		if (round)
			v[round - 1] = (now_us() - begin) / LAUNCHES;
	}
	printf("%s %.3f us\n", name, median(v, ROUNDS));
}

/* Two streams that wait for each other through an event every eighth launch: what frameworks do
 * with a copy stream. */
static void crossing(const char *name)
{
	double v[ROUNDS];
	for (int round = 0; round < ROUNDS + 1; round++) {
		double begin = now_us();
		for (int i = 0; i < LAUNCHES; i++) {
			launch(stream[i / 8 % 2]);
			if (i % 8 == 7) {
				CK(cuEventRecord(event, stream[i / 8 % 2]));
				CK(cuStreamWaitEvent(stream[(i / 8 + 1) % 2], event, 0));
			}
		}
		CK(cuCtxSynchronize());
		if (round)
			v[round - 1] = (now_us() - begin) / LAUNCHES;
	}
	printf("%s %.3f us\n", name, median(v, ROUNDS));
}

static void through(void)
{
	start();
	one_thread("launches_1_stream", 1, 1);
	threads("launches_1_thread", 1, 1);
	one_thread("launches_1_thread_4_streams", 4, 1);
	one_thread("launches_1_thread_4_streams_runs_of_16", 4, 16);
	threads("launches_4_threads", 4, 1);
	threads("launches_8_threads", 8, 1);
	threads("launches_4_threads_same_stream", 4, 0);
	crossing("launches_2_streams_crossing");
	one_thread("launches_1_stream_again", 1, 1);
}

static void four(void)
{
	start();
	for (int i = 0; i < 4; i++)
		threads("launches_4_threads", 4, 1);
}

/* --- calls ------------------------------------------------------------------------------------ */

#define TIMED(name, n, before, stmt) \
	do { \
		double v_[CALLS]; \
		for (int i_ = -(n) / 4; i_ < (n); i_++) { \
			before; \
			double t_ = now_us(); \
			stmt; \
			if (i_ >= 0) \
				v_[i_] = now_us() - t_; \
		} \
		CK(cuCtxSynchronize()); \
		printf("%s %.3f us\n", name, median(v_, n)); \
	} while (0)

static void calls(void)
{
	start();
	TIMED("sync_idle", CALLS, , CK(cuCtxSynchronize()));
	TIMED("stream_sync_idle", CALLS, , CK(cuStreamSynchronize(stream[0])));
	TIMED("stream_query_idle", CALLS, , CK(cuStreamQuery(stream[0])));
	TIMED("launch_call", CALLS, if (i_ % 64 == 0) CK(cuCtxSynchronize()), launch(stream[0]));
	TIMED("launch_sync", CALLS, , launch(stream[0]); CK(cuStreamSynchronize(stream[0])));
	TIMED("launch_ctx_sync", CALLS, , launch(stream[0]); CK(cuCtxSynchronize()));
	TIMED("launch_record_event_sync", CALLS, , launch(stream[0]); CK(cuEventRecord(event, stream[0])); CK(cuEventSynchronize(event)));
	TIMED("event_query_done", CALLS, , CK(cuEventQuery(event)));
	TIMED("launch_record_poll_event", CALLS, , launch(stream[0]); CK(cuEventRecord(event, stream[0]));
	      while (cuEventQuery(event) == 600););
	TIMED("launch_poll_stream", CALLS, , launch(stream[0]); while (cuStreamQuery(stream[0]) == 600););
	TIMED("event_record_call", CALLS, if (i_ % 64 == 0) CK(cuCtxSynchronize()), CK(cuEventRecord(event, stream[0])));
	TIMED("wait_event_call", CALLS, if (i_ % 64 == 0) CK(cuCtxSynchronize()), CK(cuStreamWaitEvent(stream[1], event, 0)));
}

static void graph(void)
{
	handle g = NULL, exec = NULL;
	start();
	CUresult r = cuStreamBeginCapture_v2(stream[0], 0);
	for (int i = 0; r == 0 && i < 500; i++)
		r = cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, stream[0], NULL, NULL);
	if (r == 0)
		r = cuStreamEndCapture(stream[0], &g);
	if (r == 0)
		r = cuGraphInstantiateWithFlags(&exec, g, 0);
	if (r != 0) {
		printf("# graph: refused with %d\n", r);
		return;
	}
	TIMED("graph_500_replay_sync", 300, , CK(cuGraphLaunch(exec, stream[0])); CK(cuStreamSynchronize(stream[0])));
	double v[ROUNDS];
	for (int round = 0; round < ROUNDS; round++) {
		double begin = now_us();
		for (int i = 0; i < 50; i++)
			CK(cuGraphLaunch(exec, stream[0]));
		CK(cuStreamSynchronize(stream[0]));
		v[round] = (now_us() - begin) / 50;
	}
	printf("graph_500_replay %.3f us\n", median(v, ROUNDS));
}

/* --- start ------------------------------------------------------------------------------------ */

static const char *const steps[] = {"main", "load", "init", "context", "module", "first", "exit"};
enum { STEPS = sizeof steps / sizeof *steps };

static void first(void)
{
	double at[STEPS];
	int dev;
	handle mod;
	at[0] = now_us();
	bind_all();
	at[1] = now_us();
	CK(cuInit(0));
	CK(cuDeviceGet(&dev, 0));
	at[2] = now_us();
	CK(cuDevicePrimaryCtxRetain(&ctx, dev));
	CK(cuCtxSetCurrent(ctx));
	at[3] = now_us();
	CK(cuModuleLoadData(&mod, ptx));
	CK(cuModuleGetFunction(&empty, mod, "empty"));
	at[4] = now_us();
	launch(NULL);
	CK(cuCtxSynchronize());
	at[5] = now_us();
	if (write(1, at, sizeof at) != sizeof at)
		exit(1);
}

/* One line per step: the median time since exec. The first process is shown apart: it finds caches
 * cold. */
static void starts(const char *self, int n, int pause)
{
	double v[STEPS][64], at[STEPS];
	for (int i = 0; i < n; i++) {
		int p[2], status;
		usleep(pause * 1000);
		if (pipe(p))
			exit(1);
		double begin = now_us();
		pid_t child = fork();
		if (child == 0) {
			dup2(p[1], 1);
			close(p[0]);
			close(p[1]);
			execl(self, self, "first", (char *)NULL);
			_exit(127);
		}
		close(p[1]);
		if (read(p[0], at, sizeof at) != sizeof at)
			exit(1);
		close(p[0]);
		waitpid(child, &status, 0);
		at[STEPS - 1] = now_us();
		for (int k = 0; k < STEPS; k++)
			v[k][i] = (at[k] - begin) * 1e-3;
	}
	printf("#");
	for (int i = 0; i < n; i++)
		printf(" %.1f", v[5][i]);
	printf("\n");
	for (int k = 0; k < STEPS; k++)
		printf("start_%s %.3f ms\n", steps[k], median(v[k], n));
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	const char *mode = argc > 1 ? argv[1] : "";
	if (!strcmp(mode, "through"))
		through();
	else if (!strcmp(mode, "four"))
		four();
	else if (!strcmp(mode, "calls"))
		calls();
	else if (!strcmp(mode, "graph"))
		graph();
	else if (!strcmp(mode, "first"))
		first();
	else if (!strcmp(mode, "start") && argc > 3 && atoi(argv[2]) > 0 && atoi(argv[2]) <= 64)
		starts("/proc/self/exe", atoi(argv[2]), atoi(argv[3]));
	else {
		fprintf(stderr, "usage: launches through | four | calls | graph | start N PAUSE_MS | first\n");
		return 2;
	}
	return 0;
}

/*
 * Where a program's CPU time goes: preloaded into it, it notes at every millisecond of CPU time
 * where the thread that runs is, and prints at exit a line "samples library symbol+offset" for each
 * place, the most frequent first.
 *
 *   gcc -O2 -shared -fPIC sampler.c -o sampler.so -ldl
 *   LD_PRELOAD=./sampler.so CAUSEWAY_SAMPLES=out.txt program
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

enum { MOST = 1 << 20, PERIOD_US = 1000 };

static uintptr_t *where;
static atomic_uint taken;
static pid_t owner;

static void sample(int signal, siginfo_t *info, void *context)
{
	unsigned n = atomic_fetch_add_explicit(&taken, 1, memory_order_relaxed);

	(void)signal, (void)info;
	if (n < MOST)
		where[n] = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
}

static void timer(long us)
{
	struct itimerval t = {{0, us}, {0, us}};

	setitimer(ITIMER_PROF, &t, NULL);
}

__attribute__((constructor)) static void begin(void)
{
	struct sigaction a = {.sa_sigaction = sample, .sa_flags = SA_SIGINFO | SA_RESTART};

	where = calloc(MOST, sizeof *where);
	if (!where)
		return;
	owner = getpid();
	sigaction(SIGPROF, &a, NULL);
	timer(PERIOD_US);
}

static int by_address(const void *a, const void *b)
{
	uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;

	return x < y ? -1 : x > y;
}

struct place {
	unsigned count;
	uintptr_t at;
};

static int by_count(const void *a, const void *b) { return (int)((const struct place *)b)->count - (int)((const struct place *)a)->count; }

static void print(FILE *f, const struct place *p)
{
	Dl_info in = {0};
	const char *name;

	if (!dladdr((void *)p->at, &in) || !in.dli_fname) {
		fprintf(f, "%u ? %#lx\n", p->count, (unsigned long)p->at);
		return;
	}
	name = strrchr(in.dli_fname, '/');
	fprintf(f, "%u %s +%#lx %s\n", p->count, name ? name + 1 : in.dli_fname, (unsigned long)(p->at - (uintptr_t)in.dli_fbase),
		in.dli_sname ? in.dli_sname : "");
}

__attribute__((destructor)) static void end(void)
{
	const char *path = getenv("CAUSEWAY_SAMPLES");
	unsigned n = taken < MOST ? taken : MOST, places = 0;
	struct place *list;
	FILE *f;

	timer(0);
	if (!where || owner != getpid())
		return; /* a child's copy */
	f = path ? fopen(path, "w") : stderr;
	list = calloc(n + 1, sizeof *list);
	if (!f || !list)
		return;
	qsort(where, n, sizeof *where, by_address);
	for (unsigned i = 0; i < n; i++) {
		if (!i || where[i] != where[i - 1])
			list[places++].at = where[i];
		list[places - 1].count++;
	}
	qsort(list, places, sizeof *list, by_count);
	fprintf(f, "%u samples of %d us\n", n, PERIOD_US);
	for (unsigned i = 0; i < places; i++)
		print(f, &list[i]);
	if (f != stderr)
		fclose(f);
}

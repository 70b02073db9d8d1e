/*
 * How long a cache line takes from one CPU to another and back: no call through shared memory can
 * return sooner. Prints a line "pair_A_B microseconds us" for the first CPU that this process may
 * use with each other one. Medians.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "timing.h"

enum { CALLS = 4000 };

static struct {
	_Alignas(128) _Atomic unsigned ask;
	_Alignas(128) _Atomic unsigned answer;
} line;

static void run_on(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		exit(1);
}

static void *answers(void *cpu)
{
	run_on((int)(intptr_t)cpu);
	for (unsigned n = 1; n <= CALLS; n++) {
		while (atomic_load_explicit(&line.ask, memory_order_acquire) != n)
			;
		atomic_store_explicit(&line.answer, n, memory_order_release);
	}
	return NULL;
}

int main(void)
{
	cpu_set_t all;
	int first = -1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (sched_getaffinity(0, sizeof all, &all))
		exit(1);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		double v[CALLS];
		pthread_t t;
		if (!CPU_ISSET(cpu, &all))
			continue;
		if (first < 0) {
			run_on(first = cpu);
			continue;
		}
		atomic_store(&line.ask, 0);
		atomic_store(&line.answer, 0);
		if (pthread_create(&t, NULL, answers, (void *)(intptr_t)cpu))
			exit(1);
		for (unsigned n = 1; n <= CALLS; n++) {
			double begin = now_us();
			atomic_store_explicit(&line.ask, n, memory_order_release);
			while (atomic_load_explicit(&line.answer, memory_order_acquire) != n)
				;
			v[n - 1] = now_us() - begin;
		}
		pthread_join(t, NULL);
		printf("pair_%d_%d %.3f us\n", first, cpu, median(v, CALLS));
	}
	return 0;
}

/*
 * Runs in a guest: finds CPUs that stand still. A thread bound to each CPU sleeps 5 ms again and
 * again and notes the longest time that a sleep took. Each SIGUSR1 prints the longest of each CPU
 * since the last, in ms: "@ticks CPU0 CPU1 ...". "@ready PID" comes first.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { CPUS = 8, SLEEP_NS = 5000000 };

static _Atomic long longest[CPUS];

static long now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}

static void *tick(void *arg)
{
	long cpu = (long)arg, last;
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET((int)cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		return NULL;
	for (last = now_us();;) {
		struct timespec nap = {0, SLEEP_NS};
		long now, old = atomic_load(&longest[cpu]);
		nanosleep(&nap, NULL);
		now = now_us();
		while (now - last > old && !atomic_compare_exchange_weak(&longest[cpu], &old, now - last))
			;
		last = now;
	}
}

int main(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	sigset_t set;
	int got;
	if (n > CPUS)
		n = CPUS;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	for (long i = 0; i < n; i++) {
		pthread_t t;
		if (pthread_create(&t, NULL, tick, (void *)i))
			return 1;
	}
	for (printf("@ready %d\n", getpid()), fflush(stdout); !sigwait(&set, &got); fflush(stdout)) {
		printf("@ticks");
		for (long i = 0; i < n; i++)
			printf(" %ld", atomic_exchange(&longest[i], 0) / 1000);
		printf("\n");
	}
	return 0;
}

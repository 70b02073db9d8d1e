// /init of a guest without anything else: on each CPU a process that writes a word of each of its
// pages, again and again for some milliseconds, and then rests, as programs do.
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 1024 /* of a page */, PAGES = 1024, SWEEPS = 40, PROCS = 2 };

static void work(int p)
{
	cpu_set_t own;
	CPU_ZERO(&own);
	CPU_SET(p, &own);
	volatile uint32_t *m = mmap(NULL, PAGES * WORDS * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED || sched_setaffinity(0, sizeof own, &own) != 0)
		_exit(1);
	for (uint32_t n = 1;; n++) {
		for (int i = 0; i < SWEEPS; i++)
			for (int k = 0; k < PAGES; k++)
				m[k * WORDS + n % WORDS] += i + n;
		if (p == 0 && n % 20 == 1 && write(1, "at work\n", 8) != 8)
			_exit(1);
		struct timespec nap = {0, 20000000};
		nanosleep(&nap, NULL);
	}
}

int main(void)
{
	for (int p = 0; p < PROCS; p++)
		if (fork() == 0)
			work(p);
	while (wait(NULL) > 0)
		;
	pause();
}

// /init of a guest without anything else: processes write memory of their own round after round, and look whether it is what they left there.
// What differs is told once and made good, so that each loss counts once. "torn P N K W F L": process P, round N, page K: W words of it differ, F to L.
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 1024 /* words */, PAGES = 8, PROCS = 4, AGAIN = 6 };

static void tell(const char *f, ...)
{
	char b[160];
	va_list a;
	va_start(a, f);
	int n = vsnprintf(b, sizeof b, f, a);
	va_end(a);
	if (write(1, b, n) != n)
		_exit(1);
}

static void work(int p, long rounds)
{
	uint32_t *m = mmap(NULL, PAGES * PAGE * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), x = p;
	for (int i = 0; i < PAGES * PAGE; i++)
		m[i] = x;
	for (long n = 0; rounds == 0 || n < rounds; n++) {
		for (int a = 0; a < AGAIN; a++) {
			uint32_t next = x * 1664525u + 1013904223u;
			for (int k = 0; k < PAGES; k++) {
				int torn = 0, first = 0, last = 0;
				uint32_t had = 0;
				for (int i = 0; i < PAGE; i++) {
					volatile uint32_t *w = &m[k * PAGE + i];
					if (*w != x) {
						had = *w;
						last = i;
						if (!torn++)
							first = i;
					}
					*w = next;
				}
				if (torn)
					tell("torn %d %ld page %d: %d words, %d to %d, %08x for %08x\n", p, n, k, torn, first, last, had,
					     x);
			}
			x = next;
		}
		if (n % 20 == 19)
			tell("at %d %ld\n", p, n + 1);
		struct timespec nap = {0, p % 2 ? 30000000 : 3000000};
		nanosleep(&nap, NULL);
	}
}

int main(int argc, char **argv)
{
	long rounds = getpid() == 1 ? 0 : argc > 1 ? atol(argv[1]) : 300;
	tell("ready\n");
	for (int p = 0; p < PROCS; p++)
		if (fork() == 0) {
			work(p, rounds);
			_exit(0);
		}
	while (wait(NULL) > 0)
		;
	if (getpid() == 1)
		pause();
	return 0;
}

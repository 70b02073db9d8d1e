/*
 * A program of a VM that has the GPU reach much of the guest's memory, for scripts/sessions.sh.
 *
 *   lends MIB MORE    pins so many MiB, has the GPU write every byte of them and checks all; MORE MiB beyond must be refused, pinned
 *                     and managed memory alike. Then it prints "@ready PID" and goes on with a MiB at a time until SIGTERM, checks all again
 *                     and prints "@lends ROUNDS WRONG PAUSE_MS". MORE 0: none is asked for, and the GPU writes to the first 8 MiB alone
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "gpu.h"

enum { MIB = 1 << 20, WORDS = MIB / 4, COUNTED = 1024 };

static volatile sig_atomic_t ended;

static void on_term(int sig)
{
	(void)sig;
	ended = 1;
}

static int check(const char *what, CUresult r)
{
	if (r != 0)
		fprintf(stderr, "%s: %d\n", what, r);
	return r != 0;
}

/* What a MiB holds in a round: its first page was counted up by a kernel, all of it was filled by
 * the GPU. */
static uint32_t value(long mib, uint32_t round) { return (uint32_t)mib * 2654435761u + round * 2; }

static int fill(CUdeviceptr d, long mib, uint32_t round)
{
	CUdeviceptr at = d + (uint64_t)mib * MIB;
	return check("fill", cuMemsetD32_v2(at, value(mib, round), WORDS)) || check("launch", gpu_add_one(at, COUNTED, NULL));
}

static uint32_t wrong_in(const uint32_t *memory, long mib, uint32_t round)
{
	const uint32_t *p = memory + (size_t)mib * WORDS;
	const uint64_t *rest = (const uint64_t *)(p + COUNTED);
	uint32_t wrong = 0, want = value(mib, round);
	uint64_t wants = (uint64_t)want << 32 | want, differ = 0;
	for (unsigned i = 0; i < COUNTED; i++)
		wrong += p[i] != want + 1;
	for (unsigned i = 0; i < (WORDS - COUNTED) / 2; i++)
		differ |= rest[i] ^ wants;
	return wrong + (differ != 0);
}

/* So much more is out of memory, or memory that no kernel reaches. */
static int refused(long mib)
{
	void *p;
	CUdeviceptr d;
	CUresult r = cuMemHostAlloc(&p, (size_t)mib * MIB, 2);
	if (r == 0)
		r = cuMemHostGetDevicePointer_v2(&d, p, 0) == 801 ? 2 : 0;
	CUresult managed = cuMemAllocManaged(&d, (size_t)mib * MIB, 1);
	if (r != 2 || managed != 2)
		fprintf(stderr, "%ld MiB more: pinned %d, managed %d\n", mib, r, managed);
	return r == 2 && managed == 2;
}

int main(int argc, char **argv)
{
	long mib = argc == 3 ? atol(argv[1]) : 0, more = argc == 3 ? atol(argv[2]) : 0;
	uint32_t *memory, wrong = 0, round = 0, *of;
	CUdeviceptr d;
	setenv("CAUSEWAY_MANAGED", "link", 1); /* managed memory that stays in the guest */
	gpu_load();
	if (mib < 8 || more < 0 || !(of = calloc((size_t)mib, sizeof *of)) || check("open", gpu_open()) ||
	    check("pin", cuMemHostAlloc((void **)&memory, (size_t)mib * MIB, 2)) ||
	    check("map", cuMemHostGetDevicePointer_v2(&d, memory, 0)))
		return 1;
	signal(SIGTERM, on_term);
	if (more == 0)
		mib = 8;
	for (long i = 0; i < mib; i++)
		if (fill(d, i, 0))
			return 1;
	if (check("synchronise", cuCtxSynchronize()) || (more && !refused(more)))
		return 1;
	for (long i = 0; i < mib; i++)
		wrong += wrong_in(memory, i, 0);
	printf("@ready %d\n", getpid());
	fflush(stdout);
	int64_t pause_ms = 0;
	for (; !ended || round < 20; round++) {
		long i = (long)(round * 37 % (uint32_t)mib);
		int64_t begin = now_ms();
		of[i] = round + 1;
		if (fill(d, i, round + 1) || check("synchronise", cuCtxSynchronize()))
			return 1;
		if (now_ms() - begin > pause_ms)
			pause_ms = now_ms() - begin;
		wrong += wrong_in(memory, i, round + 1);
		nanosleep(&(struct timespec){0, 10000000}, NULL);
	}
	for (long i = 0; i < mib; i++)
		wrong += wrong_in(memory, i, of[i]);
	printf("@lends %u %u %ld\n", round, wrong, (long)pause_ms);
	return wrong != 0;
}

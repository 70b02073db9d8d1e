/*
 * A program that closes all descriptors (closefrom, as daemons do) closes the one by which its
 * faults are served, too. With the last reference to it the kernel would serve them by itself, with
 * zeros. So a thread has a table of descriptors of its own, in which there is this one alone, and
 * sleeps. Who serves faults finds that the number is no longer ours, and takes the access to what
 * lies at the GPU away; then the thread's reference goes, and who waited for such memory ends with
 * SIGSEGV.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "memory/resident.h"
#include "memory/uffd.h"
#include "api/callback.h"
#include "session/compat.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static _Atomic uint32_t lost, away; /* away: nothing that is at the GPU can be reached any more */

int cw_touch_is_lost(void) { return atomic_load(&lost) != 0; }

/* Under the lock. What the CPU has it keeps; writes to what both have would have to be seen. */
static int take_away(const struct cw_area *a)
{
	static const int access[] = {[CW_AT_GPU] = PROT_NONE, [CW_AT_BOTH] = PROT_READ};
	for (uint32_t u = 0, end; u < a->units; u = end) {
		for (end = u + 1; end < a->units && a->holder[end] == a->holder[u];)
			end++;
		if (a->holder[u] != CW_AT_CPU &&
		    mprotect((void *)(uintptr_t)cw_unit_at(a, u), cw_units_bytes(a, u, end), access[a->holder[u]]) != 0)
			return 0;
	}
	return 1;
}

void cw_touch_lost(void)
{
	cw_lock_acquire(&cw_resident_lock);
	if (!atomic_exchange(&lost, 1)) {
		for (const struct cw_area *a = cw_areas; a; a = a->next)
			if (!a->region && !a->fresh && !take_away(a)) /* of too many parts, say */
				mprotect((void *)(uintptr_t)a->base, a->size, PROT_NONE);
		cw_uffd_end();
		atomic_store(&away, 1);
		cw_futex_wake(&away, 1, CW_FUTEX_PRIVATE);
		cw_log(CW_LOG_ERROR,
		       "the program has closed the library's descriptors: accesses to managed memory at the GPU end with SIGSEGV");
	}
	cw_lock_release(&cw_resident_lock);
}

/* Leaves this thread no descriptor but one. Linux before 5.9 closes them one by one. */
static void close_others(int fd)
{
	if ((fd == 0 || syscall(SYS_close_range, 0, fd - 1, 0) == 0) && syscall(SYS_close_range, fd + 1, ~0u, 0) == 0)
		return;
	struct rlimit most = {0};
	getrlimit(RLIMIT_NOFILE, &most);
	for (int i = 0; (rlim_t)i < most.rlim_max && i < 1 << 20; i++)
		if (i != fd)
			close(i);
}

static void *keeper(void *arg)
{
	int fd = (int)(intptr_t)arg;
	prctl(PR_SET_NAME, "causeway-keeps");
	if (unshare(CLONE_FILES) != 0) { /* what closes it closes this */
		cw_log(CW_LOG_INFO, "managed memory is zero to a program that closes the library's descriptors: %s", strerror(errno));
		return NULL;
	}
	close_others(fd);
	while (!atomic_load(&away))
		cw_futex_wait(&away, 0, CW_FUTEX_PRIVATE, NULL);
	close(fd);
	return NULL;
}

void cw_touch_keep(void)
{
	if (cw_thread_start(keeper, (void *)(intptr_t)cw_uffd_number()) != 0)
		cw_log(CW_LOG_INFO,
		       "managed memory is zero to a program that closes the library's descriptors: there is no thread to keep them");
}

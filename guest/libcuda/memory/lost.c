/*
 * A program that closes all descriptors (closefrom, as daemons do) closes the one by which its faults are served, too. With the last reference to it the kernel
 * would serve them by itself, with zeros. So a thread keeps a reference that no table of descriptors has: it sleeps in a poll of it, for nothing. Whoever
 * finds that the number is no longer ours, this thread or the one that serves, which polls it too, takes the access to what lies at the GPU away first; when the other's poll
 * ends, the reference goes, and who waited for such memory ends with SIGSEGV. That the two polls do not end in the same moment is why they last as long as they do.
 */
#include <sys/mman.h>
#include <sys/prctl.h>

#include "memory/resident.h"
#include "memory/uffd.h"
#include "api/callback.h"

enum { KEEP_MS = 2300 /* cw_uffd_read: 1700 */ };

static _Atomic int lost;

int cw_touch_is_lost(void) { return atomic_load(&lost); }

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
		cw_log(CW_LOG_ERROR,
		       "the program has closed the library's descriptors: accesses to managed memory at the GPU end with SIGSEGV");
	}
	cw_lock_release(&cw_resident_lock);
}

static void *keeper(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "causeway-keeps");
	while (cw_uffd_keep(KEEP_MS))
		;
	cw_touch_lost();
	return NULL;
}

void cw_touch_keep(void)
{
	if (cw_thread_start(keeper, NULL) != 0)
		cw_log(CW_LOG_INFO,
		       "managed memory is zero to a program that closes the library's descriptors: there is no thread to keep them");
}

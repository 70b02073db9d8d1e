/* Accesses to managed memory that end with a signal, and what becomes of their pages afterwards.
 * See resident.h. */
#include <stdlib.h>
#include <sys/mman.h>

#include "memory/resident.h"
#include "memory/uffd.h"

/* Pages whose accesses end with a signal. A program may outlive that (handlers that do not return
 * to the access): when its work has been waited for it has them again, and the library reads them
 * before. Who has not met its signal by then faults again, no more. */
static struct {
	struct cw_lock lock;
	uint64_t *all;
	uint32_t count, cap;
} forbidden;
_Atomic uint32_t cw_forbidden;

void cw_touch_forbid(uint64_t page)
{
	cw_lock_acquire(&forbidden.lock);
	if (forbidden.count == forbidden.cap) {
		uint32_t cap = forbidden.cap ? 2 * forbidden.cap : 16;
		uint64_t *all = realloc(forbidden.all, cap * sizeof *all);
		forbidden.all = all ? all : forbidden.all;
		forbidden.cap = all ? cap : forbidden.cap;
	}
	if (forbidden.count < forbidden.cap)
		forbidden.all[forbidden.count++] = page;
	mprotect((void *)(uintptr_t)page, CW_PAGE, PROT_NONE);
	atomic_store(&cw_forbidden, forbidden.count);
	cw_lock_release(&forbidden.lock);
}

void cw_touch_again(void)
{
	if (!cw_touch_is_lost())
		cw_touch_restore(0, UINT64_MAX);
}

void cw_touch_restore(uint64_t at, uint64_t size)
{
	uint32_t kept = 0;
	cw_lock_acquire(&forbidden.lock);
	for (uint32_t i = 0; i < forbidden.count; i++) {
		uint64_t page = forbidden.all[i];
		if (page - at < size)
			mprotect((void *)(uintptr_t)page, CW_PAGE, PROT_READ | PROT_WRITE);
		else
			forbidden.all[kept++] = page;
	}
	forbidden.count = kept;
	atomic_store(&cw_forbidden, kept);
	cw_lock_release(&forbidden.lock);
}

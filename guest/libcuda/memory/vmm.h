/*
 * Virtual memory management: reservations, physical memory, mappings. The application sees
 * addresses and CUmemGenericAllocationHandle; all three are objects of the handle slab, so that the
 * worker can name them.
 *
 * Physical memory is counted here: refs by the application (create, import, retain), maps by
 * mappings. The worker is told once, when both are zero. The virtual-memory lock guards all of it
 * and is held across the requests, which are rare. Lock order: virtual-memory lock > range lock,
 * session locks.
 */
#ifndef CW_MEMORY_VMM_H
#define CW_MEMORY_VMM_H

#include "memory/memory.h"
#include "session/lock.h"

enum { CW_MEM_PINNED = 1 };								 /* CU_MEM_ALLOCATION_TYPE_PINNED */
enum { CW_MEM_POSIX_FD = 1, CW_MEM_WIN32 = 2, CW_MEM_WIN32_KMT = 4, CW_MEM_FABRIC = 8 }; /* CUmemAllocationHandleType */

enum { CW_VMM_DEVICES = 64 };

#pragma GCC visibility push(hidden)

/* Takes addresses in this process too, so that nothing else can live there: what an address names
 * must stay one thing. 0 if they are in use. Whole pages. */
int cw_addresses_take(uint64_t base, uint64_t size);
void cw_addresses_give(uint64_t base, uint64_t size);

struct cw_resv {
	struct cw_obj o;
	uint64_t base, size;
	uint32_t mappings;
	uint8_t guarded; /* the addresses are taken in this process too */
};
CW_OBJ_FITS(struct cw_resv);

struct cw_memhandle {
	struct cw_obj o;
	uint64_t size;
	int32_t device;
	uint32_t handles; /* types that exports may ask for */
	uint32_t flags;	  /* compression, gpuDirectRDMACapable << 8, usage << 16 */
	uint32_t refs, maps;
};
CW_OBJ_FITS(struct cw_memhandle);

struct cw_mapping {
	struct cw_obj o;
	uint64_t base, size, offset;
	struct cw_resv *resv;
	struct cw_memhandle *mem;
	uint8_t access[CW_VMM_DEVICES]; /* CUmemAccess_flags of each device */
};
CW_OBJ_FITS(struct cw_mapping);

extern struct cw_lock cw_vmm_lock;

/* Addresses for the library itself, free and taken in both processes, at a wish if that can be had
 * (0: anywhere); the application's calls do not know them. */
CUresult cw_addresses_reserve(uint64_t size, uint64_t wish, struct cw_resv **out);
/* Those at base, which this process has taken and keeps. */
CUresult cw_addresses_again(uint64_t base, uint64_t size, struct cw_resv **out);
CUresult cw_addresses_unreserve(struct cw_resv *v);
/* This process keeps them. */
CUresult cw_addresses_leave(struct cw_resv *v);

/* What the application means by a handle, or NULL. Under the lock. */
static inline struct cw_memhandle *cw_memhandle_get(CUmemGenericAllocationHandle h)
{
	struct cw_obj *o = cw_handle_get(CW_KIND_MEMHANDLE, (const void *)(uintptr_t)h);
	struct cw_memhandle *m = (struct cw_memhandle *)o;

	return o && m->refs > 0 ? m : NULL;
}
/* Tells the worker when nobody holds the memory any more. Under the lock. */
CUresult cw_memhandle_settle(struct cw_memhandle *m);

/* What cuPointerGetAttribute says about mapped memory where it differs from cuMemAlloc's. 0: as for
 * other memory. */
int cw_mapping_answer(const struct cw_range *r, uint64_t ptr, int attr, uint64_t *value, CUresult *res);

#pragma GCC visibility pop
#endif

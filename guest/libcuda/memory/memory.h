/*
 * Memory and copies: what the files of this folder share.
 *
 * Every cwi_cuX runs on the application's thread after the preamble of gen/entries.c. Where a
 * pointer points is answered by the range map alone; a pointer that it does not know costs one
 * question to the worker (module globals), never one per copy.
 *
 * How a linear copy between device memory and the application's memory travels:
 *   inline   up to CW_MAX_INLINE_DATA inside the record (to the device), up to CW_INLINE_REPLY inside the reply (from it)
 *   staged   through chunks of staging regions; memcpy here overlaps with the DMA of earlier chunks
 *   direct   one record naming both addresses, when the application's side is pinned memory that the worker has mapped
 *
 * Lock order: range lock, staging lock: leaves, never held across a request.
 */
#ifndef CW_MEMORY_MEMORY_H
#define CW_MEMORY_MEMORY_H

#include "api/api.h"
#include "session/session.h"

#pragma GCC visibility push(hidden)

enum { CW_INLINE_REPLY = 3968 };

/* --- ranges ----------------------------------------------------------------------------------- */

enum cw_range_kind {
	CW_RANGE_NONE = 0, /* ordinary memory of the application, or nothing */
	CW_RANGE_DEVICE,   /* cuMemAlloc and its kin */
	CW_RANGE_FOREIGN,  /* device memory that the worker told us of: module globals */
	/* cuMemHostAlloc in a region that the worker maps: dev is its device address */
	CW_RANGE_PINNED,
	CW_RANGE_HOST, /* cuMemHostAlloc in ordinary memory: the carrier cannot map */
	CW_RANGE_IPC,  /* cuIpcOpenMemHandle: another process's */
	/* cuMemMap: device memory at addresses that the application reserved */
	CW_RANGE_MAPPED,
	CW_RANGE_REGISTERED, /* cuMemHostRegister: dev is 0 unless the pages could be shared */
	/* cuMemAllocManaged: in area, or as pinned, but device memory to who asks */
	CW_RANGE_MANAGED,
};

struct cw_range {
	uint64_t base, size;
	enum cw_range_kind kind;
	uint32_t ctx; /* id of the context that it was made in */
	int device;
	uint32_t flags; /* CU_MEMHOSTALLOC_*, CU_MEMHOSTREGISTER_* */
	uint64_t id;	/* CU_POINTER_ATTRIBUTE_BUFFER_ID: never reused */
	uint64_t dev;	/* device address of base, 0 if the device cannot reach it */
	uint32_t pool;	/* id of the memory pool, 0 */
	uint8_t sync_memops;
	/* Registered: its ends, and perhaps all of it, are carried: parts.h. */
	uint8_t parts;
	/* managed: of loaded code, within what is none of the application's to free */
	uint8_t variable;
	uint8_t access;		    /* mapped: CUmemAccess_flags that some device has */
	struct cw_region *region;   /* a region of its own */
	struct slab *slab;	    /* or a part of one: slab.c */
	struct cw_managed *managed; /* managed.h */
	struct cw_area *area;	    /* managed: it lies at the GPU (resident.h) */
	struct cw_slice *slice;	    /* managed: of a pool (managedpool.h), and of which */
	struct cw_managed_pool *of;
	struct cw_mapping *mapping; /* vmm.h; read under its lock */
};

/* Adds a range; r->id is filled in. Foreign ranges that it overlaps are forgotten. ENOMEM or EEXIST
 * as -errno. */
int cw_range_add(struct cw_range *r);
/* The range that contains addr: 1 and a copy of it, or 0. */
int cw_range_find(uint64_t addr, struct cw_range *out);
/* The same for two addresses at one moment: the lock is most of what a small copy's look costs. */
void cw_range_find_two(const uint64_t addr[2], struct cw_range out[2], int found[2]);
/* The first range that ends after addr and begins before end: 1 and a copy of it, or 0. */
int cw_range_next(uint64_t addr, uint64_t end, struct cw_range *out);
/* Bytes from addr to the end of its range; mapped ranges that a device may touch and that follow
 * each other without a gap count as one. 0: no such range. */
uint64_t cw_range_reach(uint64_t addr);
/* Whether [addr, addr+size) touches any range. */
int cw_range_overlaps(uint64_t addr, uint64_t size);
/* Takes out the range that begins at base and has one of the kinds (bit mask 1<<kind). 1 and a
 * copy, or 0. */
int cw_range_take(uint64_t base, unsigned kinds, struct cw_range *out);
/* Sets sync_memops of the range that contains addr. */
void cw_range_set_sync(uint64_t addr, int on);
/* Sets access of the range that begins at base. */
void cw_range_set_access(uint64_t base, int flags);
/* Forgets every range for which drop says so, handing each to it first. */
void cw_range_sweep(int (*drop)(const struct cw_range *r, void *arg), void *arg);
uint32_t cw_range_count(void);

/* Called by api/: device memory that a module brought; and the end of a context's objects. */
void cw_memory_note_global(uint64_t ptr, uint64_t size);
void cw_memory_context_gone(uint32_t ctx);
/* The address of an allocation node; and whether memory that begins there is of that kind. */
void cw_memory_note_graph(uint64_t ptr, uint64_t size);
int cw_range_of_graph(uint64_t ptr);

/* The GPU's memory has no room for size bytes: managed memory that is used least leaves it
 * (room.c). Whether another try is worth it. */
int cw_room_make(uint64_t size);
/* Memory of the GPU was given back. */
void cw_room_freed(void);
#define CW_WITH_ROOM(size, call) \
	({ \
		CUresult with_room_ = (call); \
		cw_unlikely(with_room_ == CUDA_ERROR_OUT_OF_MEMORY) && cw_room_make(size) ? (call) : with_room_; \
	})

/* Gives back what a managed range stands for; it is in the map no more. */
void cw_managed_release(const struct cw_range *r);

/* How many pools of managed memory there are. What was freed to them before a mark was made is
 * nobody's when a wait that began after it has ended: of a stream, or (0) of all of the current
 * context's. */
extern _Atomic uint32_t cw_managed_pools;
uint64_t cw_managed_pools_mark(void);
CUresult cw_managed_pools_waited(CUresult res, uint32_t stream, uint64_t mark); /* res */
/* A stream is about to be destroyed, perhaps with work yet to do. */
void cw_managed_pools_left(uint32_t stream);

/* --- small pinned allocations: slab.c --------------------------------------------------------- */

enum { CW_SLAB_LARGEST = 256 << 10 };
/* Fills base, dev and slab of a range of r->size bytes. */
CUresult cw_slab_alloc(struct cw_range *r);
/* The caller has made sure that the device no longer uses it. */
void cw_slab_free(const struct cw_range *r);

/* --- operands of a copy ----------------------------------------------------------------------- */

/* Where an operand of a copy lies. worker: the address is valid in the worker (device memory, or
 * pinned); else it is the application's own and must be staged. */
struct cw_operand {
	uint64_t addr; /* worker's address, or the application's */
	uint8_t worker;
	uint8_t device; /* device memory, as opposed to pinned */
	/* managed memory that lies at the GPU; then size is what was asked for */
	struct cw_area *area;
	uint64_t size;
};

/* A device pointer argument: CUDA_ERROR_INVALID_VALUE unless [ptr, ptr+size) lies in one
 * device-reachable range. */
CUresult cw_operand_device(CUdeviceptr ptr, uint64_t size, struct cw_operand *out);
/* A host pointer argument: the application's memory, or pinned. */
CUresult cw_operand_host(const void *ptr, uint64_t size, struct cw_operand *out);
/* Both of a copy between the two: the first that is refused says why. */
CUresult cw_operands_of(CUdeviceptr ptr, const void *p, uint64_t size, struct cw_operand *device, struct cw_operand *host);
/* Either (cuMemcpy, memory type unified). */
CUresult cw_operand_any(uint64_t ptr, uint64_t size, struct cw_operand *out);
/* Host memory that CUDA knows as the program's, pinned or registered, and the worker does not reach
 * at these addresses. */
int cw_operand_unreached(CUdeviceptr ptr, uint64_t size);
/* The same for one of several: near is the range that the last of them lay in, at first of size
 * 0. */
CUresult cw_operand_near(uint64_t ptr, uint64_t size, struct cw_range *near, struct cw_operand *out);

/* What is given to the GPU lies between these two: managed memory's bytes are at the GPU then and
 * stay, whichever threads touch what lies beside them. */
CUresult cw_operands_use_area(const struct cw_operand *dst, const struct cw_operand *src);
void cw_operands_done_area(const struct cw_operand *dst);
static inline CUresult cw_operands_use(const struct cw_operand *dst, const struct cw_operand *src)
{
	return cw_likely(!dst->area && !src->area) ? CUDA_SUCCESS : cw_operands_use_area(dst, src);
}
static inline void cw_operands_done(const struct cw_operand *dst, const struct cw_operand *src)
{
	if (cw_unlikely(dst->area || src->area))
		cw_operands_done_area(dst);
}

/* --- linear copies ---------------------------------------------------------------------------- */

/* Copies on a stream. wait: the application expects the copy to be done when the call returns, as
 * far as CUDA promises it. */
CUresult cw_copy_linear(const struct cw_operand *dst, const struct cw_operand *src, uint64_t size, uint32_t stream, int wait);

/*
 * A synchronous copy from ordinary memory to the device begins when its stream has done what it was
 * given (CUDA driver API, "API synchronization behavior"), whatever its size: a function of the
 * host may be filling the bytes, and programs take the call for a barrier. cw_copy_begin waits for
 * that unless the calling thread knows the stream to be idle, which costs nothing. A thread knows
 * it from its own waits: cw_stream_wait, cw_ctx_wait (all streams of the current context), and
 * whatever else waits says how it ended to cw_waited, with the cw_work of before it began.
 * cw_own_wait is a wait that no program asked for: while a stream captures, a program's own may be
 * refused, and end the capture; this is not.
 */
CUresult cw_copy_begin(uint32_t stream, int wait);
/* Copies to the program that end with their request's reply say how that was to cw_came: then the
 * stream is idle, and a wait for it right behind, as PyTorch's for each value that it reads, needs
 * none of its own (cw_has_come, true once). Only where the reply is the worker's, which brings
 * errors that are owed; a GPU that answers by itself brings none, and costs no round trip of a
 * link. */
CUresult cw_came(CUresult res, uint32_t stream, uint64_t work);
int cw_has_come(uint32_t stream);
CUresult cw_own_wait(uint32_t stream);
CUresult cw_stream_wait(uint32_t stream);
CUresult cw_ctx_wait(void);
/* The current context has done all that was given before cw_work was so much: a debugger's turn
 * (traced.c). */
void cw_traced_waited(uint64_t work);
CUresult cw_waited(CUresult res, uint32_t stream, uint64_t work); /* res */
/* An error of the program's work that a wait of the library's own was told (ownstream.c), 0: the
 * program's next wait ends with it. */
extern _Atomic uint32_t cw_owed;
/* What a wait or a question of the library's own says: an error of the program's work is the
 * program's to hear, at its next wait. */
CUresult cw_own_said(CUresult res);
/* Pages of managed memory whose accesses end with a signal until cw_touch_again (forbidden.c). */
extern _Atomic uint32_t cw_forbidden;
void cw_touch_again(void);
/* The end of a wait or a question whose yes lets the program touch what kernels had. res */
static inline CUresult cw_heard(CUresult res)
{
	if (cw_unlikely(atomic_load_explicit(&cw_forbidden, memory_order_relaxed) != 0) && res == 0)
		cw_touch_again();
	return res;
}

/*
 * The end of a copy from ordinary memory to the device, of size bytes in all, whose result so far
 * is res. The synchronous forms return when up to CW_EARLY_MOST bytes are staged; after more they
 * have waited for their stream, as the driver does (CUDA driver API, "API synchronization
 * behavior"; CUDA C++ Programming Guide, on 64 KB or less): other streams find the bytes in their
 * place.
 */
enum { CW_EARLY_MOST = 64 << 10 };
CUresult cw_copy_landed(CUresult res, uint64_t size, uint32_t stream, int wait);

/* --- boxes ------------------------------------------------------------------------------------ */

/* An operand of a copy in two or three dimensions, as the application describes it. type says which
 * of host, device, array counts. */
struct cw_box_operand {
	CUmemorytype type;
	const void *host;
	CUdeviceptr device;
	CUarray array;
	uint64_t x, y, z, lod, pitch, height; /* x and pitch in bytes */
};

/* Copies a box (width in bytes, nothing 0) on a stream. check: only judges it. */
CUresult cw_copy_3d(const struct cw_box_operand *dst, const struct cw_box_operand *src, uint64_t width, uint64_t height, uint64_t depth,
		    uint32_t stream, int check);

/* --- staging ---------------------------------------------------------------------------------- */

/* CW_CHUNKS: what one copy keeps in flight at most. */
enum { CW_CHUNK_SIZE = 1 << 20, CW_CHUNKS_FIRST = 4, CW_CHUNKS = 16, CW_CHUNKS_MOST = 64 };

struct cw_chunk {
	uint32_t region, offset;      /* as MemcpyStaged wants them */
	uint32_t word, value;	      /* value completes the use that is being prepared */
	uint32_t stream, thread, ctx; /* of the use in flight, and whose it is */
	uint64_t use;		      /* uses are numbered */
	uint8_t *mem;
	uint8_t state;
};

enum cw_patience { CW_NO_WAIT, CW_SHORT_WAIT, CW_LONG_WAIT };
/* A chunk for the caller alone, to be used on stream. NULL if none is to be had that soon, or with
 * *res set when staging cannot be had at all. A short wait is one for the link to the GPU, a long
 * one also for work that is ahead on it. */
struct cw_chunk *cw_chunk_take(uint32_t stream, enum cw_patience patience, CUresult *res);
/* Staging of so many chunks, if it can be had: for a copy that will keep them in flight. */
void cw_staging_want(uint32_t chunks);
/* Makes ready for another use a chunk that the caller holds and whose last use has ended. */
void cw_chunk_renew(struct cw_chunk *c);
/* Gives back a chunk that nothing uses, or whose DMA is under way (completion makes it free). */
void cw_chunk_put(struct cw_chunk *c);
void cw_chunk_put_busy(struct cw_chunk *c, uint32_t stream);
/* Waits for the DMA of a chunk on stream. The error, if it failed. CW_LAST: nothing that matters is
 * queued behind it; CW_ALONE: nor ahead of it of this transfer. */
enum cw_among { CW_AMID, CW_LAST, CW_ALONE };
CUresult cw_chunk_wait(struct cw_chunk *c, uint32_t stream, enum cw_among among);

/*
 * A transfer through staging, cut into pieces of at most a chunk each. move copies piece k between
 * the application's memory and the chunk; send asks the worker to copy it between the chunk and the
 * device, completing the chunk's word. Both are called by several threads at once.
 */
struct cw_transfer {
	uint64_t pieces;
	uint32_t stream;
	void (*move)(const void *arg, uint64_t k, uint8_t *chunk);
	CUresult (*send)(const void *arg, uint64_t k, const struct cw_chunk *c);
	const void *arg;
	/* What move does, in parts, where a piece can be parted: into parts(arg, k) of them. */
	uint32_t (*parts)(const void *arg, uint64_t k);
	void (*move_part)(const void *arg, uint64_t k, uint32_t part, uint8_t *chunk);
	/* The destination's pages are yet to be made, which takes longer than filling them: by as
	 * many threads as there are. */
	int fresh;
	/* To the device: by so many threads at most; 0: cw_transfer_hands of its pieces. */
	uint32_t hands;
};
/* Copies to a chunk what the GPU reads next: past the CPU's caches where its link reads the chunk
 * itself, which fetches lines that lie changed in the cache of a core far more slowly; through them
 * where a CPU sends it on. */
void cw_chunk_fill(uint8_t *chunk, const void *from, uint64_t n);
/* How many threads so many pieces to the device are worth. */
uint32_t cw_transfer_hands(uint64_t pieces);
/* Returns when the application's memory is no longer needed. */
CUresult cw_transfer_to_device(const struct cw_transfer *t);
/* Returns when the application's memory is filled. */
CUresult cw_transfer_from_device(const struct cw_transfer *t);

enum { CW_TO_DEVICE = 0, CW_FROM_DEVICE = 1 }; /* MemcpyStaged.direction */

#pragma GCC visibility pop
#endif

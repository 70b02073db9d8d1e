/*
 * Managed memory that lies in the GPU's memory: one address for the GPU, where device memory is
 * mapped there, and for this process, where pages appear when the CPU touches them. Who has the
 * current bytes is known in units of CW_UNIT bytes:
 *   resident.c   what units there are and who has them
 *   carry.c      bytes on their way
 *   places.c     addresses, device memory and small blocks: making areas, and their end
 *   pieces.c     allocations in pieces
 *   shift.c      pieces that change places between the GPU's memory and this process's
 *   beyond.c     those that do between the memories of GPUs, and between a GPU's and the worker's machine's, where the worker cannot map this process's, or little
 *   room.c       which pieces do, and when
 *   touch.c      the CPU's accesses: threads that serve faults
 *   forbidden.c  those that end with a signal
 *   duplicates.c those of memory that is read mostly, out of sight while the GPU works
 *   traced.c     what a debugger finds
 *   lost.c       a program that closes the descriptor by which faults are served
 *   ownstream.c  whose streams the bytes travel on, and when the GPU is idle
 *
 * CUDA's rule for devices without CONCURRENT_MANAGED_ACCESS is what makes this exact: the CPU
 * leaves managed memory alone while the GPU works. So before work is given to the GPU what the CPU
 * wrote goes there and the CPU's pages go away (cw_before_work), and an access of the CPU waits
 * until the GPU is idle, then gets the bytes. No page is here while a kernel may run, so nothing
 * that is read can be outdated.
 *
 * Lock order: cw_resident_lock > session locks, staging and copy pool locks. It is held across
 * requests, never while the GPU's work is waited for. A thread that holds the ring must not touch
 * managed memory: the fault would need the ring (cw_apart).
 */
#ifndef CW_MEMORY_RESIDENT_H
#define CW_MEMORY_RESIDENT_H

#include "memory/memory.h"
#include "memory/warmth.h"
#include "session/lock.h"

#pragma GCC visibility push(hidden)

enum { CW_UNIT = 16 << 10, CW_SHARED_LARGEST = 1 << 20 /* allocations up to this share areas */ };
enum cw_holder { CW_AT_GPU = 0, CW_AT_BOTH, CW_AT_CPU };

/* Where accesses follow each other more is brought at once. */
struct cw_burst {
	/* Where it began, the unit that would follow, and how many came last. */
	uint32_t start, next, units;
	/* These did as it began where it had before, and it has not gone on since. */
	uint8_t again;
};
enum { CW_BURSTS = 8 };

struct cw_area {
	struct cw_area *next;
	uint64_t base, size; /* whole pages, as this process sees it */
	uint64_t backed;     /* bytes of device memory */
	int device;
	uint32_t ctx;		  /* in whose name its bytes travel */
	struct cw_resv *resv;	  /* NULL: of its group */
	uint32_t memory, mapping; /* ids of the device memory, and of its mapping */
	uint32_t units, here;	  /* how many there are, and how many of them the CPU has */
	uint32_t stream;	  /* attached to that one, */
	uint64_t uid;		  /* of which this is the number that no other will have */
	uint8_t attach, first;	  /* CU_MEM_ATTACH_*: now, and as it was allocated */
	/* Its stream has ended: when this one has no work, or the GPU has none, it is as it was
	 * allocated. */
	uint8_t lapsed;
	/* The GPU had no work since it was made: all is the CPU's, and its faults are the
	 * kernel's. */
	uint8_t fresh;
	uint32_t wish_lo, wish_hi; /* units that a prefetch would have here */
	/* Which of them comes next, without a fault of its own, since one of them was touched; 0:
	 * none was. */
	uint32_t ahead;
	struct cw_burst touch[CW_BURSTS], change[CW_BURSTS];
	/* What it has out of sight (duplicates.c); NULL: it is not advised to be read mostly. */
	struct cw_kept *kept;
	struct cw_blocks *blocks; /* an area that small allocations share */
	/* Of an area that is a piece of an allocation and may change places (pieces.c). */
	struct cw_group *group; /* NULL: it never does */
	struct cw_area *beside; /* the next piece of the allocation */
	/* It lies in this process's memory, which the GPU reaches over its link. NULL: at the
	 * GPU. */
	struct cw_region *region;
	uint32_t index;
	uint8_t filed, half; /* its pages here are of the group's file, and of which half of that */
	/* 1 and the number of the GPU where the program would have it; 0: it is there, or may
	 * stay */
	uint8_t to;
	/* Its device memory is not the GPU's but of the worker's machine, which the GPU reaches
	 * over its link. */
	uint8_t beyond;
	struct cw_warmth warmth;
	uint32_t named; /* launches that did */
	/* named, and which moves those were (room.c), when it changed places last */
	uint32_t since, moves;
	uint8_t holder[]; /* of each unit: enum cw_holder */
};

/* The pieces of one allocation. */
struct cw_group {
	/* Of all of it; NULL: each piece that is at the GPU has its own, and copies are cut where
	 * pieces meet. */
	struct cw_resv *resv;
	/* Where other memory for a piece is while it is filled; NULL: it never was. */
	struct cw_resv *beside;
	uint64_t base, piece; /* bytes of each but the last */
	uint32_t count;
	int file; /* where pieces lie that are not at the GPU, -1: none ever did */
	struct cw_own file_own;
	/* Its pieces stay where they are: a graph holds their addresses, or a change of places
	 * failed. */
	uint8_t still;
	struct cw_area *all[];
};

extern struct cw_lock cw_resident_lock;
/* Calls that are giving the GPU work on managed memory that they named (cw_operands_use). The CPU
 * gets nothing meanwhile. */
extern _Atomic uint32_t cw_resident_users;
/* Under the lock. */
extern struct cw_area *cw_areas;
struct cw_area *cw_area_at(uint64_t addr);

/* --- moving: resident.c, under the lock ------------------------------------------------------- */

/* What the CPU wrote of the units [lo, hi) goes to the GPU, and the CPU has none of them any
 * more. */
CUresult cw_area_yield(struct cw_area *a, uint32_t lo, uint32_t hi);
/* The CPU gets units that it does not have. The GPU must have done with them. write: it is about to
 * write. */
CUresult cw_area_bring(struct cw_area *a, uint32_t lo, uint32_t hi, int write);
/* The CPU may write units that both have. */
CUresult cw_area_change(struct cw_area *a, uint32_t lo, uint32_t hi);
/* Units [lo, hi) are held so from now on; cw_copies counts those that the CPU has. Pages that come
 * do so afterwards, pages that leave have left. */
void cw_area_hold(struct cw_area *a, uint32_t lo, uint32_t hi, enum cw_holder h);
/* From now on faults in the area are served here. */
CUresult cw_area_watch(struct cw_area *a);
void cw_area_list(struct cw_area *a);
void cw_area_unlist(struct cw_area *a);

/* Whether the GPU reaches it over a link, for lack of room. */
static inline int cw_piece_away(const struct cw_area *a) { return a->region || a->beyond; }

static inline uint32_t cw_unit_of(const struct cw_area *a, uint64_t addr) { return (uint32_t)((addr - a->base) / CW_UNIT); }
static inline uint64_t cw_unit_at(const struct cw_area *a, uint32_t unit) { return a->base + (uint64_t)unit * CW_UNIT; }
static inline uint64_t cw_units_bytes(const struct cw_area *a, uint32_t lo, uint32_t hi)
{
	uint64_t end = (uint64_t)hi * CW_UNIT;
	return (end < a->size ? end : a->size) - (uint64_t)lo * CW_UNIT;
}

/* The units of what of [ptr, ptr+size) lies in it. 0: none. */
static inline int cw_units_within(const struct cw_area *a, uint64_t ptr, uint64_t size, uint32_t *lo, uint32_t *hi)
{
	uint64_t from = ptr > a->base ? ptr : a->base, end = ptr + size < a->base + a->size ? ptr + size : a->base + a->size;
	if (from >= end)
		return 0;
	*lo = cw_unit_of(a, from);
	*hi = cw_unit_of(a, end - 1) + 1;
	return 1;
}

/* --- carrying: carry.c, whole pages ----------------------------------------------------------- */

/* They become bytes of the GPU's, and leave unless they are to stay: when it returns what they held
 * is on its way, in the stream. */
CUresult cw_bytes_depart(uint64_t at, uint64_t size, uint32_t stream, int stay);
/* The GPU's bytes become pages, perhaps protected from writes. */
CUresult cw_bytes_arrive(uint64_t at, uint64_t size, uint32_t stream, int protect);
/* The program may have thrown pages of it away (madvise), as allocators do: they are there as zeros
 * then. Reading them would wait for the lock that the caller has. */
void cw_pages_whole(uint64_t at, uint64_t size);
/* Pages of what nobody has touched, where the kernel gives them: as if each had been read. */
void cw_pages_have(uint64_t at, uint64_t size);
/* They are no longer here. */
void cw_pages_forget(uint64_t at, uint64_t size);
/* Logs a -errno, and is the result that stands for it. */
CUresult cw_pages_failed(const char *what, int err);

/* --- duplicates: duplicates.c, under the lock ------------------------------------------------- */

/* The program advises that the area is read mostly; or not, and at its end. Whether there are
 * duplicates is not told. */
void cw_kept_begin(struct cw_area *a);
void cw_kept_end(struct cw_area *a);
/* All of the area is about to leave, and nothing of it is written: what is worth it goes out of
 * sight, and is the GPU's. */
void cw_kept_hide(struct cw_area *a);
/* What is out of sight of the units [lo, hi), and near, comes back, as far as the GPU's bytes are
 * still as theirs. The GPU has done with them. */
void cw_kept_show(struct cw_area *a, uint32_t lo, uint32_t hi);

/* --- making areas: places.c ------------------------------------------------------------------- */

/* An area of so many bytes, for a range, without addresses. */
struct cw_area *cw_area_new(uint64_t size, const struct cw_range *r);
/* Device memory for it; and where it lies, in resv. What fails leaves nothing behind. */
CUresult cw_area_create(struct cw_area *a);
CUresult cw_area_map(struct cw_area *a, const struct cw_resv *resv);
/* Unmapped; and released, too. */
void cw_area_unmap(struct cw_area *a);
void cw_area_unback(struct cw_area *a);
/* Pages of this process, in place of what keeps the addresses free here. */
CUresult cw_area_open(struct cw_area *a);

/* --- pieces: pieces.c ------------------------------------------------------------------------- */

/* As cw_resident_alloc and cw_resident_free, in pieces. */
CUresult cw_pieces_alloc(struct cw_range *r);
void cw_pieces_free(struct cw_group *g);
/* Whether this machine has so much memory to spare. */
int cw_pieces_fit_here(uint64_t size);
/* Whether what has left the GPU's memory can come back: Linux 5.19; where they do not lie here,
 * that others can leave for it. */
int cw_pieces_return(void);
/* Under the lock, while the GPU has done with it: a piece's bytes move here, or to the worker's
 * machine, and the GPU reaches them over the link; and back, for which the GPU has to have room.
 * What fails leaves it as it was. */
CUresult cw_piece_out(struct cw_area *a);
CUresult cw_piece_in(struct cw_area *a);
/* Its bytes move to the memory of another GPU, at the same address. */
CUresult cw_piece_to(struct cw_area *a, int device);
/* Bytes from addr on that one copy may name: to the end of the piece, where the allocation's are
 * cut. */
uint64_t cw_operand_reach(const struct cw_operand *side, uint64_t addr);
/* The memory's pieces stay where they are from now on. */
void cw_operand_still(const struct cw_operand *side);
/* Whether the pages at an address are of a file of a group's. While somebody holds the lock. */
int cw_pieces_filed(uint64_t at);

/* --- room: room.c ----------------------------------------------------------------------------- */

/* Pieces that lie here, or on the worker's machine, for lack of room at the GPU. */
extern _Atomic uint32_t cw_short;
/* A launch with these arguments comes. May move pieces first. The caller holds no lock. */
void cw_room_named(const uint8_t *args, uint32_t size);
/* The program would have [ptr, ptr+size) at the GPU; or not need it there for now. */
void cw_room_wish(uint64_t ptr, uint64_t size, int at_gpu);
/* The program would have [ptr, ptr+size) at that GPU: pieces that lie in it do when the GPUs are
 * idle, if that is soon. */
void cw_room_to(uint64_t ptr, uint64_t size, int device);
/* Under the lock: a piece was put here for lack of room, and never was elsewhere. */
void cw_room_short(void);
/* Under the lock: tells the host what is where. */
void cw_room_tell(void);

/* --- what the rest of the library calls: takes the lock --------------------------------------- */

/* Memory is named by addresses, as another thread may free it meanwhile. */

/* Fills base, dev and area of a managed range of r->size bytes. CUDA_ERROR_NOT_SUPPORTED where
 * memory cannot be of this kind. */
CUresult cw_resident_alloc(struct cw_range *r);
/* Its bytes are the GPU's from now on, as if that had had work: zero where nothing was written. */
CUresult cw_resident_settle(struct cw_area *a);
/* Waits for the GPU, then ends it; and of what the GPU has done with. */
void cw_resident_free(const struct cw_range *r);
void cw_resident_end(const struct cw_range *r);
/* The GPU is about to use [ptr, ptr+size). */
CUresult cw_resident_yield(uint64_t ptr, uint64_t size);
/* The CPU would have [ptr, ptr+size) soon. */
void cw_resident_wish(uint64_t ptr, uint64_t size);
/* [ptr, ptr+size) is advised to be read mostly, or no longer. */
void cw_resident_mostly(uint64_t ptr, uint64_t size, int on);
/* Who may use the allocation that begins there, from now on: CU_MEM_ATTACH_*; stream: of
 * CU_MEM_ATTACH_SINGLE, else NULL. */
CUresult cw_resident_attach(uint64_t base, uint32_t flags, const struct cw_stream *stream);
/* A stream is about to be destroyed. What is attached to it is as it was allocated when its work is
 * done. */
void cw_resident_left(const struct cw_stream *stream);

/* --- faults: touch.c -------------------------------------------------------------------------- */

/* Starts to serve, once. */
CUresult cw_touch_start(void);
/* Under the lock: the CPU gets all of an area, to write it, if the GPU is known to have done with
 * it. 0: it is not, or that failed. */
int cw_touch_all(struct cw_area *a);

/* --- the end of faults: lost.c ---------------------------------------------------------------- */

/* From now on the program cannot end what serves faults by closing it. */
void cw_touch_keep(void);
/* The program has closed it: what is not here is not to be had any more. The caller holds no
 * lock. */
void cw_touch_lost(void);
int cw_touch_is_lost(void);

/* --- accesses that end with a signal: forbidden.c --------------------------------------------- */

/* Those to a page do, by its having no access, until cw_touch_again (memory.h), or cw_touch_restore
 * for [at, at+size). */
void cw_touch_forbid(uint64_t page);
void cw_touch_restore(uint64_t at, uint64_t size);

/* --- the library's own streams: ownstream.c, the voices under the lock ------------------------ */

/* Has the calling thread speak in the name of an area's context, with a stream of the library's own
 * in it, until cw_voice_end. */
struct cw_voice {
	uint32_t stream, before; /* before: the thread's context */
};
CUresult cw_voice_begin(struct cw_area *a, struct cw_voice *v);
void cw_voice_end(const struct cw_voice *v);
/* A context of that device, 0: there is none. */
uint32_t cw_ctx_on(int device);
/* Whether all that the GPU was given has ended. Whoever is about to rely on that has made cw_copies
 * say so before. */
int cw_gpu_idle(void);
/* The current context has done all that was given before cw_work was so much. Whether that is so of
 * all contexts, and taken note of. */
int cw_gpu_was_idle(uint64_t work);
/* Waits until the GPU has done what it was given before; stream: only that of this stream, 0: all.
 * An error that belongs to the program's work is kept for it (cw_owed); what is returned is that
 * nothing more can be had of the GPU. */
CUresult cw_gpu_wait(uint32_t stream);

#pragma GCC visibility pop
#endif

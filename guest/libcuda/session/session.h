/*
 * The guest end of a session: what the generated encoders (gen/ops.c), the entry points
 * (gen/entries.c, api/) and memory/ use.
 *
 * A session belongs to a process. It is opened by cw_session_open (cuInit), lives until the process
 * exits, and is never reopened. Layouts are in gen/session.h, meanings in docs/PROTOCOL.md.
 *
 * Lock order: open lock > region lock > slot > ring lock > carrier's send lock. No lock is held
 * while a reply is awaited, except the open lock (SessionInit) and the region lock (RegionAdd).
 */
#ifndef CW_SESSION_SESSION_H
#define CW_SESSION_SESSION_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "gen/cuda_abi.h"
#include "gen/session.h"
#include "session/own.h"

#define CW_HIDDEN __attribute__((visibility("hidden")))
#define cw_likely(x) __builtin_expect(!!(x), 1)
#define cw_unlikely(x) __builtin_expect(!!(x), 0)

#pragma GCC visibility push(hidden)

/* --- state ------------------------------------------------------------------------------------ */

enum cw_state {
	/* cuInit was not called, or failed: entries answer CUDA_ERROR_NOT_INITIALIZED (3) */
	CW_CLOSED = 0,
	CW_OPEN = 1,
	CW_FORKED = 2,	/* child of a process that had a session: 3 until exec */
	CW_DEAD = 3,	/* worker or carrier ended: CUDA_ERROR_LAUNCH_FAILED (719) */
	CW_EXITING = 4, /* the library was finalised: CUDA_ERROR_DEINITIALIZED (4) */
};

/* What every entry reads first. ctl is region 0's control page once state was CW_OPEN; before, a
 * private all-zero page. */
struct cw_global {
	_Atomic uint32_t state;
	struct cw_control_page *ctl;
};
extern struct cw_global cw_g;

/* The number (gettid) of the thread that is inside a function of the application that a stream
 * called, 0. */
extern _Atomic uint32_t cw_callback_thread;
/* The number of the thread that ends the process, once it does. */
extern _Atomic uint32_t cw_exiting_thread;

CUresult cw_check_slow(void);
/* What a call returns after a fault: a thread without a context is told that first, as by a real
 * driver. */
CUresult cw_sticky(CUresult sticky);

/* The thread is the callback thread inside a function of the application, which may not call CUDA:
 * CUDA_ERROR_NOT_PERMITTED. */
extern __thread int cw_in_callback __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* The preamble of an entry: 0, 3 (not initialised or forked), 4 (exiting), 719 (dead), or the
 * sticky error. */
static inline CUresult cw_check(void)
{
	if (cw_likely(atomic_load_explicit(&cw_g.state, memory_order_acquire) == CW_OPEN)) {
		uint32_t sticky = __atomic_load_n(&cw_g.ctl->sticky, __ATOMIC_RELAXED);
		if (cw_unlikely(cw_in_callback))
			return CUDA_ERROR_NOT_PERMITTED;
		return cw_likely(sticky == 0) ? 0 : cw_sticky((CUresult)sticky);
	}
	return cw_check_slow();
}

/* The same for the entries that still work after a fault (getters, primary context reset): ignores
 * the sticky error. */
static inline CUresult cw_check_alive(void)
{
	if (cw_likely(atomic_load_explicit(&cw_g.state, memory_order_acquire) == CW_OPEN))
		return cw_unlikely(cw_in_callback) ? CUDA_ERROR_NOT_PERMITTED : 0;
	return cw_check_slow();
}

/*
 * Opens the process's session (cuInit). Thread-safe, idempotent. Results: 0; 3 in a forked child;
 * CUDA_ERROR_NO_DEVICE (100) when no host is reachable or it has no device;
 * CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803) on a protocol version that differs; CUDA_ERROR_UNKNOWN
 * (999) otherwise. One sentence on stderr says why. A failed open is tried again by the next call.
 */
CUresult cw_session_open(void);

/* What SessionInit answered. Valid, and constant, once cw_session_open returned 0. devices are in
 * the worker's order (CUDA_VISIBLE_DEVICES was sent with the other CUDA_ variables and is already
 * applied). */
struct cw_info {
	int driver_version;
	uint32_t device_count;
	uint32_t caps; /* CW_CAP_MAP ... */
	uint64_t mem_limit;
	const struct cw_device_info *devices;
};
const struct cw_info *cw_session_info(void);

/* --- requests --------------------------------------------------------------------------------- */

struct cw_tx {
	uint8_t *rec;  /* record start; header is filled in, fixed part and padding are zeroed */
	uint32_t size; /* of the whole record */
	uint32_t slot; /* with a reply: slot that was claimed */
	uint32_t seq;
	uint32_t flags; /* CW_TX_* */
};

struct cw_reply {
	CUresult result;
	/* Whole payload: fixed out fields first; valid until cw_reply_release. */
	const uint8_t *data;
	size_t len;
	uint32_t slot;
	void *heap;
};

/*
 * Begins a record: fixed_size + var_size bytes after the header (var_size with each argument padded
 * to 8); the fixed part is zeroed. The record's size is rounded up to 32. Opens the session if it
 * was not. On success the ring lock is held until cw_commit or cw_commit_wait: fill the record and
 * do nothing else in between (no other cw_ call, no signal-unsafe work). On failure nothing is
 * held. CUDA_ERROR_INVALID_VALUE if the record would be longer than CW_MAX_RECORD: send long bytes
 * by cw_blob_send first.
 */
CUresult cw_begin(struct cw_tx *tx, uint16_t op, uint32_t fixed_size, uint32_t var_size, int reply);
/* Publishes an asynchronous record. 0, the sticky error, or 719. */
CUresult cw_commit(struct cw_tx *tx);
/* Publishes and waits. Returns 0 if there is a reply (then rep->result is the call's result, and
 * cw_reply_release must be called), else 719 and nothing to release. Device output that is waiting
 * is written to stdout before it returns. */
CUresult cw_commit_wait(struct cw_tx *tx, struct cw_reply *rep);
/* Its two halves, for a caller that has something to do meanwhile: the ring lock is given up, the
 * slot is held until the reply is. */
void cw_send(struct cw_tx *tx);
CUresult cw_await(struct cw_tx *tx, struct cw_reply *rep);
void cw_reply_release(struct cw_reply *rep);
/*
 * What this process has of managed memory that lies at the GPU (memory/resident.h):
 * CW_COPIES_POSSIBLE for each allocation, CW_COPY for each piece of which the CPU has a copy. Who
 * gives the GPU work that may touch any memory (cw_op_runs) calls cw_before_work first if there are
 * copies, and looks again when its work is counted (cw_work): who makes a copy says so here before
 * it looks at that count, so one of the two sees the other.
 */
extern _Atomic uint64_t cw_copies;
#define CW_COPIES_POSSIBLE 1ull
#define CW_COPY (1ull << 24)
CUresult cw_before_work(void);
/* Accesses of the CPU that have waited long for the GPU to become idle: who gives it work waits for
 * them, a moment. */
extern _Atomic uint32_t cw_starved;
/* Bytes of the application's that are about to be read under the ring lock: if they are managed
 * memory they are read before, as a fault needs it and other threads' work may take the pages away
 * at any time. Then *p is a copy, *own too, for the caller to free. 0: there is no memory. */
int cw_apart(const void **p, size_t n, void **own);

/* Called before each request is begun and after each reply, with no lock held, and makes no request
 * itself: memory/parts.c. */
extern _Atomic(void (*)(void)) cw_around_requests;
/* Turns a begun record into padding and releases what cw_begin took. */
void cw_abort(struct cw_tx *tx);
/*
 * How much work the process has given its streams so far: a number that only grows, with each
 * record that gives some (cw_op_works) and each cw_work_add, by which what copies through staging
 * says that its copy counts. Who has seen a stream idle knows by it whether that can have changed:
 * memory/settled.c. Exact for the caller's own work, and that of others which the caller knows to
 * have begun.
 */
uint64_t cw_work(void);
void cw_work_add(void);
/* Sends bytes ahead; *blob goes into Span.off as CW_SPAN_BLOB|*blob, Span.len is the full length
 * (len <= 1 GiB). */
CUresult cw_blob_send(const void *p, size_t len, uint32_t *blob);

/* --- the calling thread ----------------------------------------------------------------------- */

/* Id of the calling thread's current context, as records carry it. api/ owns the context stack and
 * calls the setter. */
uint32_t cw_current_ctx_id(void);
void cw_set_current_ctx_id(uint32_t id);
/* 1, 2, ...: names the thread's per-thread default stream. Never reused within a process. */
uint32_t cw_thread_ordinal(void);
/* Begins a thread of the library's own, detached, which no signal of the application's reaches,
 * but, if faults, those for its memory. stack 0: as much as others have. 0 or an errno. */
int cw_thread_begin(size_t stack, int faults, void *(*run)(void *), void *arg);
/* Makes the calling thread speak in another's name: for threads of the library's own that do a part
 * of its call. */
void cw_thread_as(uint32_t ordinal, uint32_t ctx);

/* --- handles: see handles.h ------------------------------------------------------------------- */
#include "session/handles.h"

/* --- regions ---------------------------------------------------------------------------------- */

/* Several threads for a piece of work each: run calls work(arg, k) for every k < count; most of
 * them at once. */
struct cw_region_hands {
	uint32_t most;
	void (*run)(uint32_t count, void (*work)(void *arg, uint32_t k), void *arg);
};

/* Adds a mapping of a file to the print of a range: where it begins and ends in the range, where in
 * which file. */
static inline uint64_t cw_print(uint64_t print, uint64_t from, uint64_t to, uint64_t inode, uint64_t at)
{
	const uint64_t v[] = {from, to, inode, at}, prime = 0x100000001b3ull; /* FNV-1a, by words */
	print = print ? print : 0xcbf29ce484222325ull;
	for (int i = 0; i < 4; i++) {
		print = (print ^ v[i]) * prime;
		print ^= print >> 29;
	}
	return print ? print : 1;
}

/* Memory that the worker can reach besides region 0. */
struct cw_region {
	uint32_t id;
	uint32_t kind; /* CW_REGION_STAGING, CW_REGION_PINNED */
	uint8_t *va;
	/* Where the worker maps it; va unless it stands for other memory of the app there. */
	uint64_t at;
	size_t size;  /* multiple of the page size */
	uint64_t dev; /* device address (pinned, with CapMap), else 0 */
	int adopted;  /* va was the app's memory: cw_region_drop leaves it mapped */
	/* adopted memory of a file that others may share: its descriptor for the time of adding,
	 * else -1 */
	int file;
	uint64_t file_at; /* where va begins in it */
	int parted;	  /* adopted: pages within memory that goes on beyond them */
	/* Of a parted region: the file that took its pages' place, else -1. */
	int mem;
	struct cw_own mem_own;
	/* Of the carrier's own files behind adopted memory (cw_print), 0: it has none. */
	uint64_t print;
	struct cw_moving *moving;	     /* while memory is adopted: those files */
	const struct cw_region_hands *hands; /* likewise: who fills them */
	void *carrier;			     /* carrier's own record of the region */
	struct cw_region *next;
};

/* Can the worker map guest memory (pinned memory, GetDevicePointer)? */
/* By a clock that goes on evenly. */
static inline int64_t cw_now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static inline int cw_can_map(void) { return (cw_session_info()->caps & CW_CAP_MAP) != 0; }

/* Allocates memory, declares it to the host and adds it in the worker. flags: CU_MEMHOSTALLOC_* for
 * pinned. */
CUresult cw_region_add(uint32_t kind, size_t size, uint32_t flags, struct cw_region **out);
/* Pinned memory that the worker maps at the address at, and this process elsewhere.
 * CUDA_ERROR_OUT_OF_MEMORY and others if it cannot. */
CUresult cw_region_add_at(uint64_t at, size_t size, uint32_t flags, struct cw_region **out);
/* The same for memory that the app has (cuMemHostRegister). va and size in whole pages.
 * CUDA_ERROR_NOT_SUPPORTED when the carrier cannot share these pages: the caller then keeps the
 * range on the staging path. */
/* If its pages have to move to be shared, hands copy them while the worker registers the region. */
CUresult cw_region_adopt(void *va, size_t size, uint32_t flags, const struct cw_region_hands *hands, struct cw_region **out);
/* The same for whole pages within memory that goes on beyond them, of a heap, say: they are a
 * forked child's own, and the app's own again when the region is dropped. CUDA_ERROR_NOT_SUPPORTED
 * where the carrier cannot do that. */
CUresult cw_region_adopt_parted(void *va, size_t size, uint32_t flags, struct cw_region **out);
/* The same for a shared mapping of file from at on, which stays as it is: others go on sharing it.
 * The descriptor stays the caller's. */
CUresult cw_region_adopt_file(void *va, size_t size, int file, uint64_t at, uint32_t flags, struct cw_region **out);
/* Waits until the worker has let go of the region, then ends it and unmaps it (unless adopted). r
 * is freed. */
CUresult cw_region_drop(struct cw_region *r);
/* Its two halves: what is sent in between is executed when the worker has let go. tx is the first's
 * for the second. */
void cw_region_let(struct cw_region *r, struct cw_tx *tx);
CUresult cw_region_end(struct cw_region *r, struct cw_tx *tx);

/* Completion words (MemcpyStaged, Memcpy3D): word 1..CW_WORD_COUNT-1. */
static inline _Atomic uint32_t *cw_word(uint32_t word) { return (_Atomic uint32_t *)((uint8_t *)cw_g.ctl + CW_WORDS_OFFSET) + word; }
/* Waits until the word holds value (words only ever move forward by one use at a time). 0, or 719
 * if the worker died. */
CUresult cw_word_wait(uint32_t word, uint32_t value);

/* How many pauses a wait may spin before it sleeps; 0 on a single CPU. */
uint32_t cw_spin_limit(void);

/* --- logging: CAUSEWAY_LOG=none|error|info|trace, default error ------------------------------- */

enum cw_log_level { CW_LOG_NONE, CW_LOG_ERROR, CW_LOG_INFO, CW_LOG_TRACE };
int cw_log_enabled(enum cw_log_level level);
/* Says at level trace that a call failed, and gives its result back. */
CUresult cw_failed(const char *call, CUresult res);
void cw_log(enum cw_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The name of this library's own files in memory, as /proc/self/maps shows them: those of this
 * process, and of its parents. */
enum { CW_MEMFD_NAME = 24 };
const char *cw_memfd_name(char name[CW_MEMFD_NAME]);

#pragma GCC visibility pop
#endif

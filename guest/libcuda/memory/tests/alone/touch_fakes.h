/* For the tests of touch.c, which include it before this: a list of faults, a GPU that is idle when
 * the test says so, and what was done. */
#ifndef CW_TOUCH_FAKES_H
#define CW_TOUCH_FAKES_H

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "session/tests/check.h"

enum { UNITS = 9000, ME = 4321, OTHER = 1234 };

struct cw_session cw_s;
struct cw_global cw_g;
_Atomic uint64_t cw_copies;
_Atomic uint32_t cw_starved, cw_callback_thread, cw_exiting_thread, cw_resident_users;
struct cw_lock cw_resident_lock;
struct cw_area *cw_areas;

static struct cw_control_page control;
static struct cw_carrier carrier;
static struct cw_area *area;
static char said[512];

void cw_log(enum cw_log_level level, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	CHECK(level == CW_LOG_ERROR);
	vsnprintf(said, sizeof said, fmt, args);
	va_end(args);
}

/* --- what was done, by kind ------------------------------------------------------------------- */

enum { BRING, CHANGE, WAKE, ZERO, UNPROTECT, WAIT, KINDS };
static _Atomic int did[KINDS];
static struct {
	uint32_t lo, hi;
	int write;
} last;
static uint64_t last_at;
static CUresult result, wait_result;
static _Atomic int idle, starts;
static _Atomic uint32_t waited_stream;
static int thrown;  /* the program has thrown away the page of a unit that is here */
static int by_idle; /* a wait makes the GPU idle */

struct cw_area *cw_area_at(uint64_t addr)
{
	CHECK(atomic_load(&cw_resident_lock.word) != 0);
	return area && addr - area->base < area->size ? area : NULL;
}

CUresult cw_area_bring(struct cw_area *a, uint32_t lo, uint32_t hi, int write)
{
	CHECK(a == area && lo < hi && hi <= a->units && atomic_load(&cw_copies) >= CW_COPY);
	did[BRING]++;
	last.lo = lo;
	last.hi = hi;
	last.write = write;
	for (uint32_t u = lo; result == 0 && u < hi; u++)
		if (a->holder[u] == CW_AT_GPU)
			a->holder[u] = write ? CW_AT_CPU : CW_AT_BOTH;
	return result;
}

CUresult cw_area_change(struct cw_area *a, uint32_t lo, uint32_t hi)
{
	CHECK(a == area && lo < hi && hi <= a->units);
	did[CHANGE]++;
	last.lo = lo;
	last.hi = hi;
	for (uint32_t u = lo; result == 0 && u < hi; u++)
		if (a->holder[u] == CW_AT_BOTH)
			a->holder[u] = CW_AT_CPU;
	return result;
}

void cw_uffd_wake(uint64_t at, uint64_t size)
{
	CHECK(size == CW_PAGE);
	last_at = at;
	did[WAKE]++;
}

int cw_uffd_zero(uint64_t at, uint64_t size)
{
	CHECK(size == CW_PAGE);
	last_at = at;
	did[ZERO]++;
	return !thrown;
}

int cw_uffd_protect(uint64_t at, uint64_t size, int on)
{
	CHECK(size == CW_PAGE && !on);
	last_at = at;
	did[UNPROTECT]++;
	return 0;
}

static uint32_t shown; /* what was out of sight of units [shown_lo, shown_hi) comes back */
static uint32_t shown_lo, shown_hi;
void cw_kept_show(struct cw_area *a, uint32_t lo, uint32_t hi)
{
	CHECK(a == area && lo < hi && hi <= a->units && atomic_load(&cw_copies) >= CW_COPY);
	shown++;
	for (uint32_t u = shown_lo; u < shown_hi; u++)
		a->holder[u] = CW_AT_BOTH;
}
static int strange, unwatched;
int cw_uffd_strange(void) { return strange; }
void cw_uffd_unwatch(uint64_t at, uint64_t size)
{
	CHECK(size == CW_PAGE && at != 0);
	unwatched++;
}

/* Streams, by id, until they end. */
static uint64_t uid_of(uint32_t stream) { return 1000 + stream; }
static uint32_t ended;
struct cw_obj *cw_handle_by_id(enum cw_kind kind, uint32_t id)
{
	static struct cw_stream s;
	CHECK(kind == CW_KIND_STREAM && atomic_load(&cw_resident_lock.word) != 0);
	s.o.id = id;
	s.uid = uid_of(id);
	return id == ended ? NULL : &s.o;
}
static inline void attach(uint32_t stream)
{
	area->attach = CU_MEM_ATTACH_SINGLE;
	area->stream = stream;
	area->uid = uid_of(stream);
	ended = 0;
}

int cw_gpu_idle(void) { return idle; }
static int tracks = 1;
int cw_uffd_tracks(void) { return tracks; }

static _Atomic uint32_t stays_busy; /* a stream */
CUresult cw_gpu_wait(uint32_t stream)
{
	did[WAIT]++;
	waited_stream = stream;
	while (stream != 0 && stream == atomic_load(&stays_busy))
		usleep(1000);
	if (wait_result == 0 && by_idle)
		idle = 1;
	return wait_result;
}

static int no_threads;
static uint32_t copiers = 1;
uint32_t cw_copypool_size(void) { return copiers; }

CUresult cw_thread_start(void *(*run)(void *), void *arg)
{
	pthread_t t;
	if (no_threads)
		return CUDA_ERROR_OPERATING_SYSTEM;
	starts++;
	return pthread_create(&t, NULL, run, arg) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

static _Atomic int kept_open, lost;
int cw_touch_is_lost(void) { return lost; }
void cw_touch_keep(void) { kept_open++; }
void cw_touch_lost(void)
{
	CHECK(atomic_load(&cw_resident_lock.word) == 0);
	lost++;
}

/* --- faults: what the server reads ------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cw_fault queued[64];
static int queued_count, read_error;
static int timeout_seen;
static int64_t look_seen;

int cw_uffd_read(struct cw_fault *out, int most, int timeout_ms, int64_t look_us)
{
	for (;;) {
		pthread_mutex_lock(&lock);
		timeout_seen = timeout_ms;
		look_seen = look_us;
		int n = queued_count < most ? queued_count : most;
		memcpy(out, queued, (size_t)n * sizeof *out);
		memmove(queued, queued + n, (size_t)(queued_count - n) * sizeof *queued);
		queued_count -= n;
		int err = read_error;
		pthread_mutex_unlock(&lock);
		if (n > 0 || err)
			return err ? err : n;
		usleep(1000);
		if (timeout_ms >= 0)
			return 0;
	}
}

static inline void put(struct cw_fault f)
{
	pthread_mutex_lock(&lock);
	queued[queued_count++] = f;
	pthread_mutex_unlock(&lock);
}

/* --- what the tests share --------------------------------------------------------------------- */

static inline struct cw_fault at(uint32_t unit, int write, int protect)
{
	return (struct cw_fault){
		.at = area->base + (uint64_t)unit * CW_UNIT + CW_PAGE, .thread = ME, .write = (uint8_t)write, .protect = (uint8_t)protect};
}

static void anew(void)
{
	if (!area) {
		void *p = mmap(NULL, (size_t)UNITS * CW_UNIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		area = calloc(1, sizeof *area + UNITS);
		CHECK(area && p != MAP_FAILED);
		area->base = (uintptr_t)p;
	}
	uint64_t base = area->base;
	memset(area, 0, sizeof *area + UNITS);
	area->base = base;
	area->units = UNITS;
	area->size = (uint64_t)UNITS * CW_UNIT;
	area->attach = CU_MEM_ATTACH_GLOBAL;
	for (int k = 0; k < KINDS; k++)
		did[k] = 0;
	result = wait_result = CUDA_SUCCESS;
	idle = 1;
	by_idle = 0;
	said[0] = 0;
	logged = 0;
	cw_g.state = CW_OPEN;
	cw_g.ctl = &control;
	control.sticky = 0;
	cw_s.carrier = &carrier;
}

/* Whether the access to it now ends with SIGSEGV. */
static inline int refused(uint64_t addr)
{
	char name[64], line[256];
	unsigned long lo, hi;
	char prot[5];
	int found = 0;
	snprintf(name, sizeof name, "/proc/self/maps");
	FILE *f = fopen(name, "r");
	while (fgets(line, sizeof line, f))
		if (sscanf(line, "%lx-%lx %4s", &lo, &hi, prot) == 3 && addr >= lo && addr < hi)
			found = prot[0] == '-';
	fclose(f);
	if (found)
		mprotect((void *)(uintptr_t)(addr & ~(uint64_t)(CW_PAGE - 1)), CW_PAGE, PROT_READ | PROT_WRITE);
	return found;
}

static inline uint32_t brought(uint32_t unit)
{
	int before = did[BRING];
	CHECK(serve(&(struct cw_fault){.at = area->base + (uint64_t)unit * CW_UNIT}, 0) == 1 && did[BRING] == before + 1);
	CHECK(last.lo == unit && !last.write && atomic_load(&cw_copies) == 0);
	return last.hi - last.lo;
}

#endif

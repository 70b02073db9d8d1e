/* Units and who has them. See resident.h. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/resident.h"
#include "memory/streamorder.h"
#include "memory/uffd.h"

struct cw_lock cw_resident_lock;
_Atomic uint32_t cw_resident_users;
struct cw_area *cw_areas;

struct cw_area *cw_area_at(uint64_t addr)
{
	for (struct cw_area *a = cw_areas; a; a = a->next)
		if (addr - a->base < a->size)
			return a;
	return NULL;
}

CUresult cw_pages_failed(const char *what, int err)
{
	if (err == 0)
		return CUDA_SUCCESS;
	cw_log(CW_LOG_ERROR, "managed memory: %s: %s", what, strerror(-err));
	return err == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
}

void cw_area_hold(struct cw_area *a, uint32_t lo, uint32_t hi, enum cw_holder h)
{
	uint32_t before = a->here;
	for (uint32_t u = lo; u < hi; u++) {
		a->here += (uint32_t)(h != CW_AT_GPU) - (uint32_t)(a->holder[u] != CW_AT_GPU);
		a->holder[u] = (uint8_t)h;
	}
	if (a->here > before)
		atomic_fetch_add(&cw_copies, (uint64_t)(a->here - before) * CW_COPY);
	else if (a->here < before)
		atomic_fetch_sub(&cw_copies, (uint64_t)(before - a->here) * CW_COPY);
}

/* Whole words of units that the GPU has are passed over. */
static uint32_t pass_over(const struct cw_area *a, uint32_t u, uint32_t hi)
{
	uint64_t eight = 0;
	for (; hi - u >= 8; u += 8) {
		memcpy(&eight, a->holder + u, 8);
		if (eight != 0)
			break;
	}
	return u;
}

/* The end of the run of units from lo on for which the CPU's having them, or (written) having
 * written them, is as it is for lo. */
static uint32_t run_end(const struct cw_area *a, uint32_t lo, uint32_t hi, int written)
{
	uint32_t u = lo;
	int first = written ? a->holder[lo] == CW_AT_CPU : a->holder[lo] != CW_AT_GPU;
	if (!first)
		u = pass_over(a, u, hi);
	while (u < hi && (written ? a->holder[u] == CW_AT_CPU : a->holder[u] != CW_AT_GPU) == first)
		u++;
	return u;
}

/* --- to the GPU ------------------------------------------------------------------------------- */

/* Writers wait from before their bytes are read until the pages are gone: what they write then is
 * not lost. */
static CUresult send_written(struct cw_area *a, uint32_t lo, uint32_t hi, uint32_t stream)
{
	CUresult res = CUDA_SUCCESS;
	for (uint32_t u = lo, end; u < hi && res == 0; u = end) {
		end = run_end(a, u, hi, 1);
		if (a->holder[u] != CW_AT_CPU)
			continue;
		uint64_t at = cw_unit_at(a, u), size = cw_units_bytes(a, u, end);
		if (a->fresh) /* what has no page would not be protected */
			cw_pages_have(at, size);
		res = cw_pages_failed("its pages cannot be protected", cw_uffd_protect(at, size, 1));
		if (res == 0)
			/* Huge ones go at once, and quickly. */
			res = cw_bytes_depart(at, size, stream, a->fresh);
		if (res == 0 && !a->fresh)
			cw_area_hold(a, u, end, CW_AT_GPU);
	}
	return res;
}

static void let_go(struct cw_area *a, uint32_t lo, uint32_t hi)
{
	if (a->kept && lo == 0 && hi == a->units)
		cw_kept_hide(a);
	for (uint32_t u = lo, end; u < hi; u = end) {
		end = run_end(a, u, hi, 0);
		if (a->holder[u] == CW_AT_GPU)
			continue;
		cw_pages_forget(cw_unit_at(a, u), cw_units_bytes(a, u, end));
		cw_area_hold(a, u, end, CW_AT_GPU);
	}
}

CUresult cw_area_yield(struct cw_area *a, uint32_t lo, uint32_t hi)
{
	struct cw_voice v;
	cw_heard(CUDA_SUCCESS); /* what is forbidden is read here */
	if (a->ahead)
		a->wish_lo = a->wish_hi = a->ahead = 0; /* it has been met */
	CUresult res = a->fresh ? cw_area_watch(a) : CUDA_SUCCESS;
	if (res != 0 || a->here == 0)
		return res;
	uint32_t u = lo;
	while ((u = pass_over(a, u, hi)) < hi && a->holder[u] != CW_AT_CPU)
		u++;
	if (u == hi) { /* nothing to carry */
		let_go(a, lo, hi);
		return CUDA_SUCCESS;
	}
	res = cw_voice_begin(a, &v);
	if (res != 0)
		return res;
	res = send_written(a, lo, hi, v.stream);
	if (res == 0) {
		let_go(a, lo, hi);
		res = cw_own_wait(v.stream);
	}
	cw_voice_end(&v);
	return res;
}

/* --- to the CPU ------------------------------------------------------------------------------- */

CUresult cw_area_bring(struct cw_area *a, uint32_t lo, uint32_t hi, int write)
{
	struct cw_voice v;
	CUresult res = cw_voice_begin(a, &v);
	if (res != 0)
		return res;
	write |= !cw_uffd_tracks();
	for (uint32_t u = lo, end; u < hi && res == 0; u = end) {
		end = run_end(a, u, hi, 0);
		if (a->holder[u] != CW_AT_GPU)
			continue;
		/* First: a thread that goes on when its page is there may give work at once. */
		cw_area_hold(a, u, end, write ? CW_AT_CPU : CW_AT_BOTH);
		res = cw_bytes_arrive(cw_unit_at(a, u), cw_units_bytes(a, u, end), v.stream, !write);
		if (res != 0)
			let_go(a, u, end);
	}
	cw_voice_end(&v);
	return res;
}

CUresult cw_area_change(struct cw_area *a, uint32_t lo, uint32_t hi)
{
	int err = 0;
	for (uint32_t u = lo; u < hi && err == 0; u++) {
		uint32_t end = u;
		while (end < hi && a->holder[end] == CW_AT_BOTH)
			end++;
		if (end == u)
			continue;
		cw_area_hold(a, u, end, CW_AT_CPU);
		err = cw_uffd_protect(cw_unit_at(a, u), cw_units_bytes(a, u, end), 0);
		u = end - 1;
	}
	return cw_pages_failed("its pages cannot be made writable", err);
}

/* --- the first time --------------------------------------------------------------------------- */

/* Which units of a fresh area have pages: all of them, if the kernel does not say. */
static void find_pages(struct cw_area *a)
{
	enum { AT_ONCE = 512, THERE = 3 /* in memory, or swapped out */ };
	uint64_t entry[AT_ONCE], pages = a->size / CW_PAGE, done = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	while (fd >= 0 && done < pages) {
		uint64_t want = pages - done < AT_ONCE ? pages - done : AT_ONCE;
		ssize_t got = pread(fd, entry, want * sizeof entry[0], (off_t)((a->base / CW_PAGE + done) * sizeof entry[0]));
		if (got < (ssize_t)sizeof entry[0])
			break;
		for (uint64_t i = 0; i < (uint64_t)got / sizeof entry[0]; i++) {
			uint32_t u = (uint32_t)((done + i) * CW_PAGE / CW_UNIT);
			if ((entry[i] >> 62 & THERE) && a->holder[u] == CW_AT_GPU)
				cw_area_hold(a, u, u + 1, CW_AT_CPU);
		}
		done += (uint64_t)got / sizeof entry[0];
	}
	if (fd >= 0)
		close(fd);
	if (done < pages)
		cw_area_hold(a, (uint32_t)(done * CW_PAGE / CW_UNIT), a->units, CW_AT_CPU);
}

/* What nobody touched is zero, at the GPU too. */
static CUresult clear_untouched(struct cw_area *a, uint32_t stream)
{
	CUresult res = CUDA_SUCCESS;
	for (uint32_t u = 0, end; u < a->units && res == 0; u = end) {
		end = run_end(a, u, a->units, 0);
		if (a->holder[u] == CW_AT_GPU)
			res = cwop_Memset(cw_unit_at(a, u), 0, 0, 4, cw_units_bytes(a, u, end) / 4, 1, stream);
	}
	return res;
}

/* What other threads touched for the first time meanwhile. A unit that has one page is given all,
 * as reading one that is not there would wait for us. */
static CUresult send_late(struct cw_area *a, uint32_t stream)
{
	for (uint32_t u = 0; u < a->units; u++)
		if (a->holder[u] == CW_AT_CPU)
			a->holder[u] = CW_AT_BOTH; /* sent, and its writers wait */
	find_pages(a);
	for (uint32_t u = 0; u < a->units; u++)
		for (uint64_t at = 0; a->holder[u] == CW_AT_CPU && at < cw_units_bytes(a, u, u + 1); at += CW_PAGE)
			cw_uffd_zero(cw_unit_at(a, u) + at, CW_PAGE);
	return send_written(a, 0, a->units, stream);
}

/* Until now the kernel gave the area pages by itself, huge ones even. What is there goes to the GPU
 * while only writes are seen, as reading what is not there must not wait for us; then what was not
 * there has to wait, and what came in between goes too. */
CUresult cw_area_watch(struct cw_area *a)
{
	struct cw_voice v;
	CUresult res = cw_touch_start();
	if (res == 0)
		res = cw_pages_failed("its pages cannot be watched", cw_uffd_watch(a->base, a->size, 0));
	if (res == 0)
		res = cw_voice_begin(a, &v);
	if (res != 0)
		return res;
	find_pages(a);
	res = send_written(a, 0, a->units, v.stream);
	if (res == 0)
		res = clear_untouched(a, v.stream);
	if (res == 0)
		res = cw_pages_failed("its pages cannot be watched", cw_uffd_watch(a->base, a->size, 1));
	if (res == 0)
		res = send_late(a, v.stream);
	if (res == 0) {
		cw_pages_forget(a->base, a->size);
		cw_area_hold(a, 0, a->units, CW_AT_GPU);
		a->fresh = 0;
		atomic_fetch_sub(&cw_copies, (uint64_t)CW_COPY);
		res = cw_own_wait(v.stream);
	} else { /* tried again by whoever gives the GPU work next; its writers wait for nobody */
		cw_area_hold(a, 0, a->units, CW_AT_GPU);
		cw_uffd_watch(a->base, a->size, 0);
		cw_uffd_protect(a->base, a->size, 0);
	}
	cw_voice_end(&v);
	return res;
}

void cw_area_list(struct cw_area *a)
{
	a->next = cw_areas;
	cw_areas = a;
	atomic_fetch_add(&cw_copies, (uint64_t)CW_COPY + CW_COPIES_POSSIBLE);
	cw_signals_wait(1);
}

void cw_area_unlist(struct cw_area *a)
{
	struct cw_area **p = &cw_areas;
	while (*p != a)
		p = &(*p)->next;
	*p = a->next;
	if (atomic_load(&cw_forbidden) != 0)
		cw_touch_restore(a->base, a->size); /* the addresses may be somebody else's soon */
	cw_kept_end(a);
	cw_area_hold(a, 0, a->units, CW_AT_GPU);
	cw_signals_wait(-1);
	atomic_fetch_sub(&cw_copies, (uint64_t)CW_COPIES_POSSIBLE + (a->fresh ? CW_COPY : 0));
}

/* --- what the rest of the library calls ------------------------------------------------------- */

CUresult cw_resident_yield(uint64_t ptr, uint64_t size)
{
	if (size == 0 || atomic_load(&cw_copies) < CW_COPY)
		return CUDA_SUCCESS;
	uint32_t lo, hi;
	CUresult res = CUDA_SUCCESS;
	cw_lock_acquire(&cw_resident_lock);
	for (struct cw_area *a = cw_area_at(ptr); a && res == 0 && cw_units_within(a, ptr, size, &lo, &hi); a = a->beside)
		res = cw_area_yield(a, lo, hi);
	cw_lock_release(&cw_resident_lock);
	return res;
}

CUresult cw_before_work(void)
{
	CUresult res = CUDA_SUCCESS;
	cw_lock_acquire(&cw_resident_lock);
	for (struct cw_area *a = cw_areas; a && res == 0; a = a->next)
		if (a->fresh || a->here > 0)
			res = cw_area_yield(a, 0, a->units);
	cw_lock_release(&cw_resident_lock);
	return res;
}

CUresult cw_resident_settle(struct cw_area *a)
{
	CUresult res = CUDA_SUCCESS;
	cw_lock_acquire(&cw_resident_lock);
	for (; a && res == 0; a = a->beside)
		res = a->fresh ? cw_area_watch(a) : CUDA_SUCCESS;
	cw_lock_release(&cw_resident_lock);
	return res;
}

void cw_resident_wish(uint64_t ptr, uint64_t size)
{
	uint32_t lo, hi;
	cw_lock_acquire(&cw_resident_lock);
	for (struct cw_area *a = cw_area_at(ptr); a && cw_units_within(a, ptr, size, &lo, &hi); a = a->beside) {
		a->wish_lo = lo;
		a->wish_hi = hi;
		a->ahead = 0;
	}
	cw_lock_release(&cw_resident_lock);
}

void cw_resident_mostly(uint64_t ptr, uint64_t size, int on)
{
	uint32_t lo, hi;
	cw_lock_acquire(&cw_resident_lock);
	for (struct cw_area *a = cw_area_at(ptr); a && cw_units_within(a, ptr, size, &lo, &hi); a = a->beside) {
		if (on)
			cw_kept_begin(a);
		else
			cw_kept_end(a);
	}
	cw_lock_release(&cw_resident_lock);
}

CUresult cw_resident_attach(uint64_t base, uint32_t flags, const struct cw_stream *stream)
{
	CUresult res = CUDA_SUCCESS;
	cw_lock_acquire(&cw_resident_lock);
	for (struct cw_area *a = cw_area_at(base); a && res == 0; a = a->beside) {
		/* The CPU may write it while other work is given to the GPU, so its writes have to
		 * be seen. */
		if (a->fresh && flags != CU_MEM_ATTACH_GLOBAL)
			res = cw_area_watch(a);
		if (res == 0 && !a->blocks) {
			a->attach = (uint8_t)flags;
			a->stream = stream ? stream->o.id : 0;
			a->uid = stream ? stream->uid : 0;
			a->lapsed = 0;
		}
	}
	cw_lock_release(&cw_resident_lock);
	return res;
}

void cw_resident_left(const struct cw_stream *stream)
{
	struct cw_behind from = {stream->o.ctx, stream->o.id, stream->uid, 0}, to = {0};
	int known = -1;
	if (atomic_load(&cw_copies) == 0)
		return;
	cw_lock_acquire(&cw_resident_lock);
	for (struct cw_area *a = cw_areas; a && known != 0; a = a->next) {
		if (a->attach != CU_MEM_ATTACH_SINGLE || a->stream != from.stream || a->uid != from.uid)
			continue;
		if (known < 0 && (known = cw_order_left(&from, &to)) == 0)
			break; /* found out when it is touched */
		a->stream = to.stream;
		a->uid = to.uid;
		a->lapsed = to.stream != 0;
		a->attach = to.stream ? CU_MEM_ATTACH_SINGLE : a->first;
	}
	cw_lock_release(&cw_resident_lock);
}

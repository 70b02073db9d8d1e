/*
 * The CPU's accesses to managed memory: what is not here, and writes to what both have. One thread
 * serves faults and waits for nobody; those that have to wait until the GPU is idle, or a stream
 * they are attached to, are passed on to a thread that does. An access that would wait for ever (a
 * kernel that waits for it) or cannot be served ends with SIGSEGV, as natively on such devices; a
 * system call's with EFAULT.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "api/callback.h"
#include "memory/copypool.h"
#include "memory/resident.h"
#include "memory/uffd.h"
#include "session/internal.h"

/* Units. */
enum { MOST = (16 << 20) / CW_UNIT, WISH_MOST = (8 << 20) / CW_UNIT };
enum { PATIENCE = 120 /* seconds */, SUSPENDED = 15 /* times that */, LOOK_MS = 100, LOOK_US = 60, LOGGED_MOST = 8, LONG_MS = 200 };

struct waiting {
	struct cw_fault f;
	/* Ms; last: while the host does not take what it is asked, as of a session that is
	 * suspended. */
	int64_t until, last;
};

/* Faults that wait: for the whole GPU, for the stream of theirs. Each has a thread. */
struct queue {
	struct cw_lock lock;
	struct waiting *all;
	uint32_t count, cap;
	_Atomic uint32_t gen; /* futex */
	int started, by_stream;
};
static struct queue for_gpu, for_stream = {.by_stream = 1};

static int64_t patience(void)
{
	const char *e = getenv("CAUSEWAY_MANAGED_PATIENCE");
	long s = e ? strtol(e, NULL, 10) : 0;
	return 1000 * (s > 0 ? (int64_t)s : PATIENCE);
}

static _Atomic int logged; /* how many that ended so were told of */

/* The access ends with a signal. Other threads of a program that is exiting just do not go on: they
 * end with it. */
static void refuse(const struct cw_fault *f, const char *why)
{
	if (atomic_load(&cw_g.state) == CW_EXITING && f->thread != atomic_load(&cw_exiting_thread))
		return;
	if (atomic_fetch_add(&logged, 1) < LOGGED_MOST)
		cw_log(CW_LOG_ERROR, "%s managed memory at %#llx ends with SIGSEGV: %s", f->write ? "writing" : "reading",
		       (unsigned long long)f->at, why);
	cw_touch_forbid(f->at);
	cw_uffd_wake(f->at, CW_PAGE);
}

/* How many units to move for an access to one of so many: more and more where accesses follow each
 * other; at once as many as last time, up to a limit, where they begin again, or half of that where
 * last time nobody went on behind them. What is moved ends at an odd distance from where it began:
 * accesses a fixed way apart, an even one as most are, do not look as if they went on. */
static uint32_t burst(struct cw_burst *all, uint32_t unit, uint32_t units)
{
	struct cw_burst *least = &all[0];
	for (int i = 0; i < CW_BURSTS; i++) {
		struct cw_burst *b = &all[i];
		uint32_t length = b->next - b->start;
		if (length > 0 && (b->next == unit || b->start == unit)) {
			int again = b->start == unit;
			uint32_t want = !again ? b->units * 2 : b->again && b->next < units ? length / 2 : length;
			b->units = want < MOST ? want : MOST;
			if (again && b->units % 2 == 0)
				b->units += b->units ? -1 : 1;
			b->again = (uint8_t)again;
			b->next = unit + b->units;
			return b->units;
		}
		if (length < least->next - least->start)
			least = b;
	}
	*least = (struct cw_burst){.start = unit, .next = unit + 1, .units = 1};
	return 1;
}

static uint32_t within(const struct cw_area *a, uint32_t unit, uint32_t n) { return a->units - unit < n ? a->units : unit + n; }

/* A function of the program that a stream called (cuLaunchHostFunc): what it may touch is idle by
 * CUDA's rules. */
static int by_function(const struct cw_fault *f) { return f->thread != 0 && f->thread == atomic_load(&cw_callback_thread); }

/* What lies beside that a kernel of another stream may be writing: it may come, as all of it leaves
 * with the function's end, but not as written. */
static int beside_work(const struct cw_fault *f) { return by_function(f) && !cw_gpu_idle(); }

/* Under the lock: the stream that it is attached to, 0: none. Of one that has ended without
 * cw_resident_left, the last work may still run. */
static uint32_t attached_to(struct cw_area *a)
{
	if (a->attach != CU_MEM_ATTACH_SINGLE)
		return 0;
	const struct cw_stream *s = (const struct cw_stream *)cw_handle_by_id(CW_KIND_STREAM, a->stream);
	if (s && s->uid == a->uid)
		return a->stream;
	a->attach = CU_MEM_ATTACH_GLOBAL;
	a->lapsed = 1;
	return 0;
}

/* Under the lock: whether the GPU has done with an area, as far as this access must know. */
static int settled(struct cw_area *a, const struct cw_fault *f, int waited)
{
	if (by_function(f))
		return 1;
	if (a->attach == CU_MEM_ATTACH_HOST)
		return 1;
	int done = attached_to(a) ? waited : cw_gpu_idle();
	if (done && a->lapsed) {
		a->attach = a->first;
		a->lapsed = 0;
	}
	return done;
}

static const char *why_not(CUresult res)
{
	if (atomic_load(&cw_g.state) != CW_OPEN)
		return "the session with the GPU has ended";
	if (__atomic_load_n(&cw_g.ctl->sticky, __ATOMIC_RELAXED) != 0)
		return "the GPU's work has failed, and its memory is lost";
	return res == CUDA_ERROR_OUT_OF_MEMORY ? "there is no memory" : "its bytes cannot be had from the GPU";
}

static uint32_t wished(const struct cw_area *a, uint32_t u) { return a->wish_hi - u < WISH_MOST ? a->wish_hi : u + WISH_MOST; }

/* Under the lock: an access to what is not here. 0: it has to wait. */
static int absent(struct cw_area *a, uint32_t u, const struct cw_fault *f, int waited)
{
	/* Said first: who gives the GPU work now sees it, or has given it and is seen by settled
	 * (cw_begin). */
	atomic_fetch_add(&cw_copies, (uint64_t)CW_COPY);
	int may = settled(a, f, waited);
	if (may) {
		uint32_t end = within(a, u, burst(a->touch, u, a->units));
		if (u >= a->wish_lo && u < a->wish_hi)
			a->ahead = end = wished(a, u);
		int alone = beside_work(f);
		if (alone && !cw_uffd_tracks())
			end = u + 1;
		if (a->kept && !alone)
			cw_kept_show(a, u, end);
		CUresult res = cw_area_bring(a, u, end, f->write && !alone);
		if (res != 0)
			refuse(f, why_not(res));
	}
	atomic_fetch_sub(&cw_copies, (uint64_t)CW_COPY);
	return may;
}

/* Under the lock: the next piece of what a prefetch wished comes while the program is at those
 * before. 0: none is left, or the GPU has been given work. */
static int comes_ahead(struct cw_area *a)
{
	const struct cw_fault nobodys = {0};
	uint32_t u = a->ahead;
	while (u < a->wish_hi && a->holder[u] != CW_AT_GPU)
		u++;
	a->ahead = u;
	if (u >= a->wish_hi)
		return 0;
	atomic_fetch_add(&cw_copies, (uint64_t)CW_COPY); /* as in absent */
	int more = settled(a, &nobodys, 0);
	if (more) {
		a->ahead = wished(a, u);
		more = cw_area_bring(a, u, a->ahead, 0) == 0;
	}
	atomic_fetch_sub(&cw_copies, (uint64_t)CW_COPY);
	return more;
}

int cw_touch_all(struct cw_area *a)
{
	const struct cw_fault nobodys = {0};
	atomic_fetch_add(&cw_copies, (uint64_t)CW_COPY); /* as in absent */
	int may = !a->region && !a->fresh && settled(a, &nobodys, 0);
	if (may && a->kept)
		cw_kept_show(a, 0, a->units);
	may = may && cw_area_bring(a, 0, a->units, 1) == 0 && cw_area_change(a, 0, a->units) == 0;
	atomic_fetch_sub(&cw_copies, (uint64_t)CW_COPY);
	return may;
}

static int ahead(void)
{
	int more = 0;
	cw_lock_acquire(&cw_resident_lock);
	for (struct cw_area *a = cw_areas; a && !more; a = a->next)
		more = a->ahead && !a->region && comes_ahead(a);
	cw_lock_release(&cw_resident_lock);
	return more;
}

/* 0: it has to wait. */
static int serve(const struct cw_fault *f, int waited)
{
	int done = 1;
	cw_lock_acquire(&cw_resident_lock);
	struct cw_area *a = cw_area_at(f->at);
	uint32_t u = a ? cw_unit_of(a, f->at) : 0;
	if (!a && cw_uffd_strange())
		cw_uffd_unwatch(f->at, CW_PAGE); /* what the program has moved there is its own */
	if (!a || a->region || (f->protect && a->holder[u] == CW_AT_GPU)) {
		/* Freed, sent away, or here for good, in the meantime. */
		cw_uffd_wake(f->at, CW_PAGE);
	} else if (f->protect && a->holder[u] == CW_AT_BOTH) {
		if (cw_area_change(a, u, beside_work(f) ? u + 1 : within(a, u, burst(a->change, u, a->units))) != 0)
			refuse(f, "its pages cannot be made writable");
	} else if (f->protect) {
		cw_uffd_protect(f->at, CW_PAGE, 0);
	} else if (a->holder[u] != CW_AT_GPU) {
		/* It came in the meantime; or the program has thrown its page away. That is zero
		 * then for the GPU, too: it was written. */
		if (cw_uffd_zero(f->at, CW_PAGE) == 0 && a->holder[u] == CW_AT_BOTH && cw_area_change(a, u, u + 1) != 0)
			refuse(f, "its pages cannot be made writable");
		cw_uffd_wake(f->at, CW_PAGE);
	} else {
		done = absent(a, u, f, waited);
	}
	cw_lock_release(&cw_resident_lock);
	return done;
}

/* --- waiting ---------------------------------------------------------------------------------- */

/* refuse, unless the access has gone on: another's was near, and what it brought was enough. */
static void give_up(const struct cw_fault *f, const char *why)
{
	cw_lock_acquire(&cw_resident_lock);
	struct cw_area *a = cw_area_at(f->at);
	int waits = a && a->holder[cw_unit_of(a, f->at)] == (f->protect ? CW_AT_BOTH : CW_AT_GPU);
	if (waits)
		refuse(f, why);
	else
		cw_uffd_wake(f->at, CW_PAGE);
	cw_lock_release(&cw_resident_lock);
}

static void remove_fault(struct queue *q, const struct cw_fault *f)
{
	cw_lock_acquire(&q->lock);
	for (uint32_t i = 0; i < q->count; i++)
		if (q->all[i].f.at == f->at && q->all[i].f.thread == f->thread) {
			q->all[i] = q->all[--q->count];
			break;
		}
	cw_lock_release(&q->lock);
}

/* A copy of what waits, for the caller to free. */
static struct waiting *look(struct queue *q, uint32_t *count)
{
	cw_lock_acquire(&q->lock);
	struct waiting *w = q->count ? malloc(q->count * sizeof *w) : NULL;
	*count = w ? q->count : 0;
	if (w)
		memcpy(w, q->all, q->count * sizeof *w);
	cw_lock_release(&q->lock);
	return w;
}

static uint32_t stream_of(const struct cw_fault *f)
{
	cw_lock_acquire(&cw_resident_lock);
	struct cw_area *a = cw_area_at(f->at);
	uint32_t stream = a ? attached_to(a) : 0;
	cw_lock_release(&cw_resident_lock);
	return stream;
}

static void *waiter(void *arg)
{
	struct queue *q = arg;
	prctl(PR_SET_NAME, "causeway-idle");
	for (;;) {
		uint32_t gen = atomic_load(&q->gen), count, served = 0;
		struct waiting *w = look(q, &count);
		if (count == 0) {
			cw_futex_wait(&q->gen, gen, CW_FUTEX_PRIVATE, NULL);
			continue;
		}
		CUresult res = q->by_stream ? CUDA_SUCCESS : cw_gpu_wait(0);
		for (uint32_t i = 0; i < count; i++) {
			if (q->by_stream) /* all of the GPU, if the stream has ended meanwhile */
				res = cw_gpu_wait(stream_of(&w[i].f));
			if (res != 0)
				give_up(&w[i].f, why_not(res));
			if (res != 0 || serve(&w[i].f, 1)) {
				remove_fault(q, &w[i].f);
				served++;
			}
		}
		free(w);
		if (served)
			atomic_store(&cw_starved, 0);
		if (!served) { /* there was new work */
			struct timespec nap = {0, 200000};
			nanosleep(&nap, NULL);
		}
	}
	return NULL;
}

static void wait_for(struct queue *q, const struct cw_fault *f)
{
	int ok = 1;
	cw_lock_acquire(&q->lock);
	if (!q->started)
		q->started = cw_thread_start(waiter, q) == 0;
	if (q->count == q->cap) {
		uint32_t cap = q->cap ? 2 * q->cap : 16;
		struct waiting *all = realloc(q->all, cap * sizeof *all);
		ok = all != NULL;
		if (ok) {
			q->all = all;
			q->cap = cap;
		}
	}
	ok &= q->started;
	if (ok)
		q->all[q->count++] = (struct waiting){*f, cw_now_ms() + patience(), cw_now_ms() + SUSPENDED * patience()};
	cw_lock_release(&q->lock);
	if (!ok) {
		give_up(f, "there is no thread to wait");
		return;
	}
	atomic_fetch_add(&q->gen, 1);
	cw_futex_wake(&q->gen, 1, CW_FUTEX_PRIVATE);
}

/* How many wait, and of them, added to *starved, for long. */
static uint32_t expire(struct queue *q, uint32_t *starved)
{
	uint32_t count;
	int64_t longest = patience();
	struct waiting *w = look(q, &count);
	/* Over frames the head comes late; sessions there are not suspended. */
	int taken = cw_s.carrier->publish ||
		    __atomic_load_n(&cw_g.ctl->head, __ATOMIC_ACQUIRE) == __atomic_load_n(&cw_g.ctl->tail, __ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < count; i++) {
		*starved += w[i].until - longest + LONG_MS < cw_now_ms();
		if ((taken ? w[i].until : w[i].last) < cw_now_ms()) {
			remove_fault(q, &w[i].f);
			give_up(&w[i].f,
				"the GPU did not become idle. Where CONCURRENT_MANAGED_ACCESS is 0 the CPU may not use managed memory "
				"while kernels run, and a kernel cannot wait for it; CAUSEWAY_MANAGED=link keeps it where both may");
		}
	}
	free(w);
	return count;
}

static void *server(void *arg)
{
	enum { AT_ONCE = 16 };
	struct cw_fault f[AT_ONCE];
	(void)arg;
	prctl(PR_SET_NAME, "causeway-pages");
	/* Faults often follow each other, and a wake-up takes as long as the rest of one. */
	int64_t look = cw_copypool_size() > 1 ? LOOK_US : 0;
	int more = 0;
	for (uint32_t waiting = 0;;) {
		int n = cw_uffd_read(f, AT_ONCE, more ? 0 : waiting ? LOOK_MS : -1, more ? 0 : look);
		if (n < 0) {
			cw_log(CW_LOG_ERROR, "managed memory: faults cannot be read: %s", strerror(-n));
			cw_touch_lost();
			return NULL;
		}
		for (int i = 0; i < n; i++)
			if (!serve(&f[i], 0))
				wait_for(stream_of(&f[i]) ? &for_stream : &for_gpu, &f[i]);
		more = ahead();
		uint32_t starved = 0;
		waiting = expire(&for_gpu, &starved) + expire(&for_stream, &starved);
		atomic_store(&cw_starved, starved);
	}
}

int cw_apart(const void **p, size_t n, void **own)
{
	cw_lock_acquire(&cw_resident_lock);
	int managed = n > 0 && cw_area_at((uintptr_t)*p) != NULL;
	cw_lock_release(&cw_resident_lock);
	if (!managed)
		return 1;
	*own = malloc(n);
	if (*own)
		*p = memcpy(*own, *p, n);
	return *own != NULL;
}

CUresult cw_touch_start(void)
{
	static struct cw_lock lock;
	static int started;
	cw_lock_acquire(&lock);
	CUresult res = started ? CUDA_SUCCESS : cw_thread_start(server, NULL);
	if (res == 0 && !started)
		cw_touch_keep();
	started = res == 0;
	cw_lock_release(&lock);
	return res;
}

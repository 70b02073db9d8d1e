/*
 * The range map: a sorted array of non-overlapping ranges under a readers-writer spin lock. Lookups
 * are a binary search and a copy of one entry; changes shift the array, which is cheap at the
 * thousands of ranges that programs have.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "session/lock.h"

enum { WRITER = 1 << 30 };

static struct {
	_Atomic uint32_t lock; /* readers, or WRITER */
	struct cw_range *all;
	uint32_t count, cap;
	uint64_t next_id;
} map;

static void spin(int *spins)
{
	if (++*spins % 64 == 0)
		sched_yield();
	else
		cw_pause();
}

static void read_lock(void)
{
	for (int spins = 0;; spin(&spins)) {
		if (!(atomic_fetch_add_explicit(&map.lock, 1, memory_order_acquire) & WRITER))
			return;
		atomic_fetch_sub_explicit(&map.lock, 1, memory_order_relaxed);
		while (atomic_load_explicit(&map.lock, memory_order_relaxed) & WRITER)
			spin(&spins);
	}
}

static void read_unlock(void) { atomic_fetch_sub_explicit(&map.lock, 1, memory_order_release); }

static void write_lock(void)
{
	for (int spins = 0;; spin(&spins)) {
		uint32_t none = 0;
		if (atomic_compare_exchange_weak_explicit(&map.lock, &none, WRITER, memory_order_acquire, memory_order_relaxed))
			return;
	}
}

/* Readers that came and backed off leave the count as it was. */
static void write_unlock(void) { atomic_fetch_sub_explicit(&map.lock, WRITER, memory_order_release); }

/* Index of the first range that ends after addr. */
static uint32_t lower(uint64_t addr)
{
	uint32_t lo = 0, hi = map.count;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		if (map.all[mid].base + map.all[mid].size <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static void remove_at(uint32_t i)
{
	memmove(&map.all[i], &map.all[i + 1], (map.count - i - 1) * sizeof map.all[0]);
	map.count--;
}

/* Array with room for one more; allocated outside the lock by the caller's retry. */
static int grow(void)
{
	read_lock();
	uint32_t cap = map.cap, need = map.count + 1;
	read_unlock();
	if (need <= cap)
		return 0;
	uint32_t bigger = cap ? cap * 2 : 64;
	struct cw_range *all = malloc(bigger * sizeof *all), *old = NULL;
	if (!all)
		return -ENOMEM;
	write_lock();
	if (map.cap < bigger) {
		if (map.count)
			memcpy(all, map.all, map.count * sizeof *all);
		old = map.all;
		map.all = all;
		map.cap = bigger;
		all = NULL;
	}
	write_unlock();
	free(old);
	free(all);
	return 0;
}

int cw_range_add(struct cw_range *r)
{
	if (r->size == 0 || r->base + r->size < r->base)
		return -EINVAL;
	for (;;) {
		int err = grow();
		if (err != 0)
			return err;
		write_lock();
		uint32_t i = lower(r->base);
		while (i < map.count && map.all[i].base < r->base + r->size && map.all[i].kind == CW_RANGE_FOREIGN)
			remove_at(i);
		if (i < map.count && map.all[i].base < r->base + r->size) {
			write_unlock();
			return -EEXIST;
		}
		if (map.count < map.cap)
			break;
		write_unlock(); /* another thread took the room */
	}
	uint32_t i = lower(r->base);
	memmove(&map.all[i + 1], &map.all[i], (map.count - i) * sizeof map.all[0]);
	r->id = ++map.next_id;
	map.all[i] = *r;
	map.count++;
	write_unlock();
	return 0;
}

/* Under the lock. */
static int find(uint64_t addr, struct cw_range *out)
{
	uint32_t i = lower(addr);
	int found = i < map.count && map.all[i].base <= addr;
	if (found)
		*out = map.all[i];
	return found;
}

int cw_range_find(uint64_t addr, struct cw_range *out)
{
	read_lock();
	int found = find(addr, out);
	read_unlock();
	return found;
}

void cw_range_find_two(const uint64_t addr[2], struct cw_range out[2], int found[2])
{
	read_lock();
	found[0] = find(addr[0], &out[0]);
	found[1] = find(addr[1], &out[1]);
	read_unlock();
}

int cw_range_next(uint64_t addr, uint64_t end, struct cw_range *out)
{
	read_lock();
	uint32_t i = lower(addr);
	int found = i < map.count && map.all[i].base < end;
	if (found)
		*out = map.all[i];
	read_unlock();
	return found;
}

uint64_t cw_range_reach(uint64_t addr)
{
	uint64_t end = addr;
	read_lock();
	uint32_t i = lower(addr);
	if (i < map.count && map.all[i].base <= addr) {
		end = map.all[i].base + map.all[i].size;
		if (map.all[i].kind == CW_RANGE_MAPPED && map.all[i].access == 0)
			end = addr;
		while (end > addr && map.all[i].kind == CW_RANGE_MAPPED && i + 1 < map.count && map.all[i + 1].base == end &&
		       map.all[i + 1].kind == CW_RANGE_MAPPED && map.all[i + 1].access != 0)
			end += map.all[++i].size;
	}
	read_unlock();
	return end - addr;
}

int cw_range_overlaps(uint64_t addr, uint64_t size)
{
	read_lock();
	uint32_t i = lower(addr);
	int found = i < map.count && map.all[i].base < addr + size;
	read_unlock();
	return found;
}

int cw_range_take(uint64_t base, unsigned kinds, struct cw_range *out)
{
	write_lock();
	uint32_t i = lower(base);
	int found = i < map.count && map.all[i].base == base && (kinds >> map.all[i].kind & 1);
	if (found) {
		*out = map.all[i];
		remove_at(i);
	}
	write_unlock();
	return found;
}

void cw_range_set_sync(uint64_t addr, int on)
{
	write_lock();
	uint32_t i = lower(addr);
	if (i < map.count && map.all[i].base <= addr)
		map.all[i].sync_memops = (uint8_t)(on != 0);
	write_unlock();
}

void cw_range_set_access(uint64_t base, int flags)
{
	write_lock();
	uint32_t i = lower(base);
	if (i < map.count && map.all[i].base == base)
		map.all[i].access = (uint8_t)flags;
	write_unlock();
}

void cw_range_sweep(int (*drop)(const struct cw_range *r, void *arg), void *arg)
{
	write_lock();
	uint32_t kept = 0;
	for (uint32_t i = 0; i < map.count; i++)
		if (!drop(&map.all[i], arg))
			map.all[kept++] = map.all[i];
	map.count = kept;
	write_unlock();
}

uint32_t cw_range_count(void)
{
	read_lock();
	uint32_t n = map.count;
	read_unlock();
	return n;
}

void cw_memory_note_global(uint64_t ptr, uint64_t size)
{
	struct cw_range r = {.base = ptr, .size = size, .kind = CW_RANGE_FOREIGN, .ctx = cw_current_ctx_id(), .dev = ptr};
	struct cw_ctx *c;
	if (cw_ctx_current(&c) == 0)
		r.device = c->device->ordinal;
	cw_range_add(&r); /* known already, or no memory: the worker will be asked */
}

static int of_context(const struct cw_range *r, void *arg)
{
	return (r->kind == CW_RANGE_DEVICE || r->kind == CW_RANGE_FOREIGN || r->kind == CW_RANGE_IPC) && r->ctx == *(uint32_t *)arg;
}

void cw_memory_context_gone(uint32_t ctx)
{
	struct cw_range r;
	cw_range_sweep(of_context, &ctx);
	for (uint64_t at = 0; cw_range_next(at, UINT64_MAX, &r); at = r.base + r.size)
		if (!r.variable && !r.slice && r.ctx == ctx && cw_range_take(r.base, 1u << CW_RANGE_MANAGED, &r))
			cw_managed_release(&r);
}

/*
 * Pinned memory. With a carrier that can map, an allocation is a region that the worker maps at the same address: one pointer
 * is valid here and in kernels. Without, it is ordinary memory whose copies are staged, and it has no device pointer (801):
 * better than one that is wrong.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "api/capture.h"
#include "memory/parts.h"


enum { ALLOC_FLAGS = 7 /* PORTABLE, DEVICEMAP, WRITECOMBINED */, REGISTER_FLAGS = 15, PORTABLE = 1, IOMEMORY = 4, DEVICEMAP = 2, READ_ONLY = 8 };

#define HOST_KINDS (1u << CW_RANGE_PINNED | 1u << CW_RANGE_HOST)

static CUresult plain(struct cw_range *r)
{
	void *p = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r->base = (uintptr_t)p;
	r->kind = CW_RANGE_HOST;
	return CUDA_SUCCESS;
}

static CUresult pinned(struct cw_range *r)
{
	r->kind = CW_RANGE_PINNED;
	if (r->size <= CW_SLAB_LARGEST)
		return cw_slab_alloc(r);
	CUresult res = cw_region_add(CW_REGION_PINNED, r->size, r->flags, &r->region);
	if (res != 0)
		return res;
	r->base = (uintptr_t)r->region->va;
	r->dev = r->region->dev;
	return CUDA_SUCCESS;
}

static void release(const struct cw_range *r)
{
	if (r->slab) {
		/* As the real call, this waits for the device, which may be using the memory. */
		cwop_CtxSynchronize();
		cw_slab_free(r);
	} else if (r->region)
		cw_region_drop(r->region);
	else
		munmap((void *)(uintptr_t)r->base, r->size);
}

CUresult cwi_cuMemHostAlloc(void **out, size_t size, unsigned int flags)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!out || size == 0 || (flags & ~(unsigned)ALLOC_FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	if (cw_unlikely(cw_capture_any()) && (res = cw_capture_unsafe()) != 0)
		return res;
	if (size > SIZE_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct cw_range r = {.size = size, .ctx = c->o.id, .device = c->device->ordinal, .flags = flags};
	res = cw_can_map() ? pinned(&r) : CUDA_ERROR_NOT_SUPPORTED;
	/* The host lends or maps no more: memory that can be copied is better than none. Its device pointer is refused. */
	if (res != 0 && cw_check_alive() == 0)
		res = plain(&r);
	if (res != 0)
		return res;
	if (cw_range_add(&r) != 0) {
		release(&r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = (void *)(uintptr_t)r.base;
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemAllocHost_v2(void **out, size_t size) { return cwi_cuMemHostAlloc(out, size, 0); }

CUresult cwi_cuMemFreeHost(void *p)
{
	struct cw_range r;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!p || !cw_range_take((uintptr_t)p, HOST_KINDS, &r))
		return CUDA_ERROR_INVALID_VALUE;
	release(&r);
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned int flags)
{
	struct cw_range r;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!out || flags != 0 || !cw_range_find((uintptr_t)p, &r) || r.kind == CW_RANGE_DEVICE || r.kind == CW_RANGE_FOREIGN ||
	    r.kind == CW_RANGE_MANAGED)
		return CUDA_ERROR_INVALID_VALUE;
	if (r.dev == 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	*out = r.dev + ((uintptr_t)p - r.base);
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemHostGetFlags(unsigned int *out, void *p)
{
	struct cw_range r;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!out || !cw_range_find((uintptr_t)p, &r) ||
	    (r.kind != CW_RANGE_PINNED && r.kind != CW_RANGE_HOST && r.kind != CW_RANGE_MANAGED && r.kind != CW_RANGE_REGISTERED))
		return CUDA_ERROR_INVALID_VALUE;
	if (r.kind == CW_RANGE_MANAGED) { /* a real driver answers for it too */
		*out = DEVICEMAP;
		return CUDA_SUCCESS;
	}
	*out = (r.kind == CW_RANGE_REGISTERED ? r.flags & PORTABLE : r.flags) | (r.dev ? DEVICEMAP : 0); /* unified addressing maps every allocation */
	return CUDA_SUCCESS;
}

/* --- registering the application's own memory ------------------------------------------------------------------------ */

static uint64_t hex(const char **p)
{
	uint64_t v = 0;
	for (;; (*p)++) {
		char c = **p;
		int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
		if (digit < 0)
			return v;
		v = v << 4 | (uint64_t)digit;
	}
}

/* PRIVATE: writable memory of this process alone, some of it of a file or a stack. UNWRITABLE: some of it cannot be written. */
enum backing { UNMAPPED, OTHER, UNWRITABLE, PRIVATE, ANONYMOUS, SHARED };

/* One line of /proc/self/maps. */
struct mapping {
	uint64_t lo, hi, at, inode; /* at: offset in the file */
	int shared, writable;
	const char *path; /* NULL: anonymous */
};

static struct mapping parse_mapping(const char *p)
{
	struct mapping m = {0};
	m.lo = hex(&p);
	m.hi = *p == '-' ? (p++, hex(&p)) : 0;
	if (*p == ' ' && strlen(p) > 6) {
		m.writable = !strncmp(p + 1, "rw", 2);
		m.shared = p[4] == 's';
		p += 6;
		m.at = hex(&p);
	}
	m.path = strpbrk(p, "/[");
	p = strchr(p, ':');
	p = p ? strchr(p, ' ') : NULL;
	m.inode = p ? strtoull(p, NULL, 10) : 0;
	return m;
}

/* The file behind a shared mapping: by its name if that still leads to it, else by the kernel's own link. */
static int open_mapped(const struct mapping *m)
{
	char name[4352], link[64];
	struct stat st;
	snprintf(name, sizeof name, "%.*s", (int)strcspn(m->path, "\n"), m->path);
	int fd = open(name, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && cw_fstat(fd, &st) == 0 && st.st_ino == m->inode && S_ISREG(st.st_mode))
		return fd;
	if (fd >= 0)
		close(fd);
	snprintf(link, sizeof link, "/proc/self/map_files/%" PRIx64 "-%" PRIx64, m->lo, m->hi);
	fd = open(link, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && (cw_fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* What a mapping is that does not stand for a whole range by itself. */
static enum backing kind_of(const struct mapping *m, int ours)
{
	if (m->shared && !ours)
		return OTHER;
	if (!m->writable)
		return UNWRITABLE;
	return !m->path || ours || !strncmp(m->path, "[heap]", 6) ? ANONYMOUS : PRIVATE;
}

/* What [at, end) is made of, by /proc/self/maps: writable anonymous memory (or what became of it at an earlier registration), one
 * shared mapping of a file (*file, if it can be opened, and where at lies in it), other memory, or nothing in places. */
static enum backing backing_of(uint64_t at, uint64_t end, int *file, uint64_t *file_at)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[4352];
	enum backing b = ANONYMOUS;
	uint64_t from = at;
	if (!f)
		return OTHER;
	while (at < end && fgets(line, sizeof line, f)) {
		struct mapping m = parse_mapping(line);
		if (m.hi <= at)
			continue;
		if (m.lo > at)
			break;
		int ours = m.path && !strncmp(m.path, "/memfd:causeway", 15);
		if (at == from && m.hi >= end && m.writable && m.shared && m.path && *m.path == '/' && !ours) {
			b = SHARED;
			*file = open_mapped(&m);
			*file_at = m.at + (from - m.lo);
		} else {
			enum backing kind = kind_of(&m, ours);
			b = kind < b ? kind : b;
		}
		at = m.hi;
	}
	fclose(f);
	return at < end ? UNMAPPED : b;
}

CUresult cwi_cuMemHostRegister_v2(void *p, size_t size, unsigned int flags)
{
	uint64_t at = (uintptr_t)p, page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (at == 0 || size == 0 || at + size < at || (flags & ~(unsigned)REGISTER_FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	if (cw_unlikely(cw_capture_any()) && (res = cw_capture_unsafe()) != 0)
		return res;
	if (cw_range_overlaps(at, size))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	int file = -1;
	uint64_t file_at = 0;
	enum backing b = backing_of(at, at + size, &file, &file_at);
	if (b != SHARED && file >= 0) { /* others go on behind it */
		close(file);
		file = -1;
	}
	if (b == UNMAPPED || (b == UNWRITABLE && !(flags & READ_ONLY)))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags & IOMEMORY) { /* memory of a device of the guest's is not reached from here, and this is none */
		if (file >= 0)
			close(file);
		return b == OTHER ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
	}
	struct cw_range r = {.base = at, .size = size, .kind = CW_RANGE_REGISTERED, .ctx = c->o.id, .device = c->device->ordinal,
			     .flags = flags};
	/* Only whole pages can become shared memory: the neighbours of a part of a page belong to someone else (parts.h). */
	if (cw_can_map() && b == SHARED && file >= 0) { /* which is shared anyhow: the rest of its pages too */
		uint64_t before = at % page, end = (at + size + page - 1) & ~(page - 1);
		res = cw_region_adopt_file((void *)(uintptr_t)(at - before), end - (at - before), file, file_at - before, flags, &r.region);
		if (res == 0)
			r.dev = r.region->dev + before;
	} else if (cw_can_map() && (b == ANONYMOUS || b == PRIVATE) && at % page == 0 && size % page == 0) {
		res = cw_region_adopt(p, size, flags, &r.region);
		if (res == 0)
			r.dev = r.region->dev;
	} else if (cw_can_map() && (b == ANONYMOUS || b == PRIVATE)) {
		res = cw_parts_register(&r);
	}
	if (file >= 0)
		close(file);
	if (res != 0 && cw_check_alive() != 0)
		return res;
	if (cw_range_add(&r) != 0) {
		if (r.parts)
			cw_parts_end(&r);
		if (r.region)
			cw_region_drop(r.region);
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	}
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemHostUnregister(void *p)
{
	struct cw_range r;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cw_range_take((uintptr_t)p, 1u << CW_RANGE_REGISTERED, &r)) {
		int inside = cw_range_find((uintptr_t)p, &r) && r.kind == CW_RANGE_REGISTERED && r.base != (uintptr_t)p;
		return inside ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	}
	if (r.parts)
		cw_parts_end(&r);
	if (r.region)
		cw_region_drop(r.region);
	return CUDA_SUCCESS;
}

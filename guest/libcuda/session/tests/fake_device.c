/* Device memory of the fake worker: one arena at a fixed address, a first-fit allocator that never
 * reuses, every copy at once. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gen/ops.h"
#include "session/tests/fake_worker.h"

static const uint64_t arena = 0x7e0000000000ull, arena_size = 1ull << 30;

static struct {
	int mapped;
	uint64_t next, live[4096];
	int count;
} d;

static void *mem(uint64_t addr, uint64_t size)
{
	if (addr >= arena && size <= arena_size && addr - arena <= arena_size - size)
		return (void *)(uintptr_t)addr;
	return NULL;
}

/* Device memory, or a pinned region: those are mapped at the guest's address. */
static void *reach(struct fake_worker *w, uint64_t addr, uint64_t size)
{
	void *p = mem(addr, size);
	for (uint32_t id = 1; !p && id < 256; id++) {
		uint8_t *base = fake_region(w, id, 0, 0);
		uint64_t off = addr - (uintptr_t)base;
		if (base && addr >= (uintptr_t)base)
			p = fake_region(w, id, off, size);
	}
	return p;
}

static void fill(uint8_t *p, uint64_t n, uint32_t value, uint32_t element)
{
	for (uint64_t i = 0; i < n; i++)
		memcpy(p + i * element, &value, element);
}

static uint8_t *plane(struct fake_call *c, uint32_t kind, uint32_t region, uint64_t at, uint64_t pitch, uint64_t rows,
		      const struct cw_in_Memcpy3D *a)
{
	uint64_t span = ((a->depth - 1) * rows + a->height - 1) * pitch + a->width;
	return kind == 1 ? fake_region(c->w, region, at, span) : reach(c->w, at, span);
}

static void copy3d(struct fake_call *c)
{
	struct cw_in_Memcpy3D a;
	memcpy(&a, c->fixed, sizeof a);
	uint8_t *s = plane(c, a.src_kind, a.src_region, a.src, a.src_pitch, a.src_height, &a);
	uint8_t *t = plane(c, a.dst_kind, a.dst_region, a.dst, a.dst_pitch, a.dst_height, &a);
	CHECK(s && t && !a.src_x && !a.src_y && !a.src_z && !a.dst_x && !a.dst_y && !a.dst_z);
	for (uint64_t z = 0; z < a.depth; z++)
		for (uint64_t y = 0; y < a.height; y++)
			memcpy(t + (z * a.dst_height + y) * a.dst_pitch, s + (z * a.src_height + y) * a.src_pitch, a.width);
	if (a.word)
		fake_complete_word(c->w, a.word, a.value);
}

static void staged(struct fake_call *c)
{
	struct cw_in_MemcpyStaged a;
	memcpy(&a, c->fixed, sizeof a);
	uint8_t *p = fake_region(c->w, a.region, a.offset, a.size), *q = mem(a.device, a.size);
	if (!p || !q)
		fprintf(stderr, "MemcpyStaged: %#llx bytes at %#llx, region %u offset %#llx\n", (unsigned long long)a.size,
			(unsigned long long)a.device, a.region, (unsigned long long)a.offset);
	CHECK(p && q);
	if (a.direction == 0) {
		fake_region_fetch(c->w, a.region, a.offset, a.size);
		memcpy(q, p, a.size);
	} else {
		memcpy(p, q, a.size);
		fake_region_store(c->w, a.region, a.offset, a.size);
	}
	fake_complete_word(c->w, a.word, a.value);
}

static void alloc(struct fake_call *c, uint64_t size)
{
	static uint64_t out[2];
	if (!d.mapped) {
		CHECK(mmap((void *)(uintptr_t)arena, arena_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			   0) == (void *)(uintptr_t)arena);
		d.mapped = 1;
		d.next = arena + 4096; /* "module globals" lie in the first page */
	}
	c->reply = out;
	c->reply_len = sizeof out;
	if (size > arena + arena_size - d.next || d.count == 4096) {
		c->result = 2;
		return;
	}
	out[0] = d.next;
	d.live[d.count++] = d.next;
	d.next += (size + 255) & ~255ull;
}

static void free_(struct fake_call *c)
{
	uint64_t ptr;
	memcpy(&ptr, c->fixed, 8);
	for (int i = 0; i < d.count; i++)
		if (d.live[i] == ptr) {
			d.live[i] = d.live[--d.count];
			return;
		}
	CHECK(!"freed what is not allocated");
}

static void pointer_attribute(struct fake_call *c)
{
	static uint64_t value;
	struct cw_in_PointerGetAttribute a;
	memcpy(&a, c->fixed, sizeof a);
	c->reply = &value;
	c->reply_len = 8;
	if (!d.mapped || a.ptr < arena || a.ptr >= arena + 4096) {
		c->result = 1;
		return;
	}
	value = a.attr == 2 ? 2 : a.attr == 11 ? arena : 4096;
}

/* Of a blocking stream: it happens when somebody waits, who waits for all. */
static struct cw_in_Memset slow;

static void set(struct fake_call *c, const struct cw_in_Memset *m)
{
	for (uint64_t y = 0; y < m->height; y++) {
		void *p = reach(c->w, m->dst + y * m->pitch, m->width * m->element);
		CHECK(p);
		fill(p, m->width, m->value, m->element);
	}
}

int fake_device(struct fake_call *c)
{
	static uint8_t reply[CW_SLOT_PAYLOAD];
	uint64_t a[8];
	memcpy(a, c->fixed, sizeof a);
	switch (c->rec->op) {
	case CW_OP_MEM_ALLOC:
	case CW_OP_MEM_ALLOC_ASYNC: alloc(c, a[0]); return 0;
	case CW_OP_MEM_ALLOC_PITCH:
		alloc(c, ((a[0] + 511) & ~511ull) * a[1]);
		((uint64_t *)(uintptr_t)c->reply)[1] = (a[0] + 511) & ~511ull;
		return 0;
	case CW_OP_MEM_FREE:
	case CW_OP_MEM_FREE_ASYNC: free_(c); return 0;
	case CW_OP_MEM_GET_INFO: /* total: how many allocations live */
		a[1] = (uint64_t)d.count;
		memcpy(reply, a, 16);
		c->reply = reply;
		c->reply_len = 16;
		return 0;
	case CW_OP_MEMCPY_WAIT:
	case CW_OP_MEMCPY: {
		void *p = reach(c->w, a[0], a[2]), *q = reach(c->w, a[1], a[2]);
		CHECK(p && q);
		memmove(p, q, a[2]);
		return 0;
	}
	case CW_OP_MEMCPY_HTO_D: {
		struct cw_in_MemcpyHtoD h;
		memcpy(&h, c->fixed, sizeof h);
		CHECK(mem(h.dst, h.src.len));
		memcpy(mem(h.dst, h.src.len), fake_span(c, h.src), h.src.len);
		return 0;
	}
	case CW_OP_MEMCPY_DTO_H: {
		struct cw_in_MemcpyDtoH h;
		memcpy(&h, c->fixed, sizeof h);
		struct cw_span s = {h.size, 8};
		CHECK(mem(h.src, h.size) && h.size <= sizeof reply - 8);
		memcpy(reply, &s, 8);
		memcpy(reply + 8, mem(h.src, h.size), h.size);
		c->reply = reply;
		c->reply_len = h.size + 8;
		return 0;
	}
	case CW_OP_MEMCPY_STAGED: staged(c); return 0;
	case CW_OP_MEMCPY3D: copy3d(c); return 0;
	case CW_OP_MEMSET: {
		struct cw_in_Memset m;
		memcpy(&m, c->fixed, sizeof m);
		if (m.stream == FAKE_SLOW_STREAM)
			slow = m;
		else
			set(c, &m);
		return 0;
	}
	case CW_OP_STREAM_SYNCHRONIZE:
	case CW_OP_CTX_SYNCHRONIZE:
		set(c, &slow);
		slow.height = 0;
		return 0;
	case CW_OP_POINTER_GET_ATTRIBUTE: pointer_attribute(c); return 0;
	case CW_OP_POOL_GET_DEFAULT: return 0;
	}
	c->result = 801;
	return 0;
}

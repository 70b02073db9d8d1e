package cudatest

/*
#cgo LDFLAGS: -Wl,--wrap=malloc -Wl,--wrap=calloc -Wl,--wrap=free
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A driver that knows what it may touch: device memory that it allocated, memory of this process that the guest lent it or that it made
// itself, and blocks of C memory that this process allocated for calls. A range that lies in none of them would be memory of the worker's
// that is none of the guest's: a finding. Device addresses lie where nothing is mapped; what is wrong about those a driver refuses itself.
enum { MOST = 1 << 14, INVALID = 1, NO_MEMORY = 2, LENT = 0, DEVICE = 1, HOST = 2, OWN = 3 };
#define SPACE 0x7e0000000000ull
#define SPACE_END 0x7e8000000000ull

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void __real_free(void *p);

struct range { uint64_t at, size; int kind; };
static pthread_mutex_t owned_lock = PTHREAD_MUTEX_INITIALIZER;
static struct range owned[MOST];
static int owned_count;
static uint64_t next_device = SPACE;
static char finding[256];
static int reached[4]; // ranges that were right, by kind
static uint64_t made;

static void own_locked(uint64_t at, uint64_t size, int kind) {
	if (owned_count == MOST) abort(); // a range that is not known would be a finding
	owned[owned_count++] = (struct range){at, size, kind};
}

static int disown_locked(uint64_t at, int kind) {
	for (int i = owned_count - 1; i >= 0; i--) {
		if (owned[i].at != at || owned[i].kind != kind) continue;
		owned[i] = owned[--owned_count];
		return 1;
	}
	return 0;
}

static struct range *at_locked(uint64_t at) {
	for (int i = owned_count - 1; i >= 0; i--)
		if (at >= owned[i].at && at - owned[i].at < owned[i].size) return &owned[i];
	return 0;
}

static void own(uint64_t at, uint64_t size, int kind) {
	pthread_mutex_lock(&owned_lock);
	own_locked(at, size, kind);
	pthread_mutex_unlock(&owned_lock);
}

static int disown(uint64_t at, int kind) {
	pthread_mutex_lock(&owned_lock);
	int r = disown_locked(at, kind);
	pthread_mutex_unlock(&owned_lock);
	return r;
}

void *__wrap_calloc(size_t n, size_t size) {
	void *p = __real_calloc(n, size);
	if (p) own((uint64_t)(uintptr_t)p, n * size, OWN);
	return p;
}

void *__wrap_malloc(size_t n) {
	void *p = __real_malloc(n);
	if (p) own((uint64_t)(uintptr_t)p, n, OWN);
	return p;
}

void __wrap_free(void *p) {
	if (p) disown((uint64_t)(uintptr_t)p, OWN);
	__real_free(p);
}

// judge says what a driver would to a range, and notes a finding if it is memory of this process that nobody gave to the call.
static int judge(const char *what, uint64_t at, uint64_t size, int kinds) {
	int r = INVALID;
	if (size == 0) return 0;
	pthread_mutex_lock(&owned_lock);
	struct range *o = at_locked(at);
	if (o && size <= o->size - (at - o->at) && (kinds >> o->kind & 1)) {
		reached[o->kind]++;
		r = 0;
	} else if (!(at >= SPACE && at < SPACE_END && at + size > at && at + size <= SPACE_END) && !finding[0]) {
		// An address in the device's space that is not allocated is for the driver to refuse. So is 0.
		if (at != 0 || size > 4096)
			snprintf(finding, sizeof finding, "%s of %#llx+%#llx, which is %s", what, (unsigned long long)at, (unsigned long long)size,
			         !o ? "nobody's" : size > o->size - (at - o->at) ? "beyond its end" : "not of that kind");
	}
	pthread_mutex_unlock(&owned_lock);
	return r;
}

enum { REACH = 1 << LENT | 1 << DEVICE | 1 << HOST, ANY = REACH | 1 << OWN };

static int alloc_device(uint64_t *at, uint64_t size) {
	if (size == 0 || size > 1ull << 34) return size ? NO_MEMORY : INVALID;
	pthread_mutex_lock(&owned_lock);
	int r = NO_MEMORY;
	uint64_t room = (size + 0x1fffff) & ~0x1fffffull;
	if (next_device + room < SPACE_END) {
		*at = next_device;
		own_locked(next_device, size, DEVICE);
		next_device += room + 0x200000;
		r = 0;
	}
	pthread_mutex_unlock(&owned_lock);
	return r;
}
static int alloc_pitch(uint64_t *at, uint64_t *pitch, uint64_t width, uint64_t height) {
	if (width == 0 || width > 1ull << 32 || height == 0 || height > 1ull << 32) return INVALID;
	uint64_t p = (width + 511) & ~511ull;
	if (p > (1ull << 34) / height) return NO_MEMORY;
	*pitch = p;
	return alloc_device(at, p * height);
}
static int free_device(uint64_t at) { return disown(at, DEVICE) ? 0 : INVALID; }

static int alloc_host(uint64_t *at, uint64_t size) {
	void *p = size && size <= 1 << 28 ? __real_calloc(1, size) : 0;
	if (!p) return NO_MEMORY;
	*at = (uint64_t)(uintptr_t)p;
	own(*at, size, HOST);
	return 0;
}
static int free_host(uint64_t at) {
	if (!disown(at, HOST)) return INVALID;
	__real_free((void *)(uintptr_t)at);
	return 0;
}
static int register_host(uint64_t at, uint64_t size) { return judge("registration", at, size, ANY); }
static int device_pointer(uint64_t *at, uint64_t host) {
	*at = host;
	return 0;
}

static int copy(uint64_t dst, uint64_t src, uint64_t size) {
	int r = judge("copy to memory", dst, size, REACH), q = judge("copy from memory", src, size, REACH);
	return r ? r : q;
}
static int copy_in(uint64_t dst, uint64_t src, uint64_t size) {
	int r = judge("copy to the device", dst, size, REACH), q = judge("copy from the host", src, size, ANY);
	return r ? r : q;
}
static int copy_out(uint64_t dst, uint64_t src, uint64_t size) {
	int r = judge("copy to the host", dst, size, ANY), q = judge("copy from the device", src, size, REACH);
	return r ? r : q;
}
static int copy_batch(uint64_t *dst, uint64_t *src, uint64_t *size, uint64_t n) {
	if (n > 1 << 20) return INVALID;
	int r = 0;
	for (uint64_t i = 0; i < n && !r; i++) r = copy(dst[i], src[i], size[i]);
	return r;
}

// CUDA_MEMCPY3D. The GPU reads and writes rows: from the first byte of the first to the last of the last, whatever the pitch.
struct operand { uint64_t x, y, z, lod; uint32_t type, pad; uint64_t host, device, array, rsvd, pitch, height; };
struct copy3d { struct operand src, dst; uint64_t width, height, depth; };
static int box(const char *what, struct operand *s, struct copy3d *c) {
	enum { TYPE_HOST = 1, TYPE_DEVICE = 2, TYPE_ARRAY = 3, TYPE_UVA = 4 };
	if (s->type == TYPE_ARRAY) return 0;
	unsigned __int128 rows = s->height ? s->height : c->height, pitch = s->pitch ? s->pitch : c->width + s->x;
	unsigned __int128 first = (s->z * rows + s->y) * pitch + s->x;
	unsigned __int128 last = ((s->z + (unsigned __int128)c->depth - 1) * rows + s->y + c->height - 1) * pitch + s->x + c->width;
	uint64_t at = s->type == TYPE_HOST ? s->host : s->device;
	if (!c->width || !c->height || !c->depth) return 0;
	// What the arithmetic of 64 bits would make of it is no excuse: the driver refuses what does not fit.
	if (last >> 63 || at + (uint64_t)last < at) {
		if (s->type == TYPE_HOST) judge(what, at, UINT64_MAX / 2, ANY);
		return INVALID;
	}
	return judge(what, at + (uint64_t)first, (uint64_t)(last - first), s->type == TYPE_HOST ? ANY : REACH);
}
static int copy_3d(struct copy3d *c) {
	int r = box("3D copy from", &c->src, c), q = box("3D copy to", &c->dst, c);
	return r ? r : q;
}

static int fill(uint64_t at, uint64_t value, uint64_t n, int bytes) {
	(void)value;
	if (n > UINT64_MAX / 4) { judge("fill", at, UINT64_MAX / 2, REACH); return INVALID; }
	return judge("fill", at, n * bytes, REACH);
}
static int fill8(uint64_t at, uint64_t v, uint64_t n) { return fill(at, v, n, 1); }
static int fill16(uint64_t at, uint64_t v, uint64_t n) { return fill(at, v, n, 2); }
static int fill32(uint64_t at, uint64_t v, uint64_t n) { return fill(at, v, n, 4); }
static int fill2d(uint64_t at, uint64_t pitch, uint64_t w, uint64_t h, int bytes) {
	unsigned __int128 n = h ? (unsigned __int128)pitch * (h - 1) + (unsigned __int128)w * bytes : 0;
	if (w == 0 || h == 0) return 0;
	if (n >> 63) { judge("fill of rows", at, UINT64_MAX / 2, REACH); return INVALID; }
	return judge("fill of rows", at, (uint64_t)n, REACH);
}
static int fill2d8(uint64_t at, uint64_t p, uint64_t v, uint64_t w, uint64_t h) { (void)v; return fill2d(at, p, w, h, 1); }
static int fill2d16(uint64_t at, uint64_t p, uint64_t v, uint64_t w, uint64_t h) { (void)v; return fill2d(at, p, w, h, 2); }
static int fill2d32(uint64_t at, uint64_t p, uint64_t v, uint64_t w, uint64_t h) { (void)v; return fill2d(at, p, w, h, 4); }

static int write32(uint64_t stream, uint64_t at, uint32_t value) {
	(void)stream;
	int r = judge("word written", at, 4, REACH);
	if (!r && !(at >= SPACE && at < SPACE_END)) __atomic_store_n((uint32_t *)(uintptr_t)at, value, __ATOMIC_RELEASE);
	return r;
}
static int word64(uint64_t stream, uint64_t at) { (void)stream; return judge("word of 64 bits", at, 8, REACH); }
static int word32(uint64_t stream, uint64_t at) { (void)stream; return judge("word waited for", at, 4, REACH); }

static int pointer_attribute(void *value, int which, uint64_t at) {
	enum { CONTEXT = 1, TYPE = 2, DEVICE_POINTER = 3, HOST_POINTER = 4, START = 11, SIZE = 12 };
	int wide = which == CONTEXT || which == DEVICE_POINTER || which == HOST_POINTER || which == START || which == SIZE || which == 7;
	pthread_mutex_lock(&owned_lock);
	struct range *o = at_locked(at), found = {0, 0, 0};
	if (o && o->kind != OWN) found = *o;
	pthread_mutex_unlock(&owned_lock);
	if (!found.size) return INVALID;
	uint64_t v = which == TYPE ? (found.kind == DEVICE ? 2 : 1) : which == START ? found.at : which == SIZE ? found.size : which == DEVICE_POINTER ? at : 0;
	memcpy(value, &v, wide ? 8 : 4);
	return 0;
}

// A name ends within the block that holds it, or soon: Go's memory holds some.
static int named(uint64_t at) {
	enum { LONGEST = 1 << 16 };
	int r = INVALID;
	pthread_mutex_lock(&owned_lock);
	struct range *o = at_locked(at);
	if (memchr((void *)(uintptr_t)at, 0, o ? o->size - (at - o->at) : LONGEST)) r = 0;
	else if (!finding[0]) snprintf(finding, sizeof finding, "a name at %#llx that does not end", (unsigned long long)at);
	pthread_mutex_unlock(&owned_lock);
	return r;
}
static int new_handle(uint64_t *handle) {
	*handle = __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED) << 12;
	return 0;
}
static int get_function(uint64_t *f, uint64_t module, uint64_t name) { (void)module; int r = named(name); return r ? r : new_handle(f); }

// Every kernel has two parameters, of 8 bytes and of 4000.
enum { PARAMETERS = 4008 };
static int parameter(uint64_t f, uint64_t i, uint64_t *offset, uint64_t *size) {
	(void)f;
	if (i > 1) return INVALID;
	*offset = i ? 8 : 0, *size = i ? 4000 : 8;
	return 0;
}

// CUgraphNodeParams, of those kinds that name memory. What a kernel reads of its parameters lies in the call's own memory.
struct node {
	int type, reserved[3];
	union {
		struct { uint64_t func; uint32_t dims[7]; uint64_t *each, *extra; } kernel;
		struct { int flags, reserved; uint64_t context; struct copy3d copy; } memcpy;
		struct { uint64_t at, pitch; uint32_t value, element; uint64_t width, height; } memset;
		struct { uint64_t context; uint32_t count; uint64_t (*ops)[6]; } batch;
		uint64_t words[29];
	};
};
_Static_assert(sizeof(struct node) == 16 + 29 * 8, "CUgraphNodeParams without its last word");

static int kernel_node(struct node *n) {
	uint64_t at = 0, size = 0;
	for (uint64_t *e = n->kernel.extra; e && e[0]; e += 2) {
		if (e[0] == 1) at = e[1];
		if (e[0] == 2) size = *(uint64_t *)(uintptr_t)e[1];
	}
	if (n->kernel.each) return judge("parameter of 8 bytes", n->kernel.each[0], 8, ANY) | judge("parameter of 4000 bytes", n->kernel.each[1], 4000, ANY);
	return judge("parameters", at, size < PARAMETERS ? PARAMETERS : size, ANY);
}
static int batch_node(struct node *n) {
	int r = judge("operations", (uint64_t)(uintptr_t)n->batch.ops, 48ull * n->batch.count, ANY);
	for (uint32_t i = 0; i < n->batch.count && !r; i++)
		r = judge("operation's word", n->batch.ops[i][1], (uint32_t)n->batch.ops[i][0] < 4 ? 4 : 8, REACH);
	return r;
}
static int judge_node(struct node *n) {
	enum { KERNEL = 0, MEMCPY = 1, MEMSET = 2, FREE = 11, BATCH = 12 };
	switch (n->type) {
	case KERNEL: return kernel_node(n);
	case MEMCPY: return copy_3d(&n->memcpy.copy);
	case MEMSET: return fill2d(n->memset.at, n->memset.pitch, n->memset.width, n->memset.height, n->memset.element);
	case FREE: return judge("end of an allocation", n->words[0], 1, 1 << DEVICE);
	case BATCH: return batch_node(n);
	}
	return 0;
}
static uint64_t agreeing_node; // cuGraphAddNode_v2 of the agreeing driver
static int add_judged(uint64_t *node, uint64_t graph, uint64_t deps, uint64_t edges, uint64_t count, struct node *n) {
	enum { ALLOC = 10, SIZE = 13, ADDRESS = 14 }; // behind a pool's properties and a list
	int r = n->type == ALLOC ? alloc_device(&n->words[ADDRESS], n->words[SIZE]) : judge_node(n);
	return r ? r : ((int (*)(uint64_t *, uint64_t, uint64_t, uint64_t, uint64_t, void *))(uintptr_t)agreeing_node)(node, graph, deps, edges, count, n);
}
static int set_judged(uint64_t node, struct node *n) { (void)node; return judge_node(n); }
static int set_exec_judged(uint64_t exec, uint64_t node, struct node *n) { (void)exec, (void)node; return judge_node(n); }

static uint64_t owning(const char *name, uint64_t add_node) {
	agreeing_node = add_node;
#define ENTRY(n, f) if (!strcmp(name, n)) return (uint64_t)(uintptr_t)(f)
	ENTRY("cuMemAlloc_v2", alloc_device);
	ENTRY("cuMemAllocAsync", alloc_device);
	ENTRY("cuMemAllocFromPoolAsync", alloc_device);
	ENTRY("cuMemAllocPitch_v2", alloc_pitch);
	ENTRY("cuMemFree_v2", free_device);
	ENTRY("cuMemFreeAsync", free_device);
	ENTRY("cuMemHostAlloc", alloc_host);
	ENTRY("cuMemFreeHost", free_host);
	ENTRY("cuMemHostRegister_v2", register_host);
	ENTRY("cuMemHostGetDevicePointer_v2", device_pointer);
	ENTRY("cuMemcpyAsync", copy);
	ENTRY("cuMemcpyHtoDAsync_v2", copy_in);
	ENTRY("cuMemcpyDtoHAsync_v2", copy_out);
	ENTRY("cuMemcpyBatchAsync", copy_batch);
	ENTRY("cuMemcpyBatchAsync_v2", copy_batch);
	ENTRY("cuMemcpy3DAsync_v2", copy_3d);
	ENTRY("cuMemsetD8Async", fill8);
	ENTRY("cuMemsetD16Async", fill16);
	ENTRY("cuMemsetD32Async", fill32);
	ENTRY("cuMemsetD2D8Async", fill2d8);
	ENTRY("cuMemsetD2D16Async", fill2d16);
	ENTRY("cuMemsetD2D32Async", fill2d32);
	ENTRY("cuStreamWriteValue32_v2", write32);
	ENTRY("cuStreamWriteValue64_v2", word64);
	ENTRY("cuStreamWaitValue64_v2", word64);
	ENTRY("cuStreamWaitValue32_v2", word32);
	ENTRY("cuPointerGetAttribute", pointer_attribute);
	ENTRY("cuModuleGetFunction", get_function);
	ENTRY("cuLibraryGetKernel", get_function);
	ENTRY("cuFuncGetParamInfo", parameter);
	ENTRY("cuGraphAddNode_v2", add_judged);
	ENTRY("cuGraphNodeSetParams", set_judged);
	ENTRY("cuGraphExecNodeSetParams", set_exec_judged);
	return 0;
}

static void lend(uint64_t at, uint64_t size) { own(at, size, LENT); }
static void take_back(uint64_t at) { disown(at, LENT); }

// What a session leaves goes with its process: here with the next one's beginning.
static void restart(void) {
	pthread_mutex_lock(&owned_lock);
	for (int i = owned_count - 1; i >= 0; i--) {
		if (owned[i].kind == LENT) continue;
		if (owned[i].kind == HOST) __real_free((void *)(uintptr_t)owned[i].at);
		owned[i] = owned[--owned_count];
	}
	next_device = SPACE;
	finding[0] = 0;
	memset(reached, 0, sizeof reached);
	pthread_mutex_unlock(&owned_lock);
}
static const char *found(void) { return finding; }
static int right(int kind) { return reached[kind]; }
*/
import "C"

import "unsafe"

// FirstAddress is what an owning driver's first allocation has; the next ones follow, each at a
// multiple of 2 MiB, with as much between them.
const FirstAddress = 0x7e0000000000

// Owning returns the address of the function that stands for the driver's of a name in a driver
// that knows what it may touch. What takes no memory is the agreeing driver's.
func Owning(name string) uint64 {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	if at := uint64(C.owning(n, C.uint64_t(Agreeing("cuGraphAddNode_v2")))); at != 0 {
		return at
	}
	return Agreeing(name)
}

// Release gives device memory back, as a driver does by itself with what a graph had.
func Release(at uint64) { C.free_device(C.uint64_t(at)) }

// Lend makes memory of this process, which Go does not move, known as the guest's, until TakeBack.
func Lend(mem []byte) { C.lend(C.uint64_t(uintptr(unsafe.Pointer(&mem[0]))), C.uint64_t(len(mem))) }

// TakeBack ends Lend.
func TakeBack(mem []byte) { C.take_back(C.uint64_t(uintptr(unsafe.Pointer(&mem[0])))) }

// Restart forgets everything but what was lent: no session runs.
func Restart() { C.restart() }

// Finding is the first range since Restart that a call was given and that was none of the guest's,
// nor the call's own; empty: none was.
func Finding() string { return C.GoString(C.found()) }

// Reached are how many ranges were right since Restart: of device memory, of memory of this process
// that the guest has or the driver made, and of the calls' own.
func Reached() (device, host, own int) {
	return int(C.right(1)), int(C.right(0)) + int(C.right(2)), int(C.right(3))
}

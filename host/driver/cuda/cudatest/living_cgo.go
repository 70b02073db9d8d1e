package cudatest

/*
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A driver whose objects end with what they are of: a context has streams, events, arrays, modules and their functions, a library its kernels
// and its modules, a graph's nodes need what they name. Its handles are numbers between BASE and END, of which each call that is given one looks up
// whether it lives: one that does not is a finding, as it is a pointer to nothing for a driver that frees what it has.
enum { ENTRIES = 512, OBJECTS = 1 << 16, LINKS = 1 << 18, DEVICES = 8, ARGS = 16, UNIT = 4096, WORDS = 29 };
#define BASE 0x5a0000000000ull
#define END (BASE + (uint64_t)OBJECTS * UNIT)

typedef int (*call)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                    uint64_t, uint64_t, uint64_t);

// What an entry does to objects: make one for its first argument, end the one that it names, or something of its own.
enum does { NOTHING, MAKE, COPY, STOP, CREATE_CTX, RETAIN, RELEASE, RESET, CURRENT_CTX, GREEN, END_GREEN, ADD_NODE, SET_NODE, UPDATE, BEGIN, BEGIN_INTO, FINISH, CAPTURES, INFO, LAUNCH, LAUNCH_EX, COPY_3D, RESOURCE, FILL };
enum { OF_CONTEXT = 1, OF_SECOND = 2 };
static const struct rule { const char *name; enum does does; int of; } rules[] = {
	{"cuStreamCreateWithPriority", MAKE, OF_CONTEXT}, {"cuEventCreate", MAKE, OF_CONTEXT}, {"cuModuleLoadDataEx", MAKE, OF_CONTEXT},
	{"cuModuleGetFunction", MAKE, OF_SECOND}, {"cuLibraryLoadData", MAKE, 0}, {"cuLibraryGetModule", MAKE, OF_CONTEXT | OF_SECOND},
	{"cuLibraryGetKernel", MAKE, OF_SECOND}, {"cuKernelGetFunction", MAKE, OF_CONTEXT | OF_SECOND}, {"cuFuncGetModule", MAKE, OF_SECOND},
	{"cuArray3DCreate_v2", MAKE, OF_CONTEXT}, {"cuMipmappedArrayCreate", MAKE, OF_CONTEXT}, {"cuMipmappedArrayGetLevel", MAKE, OF_SECOND},
	{"cuArrayGetPlane", MAKE, OF_SECOND}, {"cuTexObjectCreate", RESOURCE, OF_CONTEXT}, {"cuSurfObjectCreate", RESOURCE, OF_CONTEXT},
	{"cuTexRefCreate", MAKE, OF_CONTEXT}, {"cuModuleGetTexRef", MAKE, OF_SECOND}, {"cuModuleGetSurfRef", MAKE, OF_SECOND}, {"cuGraphCreate", MAKE, 0},
	{"cuGraphClone", COPY, 0}, {"cuGraphInstantiateWithFlags", COPY, 0}, {"cuGraphInstantiateWithParams", COPY, 0}, {"cuMemPoolCreate", MAKE, 0},
	{"cuCtxFromGreenCtx", MAKE, OF_SECOND}, {"cuGreenCtxStreamCreate", MAKE, OF_SECOND}, {"cuGreenCtxCreate", GREEN, 0},
	{"cuStreamDestroy_v2", STOP, 0}, {"cuEventDestroy_v2", STOP, 0}, {"cuModuleUnload", STOP, 0}, {"cuLibraryUnload", STOP, 0}, {"cuArrayDestroy", STOP, 0},
	{"cuMipmappedArrayDestroy", STOP, 0}, {"cuTexObjectDestroy", STOP, 0}, {"cuSurfObjectDestroy", STOP, 0}, {"cuTexRefDestroy", STOP, 0},
	{"cuGraphDestroy", STOP, 0}, {"cuGraphExecDestroy", STOP, 0}, {"cuGraphDestroyNode", STOP, 0}, {"cuCtxDestroy_v2", STOP, 0},
	{"cuMemPoolDestroy", STOP, 0}, {"cuGreenCtxDestroy", END_GREEN, 0}, {"cuCtxCreate_v2", CREATE_CTX, 0}, {"cuDevicePrimaryCtxRetain", RETAIN, 0},
	{"cuDevicePrimaryCtxRelease_v2", RELEASE, 0}, {"cuDevicePrimaryCtxReset_v2", RESET, 0}, {"cuCtxSetCurrent", CURRENT_CTX, 0},
	{"cuGraphAddNode_v2", ADD_NODE, 0}, {"cuGraphNodeSetParams", SET_NODE, 1}, {"cuGraphExecNodeSetParams", SET_NODE, 2}, {"cuGraphExecUpdate_v2", UPDATE, 0},
	{"cuMemsetD8Async", FILL, 3}, {"cuMemsetD16Async", FILL, 3}, {"cuMemsetD32Async", FILL, 3},
	{"cuMemsetD2D8Async", FILL, 5}, {"cuMemsetD2D16Async", FILL, 5}, {"cuMemsetD2D32Async", FILL, 5},
	{"cuStreamBeginCapture_v2", BEGIN, 0}, {"cuStreamBeginCaptureToGraph", BEGIN_INTO, 0}, {"cuStreamEndCapture", FINISH, 0}, {"cuStreamIsCapturing", CAPTURES, 0}, {"cuStreamGetCaptureInfo_v3", INFO, 0},
	{"cuLaunchKernel", LAUNCH, 0}, {"cuLaunchCooperativeKernel", LAUNCH, 0}, {"cuLaunchKernelEx", LAUNCH_EX, 0}, {"cuMemcpy3DAsync_v2", COPY_3D, 0},
};

static pthread_mutex_t living = PTHREAD_MUTEX_INITIALIZER;
static struct { char name[48]; call next; struct rule rule; } entries[ENTRIES];
static int entry_count;
static struct { int entry, ended; uint64_t capture; } objects[OBJECTS]; // by (handle - BASE) / UNIT, from 1 on
static int object_count;
static struct { uint64_t of, to; } links[LINKS]; // what lives only as long as something else
static int link_count;
static struct { uint64_t handle; int users; } primary[DEVICES];
static __thread uint64_t current_ctx;
static char stale[160];

static int is_object(uint64_t v) { return v > BASE && v < END && v % UNIT == 0 && (int)((v - BASE) / UNIT) <= object_count; }
static int index_of(uint64_t v) { return (int)((v - BASE) / UNIT); }

static int is_ended(uint64_t v) {
	if (!is_object(v)) return 0;
	if (objects[index_of(v)].ended) return 1;
	for (int i = 0; i < link_count; i++)
		if (links[i].of == v && is_ended(links[i].to)) return 1;
	return 0;
}

static void tie(uint64_t of, uint64_t to) {
	if (!is_object(of) || !is_object(to) || of == to) return;
	if (link_count == LINKS) abort();
	links[link_count].of = of, links[link_count++].to = to;
}

static void tie_all(uint64_t of, const uint64_t *words, int n) {
	for (int i = 0; words && i < n; i++) tie(of, words[i]);
}

static void cut(uint64_t of) {
	for (int i = link_count - 1; i >= 0; i--)
		if (links[i].of == of) links[i] = links[--link_count];
}

// What one needs the other needs, too; and what a graph's nodes need.
static void inherit(uint64_t of, uint64_t from) {
	for (int i = 0, n = link_count; i < n; i++) if (links[i].of == from) tie(of, links[i].to);
}

// What a node names its graph needs as well; of a graph inside it, which is cloned, what that needs.
static void needs_of(uint32_t *node, uint64_t handle, uint64_t graph) {
	enum { CHILD = 4 };
	uint64_t *words = (uint64_t *)node;
	if (*node == CHILD) inherit(handle, words[2]), inherit(graph, words[2]);
	else tie_all(handle, words, WORDS), tie_all(graph, words, WORDS);
}

static uint64_t new_object(int entry) {
	if (object_count + 1 >= OBJECTS) abort();
	object_count++;
	objects[object_count].entry = entry, objects[object_count].ended = 0, objects[object_count].capture = 0;
	return BASE + (uint64_t)object_count * UNIT;
}

static void stop(uint64_t v) { if (is_object(v)) objects[index_of(v)].ended = 1; }

static void look(int e, uint64_t v) {
	if (stale[0] || !is_ended(v)) return;
	snprintf(stale, sizeof stale, "%s of what %s made and is gone", entries[e].name, entries[objects[index_of(v)].entry].name);
}

static void look_all(int e, const uint64_t *words, int n) {
	for (int i = 0; words && i < n; i++) look(e, words[i]);
}

// What a graph under capture gets from a stream: the stream's context, and a function.
static void captured(uint64_t stream, uint64_t f) {
	uint64_t g = is_object(stream) ? objects[index_of(stream)].capture : 0;
	if (!g) return;
	inherit(g, stream);
	tie(g, f);
}

static uint64_t primary_of(int e, uint64_t dev) {
	if (!primary[dev].handle || is_ended(primary[dev].handle)) primary[dev].handle = new_object(e), primary[dev].users = 0;
	return primary[dev].handle;
}

static void release(uint64_t dev) {
	if (primary[dev].users && --primary[dev].users == 0) stop(primary[dev].handle);
}

static void before(int e, uint64_t *a) {
	uint64_t *p = (uint64_t *)(uintptr_t)a[0];
	for (int i = 0; i < 6; i++) look(e, a[i]);
	switch (entries[e].rule.does) {
	case LAUNCH: look(e, a[8]); captured(a[8], a[0]); break;
	case LAUNCH_EX: look_all(e, p, 7); captured(p[4], a[1]); break;
	case COPY_3D: look_all(e, p, 25); break;
	case RESOURCE: look_all(e, (uint64_t *)(uintptr_t)a[1], 2); break;
	case ADD_NODE: look_all(e, (uint64_t *)(uintptr_t)a[5], WORDS); look_all(e, (uint64_t *)(uintptr_t)a[2], a[2] ? (int)a[4] : 0); break;
	case SET_NODE: look_all(e, (uint64_t *)(uintptr_t)a[entries[e].rule.of], WORDS); break;
	default: break;
	}
}

static void after(int e, uint64_t *a) {
	uint64_t *p = (uint64_t *)(uintptr_t)a[0], *q = (uint64_t *)(uintptr_t)a[1];
	switch (entries[e].rule.does) {
	case MAKE:
	case RESOURCE:
		*p = new_object(e);
		if (entries[e].rule.of & OF_CONTEXT) tie(*p, current_ctx);
		if (entries[e].rule.of & OF_SECOND) tie(*p, a[1]);
		break;
	case COPY: *p = new_object(e), inherit(*p, a[1]); break;
	case STOP: stop(a[0]); break;
	case CREATE_CTX: *p = current_ctx = new_object(e); break;
	case RETAIN: *p = primary_of(e, a[1]), primary[a[1]].users++; break;
	case RELEASE: release(a[0]); break;
	case RESET:
		stop(primary[a[0]].handle);
		primary[a[0]].users = 0;
		break;
	case CURRENT_CTX: current_ctx = a[0]; break;
	case GREEN: *p = new_object(e), tie(*p, primary_of(e, a[2])), primary[a[2]].users++; break;
	case END_GREEN: stop(a[0]), release(0); break; // of the first device, as tests have it
	case ADD_NODE:
		*p = new_object(e);
		tie(*p, a[1]);
		needs_of((uint32_t *)(uintptr_t)a[5], *p, a[1]);
		break;
	case SET_NODE: tie_all(a[0], (uint64_t *)(uintptr_t)a[entries[e].rule.of], WORDS); break;
	case UPDATE: cut(a[0]), inherit(a[0], a[1]); break;
	case BEGIN: if (is_object(a[0])) objects[index_of(a[0])].capture = new_object(e); break;
	case BEGIN_INTO: if (is_object(a[0])) objects[index_of(a[0])].capture = a[1]; break;
	case FINISH:
		*q = is_object(a[0]) ? objects[index_of(a[0])].capture : 0;
		if (*q) objects[index_of(a[0])].capture = 0;
		break;
	case CAPTURES: *(uint32_t *)q = is_object(a[0]) && objects[index_of(a[0])].capture != 0; break;
	case INFO:
		*(uint32_t *)q = is_object(a[0]) && objects[index_of(a[0])].capture != 0;
		if (*(uint32_t *)q) *(uint64_t *)(uintptr_t)a[2] = *(uint64_t *)(uintptr_t)a[3] = objects[index_of(a[0])].capture;
		break;
	default: break;
	}
}

// The device of a call about its primary context, the first for others.
static uint64_t device_of(int e, uint64_t *a) {
	switch (entries[e].rule.does) {
	case RETAIN: return a[1];
	case RELEASE:
	case RESET: return a[0];
	case GREEN: return a[2];
	default: return 0;
	}
}

static int enter(int e, uint64_t *a) {
	enum { INVALID_DEVICE = 101 };
	if (device_of(e, a) >= DEVICES) return INVALID_DEVICE;
	pthread_mutex_lock(&living);
	before(e, a);
	uint64_t stream = entries[e].rule.does == FILL ? a[entries[e].rule.of] : 0;
	int taken_up = is_object(stream) && objects[index_of(stream)].capture != 0; // it may be of memory that is not there yet
	pthread_mutex_unlock(&living);
	if (taken_up) return 0;
	int r = entries[e].next(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15]);
	pthread_mutex_lock(&living);
	if (r == 0) after(e, a);
	pthread_mutex_unlock(&living);
	return r;
}

// Each entry has a function of its own, which knows its number.
#define ONE(n) static int enter_##n(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t f, uint64_t g, uint64_t h, uint64_t i, uint64_t j, uint64_t k, \
                                    uint64_t l, uint64_t m, uint64_t o, uint64_t p, uint64_t q, uint64_t r) { \
	uint64_t args[ARGS] = {a, b, c, d, f, g, h, i, j, k, l, m, o, p, q, r}; return enter(0##n, args); }
#define EIGHT_ONE(n) MANY_ONE(n##0) MANY_ONE(n##1) MANY_ONE(n##2) MANY_ONE(n##3) MANY_ONE(n##4) MANY_ONE(n##5) MANY_ONE(n##6) MANY_ONE(n##7)
#define MANY_ONE(n) ONE(n##0) ONE(n##1) ONE(n##2) ONE(n##3) ONE(n##4) ONE(n##5) ONE(n##6) ONE(n##7)
EIGHT_ONE(0) EIGHT_ONE(1) EIGHT_ONE(2) EIGHT_ONE(3) EIGHT_ONE(4) EIGHT_ONE(5) EIGHT_ONE(6) EIGHT_ONE(7)
#define PUT(n) enter_##n,
#define MANY_PUT(n) PUT(n##0) PUT(n##1) PUT(n##2) PUT(n##3) PUT(n##4) PUT(n##5) PUT(n##6) PUT(n##7)
#define EIGHT_PUT(n) MANY_PUT(n##0) MANY_PUT(n##1) MANY_PUT(n##2) MANY_PUT(n##3) MANY_PUT(n##4) MANY_PUT(n##5) MANY_PUT(n##6) MANY_PUT(n##7)
static const call enters[ENTRIES] = {EIGHT_PUT(0) EIGHT_PUT(1) EIGHT_PUT(2) EIGHT_PUT(3) EIGHT_PUT(4) EIGHT_PUT(5) EIGHT_PUT(6) EIGHT_PUT(7)};

static uint64_t living_entry(const char *name, uint64_t next) {
	int e = 0;
	pthread_mutex_lock(&living);
	while (e < entry_count && strcmp(entries[e].name, name) != 0) e++;
	if (e == ENTRIES) abort();
	if (e == entry_count) {
		entry_count++;
		snprintf(entries[e].name, sizeof entries[e].name, "%s", name);
		for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
			if (strcmp(rules[i].name, name) == 0) entries[e].rule = rules[i];
	}
	entries[e].next = (call)(uintptr_t)next;
	pthread_mutex_unlock(&living);
	return (uint64_t)(uintptr_t)enters[e];
}

static void begin_living(void) {
	pthread_mutex_lock(&living);
	object_count = link_count = 0;
	memset(primary, 0, sizeof primary);
	current_ctx = 0;
	stale[0] = 0;
	pthread_mutex_unlock(&living);
}
static const char *stale_use(void) {
	static char taken[sizeof stale];
	memcpy(taken, stale, sizeof taken);
	stale[0] = 0;
	return taken;
}
*/
import "C"

import "unsafe"

// Living is Showing for a driver whose objects end with what they are of, and that looks whether
// those live that it is given.
func Living(name string) uint64 {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	return uint64(C.living_entry(n, C.uint64_t(Showing(name))))
}

// RestartLiving is Restart for a Living driver. The calling thread has no context then.
func RestartLiving() {
	Restart()
	C.begin_living()
}

// Stale is the first use of an object that is gone since it was asked; empty: there was none.
func Stale() string { return C.GoString(C.stale_use()) }

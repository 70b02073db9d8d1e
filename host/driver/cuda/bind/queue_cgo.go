package bind

/*
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CW_QUEUE_DEPTH = 8192, CW_QUEUE_BYTES = 128, CW_QUEUE_ARGS = 6 };

// A driver call. One side writes it before sent passes it, the other reads it before done does.
struct cw_item {
	uint64_t fn, ctx;
	uint32_t kind, size;         // of a launch's parameters
	uint64_t args[CW_QUEUE_ARGS]; // arguments; of a launch: function, stream, seven dimensions in the rest
	const void *attrs;
	const uint8_t *params;       // NULL: in bytes
	uint32_t nattrs, notify;       // notify: return to Go with the result whatever it is
	uint8_t bytes[CW_QUEUE_BYTES];
};

struct cw_queue {
	_Alignas(64) uint64_t sent;
	_Alignas(64) uint64_t done;
	_Alignas(64) uint64_t seen; // sent, when the thread last looked: the other core keeps its line
	uint64_t ctx;               // current on the thread
	uint64_t set_current;
	_Alignas(64) struct cw_item items[CW_QUEUE_DEPTH];
};

enum { CW_CALL, CW_LAUNCH, CW_LAUNCH_EX };
enum { CW_IDLE, CW_NOTIFY };

static void cw_relax(void) {
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

static int64_t cw_now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int cw_item_call(struct cw_item *i) {
	const uint64_t *a = i->args;
	uint64_t size = i->size;
	void *extra[] = {(void *)1, i->params ? (void *)i->params : (void *)i->bytes, (void *)2, &size, NULL};
	const uint32_t *d = (const uint32_t *)(a + 2);
	if (i->kind == CW_LAUNCH) {
		typedef int (*entry)(uint64_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint64_t, void **, void **);
		return ((entry)(uintptr_t)i->fn)(a[0], d[0], d[1], d[2], d[3], d[4], d[5], d[6], a[1], NULL, size ? extra : NULL);
	}
	if (i->kind == CW_LAUNCH_EX) {
		struct { uint32_t d[7]; uint32_t pad; uint64_t stream; const void *attrs; uint32_t n; uint32_t pad2; } cfg;
		typedef int (*entry)(void *, uint64_t, void **, void **);
		memset(&cfg, 0, sizeof cfg);
		memcpy(cfg.d, d, sizeof cfg.d);
		cfg.stream = a[1], cfg.attrs = i->attrs, cfg.n = i->nattrs;
		return ((entry)(uintptr_t)i->fn)(&cfg, a[0], NULL, size ? extra : NULL);
	}
	typedef int (*entry)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
	return ((entry)(uintptr_t)i->fn)(a[0], a[1], a[2], a[3], a[4], a[5]);
}

// Makes the calls that are there, and those that come within spin_ns of the last, until one's result is wanted.
static int cw_queue_run(struct cw_queue *l, int64_t spin_ns, int *result) {
	for (;;) {
		uint64_t n = l->done, sent = l->seen;
		if (sent == n)
			sent = l->seen = __atomic_load_n(&l->sent, __ATOMIC_ACQUIRE);
		if (sent == n) {
			int64_t end = cw_now() + spin_ns;
			do {
				for (int i = 0; i < 64 && (sent = __atomic_load_n(&l->sent, __ATOMIC_ACQUIRE)) == n; i++)
					cw_relax();
			} while (sent == n && cw_now() < end);
			if (sent == n)
				return CW_IDLE;
			l->seen = sent;
		}
		struct cw_item *i = &l->items[n % CW_QUEUE_DEPTH];
		if (sent - n > 1) { // another core has written it: it comes nearer during this call
			const char *next = (const char *)&l->items[(n + 1) % CW_QUEUE_DEPTH];
			__builtin_prefetch(next);
			__builtin_prefetch(next + 64);
			__builtin_prefetch(next + 128);
		}
		int r = 0;
		if (l->ctx != i->ctx) {
			r = ((int (*)(uint64_t))(uintptr_t)l->set_current)(i->ctx);
			if (r == 0)
				l->ctx = i->ctx;
		}
		if (r == 0)
			r = cw_item_call(i);
		if (r != 0 || i->notify) {
			*result = r;
			return CW_NOTIFY;
		}
		__atomic_store_n(&l->done, n + 1, __ATOMIC_RELEASE);
	}
}
*/
import "C"

import (
	"sync/atomic"
	"time"
	"unsafe"

	"causeway/cuda"
)

const (
	QueueDepth = C.CW_QUEUE_DEPTH // calls that a queue holds, some more than the ring
	itemBytes  = C.CW_QUEUE_BYTES // of a launch's parameters that need no allocation
)

// Queue is what a thread that makes calls and the goroutine that puts them share, in C memory: the
// thread spends its time there.
type Queue struct{ c *C.struct_cw_queue }

// NewQueue is an empty one, for the life of the process.
func (d *Driver) NewQueue() Queue {
	p := C.aligned_alloc(64, C.sizeof_struct_cw_queue)
	C.memset(p, 0, C.sizeof_struct_cw_queue)
	q := Queue{(*C.struct_cw_queue)(p)}
	q.c.set_current = C.uint64_t(d.fn.cuCtxSetCurrent)
	return q
}

// Sent is how many calls were put: a store of a higher number puts those up to it.
func (q Queue) Sent() *uint64 { return (*uint64)(unsafe.Pointer(&q.c.sent)) }

// Done is how many were made.
func (q Queue) Done() *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&q.c.done)) }

// Unbind has the thread bind its context anew. The queue is empty.
func (q Queue) Unbind() { q.c.ctx = 0 }

// Why Queue.Run returns.
const (
	QueueIdle   = C.CW_IDLE   // nothing came for a while
	QueueNotify = C.CW_NOTIFY // the result of call number Done is wanted; it is not counted yet
)

// Run makes calls on this thread, and looks for the next ones for d.
func (q Queue) Run(d time.Duration) (why int, res cuda.Result) {
	var r C.int
	why = int(C.cw_queue_run(q.c, C.int64_t(d), &r))
	return why, cuda.Result(r)
}

// Item is a call to be filled in.
type Item struct{ c *C.struct_cw_item }

// Item is the place of call n, which nothing holds.
func (q Queue) Item(n uint64) Item { return Item{&q.c.items[n%QueueDepth]} }

// SetCall makes it a call that is Possible.
func (i Item) SetCall(call *Call) {
	c := i.c
	c.kind, c.fn = C.CW_CALL, C.uint64_t(call.fn)
	*(*[directArgs]uint64)(unsafe.Pointer(&c.args[0])) = call.args
	c.notify = 0
}

// SetLaunch makes it a launch, with attributes if there are any. What a has is copied.
func (i Item) SetLaunch(d *Driver, f Function, dims *Dims, st Stream, attrs Attributes, a Arguments) {
	c := i.c
	c.kind, c.fn = C.CW_LAUNCH, C.uint64_t(d.fn.cuLaunchKernel)
	c.args[0], c.args[1] = C.uint64_t(f.v), C.uint64_t(st.v)
	for i, to := 0, (*Dims)(unsafe.Pointer(&c.args[2])); i < len(dims); i++ { // they were just written one by one
		to[i] = dims[i]
	}
	c.size, c.params, c.notify = C.uint32_t(len(a.b)), nil, 0
	if len(a.b) > itemBytes {
		c.params, c.notify = (*C.uint8_t)(BufferOf(a.b).p), 1
	} else {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&c.bytes[0])), itemBytes), a.b)
	}
	if !attrs.IsZero() {
		c.kind, c.fn, c.notify = C.CW_LAUNCH_EX, C.uint64_t(d.fn.cuLaunchKernelEx), 1
		c.attrs, c.nattrs = attrs.copy().p, C.uint32_t(len(attrs.list))
	}
}

// Notify has its result passed on.
func (i Item) Notify() { i.c.notify = 1 }

// SetContext says in which context it is made.
func (i Item) SetContext(h Context) { i.c.ctx = C.uint64_t(h.v) }

// Release frees what a launch brought along.
func (i Item) Release() {
	if i.c.kind == C.CW_CALL {
		return
	}
	C.free(unsafe.Pointer(i.c.params))
	i.c.params = nil
	if i.c.kind == C.CW_LAUNCH_EX {
		C.free(unsafe.Pointer(i.c.attrs))
	}
}

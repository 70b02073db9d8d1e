package cuda

/*
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

// A function of the guest that the driver has reached. It lives on the stack of the driver's callback thread, which stays in
// cw_host_enter until the guest has run it: that is what holds the stream.
struct cw_host_call {
	struct cw_host_call *next;
	uint64_t id;
	int status, taken, done;
};

// One queue a process, as a worker has one session: the driver gives its callbacks one word only, which is the guest's id.
static struct {
	pthread_mutex_t mu;
	pthread_cond_t more, ended;
	struct cw_host_call *first, **last;
	int closed;
} cw_host = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, NULL, 1};

static void cw_host_enter(uint64_t id, int status) {
	struct cw_host_call c = {.id = id, .status = status};
	pthread_mutex_lock(&cw_host.mu);
	if (!cw_host.closed) {
		*cw_host.last = &c;
		cw_host.last = &c.next;
		pthread_cond_signal(&cw_host.more);
	}
	while (!c.done && !cw_host.closed) pthread_cond_wait(&cw_host.ended, &cw_host.mu);
	pthread_mutex_unlock(&cw_host.mu);
}

static void cw_host_func(void *id) { cw_host_enter((uintptr_t)id, 0); }
static void cw_host_stream_func(void *stream, int status, void *id) {
	(void)stream;
	cw_host_enter((uintptr_t)id, status);
}
static void *cw_host_func_addr(void) { return (void *)&cw_host_func; }
static void *cw_host_stream_func_addr(void) { return (void *)&cw_host_stream_func; }

static void cw_host_open(void) {
	pthread_mutex_lock(&cw_host.mu);
	cw_host.first = NULL;
	cw_host.last = &cw_host.first;
	cw_host.closed = 0;
	pthread_mutex_unlock(&cw_host.mu);
}

// Releases everyone; afterwards callbacks return at once.
static void cw_host_close(void) {
	pthread_mutex_lock(&cw_host.mu);
	cw_host.closed = 1;
	cw_host.first = NULL;
	cw_host.last = &cw_host.first;
	pthread_cond_broadcast(&cw_host.more);
	pthread_cond_broadcast(&cw_host.ended);
	pthread_mutex_unlock(&cw_host.mu);
}

// The next call that nobody has taken; NULL when closed. Blocks.
static struct cw_host_call *cw_host_next(uint64_t *id, int *status) {
	pthread_mutex_lock(&cw_host.mu);
	while (!cw_host.first && !cw_host.closed) pthread_cond_wait(&cw_host.more, &cw_host.mu);
	struct cw_host_call *c = cw_host.closed ? NULL : cw_host.first;
	if (c) {
		cw_host.first = c->next;
		if (!cw_host.first) cw_host.last = &cw_host.first;
		*id = c->id;
		*status = c->status;
	}
	pthread_mutex_unlock(&cw_host.mu);
	return c;
}

// c is live unless the queue was closed, which ends all calls.
static void cw_host_done(struct cw_host_call *c) {
	pthread_mutex_lock(&cw_host.mu);
	if (!cw_host.closed) {
		c->done = 1;
		pthread_cond_broadcast(&cw_host.ended);
	}
	pthread_mutex_unlock(&cw_host.mu);
}
*/
import "C"

import (
	"runtime"

	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

// hostFuncEntry is the C function that a driver calls for a host function or a graph's host node;
// its user data is the guest's id. hostStreamFuncEntry is that of cuStreamAddCallback.
func hostFuncEntry() bind.Callback       { return bind.CallbackAt(C.cw_host_func_addr()) }
func hostStreamFuncEntry() bind.Callback { return bind.CallbackAt(C.cw_host_stream_func_addr()) }

// serveHostFuncs hands host functions to call, each on a goroutine, until closeHostFuncs. The
// driver's threads wait for them.
func serveHostFuncs(call func(id uint64, status cuda.Result)) {
	C.cw_host_open()
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for {
			var id C.uint64_t
			var status C.int
			c := C.cw_host_next(&id, &status)
			if c == nil {
				return
			}
			go func() {
				call(uint64(id), cuda.Result(status))
				C.cw_host_done(c)
			}()
		}
	}()
}

// closeHostFuncs releases the driver's threads that wait for the guest.
func closeHostFuncs() { C.cw_host_close() }

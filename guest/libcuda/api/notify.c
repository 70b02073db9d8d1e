/*
 * Notifications (cuDeviceRegisterAsyncNotification): the host says that more is allocated than the
 * virtual GPU may have, because its limit was lowered (cuda/api/ops_watch.idl). The limit is one
 * for all devices, so each registration hears of it, whatever its device.
 *
 * Functions run on a thread of their own, which starts with the first registration. They may call
 * CUDA: to free memory is what they are for. On the callback thread they could not, for such a call
 * may wait for a host function that is due there.
 */
#include "api/callback.h"
#include "session/lock.h"

#include <stdint.h>
#include <sys/prctl.h>

enum { OVER_BUDGET = 1 }; /* CU_ASYNC_NOTIFICATION_TYPE_OVER_BUDGET */

struct notice {
	struct cw_obj o;
	CUasyncCallback fn;
	void *data;
	uint64_t serial; /* grows along the list */
	struct notice *next;
	CUdevice device;
	int told; /* that the budget is exceeded, once at least */
};
CW_OBJ_FITS(struct notice);

static struct {
	/* Orders what the host is asked with what is registered; held while it answers. Before
	 * lock. */
	struct cw_lock asking;
	struct cw_lock lock; /* of what follows; never held while a function runs */
	struct notice *list;
	/* running: serial of the one whose function runs, 0: none */
	uint64_t serials, running;
	uint32_t event; /* not delivered yet, 0: none */
	/* Bytes; the newest serial when it came: who comes later asks the host itself. */
	uint64_t over, last;
	_Atomic uint32_t events, returns; /* counted for who sleeps on them */
	int started;			  /* under asking */
} all;

/* On the thread that calls the functions. */
static __thread int inside __attribute__((tls_model("initial-exec")));

/* The first registration behind serial `after`, up to `last`, that is to hear of event; its
 * function counts as running. */
static int next(uint32_t event, uint64_t after, uint64_t last, struct notice *out)
{
	struct notice *r;

	cw_lock_acquire(&all.lock);
	for (r = all.list; r; r = r->next)
		if (r->serial > after && (event == CW_CALLBACK_OVER_BUDGET || !r->told))
			break;
	if (r && r->serial > last)
		r = NULL;
	if (r) {
		r->told = 1;
		all.running = r->serial;
		out->fn = r->fn;
		out->data = r->data;
		out->serial = r->serial;
		out->next = r;
	}
	cw_lock_release(&all.lock);
	return r != NULL;
}

static void returned(void)
{
	cw_lock_acquire(&all.lock);
	all.running = 0;
	atomic_fetch_add(&all.returns, 1);
	cw_lock_release(&all.lock);
	cw_futex_wake(&all.returns, INT32_MAX, CW_FUTEX_PRIVATE);
}

static void deliver(uint32_t event, uint64_t over, uint64_t last)
{
	struct notice r = {.serial = 0};

	while (next(event, r.serial, last, &r)) {
		/* each gets its own, which it may change */
		CUasyncNotificationInfo info = {.type = OVER_BUDGET, .info.overBudget.bytesOverBudget = over};

		r.fn(&info, r.data, (CUasyncCallbackHandle)r.next);
		returned();
	}
}

static void *notice_thread(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "causeway-notes");
	inside = 1;
	while (atomic_load(&cw_g.state) == CW_OPEN) {
		uint32_t seen = atomic_load(&all.events), event;
		uint64_t over, last;

		cw_lock_acquire(&all.lock);
		event = all.event;
		over = all.over;
		last = all.last;
		all.event = 0;
		cw_lock_release(&all.lock);
		if (event)
			deliver(event, over, last);
		else
			cw_futex_wait(&all.events, seen, CW_FUTEX_PRIVATE, NULL);
	}
	return NULL;
}

void cw_notice_end(void)
{
	atomic_fetch_add(&all.events, 1);
	cw_futex_wake(&all.events, 1, CW_FUTEX_PRIVATE);
}

void cw_notice_post(uint32_t event, uint64_t number)
{
	if (event != CW_CALLBACK_OVER_BUDGET && event != CW_CALLBACK_STILL_OVER)
		return;
	cw_lock_acquire(&all.lock);
	if (all.event != CW_CALLBACK_OVER_BUDGET)
		all.event = event; /* one that all hear is not replaced by one that some do */
	all.over = number;
	all.last = all.serials;
	atomic_fetch_add(&all.events, 1);
	cw_lock_release(&all.lock);
	cw_futex_wake(&all.events, 1, CW_FUTEX_PRIVATE);
}

/* Whether this thread may change who is called: not a function that is called. */
static CUresult may_change(CUdevice device)
{
	if (inside)
		return CUDA_ERROR_NOT_PERMITTED;
	return cw_device_get(device) ? CUDA_SUCCESS : cw_no_device();
}

/* Takes r out of the list. 1: nobody is left. */
static int take_out(struct notice *r)
{
	struct notice **at = &all.list;
	int last;

	cw_lock_acquire(&all.lock);
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	last = all.list == NULL;
	cw_lock_release(&all.lock);
	return last;
}

static void put_in(struct notice *r)
{
	struct notice **at = &all.list;

	cw_lock_acquire(&all.lock);
	r->serial = ++all.serials;
	while (*at)
		at = &(*at)->next;
	*at = r;
	cw_lock_release(&all.lock);
}

/* Under asking: what a first registration needs. */
static CUresult start(void)
{
	CUresult res = cw_callbacks_open();

	if (res == 0 && !all.started) {
		res = cw_thread_start(notice_thread, NULL);
		all.started = res == 0;
	}
	return res;
}

CUresult cwi_cuDeviceRegisterAsyncNotification(CUdevice device, CUasyncCallback fn, void *data, CUasyncCallbackHandle *callback)
{
	struct notice *r;
	CUresult res = may_change(device);

	if (res)
		return res;
	if (!fn || !callback)
		return CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&all.asking);
	res = start();
	if (res)
		goto out;
	r = (struct notice *)cw_handle_alloc();
	if (!r) {
		res = CUDA_ERROR_OUT_OF_MEMORY;
		goto out;
	}
	r->fn = fn;
	r->data = data;
	r->device = device;
	cw_handle_publish(&r->o, CW_KIND_NOTICE);
	/* before its function can be called: that may look where it was told that its handle is */
	*callback = (CUasyncCallbackHandle)r;
	put_in(r);
	res = cwop_WatchBudget(1);
	if (res) {
		take_out(r);
		cw_handle_free(CW_KIND_NOTICE, &r->o);
	}
out:
	cw_lock_release(&all.asking);
	return res;
}

/* Waits for its function if that runs: what data points to may go afterwards. */
static void await_return(uint64_t serial)
{
	for (;;) {
		uint32_t seen = atomic_load(&all.returns);
		int runs;

		cw_lock_acquire(&all.lock);
		runs = all.running == serial;
		cw_lock_release(&all.lock);
		if (!runs)
			return;
		cw_futex_wait(&all.returns, seen, CW_FUTEX_PRIVATE, NULL);
	}
}

CUresult cwi_cuDeviceUnregisterAsyncNotification(CUdevice device, CUasyncCallbackHandle callback)
{
	struct notice *r;
	uint64_t serial;
	CUresult res = may_change(device);

	if (res)
		return res;
	cw_lock_acquire(&all.asking);
	r = (struct notice *)cw_handle_get(CW_KIND_NOTICE, callback);
	if (!r || r->device != device) {
		cw_lock_release(&all.asking);
		return CUDA_ERROR_INVALID_VALUE;
	}
	serial = r->serial;
	if (take_out(r))
		(void)cwop_WatchBudget(0); /* a host that is gone tells nobody */
	cw_handle_free(CW_KIND_NOTICE, &r->o);
	cw_lock_release(&all.asking);
	await_return(serial);
	return CUDA_SUCCESS;
}

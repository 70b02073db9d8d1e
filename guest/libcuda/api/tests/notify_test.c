/* Notifications: who hears of which event, on which thread, what a function may do there, and when
 * a registration ends. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "api/callback.h"
#include "fake_host.h"
#include "memory/resident.h"
#include "session/internal.h"

/* --- the host's end of the callback slot ------------------------------------------------------ */

static _Alignas(64) uint8_t region0[CW_REGION0_SIZE];
static uint32_t posted;

static void nap(void) { nanosleep(&(struct timespec){0, 200000}, NULL); }

static int wait_slot(struct cw_session *s, uint32_t slot, _Atomic uint32_t *word)
{
	(void)s, (void)slot, (void)word;
	nap();
	return 0;
}

static const struct cw_carrier carrier = {.name = "fake", .wait_slot = wait_slot};

static struct cw_slot *slot(void) { return cw_slot_at(&cw_s, FAKE_SLOT); }

static void post(uint32_t event, uint64_t number)
{
	struct {
		uint64_t number;
		uint32_t event, k;
	} e = {number, event, posted + 1};

	memcpy((uint8_t *)(slot() + 1) + posted % CW_CALLBACK_COUNT * sizeof e, &e, sizeof e);
	__atomic_store_n(&slot()->seq_done, FAKE_SEQ + ++posted, __ATOMIC_RELEASE);
}

static int taken(void)
{
	uint32_t *done = (uint32_t *)((uint8_t *)(slot() + 1) + CW_CALLBACK_DONE_OFFSET);

	return __atomic_load_n(&done[(posted - 1) % CW_CALLBACK_COUNT], __ATOMIC_ACQUIRE) == posted;
}

/* Within half a minute: others may have the machine. */
#define EVENTUALLY(cond) \
	do { \
		for (int i_ = 0; i_ < 150000 && !(cond); i_++) \
			nap(); \
		CHECK(cond); \
	} while (0)

/* --- functions -------------------------------------------------------------------------------- */

struct heard {
	_Atomic int calls;
	_Atomic uint64_t over;
	CUasyncCallbackHandle handle;
	int inside[4]; /* what calls answered there */
	_Atomic int stay, there;
};

static pthread_t application;

static void hear(void *p, void *data, CUasyncCallbackHandle handle)
{
	CUasyncNotificationInfo *info = p;
	CUasyncCallbackHandle other;
	struct heard *h = data;
	int n;

	CHECK(info->type == 1 && handle == h->handle && !pthread_equal(pthread_self(), application));
	h->inside[0] = (int)cuDeviceGetCount(&n);
	h->inside[1] = (int)cuDeviceRegisterAsyncNotification(0, hear, h, &other);
	h->inside[2] = (int)cuDeviceUnregisterAsyncNotification(0, handle);
	h->inside[3] = (int)cuCtxSynchronize();
	h->over = info->info.overBudget.bytesOverBudget;
	info->info.overBudget.bytesOverBudget = 0; /* each has its own */
	h->calls++;
	h->there = 1;
	while (h->stay)
		nap();
	h->there = 0;
}

static CUresult add(struct heard *h, CUdevice device) { return cuDeviceRegisterAsyncNotification(device, hear, h, &h->handle); }

/* --- checks ----------------------------------------------------------------------------------- */

static void errors(void)
{
	struct heard h = {0};
	CUasyncCallbackHandle none = (CUasyncCallbackHandle)&h;

	CHECK_RES(cuDeviceRegisterAsyncNotification(0, NULL, NULL, &none), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(cuDeviceRegisterAsyncNotification(0, hear, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(cuDeviceRegisterAsyncNotification(2, hear, NULL, &none), CUDA_ERROR_INVALID_DEVICE);
	CHECK_RES(cuDeviceUnregisterAsyncNotification(-1, none), CUDA_ERROR_INVALID_DEVICE);
	CHECK_RES(cuDeviceUnregisterAsyncNotification(0, none), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(cuDeviceUnregisterAsyncNotification(0, NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK(fake.count[CW_OP_WATCH_BUDGET] == 0);
	fake.fail_op = CW_OP_WATCH_BUDGET;
	fake.fail_result = CUDA_ERROR_NOT_SUPPORTED;
	CHECK_RES(add(&h, 0), CUDA_ERROR_NOT_SUPPORTED);
	fake.fail_op = 0;
	CHECK_RES(cuDeviceUnregisterAsyncNotification(0, h.handle), CUDA_ERROR_INVALID_VALUE);
	post(CW_CALLBACK_OVER_BUDGET, 1);
	EVENTUALLY(taken());
	CHECK(h.calls == 0);
}

static void events(void)
{
	struct heard a = {0}, b = {0}, c = {0};

	CHECK_RES(add(&a, 0), 0);
	CHECK_RES(add(&b, 1), 0);
	CHECK(a.handle && b.handle && a.handle != b.handle && fake.wanted == 1);
	post(CW_CALLBACK_OVER_BUDGET, 5ull << 32);
	EVENTUALLY(a.calls == 1 && b.calls == 1);
	CHECK(a.over == 5ull << 32 && b.over == 5ull << 32);
	CHECK(a.inside[0] == 0 && a.inside[1] == CUDA_ERROR_NOT_PERMITTED && a.inside[2] == CUDA_ERROR_NOT_PERMITTED);
	CHECK(a.inside[3] == CUDA_ERROR_INVALID_CONTEXT);
	/* the third alone has not heard of it; an event that this library does not know is
	 * nobody's */
	CHECK_RES(add(&c, 0), 0);
	post(CW_CALLBACK_STILL_OVER, 7);
	EVENTUALLY(c.calls == 1);
	post(CW_CALLBACK_EVENT + 1000, 8);
	post(CW_CALLBACK_STILL_OVER, 9);
	EVENTUALLY(taken());
	CHECK_RES(cuDeviceUnregisterAsyncNotification(1, a.handle), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(cuDeviceUnregisterAsyncNotification(0, a.handle), 0);
	CHECK_RES(cuDeviceUnregisterAsyncNotification(0, a.handle), CUDA_ERROR_INVALID_VALUE);
	post(CW_CALLBACK_OVER_BUDGET, 10);
	EVENTUALLY(b.calls == 2 && c.calls == 2);
	CHECK(a.calls == 1 && c.over == 10 && fake.wanted == 1);
	CHECK_RES(cuDeviceUnregisterAsyncNotification(1, b.handle), 0);
	CHECK(fake.wanted == 1);
	CHECK_RES(cuDeviceUnregisterAsyncNotification(0, c.handle), 0);
	CHECK(fake.wanted == 0);
}

static _Atomic int going, gone;

static void *remove_it(void *p)
{
	going = 1;
	CHECK_RES(cuDeviceUnregisterAsyncNotification(0, ((struct heard *)p)->handle), 0);
	gone = 1;
	return NULL;
}

/* A function that does not return holds up its own end, and nothing else: neither the callback
 * thread nor other registrations. */
static void slow(void)
{
	struct heard a = {.stay = 1}, b = {0};
	pthread_t t;

	CHECK_RES(add(&a, 0), 0);
	post(CW_CALLBACK_OVER_BUDGET, 1);
	EVENTUALLY(a.there);
	for (int i = 0; i < 200; i++) {
		post(i % 2 ? CW_CALLBACK_OVER_BUDGET : CW_CALLBACK_STILL_OVER, (uint64_t)i);
		EVENTUALLY(taken());
	}
	CHECK_RES(add(&b, 0), 0); /* what came before is not for it */
	post(CW_CALLBACK_STILL_OVER, 1000);
	EVENTUALLY(taken());
	CHECK(pthread_create(&t, NULL, remove_it, &a) == 0);
	EVENTUALLY(going);
	for (int i = 0; i < 50; i++)
		nap();
	CHECK(!gone && a.there);
	a.stay = 0;
	CHECK(pthread_join(t, NULL) == 0 && !a.there);
	EVENTUALLY(b.calls == 1);
	CHECK(a.calls == 1 && b.over == 1000);
	CHECK_RES(cuDeviceUnregisterAsyncNotification(0, b.handle), 0);
}

static void *come_and_go(void *p)
{
	(void)p;
	for (int i = 0; i < 200; i++) {
		/* Freed at once: nothing may touch it after its end. */
		struct heard *h = calloc(1, sizeof *h);

		CHECK_RES(add(h, i % 2), 0);
		CHECK_RES(cuDeviceUnregisterAsyncNotification(i % 2, h->handle), 0);
		free(h);
	}
	return NULL;
}

static void race(void)
{
	pthread_t t[3];

	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&t[i], NULL, come_and_go, NULL) == 0);
	for (int i = 0; i < 200; i++) {
		post(CW_CALLBACK_OVER_BUDGET, (uint64_t)i);
		EVENTUALLY(taken());
	}
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	CHECK(fake.wanted == 0);
}

static void called(void *p) { *(_Atomic int *)p = 1; }

/* A stream's function is ahead until what it wrote to managed memory is the GPU's: a request that
 * waits for the device is not before those by which it goes there. */
static void function(void)
{
	_Atomic int there = 0;
	uint64_t id;

	CHECK_RES(cw_hostfn_new(called, &there, 0, &id), 0);
	cw_lock_acquire(&cw_resident_lock);
	atomic_store(&cw_copies, CW_COPY);
	post(0, id);
	EVENTUALLY(there);
	for (int i = 0; i < 50; i++)
		nap();
	CHECK(fake.functions_done == 0);
	cw_lock_release(&cw_resident_lock);
	EVENTUALLY(taken());
	CHECK(fake.functions_done == 1);
	atomic_store(&cw_copies, 0);
}

int main(void)
{
	application = pthread_self();
	cw_s.base = region0;
	cw_s.carrier = &carrier;
	slot()->seq_done = FAKE_SEQ; /* the reply to CallbackOpen */
	CHECK_RES(cuInit(0), 0);
	errors();
	events();
	slow();
	race();
	function();
	printf("notify_test %s\n", fake.failures ? "FAILED" : "ok");
	return fake.failures != 0;
}

/* Contexts: the primary context's life, the stack of a thread, context-local storage, and what ends
 * with a context. */
#include <pthread.h>
#include <stdlib.h>

#include "fake_host.h"
#include "memory/managed.h"

static void *destroyed_with_key;
static int destroyed;

static void on_destroy(CUcontext ctx, void *key, void *value)
{
	(void)ctx, (void)key;
	destroyed++;
	destroyed_with_key = value;
}

struct storage {
	CUresult (*put)(CUcontext, void *, void *, void (*)(CUcontext, void *, void *));
	CUresult (*delete)(CUcontext, void *);
	CUresult (*get)(void **, CUcontext, void *);
	void *end;
};

static const struct storage *storage_table(void)
{
	static const uint8_t id[16] = {0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93};
	const void *t = NULL;

	CHECK_RES(cuGetExportTable(&t, (const CUuuid *)id), 0);
	return t;
}

static void before_init(void)
{
	const struct storage *s = storage_table();
	CUcontext ctx;
	void *v;
	int n;

	CHECK_RES(cuDeviceGetCount(&n), 3);
	CHECK_RES(cuCtxGetCurrent(&ctx), 3);
	CHECK_RES(cuDevicePrimaryCtxRetain(&ctx, 0), 3);
	CHECK_RES(s->get(&v, NULL, &n), 3);
	CHECK_RES(cuInit(1), 1);
	CHECK_RES(cuInit(0), 0);
	CHECK_RES(cuDeviceGetCount(&n), 0);
	CHECK(n == 2);
}

/* The driver says 1 of all; what is told is what holds here: kernels do not reach ordinary memory,
 * nor the processor the GPU's, and memory that moves is not used at once. */
static void both_sides(void)
{
	static const struct {
		int attr, value;
	} want[] = {
		{CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
		{CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, 1},
		{CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
		{CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0},
		{CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 0},
	};
	int v;

	for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
		CHECK_RES(cuDeviceGetAttribute(&v, want[i].attr, 1), 0);
		CHECK(v == want[i].value);
	}
	CHECK_RES(cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1), 0);
	CHECK(v == !cw_managed_moves(1));
}

static void primary(void)
{
	CUcontext a, b, handle = NULL;
	unsigned flags;
	int active;
	static const uint8_t id[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
	const void *table;
	CUresult (*peek)(CUcontext *, CUdevice);
	CUstream stream;

	fake_reset();
	CHECK_RES(cuGetExportTable(&table, (const CUuuid *)id), 0);
	memcpy(&peek, (const char *)table + 16, sizeof peek);
	CHECK_RES(peek(&handle, 0), 0);
	CHECK(handle && fake.count[CW_OP_PRIMARY_CTX_RETAIN] == 0);
	CHECK_RES(cuDevicePrimaryCtxGetState(0, &flags, &active), 0);
	CHECK(!active);
	/* current but not active */
	CHECK_RES(cuCtxSetCurrent(handle), 0);
	CHECK_RES(cuStreamCreate(&stream, 0), 709);
	CHECK_RES(cuDevicePrimaryCtxRetain(&a, 0), 0);
	CHECK_RES(cuDevicePrimaryCtxRetain(&b, 0), 0);
	CHECK(a == handle && b == handle && fake.count[CW_OP_PRIMARY_CTX_RETAIN] == 1);
	CHECK_RES(cuDevicePrimaryCtxGetState(0, &flags, &active), 0);
	CHECK(active && flags == 8);
	CHECK_RES(cuStreamCreate(&stream, 0), 0);
	CHECK_RES(cuDevicePrimaryCtxRelease(0), 0);
	CHECK_RES(cuStreamQuery(stream), 0);
	CHECK_RES(cuDevicePrimaryCtxRelease(0), 0);
	CHECK(fake.count[CW_OP_PRIMARY_CTX_RELEASE] == 1);
	CHECK_RES(cuDevicePrimaryCtxRelease(0), 201);
	CHECK_RES(cuStreamQuery(stream), 400); /* it ended with its context */
	CHECK_RES(cuCtxSynchronize(), 709);
	/* the same handle lives again, also for the thread that still has it current */
	CHECK_RES(cuDevicePrimaryCtxRetain(&a, 0), 0);
	CHECK(a == handle);
	CHECK_RES(cuCtxSynchronize(), 0);
	CHECK_RES(cuDevicePrimaryCtxReset(0), 0);
	CHECK_RES(cuCtxSynchronize(), 709);
	CHECK_RES(cuDevicePrimaryCtxReset(0), 0); /* nothing to do */
	CHECK(fake.count[CW_OP_PRIMARY_CTX_RESET] == 1);
	CHECK_RES(cuCtxDestroy_v2(handle), 201);
	CHECK_RES(cuDevicePrimaryCtxRetain(&a, 7), 101);
	CHECK_RES(cuCtxSetCurrent(NULL), 0);
	/* a worker that refuses leaves the count at 0 */
	fake.fail_op = CW_OP_PRIMARY_CTX_RETAIN;
	fake.fail_result = 2;
	CHECK_RES(cuDevicePrimaryCtxRetain(&a, 0), 2);
	CHECK_RES(cuDevicePrimaryCtxGetState(0, &flags, &active), 0);
	CHECK(!active);
}

static void *other_thread(void *arg)
{
	CUcontext ctx = arg, got = arg;

	CHECK_RES(cuCtxGetCurrent(&got), 0);
	CHECK(got == NULL); /* the stack is the thread's own */
	CHECK_RES(cuCtxSynchronize(), 201);
	CHECK_RES(cuCtxSetCurrent(ctx), 0);
	CHECK_RES(cuCtxSynchronize(), 0);
	return NULL;
}

static void stack(void)
{
	CUcontext a, b, got;
	unsigned long long ida, idb;
	unsigned version, flags;
	pthread_t t;
	CUdevice dev;

	fake_reset();
	CHECK_RES(cuCtxPopCurrent_v2(&got), 201);
	CHECK_RES(cuCtxCreate_v2(&a, 0x100, 0), 1);
	CHECK_RES(cuCtxCreate_v2(&a, 3, 0), 1);
	CHECK_RES(cuCtxCreate_v2(&a, 0, 2), 101);
	CHECK_RES(cuCtxCreate_v2(&a, 4, 0), 0);
	CHECK_RES(cuCtxCreate_v2(&b, 0, 1), 0);
	CHECK_RES(cuCtxGetDevice(&dev), 0);
	CHECK(dev == 1);
	CHECK_RES(cuCtxPopCurrent_v2(&got), 0);
	CHECK(got == b);
	CHECK_RES(cuCtxGetCurrent(&got), 0);
	CHECK(got == a);
	CHECK_RES(cuCtxGetFlags(&flags), 0);
	CHECK(flags == 4);
	CHECK_RES(cuCtxGetId(NULL, &ida), 0);
	CHECK_RES(cuCtxGetId(b, &idb), 0);
	CHECK(ida && idb && ida != idb);
	CHECK_RES(cuCtxGetApiVersion(b, &version), 0);
	CHECK(version == 3020);
	CHECK_RES(cuCtxGetDevice_v2(&dev, b), 0);
	CHECK(dev == 1);
	CHECK_RES(cuCtxSynchronize_v2(b), 0);
	CHECK(fake.last_ctx != cw_current_ctx_id() && cw_current_ctx_id() != 0);
	CHECK_RES(cuCtxPushCurrent_v2(b), 0);
	CHECK_RES(cuCtxSetCurrent(a), 0); /* replaces the top */
	CHECK_RES(cuCtxPopCurrent_v2(NULL), 0);
	CHECK_RES(cuCtxPopCurrent_v2(&got), 0);
	CHECK(got == a);
	CHECK_RES(cuCtxPopCurrent_v2(&got), 201);
	CHECK_RES(cuCtxPushCurrent_v2((CUcontext)(uintptr_t)0x1234), 201);
	CHECK_RES(cuCtxSetCurrent((CUcontext)(uintptr_t)0x7fffffff0000), 201);
	CHECK(pthread_create(&t, NULL, other_thread, a) == 0 && pthread_join(t, NULL) == 0);

	/* destroyed while current elsewhere on the stack */
	CHECK_RES(cuCtxPushCurrent_v2(a), 0);
	CHECK_RES(cuCtxPushCurrent_v2(b), 0);
	CHECK_RES(cuCtxDestroy_v2(a), 0);
	CHECK_RES(cuCtxDestroy_v2(a), 201);
	CHECK_RES(cuCtxDestroy_v2(b), 0); /* current: popped */
	CHECK_RES(cuCtxGetCurrent(&got), 0);
	CHECK(got == a);
	CHECK_RES(cuCtxSynchronize(), 709);
	CHECK_RES(cuCtxSetCurrent(NULL), 0);
	CHECK_RES(cuCtxSetCurrent(b), 201);
	CHECK_RES(cuCtxDestroy_v2(NULL), 201);
	for (int i = 0; i < 100; i++) { /* the stack is bounded, not the heap */
		if (cuDevicePrimaryCtxRetain(&a, 1) || cuCtxPushCurrent_v2(a))
			break;
	}
	CHECK_RES(cuCtxPushCurrent_v2(a), 2);
	while (cuCtxPopCurrent_v2(NULL) == 0)
		;
	CHECK_RES(cuDevicePrimaryCtxReset_v2(1), 0);
}

static void storage(void)
{
	const struct storage *s = storage_table();
	CUcontext ctx;
	int key1, key2;
	void *v = NULL;

	fake_reset();
	CHECK(s->end == NULL);
	CHECK_RES(s->get(&v, NULL, &key1), 201);
	CHECK_RES(cuCtxCreate_v2(&ctx, 0, 0), 0);
	CHECK(s->get(&v, NULL, &key1) != 0);
	CHECK_RES(s->put(NULL, &key1, &key2, on_destroy), 0);
	CHECK_RES(s->get(&v, NULL, &key1), 0);
	CHECK(v == &key2);
	CHECK(s->get(&v, NULL, &key2) != 0);
	CHECK_RES(s->put(ctx, &key1, &key1, on_destroy), 0); /* replaces */
	CHECK_RES(s->get(&v, ctx, &key1), 0);
	CHECK(v == &key1);
	CHECK_RES(s->delete(NULL, &key1), 0);
	CHECK(s->delete(NULL, &key1) != 0);
	CHECK(s->get(&v, ctx, &key1) != 0 && destroyed == 0);
	CHECK_RES(s->put(ctx, &key1, &key1, on_destroy), 0);
	CHECK_RES(s->put(ctx, &key2, &key2, NULL), 0);
	CHECK_RES(cuCtxDestroy_v2(ctx), 0);
	CHECK(destroyed == 1 && destroyed_with_key == &key1);
	/* and with the reset of a primary context */
	CHECK_RES(cuDevicePrimaryCtxRetain(&ctx, 0), 0);
	CHECK_RES(s->put(ctx, &key1, &key2, on_destroy), 0);
	CHECK_RES(cuDevicePrimaryCtxReset_v2(0), 0);
	CHECK(destroyed == 2 && s->get(&v, ctx, &key1) != 0);
}

static void events_and_streams(void)
{
	CUcontext a, b, got;
	CUstream s, t;
	CUevent e, f, g;
	unsigned long long id1, id2;
	float ms;
	int prio, least, greatest;

	fake_reset();
	CHECK_RES(cuEventCreate(&e, 0), 201);
	CHECK_RES(cuCtxCreate_v2(&a, 0, 0), 0);
	CHECK_RES(cuStreamCreate(&s, 2), 1);
	CHECK_RES(cuStreamCreate(NULL, 0), 1);
	CHECK_RES(cuStreamCreateWithPriority(&s, 1, -100), 0);
	CHECK_RES(cuStreamGetPriority(s, &prio), 0);
	CHECK(prio == -5);
	CHECK_RES(cuCtxGetStreamPriorityRange(&least, &greatest), 0);
	CHECK(least == 0 && greatest == -5);
	CHECK_RES(cuStreamGetId(s, &id1), 0);
	CHECK_RES(cuStreamGetId(NULL, &id2), 0);
	CHECK(id1 != id2);
	CHECK_RES(cuStreamGetId_ptsz(NULL, &id1), 0);
	CHECK(id1 != id2);
	CHECK_RES(cuStreamGetCtx(s, &got), 0);
	CHECK(got == a);
	CHECK_RES(cuEventCreate(&e, 8), 1);
	CHECK_RES(cuEventCreate(&e, 4), 1); /* interprocess needs timing off */
	CHECK_RES(cuEventCreate(&e, 6), 0);
	CHECK_RES(cuEventQuery(e), 0);
	CHECK(fake.count[CW_OP_EVENT_QUERY] == 1); /* another process may have recorded it */
	CHECK_RES(cuEventDestroy_v2(e), 0);
	fake.count[CW_OP_EVENT_QUERY] = 0;
	CHECK_RES(cuEventCreate(&e, 0), 0);
	CHECK_RES(cuEventCreate(&f, 0), 0);
	CHECK_RES(cuEventCreate(&g, 2), 0);
	/* never recorded: complete, nothing to wait for, no time */
	CHECK_RES(cuEventQuery(e), 0);
	CHECK_RES(cuStreamWaitEvent(s, e, 0), 0);
	CHECK(fake.count[CW_OP_EVENT_QUERY] == 0 && fake.count[CW_OP_STREAM_WAIT_EVENT] == 0);
	CHECK_RES(cuEventElapsedTime(&ms, e, f), 400);
	CHECK_RES(cuEventRecord(e, s), 0);
	CHECK_RES(cuEventRecord(f, NULL), 0);
	CHECK_RES(cuEventRecordWithFlags(f, NULL, 1), 1);
	CHECK_RES(cuEventElapsedTime(&ms, e, f), 0);
	CHECK_RES(cuEventElapsedTime(&ms, e, g), 400);
	CHECK_RES(cuStreamWaitEvent(s, e, 0), 0);
	CHECK(fake.count[CW_OP_STREAM_WAIT_EVENT] == 1);
	CHECK_RES(cuStreamDestroy_v2(NULL), 400);
	CHECK_RES(cuStreamDestroy_v2((CUstream)2), 400);
	CHECK_RES(cuStreamQuery((CUstream)e), 400); /* another kind of handle */
	CHECK_RES(cuEventQuery((CUevent)s), 400);
	CHECK_RES(cuEventQuery(NULL), 400);
	/* other contexts' streams and events do not mix */
	CHECK_RES(cuCtxCreate_v2(&b, 0, 1), 0);
	CHECK_RES(cuStreamCreate(&t, 0), 0);
	CHECK_RES(cuEventRecord(e, t), 400);
	CHECK_RES(cuEventRecord(e, NULL), 400);
	CHECK_RES(cuEventRecord(e, s), 0);
	CHECK_RES(cuEventDestroy_v2(e), 0);
	CHECK_RES(cuEventDestroy_v2(e), 400);
	CHECK_RES(cuStreamDestroy_v2(s), 0);
	CHECK_RES(cuStreamSynchronize(s), 400);
	CHECK_RES(cuCtxDestroy_v2(a), 0);
	CHECK_RES(cuEventQuery(f), 400);
	CHECK_RES(cuStreamQuery(t), 0);
	CHECK_RES(cuCtxDestroy_v2(b), 0);
}

static void memory_operations(void)
{
	struct {
		uint32_t op, pad;
		uint64_t addr, value;
		uint32_t flags, pad2;
		uint64_t rest[2];
	} ops[3] = {{.op = 2, .addr = 0x1000, .value = 1}, {.op = 6}, {.op = 4, .addr = 0x1008, .value = 2, .flags = 1}};
	CUcontext a;

	fake_reset();
	CHECK_RES(cuCtxCreate_v2(&a, 0, 0), 0);
	CHECK_RES(cuStreamWriteValue32_v2(NULL, 0x1002, 1, 0), 1);
	CHECK_RES(cuStreamWriteValue64_v2(NULL, 0x1004, 1, 0), 1);
	CHECK_RES(cuStreamWriteValue32_v2(NULL, 0x1004, 1, 2), 1);
	CHECK_RES(cuStreamWaitValue32_v2(NULL, 0x1004, 1, 4), 1);
	/* A flush, which no device promises. */
	CHECK_RES(cuStreamWaitValue32_v2(NULL, 0x1004, 1, 1u << 30 | 3), 801);
	CHECK_RES(cuStreamWaitValue32_v2(NULL, 0x1004, 1, 3), 0);
	CHECK_RES(cuStreamBatchMemOp_v2(NULL, 3, (CUstreamBatchMemOpParams *)ops, 0), 0);
	CHECK(fake.count[CW_OP_STREAM_WRITE_VALUE] == 1 && fake.count[CW_OP_STREAM_WAIT_VALUE] == 2);
	ops[2].op = 9; /* nothing of a bad batch is sent */
	CHECK_RES(cuStreamBatchMemOp_v2(NULL, 3, (CUstreamBatchMemOpParams *)ops, 0), 1);
	CHECK(fake.count[CW_OP_STREAM_WRITE_VALUE] == 1);
	CHECK_RES(cuStreamBatchMemOp_v2(NULL, 257, (CUstreamBatchMemOpParams *)ops, 0), 1);
	CHECK_RES(cuCtxDestroy_v2(a), 0);
}

int main(void)
{
	setenv("CAUSEWAY_MANAGED", "gpu", 1);
	before_init();
	both_sides();
	primary();
	stack();
	storage();
	events_and_streams();
	memory_operations();
	return fake.failures != 0;
}

/* A synchronous copy of ordinary memory to the device begins when the default stream has done its
 * work, and asks nobody where the thread knows. */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "api/capture.h"
#include "memory/memory.h"
#include "gen/entries.h"
#include "session/internal.h"
#include "session/tests/fake_worker.h"

static _Atomic int *waits; /* for streams and contexts, in the worker's process */
/* A stream captures in global mode: waits in another mode than the relaxed one are refused, and
 * counted. */
static _Atomic int *refuses;

static int counted(struct fake_call *c)
{
	static uint32_t mode;
	int wait = c->rec->op == CW_OP_STREAM_SYNCHRONIZE || c->rec->op == CW_OP_CTX_SYNCHRONIZE;
	*waits += wait;
	if (c->rec->op == CW_OP_THREAD_CAPTURE_MODE) {
		memcpy(&mode, c->fixed, sizeof mode);
		return 0;
	}
	if (*refuses && wait && mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
		++*refuses;
		c->result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		return 0;
	}
	return fake_device(c);
}

static CUdeviceptr memory;
static uint8_t bytes[300000], back[300000];
static const CUstream slow = (CUstream)(uintptr_t)1;

/* Has the stream that the default one waits for fill the memory: when somebody waits, not
 * before. */
static void give_work(void) { CHECK(cwop_Memset(memory, 0, 0xee, 1, sizeof bytes, 1, FAKE_SLOW_STREAM) == 0); }

static CUresult copy_box(size_t n, int async)
{
	CUDA_MEMCPY2D p = {.srcMemoryType = CU_MEMORYTYPE_HOST,
			   .srcHost = bytes,
			   .srcPitch = n / 2 + 8,
			   .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			   .dstDevice = memory,
			   .dstPitch = n / 2,
			   .WidthInBytes = n / 2,
			   .Height = 2};
	return async ? cwi_cuMemcpy2DAsync_v2(0, &p, slow) : cwi_cuMemcpy2D_v2(0, &p);
}

static CUresult copy(size_t n, int box) { return box ? copy_box(n, 0) : cwi_cuMemcpyHtoD_v2(0, memory, bytes, n); }

/* Whatever the size and the shape, what the stream did before is done before; and a copy that
 * follows finds it idle. */
static void begins_behind(void)
{
	static const size_t sizes[] = {2, 4096, 20000, 64 << 10, 200000};
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
		for (int box = 0; box < 2; box++) {
			size_t n = sizes[i];
			give_work();
			CHECK(copy(n, box) == 0 && cwi_cuMemcpyDtoH_v2(0, back, memory, sizeof back) == 0);
			size_t row = box ? n / 2 : n;
			CHECK(memcmp(back, bytes, row) == 0 && (!box || memcmp(back + row, bytes + row + 8, row) == 0));
			CHECK(back[n] == 0xee && back[sizeof back - 1] == 0xee);
			int before = *waits;
			if (n <= CW_EARLY_MOST && !box)
				CHECK(copy(n, box) == 0 && copy(n, box) == 0 && *waits == before);
		}
}

/* What makes a stream known to be idle, and what ends that. */
static void known(void)
{
	uint32_t word;
	CHECK(cw_ctx_wait() == 0);
	int before = *waits;
	CHECK(copy(100, 0) == 0 && *waits == before); /* after the context's wait */
	give_work();
	CHECK(copy(100, 0) == 0 && *waits == ++before);
	give_work();
	CHECK(cw_stream_wait(1) == 0 && *waits == ++before);
	CHECK(copy(100, 0) == 0 && *waits == before); /* after the stream's own */
	give_work();
	CHECK(cwi_cuMemcpyDtoH_v2(0, &word, memory, sizeof word) == 0);
	/* After a copy from the device, which waits for all that is before it. */
	CHECK(copy(100, 0) == 0 && *waits == before);
	CHECK(cwi_cuMemcpyHtoDAsync_v2(0, memory, bytes, 100, NULL) == 0);
	CHECK(copy(100, 0) == 0 && *waits == ++before); /* an asynchronous copy is work */
	CHECK(copy_box(100, 1) == 0);
	CHECK(copy(100, 0) == 0 && *waits == ++before);
	cw_set_current_ctx_id(6);
	/* Another context's default stream is another. */
	CHECK(copy(100, 0) == 0 && *waits == ++before);
	cw_set_current_ctx_id(5);
	CHECK(copy(100, 0) == 0 && *waits == ++before);
	/* So is the thread's own. */
	CHECK(cwi_cuMemcpyHtoD_v2(1, memory, bytes, 100) == 0 && *waits == ++before);
	give_work();
	CHECK(cwop_StreamSynchronize(7) == 0 && *waits == ++before);
	CHECK(copy(100, 0) == 0 && *waits == ++before); /* and any other stream */
}

static void *gives_work(void *arg)
{
	(void)arg;
	cw_set_current_ctx_id(5);
	give_work();
	return NULL;
}

static void another_thread(void)
{
	pthread_t t;
	CHECK(cw_ctx_wait() == 0);
	CHECK(pthread_create(&t, NULL, gives_work, NULL) == 0 && pthread_join(t, NULL) == 0);
	CHECK(copy(4096, 0) == 0 && cwi_cuMemcpyDtoH_v2(0, back, memory, 4097) == 0);
	CHECK(memcmp(back, bytes, 4096) == 0 && back[4096] == 0xee);
}

/* While another stream captures, copies wait as ever, and what a program waits for is refused. */
static void beside_capture(void)
{
	cw_captures = 1;
	*refuses = 1;
	begins_behind();
	give_work();
	CHECK(cwop_StreamSynchronize(1) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && *refuses == 2);
	CHECK(cw_stream_wait(1) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && *refuses == 3);
	CHECK(cw_own_wait(1) == 0 && *refuses == 3);
	cw_captures = 0;
	*refuses = 0;
}

static int fetches(CUstream stream) { return (int)cwi_cuMemcpyDtoHAsync_v2(0, back, memory, 4, stream); }

/* Where replies are the worker's own, a wait for a stream right behind bytes that came from it
 * needs no request, once. */
static void comes(void)
{
	uint64_t caps = cw_s.info.caps;
	CHECK(fetches(NULL) == 0 && !cw_has_come(1)); /* a GPU may have answered */
	cw_s.info.caps &= ~(uint64_t)CW_CAP_MAP;
	CHECK(fetches(NULL) == 0 && cw_has_come(1) && !cw_has_come(1));
	CHECK(fetches(slow) == 0 && cw_has_come((uint32_t)(uintptr_t)slow));
	CHECK(fetches(NULL) == 0 && !cw_has_come(2) && !cw_has_come(1));
	CHECK(fetches(NULL) == 0);
	give_work();
	CHECK(!cw_has_come(1));
	CHECK(fetches(NULL) == 0);
	cw_set_current_ctx_id(6);
	CHECK(!cw_has_come(1));
	cw_set_current_ctx_id(5);
	CHECK(fetches(NULL) == 0);
	cw_captures = 1;
	CHECK(!cw_has_come(1));
	cw_captures = 0;
	uint64_t work = cw_work();
	CHECK(cw_came(CUDA_ERROR_INVALID_VALUE, 1, work) == CUDA_ERROR_INVALID_VALUE && !cw_has_come(1));
	CHECK(fetches(NULL) == 0 && cw_came(CUDA_ERROR_INVALID_VALUE, 1, work) != 0 && !cw_has_come(1));
	cw_s.info.caps = (__typeof__(cw_s.info.caps))caps;
}

int main(void)
{
	setenv("CAUSEWAY_LOG", "none", 1);
	waits = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	refuses = waits + 1;
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)(i * 7 + i / 251 + 1);
	struct fake_options o = {.handler = counted, .caps = CW_CAP_MAP, .sleep_after_us = 50};
	pid_t w = fake_worker_start(&o);
	CHECK(cw_session_open() == 0);
	cw_set_current_ctx_id(5);
	CHECK(cwi_cuMemAlloc_v2(&memory, sizeof bytes + 8) == 0);
	begins_behind();
	known();
	another_thread();
	beside_capture();
	comes();
	CHECK(cwi_cuMemFree_v2(memory) == 0);
	fake_worker_kill(w);
	return 0;
}

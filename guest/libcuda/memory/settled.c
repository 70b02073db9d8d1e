/*
 * What a thread knows of its default stream: that it had done all it was given when the process had
 * given its streams so much work. Kept for one stream and context, those that the thread waited for
 * last. Anything new makes it unknown again, for it may be on a stream that the default stream
 * waits for; where it is not, that costs an idle stream's wait, no more.
 */
#include "api/capture.h"
#include "memory/memory.h"
#include "gen/ops.h"

enum { EVERY = 0, LEGACY = 1 /* CU_STREAM_LEGACY */, PER_THREAD = 2 /* CU_STREAM_PER_THREAD */ };

static __thread struct {
	uint64_t work;
	uint32_t ctx, stream;
} idle __attribute__((tls_model("initial-exec")));

CUresult cw_waited(CUresult res, uint32_t stream, uint64_t work)
{
	cw_heard(res);
	if (cw_unlikely(atomic_load_explicit(&cw_owed, memory_order_relaxed) != 0) && res == 0)
		return (CUresult)atomic_exchange(&cw_owed, 0);
	if (res == 0 && (stream == EVERY || stream == LEGACY || stream == PER_THREAD)) {
		idle.work = work;
		idle.ctx = cw_current_ctx_id();
		idle.stream = stream;
	}
	return res;
}

/* Of the last copy whose bytes came inside a reply. */
static __thread struct {
	uint64_t work;
	uint32_t ctx, stream; /* 0: the stream has been waited for since */
} came __attribute__((tls_model("initial-exec")));

CUresult cw_came(CUresult res, uint32_t stream, uint64_t work)
{
	came.work = work;
	came.ctx = cw_current_ctx_id();
	came.stream = res == 0 && !cw_can_map() ? stream : 0;
	return cw_waited(res, stream, work);
}

int cw_has_come(uint32_t stream)
{
	int yes = came.stream == stream && came.work == cw_work() && came.ctx == cw_current_ctx_id() && !cw_capture_any();
	came.stream = 0;
	return yes;
}

CUresult cw_stream_wait(uint32_t stream)
{
	uint64_t work = cw_work();
	return cw_waited(cwop_StreamSynchronize(stream), stream, work);
}

CUresult cw_ctx_wait(void)
{
	uint64_t work = cw_work();
	CUresult res = cw_waited(cwop_CtxSynchronize(), EVERY, work);
	if (cw_unlikely(atomic_load_explicit(&cw_copies, memory_order_relaxed) != 0) && res == 0)
		cw_traced_waited(work);
	return res;
}

CUresult cw_own_wait(uint32_t stream)
{
	if (cw_likely(!cw_capture_any()))
		return cw_stream_wait(stream);
	int mode = cw_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
	CUresult res = cw_stream_wait(stream);
	cw_capture_mode(mode);
	return res;
}

CUresult cw_copy_begin(uint32_t stream, int wait)
{
	if (!wait) {
		cw_work_add();
		return CUDA_SUCCESS;
	}
	if (idle.work == cw_work() && idle.ctx == cw_current_ctx_id() && (idle.stream == stream || idle.stream == EVERY))
		return CUDA_SUCCESS;
	return cw_own_wait(stream);
}

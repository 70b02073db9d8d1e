/* What memory/ asks of api/, for tests that link without it: one context on device 0. */
#include <pthread.h>

#include "api/api.h"
#include "api/callback.h"
#include "api/capture.h"
#include "api/context.h"

struct cw_settings cw_settings;

static struct cw_device device = {.ordinal = 0};
static struct cw_ctx ctx = {.o = {.kind = CW_KIND_CTX, .id = 5}, .device = &device};

CUresult cw_ctx_current(struct cw_ctx **c)
{
	*c = &ctx;
	if (cw_current_ctx_id() == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	return CUDA_SUCCESS;
}

CUresult cw_ctx_resolve(CUcontext handle, struct cw_ctx **c)
{
	(void)handle;
	return cw_ctx_current(c);
}

_Atomic uint32_t cw_captures;

CUresult cw_capture_copy(uint32_t stream, int direct, int wait, int *pageable)
{
	(void)stream, (void)direct, (void)wait;
	*pageable = 0;
	return CUDA_SUCCESS;
}

CUresult cw_capture_pageable(const struct cw_operand *dst, const struct cw_operand *src, size_t size, uint32_t stream)
{
	(void)dst, (void)src, (void)size, (void)stream;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cw_capture_unsafe(void) { return CUDA_SUCCESS; }

int cw_capture_mode(int mode)
{
	static int now = CU_STREAM_CAPTURE_MODE_GLOBAL;
	int old = now;
	now = mode;
	cwop_ThreadCaptureMode((uint32_t)mode);
	return old;
}

CUresult cw_capture_status(uint32_t stream, int *active)
{
	(void)stream;
	*active = 0;
	return CUDA_SUCCESS;
}

CUresult cw_settle(CUresult res, uint32_t stream)
{
	(void)stream;
	return res;
}

struct cw_device *cw_device_get(CUdevice dev) { return dev == 0 ? &device : NULL; }

int cw_device_count(void) { return 1; }

/* The device promises that both may use managed memory at once: it stays in the process. */
int cw_device_attr(const struct cw_device *d, int attr)
{
	(void)d;
	return attr == CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
}

CUresult cw_no_device(void) { return CUDA_ERROR_INVALID_DEVICE; }

uint64_t cw_stream_next_uid(void)
{
	static _Atomic uint64_t next;
	return atomic_fetch_add(&next, 1) + 1;
}

CUresult cw_thread_start(void *(*run)(void *), void *arg)
{
	pthread_t t;
	return pthread_create(&t, NULL, run, arg) == 0 && pthread_detach(t) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

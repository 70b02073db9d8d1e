/*
 * cuMemcpy* in one dimension. A synchronous copy of few bytes of ordinary memory to the device
 * returns once they are staged; to ordinary memory every copy is synchronous, as on a real driver;
 * between pinned and device memory the asynchronous forms are that.
 */
#include "memory/memory.h"

enum { SYNC = 1, ASYNC = 0 };

/* The stream of a copy, with a current context. */
static CUresult begin(CUstream stream, int ptds, uint32_t *id)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	return res != 0 ? res : cw_stream_id(stream, ptds, id);
}

static CUresult run(CUresult res, const struct cw_operand *dst, const struct cw_operand *src, size_t size, uint32_t id, int wait)
{
	if (res == 0)
		res = cw_copy_linear(dst, src, size, id, wait);
	return wait ? res : cw_settle(res, id);
}

static CUresult to_device(CUdeviceptr dst, const void *src, size_t size, CUstream stream, int ptds, int wait)
{
	struct cw_operand d, s;
	uint32_t id;
	CUresult res = begin(stream, ptds, &id);
	if (res != 0 || size == 0)
		return res;
	res = cw_operands_of(dst, src, size, &d, &s);
	return run(res, &d, &s, size, id, wait);
}

static CUresult from_device(void *dst, CUdeviceptr src, size_t size, CUstream stream, int ptds, int wait)
{
	struct cw_operand d, s;
	uint32_t id;
	CUresult res = begin(stream, ptds, &id);
	if (res != 0 || size == 0)
		return res;
	res = cw_operands_of(src, dst, size, &s, &d);
	return run(res, &d, &s, size, id, wait);
}

static CUresult on_device(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream, int ptds, int wait)
{
	struct cw_operand d, s;
	uint32_t id;
	CUresult res = begin(stream, ptds, &id);
	if (res != 0 || size == 0)
		return res;
	res = cw_operand_device(dst, size, &d);
	if (res == 0)
		res = cw_operand_device(src, size, &s);
	return run(res, &d, &s, size, id, wait);
}

static CUresult unified(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream, int ptds, int wait)
{
	struct cw_operand d, s;
	uint32_t id;
	CUresult res = begin(stream, ptds, &id);
	if (res != 0 || size == 0)
		return res;
	res = cw_operand_any(dst, size, &d);
	if (res == 0)
		res = cw_operand_any(src, size, &s);
	return run(res, &d, &s, size, id, wait);
}

CUresult cwi_cuMemcpyHtoD_v2(int ptds, CUdeviceptr dst, const void *src, size_t size)
{
	return to_device(dst, src, size, NULL, ptds, SYNC);
}

CUresult cwi_cuMemcpyHtoDAsync_v2(int ptds, CUdeviceptr dst, const void *src, size_t size, CUstream stream)
{
	return to_device(dst, src, size, stream, ptds, ASYNC);
}

CUresult cwi_cuMemcpyDtoH_v2(int ptds, void *dst, CUdeviceptr src, size_t size) { return from_device(dst, src, size, NULL, ptds, SYNC); }

CUresult cwi_cuMemcpyDtoHAsync_v2(int ptds, void *dst, CUdeviceptr src, size_t size, CUstream stream)
{
	return from_device(dst, src, size, stream, ptds, ASYNC);
}

CUresult cwi_cuMemcpyDtoD_v2(int ptds, CUdeviceptr dst, CUdeviceptr src, size_t size)
{
	return on_device(dst, src, size, NULL, ptds, SYNC);
}

CUresult cwi_cuMemcpyDtoDAsync_v2(int ptds, CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
	return on_device(dst, src, size, stream, ptds, ASYNC);
}

CUresult cwi_cuMemcpy(int ptds, CUdeviceptr dst, CUdeviceptr src, size_t size) { return unified(dst, src, size, NULL, ptds, SYNC); }

CUresult cwi_cuMemcpyAsync(int ptds, CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
	return unified(dst, src, size, stream, ptds, ASYNC);
}

/* The contexts only say where the memory was made; under unified addressing the addresses say it
 * too. */
static CUresult contexts_ok(CUcontext dst, CUcontext src)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_resolve(dst, &c);
	return res != 0 ? res : cw_ctx_resolve(src, &c);
}

CUresult cwi_cuMemcpyPeer(int ptds, CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t size)
{
	CUresult res = contexts_ok(dst_ctx, src_ctx);
	return res != 0 ? res : on_device(dst, src, size, NULL, ptds, SYNC);
}

CUresult cwi_cuMemcpyPeerAsync(int ptds, CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t size,
			       CUstream stream)
{
	CUresult res = contexts_ok(dst_ctx, src_ctx);
	return res != 0 ? res : on_device(dst, src, size, stream, ptds, ASYNC);
}
